"""Descriptors of behavior: what an episode was like, apart from its return, in a few numbers.

A `DescribedEnvironment` describes each of its states, `[D]`. An `Extraction` makes one descriptor of those of an episode, while
the episode is played, so that nothing but what it needs is kept. States are described after every step and before any reset:
an episode of T steps has T of them, and the last is where it ended.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rollax import tree
from rollax.environments.core import EXTRACTIONS, Environment, descriptor_space
from rollax.errors import UnknownNameError, UsageError


class Extraction(NamedTuple):
    """How the descriptors of an episode's states become that of the episode. Functions of one episode."""

    start: Callable[[jax.Array, int], Any]  # (zeros [D], the most steps T) -> memory
    # (memory, descriptor [D], step from 0, whether the episode still goes on at this step) -> memory
    add: Callable[[Any, jax.Array, jax.Array, jax.Array], Any]
    finish: Callable[[Any, jax.Array], jax.Array]  # (memory, steps of the episode) -> [K]


# The last state of the episode: where it led to.
FINAL = Extraction(
    start=lambda zeros, max_steps: zeros,
    add=lambda memory, descriptor, step, alive: jnp.where(alive, descriptor, memory),
    finish=lambda memory, length: memory,
)

# The mean over the states of the episode: of booleans it is the share of time.
MEAN = Extraction(
    start=lambda zeros, max_steps: zeros,
    add=lambda memory, descriptor, step, alive: memory + jnp.where(alive, descriptor, 0.0),
    finish=lambda memory, length: memory / jnp.maximum(length, 1),
)

_NAMED = dict(zip(EXTRACTIONS, (FINAL, MEAN), strict=True))


def whole(function: Callable[[jax.Array, jax.Array], jax.Array]) -> Extraction:
    """A function of all descriptors of an episode and its mask, `([T, D], bool [T]) -> [K]`, as an extraction.

    T is the most steps an episode may have; descriptors where the mask is False are 0. All T are kept until the end.
    """

    def finish(memory: jax.Array, length: jax.Array) -> jax.Array:
        mask = jnp.arange(memory.shape[0]) < length
        return function(jnp.where(mask[:, None], memory, 0.0), mask)

    return Extraction(
        start=lambda zeros, max_steps: jnp.broadcast_to(zeros, (max_steps, *zeros.shape)),
        # What comes after the end is left out by the mask, so that a step writes one row and copies none.
        add=lambda memory, descriptor, step, alive: memory.at[step].set(descriptor),
        finish=finish,
    )


Choice = str | Extraction | Callable[[jax.Array, jax.Array], jax.Array] | None


class Describing(NamedTuple):
    """An extraction for N episodes of an environment side by side."""

    start: Callable[[int], Any]  # N -> memory
    add: Callable[[Any, Any, jax.Array, jax.Array], Any]  # (memory, states [N], step, alive [N]) -> memory
    finish: Callable[[Any, jax.Array], Any]  # (memory, lengths [N]) -> [N, K]


_NOTHING = Describing(lambda number: None, lambda memory, states, step, alive: None, lambda memory, length: None)


def describing(environment: Environment, choice: Choice, max_steps: int) -> Describing:
    """The descriptors of whole episodes; None where the environment has none and none are asked for.

    `choice`: "final", "mean", a function of all descriptors and the mask (`whole`), an `Extraction`, or None for the
    environment's own.

    Raises: UsageError when the environment describes no behavior; UnknownNameError for an unknown extraction.
    """
    space, described = descriptor_space(environment), environment
    if space is None:
        if choice is None:
            return _NOTHING
        raise UsageError(
            f"{environment.name} does not describe behavior, so there is no descriptor to extract: leave it off, or give the "
            "environment descriptor(state), descriptor_space and descriptor_extraction (docs/environments.md, Descriptors)"
        )
    extraction = _extraction(described.descriptor_extraction if choice is None else choice)  # pyright: ignore
    describe = lambda state: described.descriptor(state)  # noqa: E731  # pyright: ignore
    zeros = jnp.zeros(space.shape, jnp.float32)

    def start(number: int) -> Any:
        one = tree.as_leaves(extraction.start(zeros, max_steps))
        return jax.tree.map(lambda x: jnp.broadcast_to(x, (number, *x.shape)), one)

    def add(memory: Any, states: Any, step: jax.Array, alive: jax.Array) -> Any:
        # `step` is the same for all, so that one that writes at it writes in place.
        return jax.vmap(extraction.add, (0, 0, None, 0))(memory, jax.vmap(describe)(states), step, alive)

    return Describing(start, add, jax.vmap(extraction.finish))


def _extraction(choice: Any) -> Extraction:
    if not isinstance(choice, str):
        return choice if isinstance(choice, Extraction) else whole(choice)
    if choice not in _NAMED:
        raise UnknownNameError("extraction of descriptors", choice, _NAMED)
    return _NAMED[choice]
