"""What an algorithm is: pure functions on one pytree that holds everything that changes. All that a host asks is here."""

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from rollax import tree

State = Any  # a pytree of arrays
Carry = Any  # a policy's memory: a pytree of arrays, `()` without memory


class Config(Protocol):
    """Settings of an algorithm: a dataclass made by `rollax.config.settings`. Its traced fields may differ between members."""

    @property
    def total_updates(self) -> Any:
        """Updates after which schedules end. A run sets it from its total steps."""
        ...

    @property
    def steps_per_update(self) -> int:
        """What one update counts: frames of the environment, or evaluations (`AlgorithmEntry.unit` says which)."""
        ...


class EpisodeSums(NamedTuple):
    """Sums over the episodes of all streams that ended in an update, float32 `[]` each."""

    number: Any = 0.0
    total_return: Any = 0.0
    total_length: Any = 0.0
    by_type: dict[str, tuple[Any, Any]] = {}  # number and total_return of each type of agents, where there are several


class Finite(NamedTuple):
    """Whether there was neither NaN nor infinity, bool `[]` each; causes before their effects. What does not apply is True."""

    observation: Any = True
    reward: Any = True
    advantage: Any = True
    loss: Any = True
    parameters: Any = True


def still_finite(obs: Any, reward: jax.Array, advantage: Any, loss: jax.Array, parameters: Any, *, on_policy: bool) -> Finite:
    """Which of them hold neither NaN nor infinity; None holds none.

    Where advantages, loss or parameters are not finite, observations and rewards count as their cause if x^2 overflows.
    `on_policy`: the loss is of these observations. They are then searched only where one of its effects is not finite, as they
    are most of what an update writes: one that was learnt from shows in the gradient of the first layer, a final one in the
    advantage, where its value counts. (Infinite and final, behind tanh, it has a finite value and stays unseen.)
    """
    effects = [tree.all_finite(x) for x in (advantage, loss, parameters)]
    is_well = jnp.all(jnp.stack(effects))

    def is_finite(x: Any) -> jax.Array:
        return tree.all_finite(jax.tree.map(lambda leaf: jnp.where(is_well, leaf, leaf * leaf), x))

    search = lambda: is_well | is_finite(obs)  # noqa: E731 - it may run for another member's sake
    obs_finite = jax.lax.cond(tree.any_member(~is_well), search, lambda: jnp.ones((), bool)) if on_policy else is_finite(obs)
    return Finite(obs_finite, is_finite(reward), *effects)


class Metrics(NamedTuple):
    """What an update reports and does not carry over to the next."""

    values: dict[str, jax.Array]  # scalars by name
    episodes: EpisodeSums = EpisodeSums()
    finite: Finite = Finite()


class InitFn(Protocol):
    def __call__(self, key: jax.Array, config: Any, /) -> State:
        """The state before any update. Raises ValueError when sizes in the config do not fit together."""
        ...


class StepFn(Protocol):
    def __call__(self, state: State, /) -> tuple[State, Metrics]:
        """One update. The state keeps its structure, shapes and types."""
        ...


class ActFn(Protocol):
    def __call__(self, state: State, obs: Any, carry: Carry, key: jax.Array, greedy: Any, /) -> tuple[Any, Carry]:
        """The action in one environment, and the memory after it. With agents, all of these lead with `[A]`."""
        ...


def reseed(state: State, key: jax.Array) -> State:
    """The state with other random numbers ahead: every typed key in it is replaced by one derived from `key`."""
    leaves, structure = jax.tree.flatten(state)
    for index, leaf in enumerate(leaves):
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaves[index] = jax.random.split(jax.random.fold_in(key, index), leaf.shape)
    return structure.unflatten(leaves)


class Archived(NamedTuple):
    """What an algorithm with an archive can do besides. `archive` gives the functions (`rollax.archives.core.Archive`) and the
    state of the archive that is in a state."""

    archive: Callable[[State], tuple[Any, Any]]
    with_archive: Callable[[State, Any], State]  # a state with another archive state in it
    score: Callable[[State, Any, jax.Array], Any]  # solutions [B], key -> `rollax.acting.scoring.Score` of one episode each
    # Where solutions are scored elsewhere: state -> (state, solutions [B]); (state, these, scores) -> (state, counts).
    ask: Callable[[State], tuple[State, Any]]
    tell: Callable[[State, Any, Any], tuple[State, Any]]


class Algorithm(NamedTuple):
    """Pure functions; jit, vmap and shard them as you like. Those with a default are optional."""

    init: InitFn
    step: StepFn
    act: ActFn
    initial_carry: Callable[[State], Carry]  # the memory that an episode of one environment begins with
    # The part of a state that `act` and `initial_carry` need, as a state: a replay buffer is left out, for instance.
    acting_state: Callable[[State], State] = lambda state: state
    # (state, key) -> the state with other random numbers ahead: after a rollback, and for copies of a member.
    reseed: Callable[[State, jax.Array], State] = reseed
    # The config in a state, and a state with another one: sweeps, population-based training and resuming change settings.
    config: Callable[[State], Any] = lambda state: state.config
    with_config: Callable[[State, Any], State] = lambda state, config: state._replace(config=config)
    # Numbers of a state that every evaluation reports besides its episodes, such as an archive's coverage: scalars by name.
    state_metrics: Callable[[State], dict[str, jax.Array]] = lambda state: {}
    archived: Archived | None = None
    # What acts in the next update: state (that of `acting_state` is enough) -> (policy, actor, key, num_steps), as
    # `rollax.acting.streams.unroll` takes them. With it an algorithm can learn from simulators on the host.
    rollouts: Callable[[State], tuple[Any, Any, jax.Array, int]] | None = None
    # Which leaves the devices of a single run split along their first axis (environments, streams of a replay, places of an
    # archive), a tree of bool; all others are whole on every device, and so is one whose axis does not divide evenly.
    placement: Callable[[State], Any] = lambda state: marked(state, False)


def marked(part: Any, is_split: bool = True) -> Any:
    """The same mark for all leaves of a part of a state."""
    return jax.tree.map(lambda leaf: is_split, part)


def placement_of(fields: tuple[str, ...], parts: Mapping[type, Callable[[Any], Any]]) -> Callable[[State], Any]:
    """A function for `placement`: true for the leaves under these fields of a NamedTuple; parts of these types, wherever they
    are, say by a function which of their own leaves are split (`marked`: all)."""

    def is_part(part: Any) -> bool:
        return type(part) in parts

    def mark(state: State) -> Any:
        def of(field: str, part: Any) -> Any:
            return parts[type(part)](part) if is_part(part) else field in fields

        each = {field: getattr(state, field) for field in state._fields}
        return type(state)(**{f: jax.tree.map(functools.partial(of, f), x, is_leaf=is_part) for f, x in each.items()})

    return mark
