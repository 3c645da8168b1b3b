"""Shuffled minibatches of sequences from trajectories `[T, S]`.

The T steps of a stream are split into N = T / L sequences of L steps. Up to 16 neighboring streams
form a block, and the sequences of a block at the same time form a row. Neighboring blocks form
groups. Each epoch shuffles the rows within every group, and each minibatch takes the same number of
rows from every group. This has the following consequences:

- Each sequence is used once per epoch, and every minibatch covers all groups.
- Contiguous rows are copied instead of single samples.
- All samples stay on the device of their environment.

If a group consists of one block, every minibatch contains the same number of sequences of every
stream.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import optax

from rollax import tree
from rollax.errors import suggest_divisors, suggest_multiples
from rollax.scopes import profile_scope
from rollax.types import PyTree

# Maximum number of neighboring streams in a block, which are moved together. They belong to
# different environments or agents, so that their correlation is low, and moving them together saves
# most of the cost of sorting and gathering. Blocks are small enough that at least 64 groups are
# shuffled independently.
MAX_BLOCK_SIZE = 16
MIN_GROUPS = 64
MAX_RANKED_ROWS = 128  # up to this number of rows, all-pairs comparison is used instead of sorting


@runtime_checkable
class MinibatchConfig(Protocol):
    """Settings that divide a rollout into minibatches of sequences."""

    @property
    def num_steps(self) -> int: ...
    @property
    def sequence_length(self) -> int: ...
    @property
    def num_minibatches(self) -> int: ...
    @property
    def gradient_accumulation(self) -> int: ...


class MinibatchLayout(NamedTuple):
    """Layout of a rollout `[T, S]` for minibatches (see the module docstring).

    S is groups * parts * block_size, and T is num_sequences * length.

    Attributes:
        num_sequences: Number of sequences per stream.
        length: Number of steps of a sequence.
        groups: Number of groups of blocks. Rows are shuffled within each group.
        parts: Number of blocks per group.
        block_size: Number of neighboring streams in a block, which are moved together.
        num_minibatches: Number of minibatches per epoch.
    """

    num_sequences: int
    length: int
    groups: int
    parts: int
    block_size: int
    num_minibatches: int

    @property
    def rows(self) -> int:
        """Number of rows per group. A row is one sequence of each stream of a block."""
        return self.num_sequences * self.parts


def make_layout(
    num_steps: int,
    num_streams: int,
    sequence_length: int,
    num_minibatches: int,
    is_pooled: bool = False,
    gradient_accumulation: int = 1,
) -> MinibatchLayout:
    """Return the layout that divides rollouts into minibatches.

    >>> layout = make_layout(128, 2048, sequence_length=1, num_minibatches=32)
    >>> layout.groups, layout.rows, layout.block_size
    (128, 128, 16)

    Args:
        num_steps: Number of steps T of a rollout.
        num_streams: Number of streams S.
        sequence_length: Number of steps L of a sequence.
        num_minibatches: Number of minibatches per epoch.
        is_pooled: Whether to put all sequences into a single group with blocks of one stream, as
            prioritized sampling requires.
        gradient_accumulation: Number of equal parts into which each minibatch is divided.

    Returns:
        The layout.

    Raises:
        ValueError: If the rollout cannot be divided evenly. The message suggests valid sizes.
    """
    if num_steps % sequence_length:
        near = suggest_divisors(num_steps, sequence_length)
        raise ValueError(
            f"num_steps ({num_steps}) must be a multiple of sequence_length ({sequence_length}). "
            f"Use sequence_length {near} or num_steps "
            f"{suggest_multiples(num_steps, sequence_length)}."
        )
    sequences = num_steps // sequence_length
    parts = num_minibatches // math.gcd(sequences, num_minibatches)
    if num_streams % parts:
        raise ValueError(
            f"num_minibatches ({num_minibatches}) must split {num_streams} streams (num_envs x "
            f"agents) of {sequences} sequences each into equal parts. Use num_minibatches "
            f"{suggest_divisors(num_streams * sequences, num_minibatches)} or num_envs "
            f"{suggest_multiples(num_streams, parts)}."
        )
    size = num_streams * sequences // num_minibatches
    if size % gradient_accumulation:
        raise ValueError(
            f"gradient_accumulation ({gradient_accumulation}) must divide the {size} sequences of "
            f"a minibatch. Use {suggest_divisors(size, gradient_accumulation)}."
        )
    if is_pooled:
        return MinibatchLayout(sequences, sequence_length, 1, num_streams, 1, num_minibatches)
    blocks = num_streams // parts
    block = math.gcd(blocks, MAX_BLOCK_SIZE)
    while block > 1 and blocks // block < MIN_GROUPS:
        block //= 2
    return MinibatchLayout(
        sequences, sequence_length, blocks // block, parts, block, num_minibatches
    )


def make_minibatch_layout(config: MinibatchConfig, num_streams: int) -> MinibatchLayout:
    """Return the layout that divides rollouts of one parameter group into minibatches.

    Args:
        config: Settings with the sizes of rollouts and minibatches.
        num_streams: Number of streams that share the parameters.

    Returns:
        The layout.

    Raises:
        ValueError: If the rollout cannot be divided evenly into minibatches, or a minibatch into
            parts for gradient accumulation.
    """
    return make_layout(
        config.num_steps,
        num_streams,
        config.sequence_length,
        config.num_minibatches,
        gradient_accumulation=config.gradient_accumulation,
    )


@profile_scope("shuffling")
def to_rows(data: PyTree, layout: MinibatchLayout) -> Any:
    """Reshape `[T, S, ...]` or `[N, S, ...]` to `[rows, groups, length, block_size, ...]`.

    Args:
        data: Pytree of arrays with one value per step, `[T, S, ...]`, or one value per sequence,
            `[N, S, ...]`.
        layout: Layout of the rollout.

    Returns:
        The reshaped arrays. `length` is 1 for arrays with one value per sequence.
    """

    def convert(x: jax.Array) -> jax.Array:
        features = x.shape[2:]
        length = x.shape[0] // layout.num_sequences
        x = x.reshape(
            layout.num_sequences, length, layout.groups, layout.parts, layout.block_size, *features
        )
        x = jnp.moveaxis(x, (3, 2), (1, 2))  # sequences, parts, groups, length, block
        return x.reshape(layout.rows, layout.groups, length, layout.block_size, *features)

    return jax.tree.map(convert, data)


def rank_columns(numbers: jax.Array) -> jax.Array:
    """Return the rank of each number within its column, int32 `[n, groups]`.

    Equal numbers are ranked by their index, so the ranks of a column are a permutation. On CPUs,
    the n^2 comparisons take at most a quarter of the time of sorting if n is small.

    Args:
        numbers: Nonnegative numbers, int32 `[n, groups]`.
    """
    index = jnp.arange(numbers.shape[0])[:, None]

    def count(row: jax.Array, before: jax.Array) -> jax.Array:
        # Subtracting 1 breaks ties by order with a single comparison, which is vectorized.
        return before + (numbers[row][None] - (row < index) < numbers)

    return jax.lax.fori_loop(
        0, numbers.shape[0], count, jnp.zeros(numbers.shape, jnp.int32), unroll=8
    )


@profile_scope("shuffling")
def shuffle_rows(key: jax.Array, layout: MinibatchLayout) -> jax.Array:
    """Return a random permutation of the rows of each group, split into minibatches.

    Args:
        key: Random key.
        layout: Layout of the rollout.

    Returns:
        Row indices of each minibatch and group, int32 `[num_minibatches, rows / num_minibatches,
        groups]`.
    """
    bits = jax.random.bits(key, (layout.rows * layout.groups,)).reshape(
        layout.rows, layout.groups
    )  # random bits of one axis compile faster
    order = (
        rank_columns((bits >> 1).astype(jnp.int32))
        if layout.rows <= MAX_RANKED_ROWS
        else jnp.argsort(bits, axis=0)
    )
    return order.reshape(layout.num_minibatches, -1, layout.groups)


@profile_scope("shuffling")
def gather_minibatch(data: PyTree, order: jax.Array) -> Any:
    """Gather one minibatch `[L, B, ...]`.

    Args:
        data: Pytree of arrays `[rows, groups, L, block_size, ...]`, as returned by `to_rows`.
        order: Row indices of the minibatch in each group, int32 `[rows / num_minibatches, groups]`.

    Returns:
        The minibatch, with B sequences of L steps.
    """

    def gather(x: jax.Array) -> jax.Array:
        length, block, features = x.shape[2], x.shape[3], x.shape[4:]
        flat = x.reshape(*x.shape[:2], -1)
        picked = jnp.take_along_axis(flat, order[..., None], axis=0, mode="promise_in_bounds")
        picked = picked.reshape(*order.shape, length, block, *features)
        # With groups as the leading axis, the samples of a device are contiguous and stay there.
        return jnp.moveaxis(picked, (2, 1), (0, 1)).reshape(length, -1, *features)

    return jax.tree.map(gather, data)


def accumulate_gradients(
    loss: Callable[[PyTree, PyTree], tuple[jax.Array, dict[str, jax.Array]]],
    parameters: PyTree,
    minibatch: PyTree,
    num_parts: int,
) -> tuple[Any, dict[str, jax.Array]]:
    """Return the gradient of a loss over a minibatch, as the mean of the gradients of its parts.

    The parts are processed one after the other, so memory for activations is that of one part.

    Args:
        loss: Function `(parameters, minibatch)` that returns the loss and its metrics.
        parameters: Parameters.
        minibatch: Minibatch of B sequences, `[L, B, ...]`.
        num_parts: Number of parts of equal size, a divisor of B.

    Returns:
        The gradient and the metrics, which are means over the parts, with the norm of the gradient
        as "grad_norm".
    """
    gradient_fn = jax.grad(loss, has_aux=True)
    if num_parts == 1:
        gradient, metrics = gradient_fn(parameters, minibatch)
        return gradient, metrics | {"grad_norm": optax.tree.norm(gradient)}

    def split(x: jax.Array) -> jax.Array:
        # Each part takes every k-th sequence, which divides the samples of each device.
        parts = x.reshape(x.shape[0], x.shape[1] // num_parts, num_parts, *x.shape[2:])
        return jnp.moveaxis(parts, 2, 0)

    parts = jax.tree.map(split, minibatch)
    shapes = jax.eval_shape(gradient_fn, parameters, jax.tree.map(lambda x: x[0], parts))
    total, _ = jax.lax.scan(
        lambda total, part: (jax.tree.map(jnp.add, total, gradient_fn(parameters, part)), None),
        jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes),
        parts,
    )
    gradient, metrics = jax.tree.map(lambda x: x / num_parts, total)
    return gradient, metrics | {"grad_norm": optax.tree.norm(gradient)}


# Whether the actor and a separate critic are trained: bool [] for the keys "actor" and "critic".
ActiveParts = dict[str, jax.Array]
# (training state, row indices of a minibatch, active parts) -> (training state, metrics)
MinibatchFn = Callable[[Any, jax.Array, ActiveParts], tuple[Any, dict[str, jax.Array]]]


def run_epochs(
    minibatch: MinibatchFn,
    learner: PyTree,
    layout: MinibatchLayout,
    key: jax.Array,
    actor_epochs: int,
    critic_epochs: int,
    target_kl: jax.Array | float,
    shuffle: Callable[[jax.Array, MinibatchLayout], jax.Array] = shuffle_rows,
) -> tuple[Any, dict[str, jax.Array]]:
    """Update the training state on all minibatches of several epochs, and shuffle each epoch.

    The training of the policy stops before `actor_epochs` if the metric "approx_kl" of an epoch
    exceeds `target_kl`.

    Args:
        minibatch: Function `(learner, order, active)` that updates the training state from the
            minibatch with the row indices `order`. It returns the training state and metrics,
            including "approx_kl". `active` states whether the "actor" and the "critic" are trained.
        learner: Training state.
        layout: Layout of the rollout.
        key: Random key.
        actor_epochs: Maximum number of epochs of the policy.
        critic_epochs: Number of epochs of a separate critic, or 0 without a separate critic.
        target_kl: KL divergence above which the training of the policy stops.
        shuffle: Function `(key, layout)` that returns the row indices of an epoch, in the format of
            `shuffle_rows`.

    Returns:
        The training state, and the means of the metrics over the last epoch. The metric "epochs" is
        the number of epochs of the policy.
    """

    def active(index: jax.Array, stop: jax.Array) -> dict[str, jax.Array]:
        return {"actor": index < stop, "critic": index < critic_epochs}

    def unfinished(index: jax.Array, stop: jax.Array) -> jax.Array:
        return (index < critic_epochs) | (index < stop)

    def epoch(
        loop: tuple[jax.Array, jax.Array, PyTree, PyTree],
    ) -> tuple[jax.Array, jax.Array, Any, Any]:
        index, stop, learner, before = loop
        orders, now = shuffle(jax.random.fold_in(key, index), layout), active(index, stop)
        learner, metrics = jax.lax.scan(lambda c, order: minibatch(c, order, now), learner, orders)
        metrics = tree.where(unfinished(index, stop), jax.tree.map(jnp.mean, metrics), before)
        stop = jnp.where(metrics["approx_kl"] > target_kl, jnp.minimum(stop, index + 1), stop)
        return index + 1, stop, learner, metrics

    index, stop = jnp.zeros((), jnp.int32), jnp.asarray(actor_epochs, jnp.int32)
    shapes = jax.eval_shape(
        lambda learner: minibatch(learner, shuffle(key, layout)[0], active(index, stop))[1], learner
    )
    empty = jax.tree.map(lambda s: jnp.zeros((), s.dtype), shapes)
    loop = jax.lax.while_loop(
        lambda loop: tree.any_member(unfinished(*loop[:2])), epoch, (index, stop, learner, empty)
    )
    _, stop, learner, metrics = loop
    return learner, {**metrics, "epochs": stop.astype(jnp.float32)}
