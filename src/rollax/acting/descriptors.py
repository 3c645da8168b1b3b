"""Behavior descriptors of episodes.

A `DescriptorEnvironment` maps each state to a state descriptor `[D]`. An `Extraction` reduces the
state descriptors of an episode to one descriptor while the episode runs. It stores only the values
that this reduction needs. State descriptors are computed after every step and before any reset. An
episode of T steps therefore has T state descriptors, and the last one is that of its final state.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rollax import tree
from rollax.environments.capabilities import capabilities, has_descriptors
from rollax.environments.environment import DESCRIPTOR_EXTRACTIONS, Environment
from rollax.errors import UnknownNameError, UsageError
from rollax.types import PyTree, State


class Extraction(NamedTuple):
    """Reduction of the state descriptors of one episode to the descriptor of the episode.

    Attributes:
        start: Function `(zeros, max_steps)` that returns the initial accumulator. `zeros` has the
            shape `[D]` of a state descriptor.
        add: Function `(accumulator, descriptor, step, alive)` that returns the accumulator after a
            step. `descriptor` is the state descriptor `[D]`, `step` is the index of the step, int32
            `[]`, and `alive`, bool `[]`, is whether the episode was running before the step.
        finish: Function `(accumulator, length)` that returns the descriptor `[K]` of an episode
            with `length` steps.
    """

    start: Callable[[jax.Array, int], Any]
    add: Callable[[Any, jax.Array, jax.Array, jax.Array], Any]
    finish: Callable[[Any, jax.Array], jax.Array]


# State descriptor after the last step of the episode.
FINAL_EXTRACTION = Extraction(
    start=lambda zeros, max_steps: zeros,
    add=lambda memory, descriptor, step, alive: jnp.where(alive, descriptor, memory),
    finish=lambda memory, length: memory,
)

# Mean over the steps of the episode. For booleans, this is the fraction of steps.
MEAN_EXTRACTION = Extraction(
    start=lambda zeros, max_steps: zeros,
    add=lambda memory, descriptor, step, alive: memory + jnp.where(alive, descriptor, 0.0),
    finish=lambda memory, length: memory / jnp.maximum(length, 1),
)

_EXTRACTIONS_BY_NAME = dict(
    zip(DESCRIPTOR_EXTRACTIONS, (FINAL_EXTRACTION, MEAN_EXTRACTION), strict=True)
)


def make_extraction(function: Callable[[jax.Array, jax.Array], jax.Array]) -> Extraction:
    """Build an extraction from a function of all state descriptors of an episode.

    All state descriptors are stored until the episode ends. T is the maximum number of steps.

    Args:
        function: Function `(descriptors, mask)` that returns the descriptor `[K]` of the episode.
            `descriptors` `[T, D]` are the state descriptors, padded with 0 after the end of the
            episode. `mask`, bool `[T]`, is true for the steps of the episode.

    Returns:
        The extraction.
    """

    def finish(memory: jax.Array, length: jax.Array) -> jax.Array:
        mask = jnp.arange(memory.shape[0]) < length
        return function(jnp.where(mask[:, None], memory, 0.0), mask)

    return Extraction(
        start=lambda zeros, max_steps: jnp.broadcast_to(zeros, (max_steps, *zeros.shape)),
        # `finish` masks the steps after the end, so that a step writes one row without a copy.
        add=lambda memory, descriptor, step, alive: memory.at[step].set(descriptor),
        finish=finish,
    )


ExtractionFn = Callable[[jax.Array, jax.Array], jax.Array]
ExtractionChoice = str | Extraction | ExtractionFn | None


class BatchedExtraction(NamedTuple):
    """Extraction for N parallel episodes of an environment.

    Attributes:
        start: Function from the number of episodes N to the initial accumulators.
        add: Function `(accumulators, states, step, alive)` that returns the accumulators after a
            step. `states` are the environment states `[N, ...]`, `step` is the index of the step,
            and `alive`, bool `[N]`, marks the running episodes.
        finish: Function `(accumulators, length)` that returns the descriptors `[N, K]` of episodes
            with lengths `[N]`.
    """

    start: Callable[[int], Any]
    add: Callable[[Any, Any, jax.Array, jax.Array], Any]
    finish: Callable[[Any, jax.Array], Any]


_NO_EXTRACTION = BatchedExtraction(
    lambda number: None, lambda memory, states, step, alive: None, lambda memory, length: None
)


def make_batched_extraction(
    environment: Environment, choice: ExtractionChoice, max_steps: int
) -> BatchedExtraction:
    """Build the extraction of descriptors for parallel episodes.

    Args:
        environment: Environment of the episodes.
        choice: "final" (last state descriptor), "mean", a function `(descriptors, mask)` as in
            `make_extraction`, an `Extraction`, or None for the default of the environment.
        max_steps: Maximum number of steps of an episode.

    Returns:
        The extraction. If the environment has no state descriptors and `choice` is None, its
        functions return None.

    Raises:
        UsageError: If `choice` is not None and the environment has no state descriptors.
        UnknownNameError: If `choice` is a string other than "final" and "mean".
    """
    if not has_descriptors(environment):
        if choice is None:
            return _NO_EXTRACTION
        raise UsageError(
            f"{environment.name} must describe behavior to extract a descriptor. Remove the "
            "descriptor argument, or add descriptor(state), descriptor_space and "
            "descriptor_extraction to the environment (docs/environments.md, Descriptors)."
        )
    default = capabilities(environment).descriptor_extraction
    extraction = _resolve_extraction(default if choice is None else choice)
    zeros = jnp.zeros(environment.descriptor_space.shape, jnp.float32)

    def start(number: int) -> Any:
        one = tree.to_arrays(extraction.start(zeros, max_steps))
        return jax.tree.map(lambda x: jnp.broadcast_to(x, (number, *x.shape)), one)

    def add(memory: PyTree, states: State, step: jax.Array, alive: jax.Array) -> Any:
        # `step` is shared by all episodes, so that writing at this index works in place.
        return jax.vmap(extraction.add, (0, 0, None, 0))(
            memory, jax.vmap(environment.descriptor)(states), step, alive
        )

    return BatchedExtraction(start, add, jax.vmap(extraction.finish))


def _resolve_extraction(choice: Extraction | str | ExtractionFn) -> Extraction:
    if not isinstance(choice, str):
        return choice if isinstance(choice, Extraction) else make_extraction(choice)
    if choice not in _EXTRACTIONS_BY_NAME:
        raise UnknownNameError("descriptor extraction", choice, _EXTRACTIONS_BY_NAME)
    return _EXTRACTIONS_BY_NAME[choice]
