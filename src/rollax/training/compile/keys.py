"""Random keys for separate purposes, which share no random numbers for the same seed.

Training of a member, its evaluations and its offspring use the keys 0, 1 and 2 of
`split(key(seed), 3)`. Functions that run a trained policy fold a constant into the key that they
receive. Therefore, `rollax eval RUN --seed s` shares no initial state and no noise with a run of
seed s. The constants are large, because `fold_in(key, n)` is the n-th key of a split.
"""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp

ROLLBACK_TAG = int.from_bytes(b"back")
EVALUATION_TAG = int.from_bytes(b"eval")
RENDER_TAG = int.from_bytes(b"view")
ELITES_TAG = int.from_bytes(b"elit")
DEMONSTRATION_TAG = int.from_bytes(b"demo")


def training_key(seed: int) -> jax.Array:
    """Return the key for a member's training: parameters, environments, actions, minibatches."""
    return jax.random.split(jax.random.key(seed), 3)[0]


def evaluation_key(seed: int) -> jax.Array:
    """Return the key for all evaluations during a member's training."""
    return jax.random.split(jax.random.key(seed), 3)[1]


def offspring_key(seed: int) -> jax.Array:
    """Return the key for the offspring that replace a member in an evolving population."""
    return jax.random.split(jax.random.key(seed), 3)[2]


def rollback_key(seed: int, updates: int, rollback_index: int) -> jax.Array:
    """Return the key for a member's training after rollback `rollback_index` to the same update."""
    return jax.random.fold_in(
        jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), ROLLBACK_TAG), updates),
        rollback_index,
    )


def policy_evaluation_key(key: jax.Array) -> jax.Array:
    """Return the key for evaluation of a trained policy: `Policy.evaluate`, `rollax eval`."""
    return jax.random.fold_in(key, EVALUATION_TAG)


def render_key(key: jax.Array) -> jax.Array:
    """Return the key for rendered episodes: `rollax render`."""
    return jax.random.fold_in(key, RENDER_TAG)


def elite_evaluation_key(key: jax.Array) -> jax.Array:
    """Return the key for re-evaluation of the elites of an archive: `rollax eval`."""
    return jax.random.fold_in(key, ELITES_TAG)


def demonstration_key(key: jax.Array) -> jax.Array:
    """Return the key for recorded episodes: `rollax.record`, `rollax record`."""
    return jax.random.fold_in(key, DEMONSTRATION_TAG)


def stack_keys(make_key: Callable[[int], jax.Array], seeds: Sequence[int]) -> jax.Array:
    """Return the keys of P seeds, `[P]`.

    Key data is stacked, because `jax_debug_key_reuse` would count stacked keys as consumed.
    """
    data = [jax.random.key_data(make_key(seed)) for seed in seeds]
    return jax.random.wrap_key_data(jnp.stack(data))


def key_of_evaluation(key: jax.Array, updates: int, is_fresh: bool) -> jax.Array:
    """Return the key of one evaluation, or keys `[P]` of a population.

    Args:
        key: Key of all evaluations of a run, or keys `[P]`.
        updates: Number of updates before the evaluation.
        is_fresh: Whether each evaluation has other episodes.
    """
    if not is_fresh:
        return key
    fold = jax.vmap(jax.random.fold_in, (0, None)) if key.ndim else jax.random.fold_in
    return fold(key, updates)
