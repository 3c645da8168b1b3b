"""Interface of algorithms, which are pure functions on a pytree with all training state."""

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp

from rollax import tree
from rollax.types import Carry, Leaf, Observation, Parameters, PyTree, State


@runtime_checkable
class Config(Protocol):
    """Settings of an algorithm, declared with `rollax.config.settings_dataclass`.

    Traced fields may differ between the members of a population. Resuming a run with another
    learning rate requires a traced field `learning_rate`. `resume` then sets this field, scales all
    fields that end in `_learning_rate` by the same factor, and disables the schedule
    `learning_rate_final_fraction`.
    """

    @property
    def total_updates(self) -> Any:
        """Number of updates after which schedules end. A run sets it from its total steps."""
        ...

    @property
    def steps_per_update(self) -> int:
        """Number of environment steps or evaluations in one update (see `AlgorithmEntry.unit`)."""
        ...


class EpisodeSums(NamedTuple):
    """Sums over the episodes that ended during an update, in all streams.

    Attributes:
        number: Number of episodes, float32 `[]`.
        total_return: Sum of the returns, float32 `[]`.
        total_length: Sum of the lengths, float32 `[]`.
        agent_type_sums: `(number, total_return)` of the agents of each type, keyed by agent type.
            Empty for environments with fewer than two agent types.
        info: `(number, total)` of each value of the environment's `info`, reduced over an episode,
            keyed by its name. `number` counts the episodes with a finite value.
    """

    number: Any = 0.0
    total_return: Any = 0.0
    total_length: Any = 0.0
    agent_type_sums: dict[str, tuple[Any, Any]] = {}
    info: dict[str, tuple[Any, Any]] = {}


class FiniteChecks(NamedTuple):
    """Whether the arrays of an update are free of NaN and infinity, bool `[]` per kind of array.

    Fields are in the order from cause to effect. Fields that do not apply are True.
    """

    observation: Any = True
    reward: Any = True
    advantage: Any = True
    loss: Any = True
    parameters: Any = True


def check_finite(
    obs: PyTree | None,
    reward: jax.Array,
    advantage: PyTree,
    loss: jax.Array,
    parameters: Parameters,
    *,
    on_policy: bool,
) -> FiniteChecks:
    """Check whether observations, rewards, advantages, loss and parameters are finite.

    If advantages, loss or parameters are not finite, observations and rewards whose square
    overflows float32 also count as non-finite, because they may be the cause.

    Observations are most of the data of an update. With `on_policy`, they are therefore checked
    only if the advantages, the loss or the parameters are not finite. A non-finite observation
    makes the gradient of the first layer non-finite if the network learned from it. A non-finite
    final observation of an episode makes the advantage non-finite. An infinite final observation
    with a finite value, for example because of tanh, is not detected.

    Args:
        obs: Pytree of observations, or None to skip the check of observations.
        reward: Rewards of any shape.
        advantage: Advantages of any shape, or None.
        loss: Losses of any shape.
        parameters: Parameters after the update.
        on_policy: Whether the loss was computed from exactly these observations.

    Returns:
        One bool `[]` per kind of array.
    """
    advantage_finite, loss_finite = tree.all_finite(advantage), tree.all_finite(loss)
    parameters_finite = tree.all_finite(parameters)
    is_well = jnp.all(jnp.stack([advantage_finite, loss_finite, parameters_finite]))

    def is_finite(x: Leaf) -> jax.Array:
        return tree.all_finite(jax.tree.map(lambda leaf: jnp.where(is_well, leaf, leaf * leaf), x))

    def search():
        return is_well | is_finite(obs)  # under vmap, it also runs for members that are finite

    obs_finite = (
        jax.lax.cond(tree.any_member(~is_well), search, lambda: jnp.ones((), bool))
        if on_policy
        else is_finite(obs)
    )
    return FiniteChecks(
        observation=obs_finite,
        reward=is_finite(reward),
        advantage=advantage_finite,
        loss=loss_finite,
        parameters=parameters_finite,
    )


class Metrics(NamedTuple):
    """Metrics of one update.

    Attributes:
        values: Scalar metrics, keyed by name.
        episodes: Sums over the episodes that ended during the update.
        finite: Whether the arrays of the update are finite.
        reward: Sum of the rewards in all streams, including running episodes, float32 `[]`, or None
            if the algorithm does not report it.
    """

    values: dict[str, jax.Array]
    episodes: EpisodeSums = EpisodeSums()
    finite: FiniteChecks = FiniteChecks()
    reward: Any = None


@runtime_checkable
class InitFn(Protocol):
    """Function that returns the initial state of an algorithm."""

    def __call__(self, key: jax.Array, config: Any, /) -> State:
        """Return the state before the first update.

        Raises:
            ValueError: If sizes in the config are inconsistent.
        """
        ...


@runtime_checkable
class StepFn(Protocol):
    """Function that performs one update."""

    def __call__(self, state: State, /) -> tuple[State, Metrics]:
        """Perform one update, and return the new state and its metrics.

        The new state has the same structure, shapes and dtypes as the old state.
        """
        ...


@runtime_checkable
class ActFn(Protocol):
    """Function that selects an action."""

    def __call__(
        self,
        state: State,
        obs: Observation,
        carry: Carry,
        key: jax.Array,
        greedy: jax.Array | bool,
        /,
    ) -> tuple[Any, Carry]:
        """Return the action in one environment and the policy's memory after the step.

        In multi-agent environments, observation, memory and action have a leading agent axis `[A]`.
        """
        ...


def reseed(state: State, key: jax.Array) -> State:
    """Return the state with every random key (typed JAX key) replaced by one derived from `key`."""
    leaves, structure = jax.tree.flatten(state)
    for index, leaf in enumerate(leaves):
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaves[index] = jax.random.split(jax.random.fold_in(key, index), leaf.shape)
    return structure.unflatten(leaves)


class ArchiveFunctions(NamedTuple):
    """Functions that read and change the archive in the state of an algorithm.

    Attributes:
        archive: Function from a state to the archive (`rollax.archives.archive.Archive`) and the
            archive state.
        with_archive: Function `(state, archive_state)` that returns the state with the given
            archive state.
        score: Function `(state, solutions, key)` that evaluates solutions `[B]` in one episode
            each, and returns a `rollax.acting.scoring.Score`.
        ask: Function from a state to the next state and solutions `[B]` for an external evaluation.
        tell: Function `(state, solutions, score)` that inserts externally evaluated solutions. It
            returns the next state and the insertion counts.
        qd_offset: Function from a state to the offset that the QD score adds to the fitness of
            every elite.
        num_batches: Function from a state to the number of previous updates and `tell` calls in
            total, int32 `[]`.
    """

    archive: Callable[[State], tuple[Any, Any]]
    with_archive: Callable[[State, Any], State]
    score: Callable[[State, Any, jax.Array], Any]
    ask: Callable[[State], tuple[State, Any]]
    tell: Callable[[State, Any, Any], tuple[State, Any]]
    qd_offset: Callable[[State], Any]
    num_batches: Callable[[State], jax.Array]


class Algorithm(NamedTuple):
    """Algorithm as a set of pure functions that work under jit, vmap and sharding.

    Fields with a default are optional.

    Attributes:
        init: Function `(key, config)` that returns the initial state.
        step: Function from a state to the state after one update and its metrics.
        act: Function `(state, obs, carry, key, greedy)` that returns an action and the memory after
            the step.
        initial_carry: Function from a state to the memory at the start of an episode of one
            environment.
        acting_state: Function from a state to a reduced state that is sufficient for `act` and
            `initial_carry`, for example without the replay buffer.
        reseed: Function `(state, key)` that returns the state with new random keys. It is used
            after a rollback and for copies of a member.
        config: Function from a state to its config.
        with_config: Function `(state, config)` that returns the state with the given config.
            Sweeps, population-based training and resuming use it to change settings.
        state_metrics: Function from a state to a dictionary of scalars, such as the coverage of an
            archive. Every evaluation reports them in addition to the metrics of its episodes.
        archived: Functions of the archive, or None for algorithms without an archive.
        rollouts: Function from a state, or its `acting_state`, to the
            `rollax.acting.streams.RolloutArguments` of the next update. Learning from simulators on
            the host requires it.
        learn: Function `(state, rollout)` that performs one update from a
            `rollax.acting.streams.Rollout` and returns the new state and its metrics. Learning from
            simulators on the host requires it.
        placement: Function from a state to a pytree of bools. It marks the leaves that a single run
            splits over devices along their first axis, such as environments, replay streams or
            archive cells. All other leaves, and leaves whose first axis does not divide evenly, are
            replicated.
        parts: Function from a state, or its `acting_state`, to the parts of the state that a warm
            start can copy, keyed by "networks", "optimizer", "statistics", "replay" and "archive".
            It only selects nodes of the state and computes nothing.
        with_parameters: Function `(state, values)` that returns the state with other values of
            environment parameters, keyed by name, or None. A curriculum defines it
            (`rollax.algorithms.curriculum`).
    """

    init: InitFn
    step: StepFn
    act: ActFn
    initial_carry: Callable[[State], Carry]
    acting_state: Callable[[State], State] = lambda state: state
    reseed: Callable[[State, jax.Array], State] = reseed
    config: Callable[[State], Any] = lambda state: state.config
    with_config: Callable[[State, Any], State] = lambda state, config: state._replace(config=config)
    state_metrics: Callable[[State], dict[str, jax.Array]] = lambda state: {}
    archived: ArchiveFunctions | None = None
    rollouts: Callable[[State], Any] | None = None
    learn: Callable[[State, Any], tuple[State, Metrics]] | None = None
    placement: Callable[[State], Any] = lambda state: uniform_placement(state, False)
    parts: Callable[[State], dict[str, Any]] = lambda state: {}
    with_parameters: Callable[[State, Mapping[str, Any]], State] | None = None


def uniform_placement(part: PyTree, is_split: bool = True) -> Any:
    """Return a pytree with the structure of `part` whose leaves are all `is_split`."""
    return jax.tree.map(lambda leaf: is_split, part)


def make_placement(
    fields: tuple[str, ...], parts: Mapping[type, Callable[[PyTree], PyTree]]
) -> Callable[[State], Any]:
    """Build a function for `Algorithm.placement` of a state that is a NamedTuple.

    Args:
        fields: Names of the state fields whose leaves are split over devices.
        parts: Functions from a nested object of the state to its placement, keyed by the type of
            the object. They apply at any depth and take precedence over `fields`. For example,
            `{ReplayState: uniform_placement}` splits all leaves of every `ReplayState`.

    Returns:
        Function from a state to a pytree of bools.
    """

    def is_part(part: PyTree) -> bool:
        return type(part) in parts

    def mark(state: State) -> Any:
        def mark_part(is_split: bool, part: PyTree) -> PyTree:
            return parts[type(part)](part) if is_part(part) else is_split

        marks = {
            field: jax.tree.map(
                functools.partial(mark_part, field in fields), value, is_leaf=is_part
            )
            for field, value in state._asdict().items()
        }
        return type(state)(**marks)

    return mark
