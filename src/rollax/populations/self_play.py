"""Self-play against a pool of past versions of the policy and policies of other runs.

In a part of the training episodes, a policy of the pool plays all agents except those of one side,
and only the transitions of this side are learned from. In all other episodes the current policy
plays all agents. Opponents are sampled at the start of an episode. In games whose strategies form a
cycle, such as rock-paper-scissors, a policy that learns against its newest version follows the
cycle. Opponents from a pool of past versions prevent this (fictitious self-play).

All functions are pure. The pool is a part of the training state, so it is saved with checkpoints.

References:
    Heinrich et al. 2015, "Fictitious Self-Play in Extensive-Form Games" (uniform sampling).
    Vinyals et al. 2019, "Grandmaster level in StarCraft II using multi-agent reinforcement
    learning", doi:10.1038/s41586-019-1724-z (prioritized fictitious self-play: weights
    (1 - win rate)^p).
"""

import functools
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from rollax import tree
from rollax.acting.opponent_pool import (
    WIN_RATE_NAME,
    PoolEpisode,
    PoolOpponents,
    PoolPolicies,
    PoolRuns,
)
from rollax.algorithm import Algorithm, Metrics, uniform_placement
from rollax.environments.capabilities import capabilities, is_on_host
from rollax.environments.environment import Environment
from rollax.errors import UnknownNameError, UsageError
from rollax.types import Carry, Flag, Observation, PyTree, Settings, State

OpponentSampling = Literal["uniform", "newest", "win_rate"]

# Fraction of the counted episodes against an opponent that an update keeps, so that the win rate
# follows the policy.
RESULT_DECAY = 0.98


class PoolConfig(NamedTuple):
    """Settings of self-play with a pool.

    Attributes:
        size: Number of newest versions of the policy that are sampled as opponents.
        updates_per_version: Minimum number of updates between two versions.
        sampling: "uniform" samples all policies of the pool with equal probability, "newest"
            selects the newest version, and "win_rate" prefers policies that win against the
            learner.
        fraction: Fraction of the training episodes that use the pool.
        power: Exponent p of the weights (1 - win rate)^p of "win_rate".
        types: Agent types that opponents play. With `()`, opponents play all agents except those of
            one type. In an environment with a single type, they play all agents except one.
    """

    size: int = 8
    updates_per_version: int = 10
    sampling: OpponentSampling = "uniform"
    fraction: float = 0.5
    power: float = 2.0
    types: tuple[str, ...] = ()


class PoolState(NamedTuple):
    """Past versions of the policy and the results against all S slots and F frozen policies.

    Attributes:
        versions: Arrays of the networks and statistics of each version, `[S, ...]`. S is one more
            than the size of the pool. The oldest version is not sampled anymore, and is replaced
            once no running episode uses it.
        number: Number of the version in each slot, counted from 0, or -1 for an empty slot, int32
            `[S]`.
        games: Number of episodes against each policy, with exponential decay, float32 `[S + F]`.
        wins: Number of episodes that the learner won, with the same decay, float32 `[S + F]`.
        age: Number of updates since the newest version was added, int32 `[]`.
    """

    versions: tuple[jax.Array, ...]
    number: jax.Array
    games: jax.Array
    wins: jax.Array
    age: jax.Array


class SelfPlayState(NamedTuple):
    """Training state of self-play with a pool.

    Attributes:
        learner: State of the algorithm that learns.
        pool: Pool of opponents. None in the result of `acting_state`.
    """

    learner: Any
    pool: PoolState


class SelfPlaySetup(NamedTuple):
    """Arguments of `self_play`, and the algorithm in the environment without opponents.

    Attributes:
        make_algorithm: Function that builds the algorithm for an environment.
        environment: Environment with several agents.
        config: Settings of the pool.
        other_runs: Policies of other runs in the pool, or None.
        seats: Sets of agents that an opponent may play.
        plain: Algorithm in the environment without opponents.
    """

    make_algorithm: Callable[[Environment], Algorithm]
    environment: Environment
    config: PoolConfig
    other_runs: PoolRuns | None
    seats: tuple[tuple[bool, ...], ...]
    plain: Algorithm

    @property
    def num_policies(self) -> int:
        """Number of slots for versions and of policies of other runs, S + F."""
        return self.config.size + 1 + len(self.other_runs.states if self.other_runs else ())


def self_play(
    make_algorithm: Callable[[Environment], Algorithm],
    environment: Environment,
    config: PoolConfig,
    other_runs: PoolRuns | None = None,
) -> Algorithm:
    """Build an algorithm that also learns against past versions of its policy.

    Args:
        make_algorithm: Function that builds the algorithm for an environment.
        environment: Environment with several agents.
        config: Settings of the pool.
        other_runs: Policies of other runs in the pool, or None.

    Returns:
        The algorithm, whose state is a `SelfPlayState`. The algorithm has no functions for
        simulators on the host.

    Raises:
        UsageError: If the environment has fewer than two agents or runs on the host, if opponents
            of the chosen types leave no agent to learn, or if the algorithm has no networks.
        UnknownNameError: If the environment has no agent of a chosen type.
    """
    seats = list_seats(environment, config.types)
    plain = make_algorithm(environment)
    if plain.rollouts is None or plain.archived is not None:
        raise UsageError(
            "opponent_pool must be used with an algorithm whose policy acts in training, such as "
            "ppo, pqn or dqn. Choose another algorithm, or remove opponent_pool."
        )
    setup = SelfPlaySetup(make_algorithm, environment, config, other_runs, seats, plain)

    def act(
        state: SelfPlayState, obs: Observation, carry: Carry, key: jax.Array, greedy: Flag
    ) -> tuple[PyTree, Carry]:
        return plain.act(state.learner, obs, carry, key, greedy)

    return Algorithm(
        init=functools.partial(init_state, setup),
        step=functools.partial(step, setup),
        act=act,
        initial_carry=lambda state: plain.initial_carry(state.learner),
        acting_state=lambda state: state._replace(
            learner=plain.acting_state(state.learner), pool=None
        ),
        reseed=lambda state, key: state._replace(learner=plain.reseed(state.learner, key)),
        config=lambda state: plain.config(state.learner),
        with_config=lambda state, settings: state._replace(
            learner=plain.with_config(state.learner, settings)
        ),
        state_metrics=lambda state: plain.state_metrics(state.learner),
        placement=lambda state: SelfPlayState(
            plain.placement(state.learner), uniform_placement(state.pool, False)
        ),
        parts=lambda state: plain.parts(state.learner),
    )


def make_pool_algorithm(
    setup: SelfPlaySetup, versions: PyTree, log_weights: jax.Array
) -> Algorithm:
    """Return the algorithm in the environment with opponents.

    Args:
        setup: Arguments of `self_play`.
        versions: States that act with the versions in the pool, `[S, ...]`.
        log_weights: Logarithm of the sampling weight of each policy, float32 `[S + F]`.
    """
    agents = tuple(range(setup.environment.num_agents or 0))
    policies, functions = (versions,), (PoolPolicies(setup.plain, agents),)
    if setup.other_runs is not None:
        policies += tuple(
            jax.tree.map(lambda x: x[None], tree.to_arrays(state))
            for state in setup.other_runs.states
        )
        functions += setup.other_runs.functions
    environment = PoolOpponents(
        env=setup.environment,
        policies=policies,
        log_weights=log_weights,
        fraction=jnp.asarray(setup.config.fraction, jnp.float32),
        functions=functions,
        seats=setup.seats,
    )
    return setup.make_algorithm(environment)


def init_state(setup: SelfPlaySetup, key: jax.Array, settings: Settings) -> SelfPlayState:
    """Return the state before the first update. The initial policy is the first version.

    Args:
        setup: Arguments of `self_play`.
        key: Random key.
        settings: Settings of the algorithm.
    """
    plain, num_slots = setup.plain, setup.config.size + 1
    shapes = jax.eval_shape(
        lambda key, settings: plain.acting_state(plain.init(key, settings)), key, settings
    )
    # Opponents act from the first step on, so the initial state only needs their shapes.
    blank = jax.tree.map(lambda x: _make_blank(x, num_slots), shapes)
    algorithm = make_pool_algorithm(setup, blank, jnp.zeros(setup.num_policies))
    learner = algorithm.init(key, settings)
    first = _select_version(plain, plain.acting_state(learner))
    pool = PoolState(
        versions=tuple(jnp.zeros((num_slots, *x.shape), x.dtype).at[0].set(x) for x in first),
        number=jnp.full(num_slots, -1, jnp.int32).at[0].set(0),
        games=jnp.zeros(setup.num_policies),
        wins=jnp.zeros(setup.num_policies),
        age=jnp.zeros((), jnp.int32),
    )
    return SelfPlayState(learner, pool)


def step(setup: SelfPlaySetup, state: SelfPlayState) -> tuple[SelfPlayState, Metrics]:
    """Perform one update against the opponents in the pool, and update the pool.

    Args:
        setup: Arguments of `self_play`.
        state: State before the update.

    Returns:
        The state after the update and its metrics.
    """
    config, plain, pool = setup.config, setup.plain, state.pool
    acting = plain.acting_state(state.learner)
    versions = jax.vmap(lambda version: _insert_version(plain, acting, version))(pool.versions)
    algorithm = make_pool_algorithm(setup, versions, sampling_log_weights(config, pool))
    learner, metrics = algorithm.step(state.learner)
    assert algorithm.rollouts is not None, "self_play requires it"
    episodes: PoolEpisode = algorithm.rollouts(learner).actor.env_state
    version = _select_version(plain, plain.acting_state(learner))
    pool = add_version(config, add_results(pool, metrics), version, episodes)
    values = metrics.values | {
        "pool_versions": jnp.sum(_is_sampled(config, pool)),
        "pool_win_rate": jnp.sum(pool.wins) / jnp.sum(pool.games),
    }
    return SelfPlayState(learner, pool), metrics._replace(values=values)


def list_versions(algorithm: Algorithm, state: SelfPlayState) -> dict[int, SelfPlayState]:
    """Return a state with the networks of each version in a pool, keyed by number, oldest first.

    Args:
        algorithm: Algorithm built by `self_play`.
        state: Training state, with its pool.
    """
    slots = {int(number): slot for slot, number in enumerate(state.pool.number) if number >= 0}
    return {
        number: _insert_version(
            algorithm, state, tuple(version[slot] for version in state.pool.versions)
        )
        for number, slot in sorted(slots.items())
    }


def list_seats(environment: Environment, types: tuple[str, ...]) -> tuple[tuple[bool, ...], ...]:
    """Return the sets of agents that an opponent may play, one tuple of bools `[A]` per set.

    Args:
        environment: Environment with several agents.
        types: Agent types that opponents play, or `()` to let the learner play one side.

    Raises:
        UsageError: If the environment has fewer than two agents or runs on the host, or if no
            agent is left to learn.
        UnknownNameError: If the environment has no agent of a type.
    """
    if is_on_host(environment) or (environment.num_agents or 1) < 2:
        raise UsageError(
            "opponent_pool must be used with a compiled environment with two or more learning "
            f"agents, and {environment.name} "
            f"{'runs on the host' if is_on_host(environment) else 'has one'}. Remove "
            "opponent_pool, or choose another environment."
        )
    agent_types = capabilities(environment).agent_types
    for name in types:
        if name not in agent_types:
            raise UnknownNameError("agent type in opponent_pool_types", name, set(agent_types))
    if types:
        seat = tuple(name in types for name in agent_types)
        if all(seat):
            raise UsageError(
                f"opponent_pool_types ({', '.join(types)}) must leave an agent of "
                f"{environment.name} to learn. Remove a type."
            )
        return (seat,)
    sides = agent_types if len(set(agent_types)) > 1 else tuple(range(len(agent_types)))
    return tuple(tuple(each != side for each in sides) for side in dict.fromkeys(sides))


def sampling_log_weights(config: PoolConfig, pool: PoolState) -> jax.Array:
    """Return the logarithm of the sampling weight of each policy, float32 `[S + F]`.

    Args:
        config: Settings of the pool.
        pool: State of the pool.

    Returns:
        The logarithms. They are -inf for versions that are not sampled.
    """
    is_sampled = _is_sampled(config, pool)
    if config.sampling == "newest":
        is_sampled = is_sampled & (pool.number == jnp.max(pool.number))
    num_frozen = pool.games.shape[0] - is_sampled.shape[0]
    is_sampled = jnp.concatenate([is_sampled, jnp.ones(num_frozen, bool)])
    weights = (
        config.power * jnp.log1p(-learner_win_rates(pool))
        if config.sampling == "win_rate"
        else jnp.zeros(is_sampled.shape)
    )
    return jnp.where(is_sampled, weights, -jnp.inf)


def learner_win_rates(pool: PoolState) -> jax.Array:
    """Return the estimated win rate of the learner against each policy, float32 `[S + F]`.

    The estimate includes one additional episode with result 0.5. It is therefore 0.5 without
    episodes, and always below 1.
    """
    return (pool.wins + 0.5) / (pool.games + 1.0)


def add_results(pool: PoolState, metrics: Metrics) -> PoolState:
    """Return the pool with the results of the episodes that ended in an update.

    Args:
        pool: State of the pool.
        metrics: Metrics of an update in an environment with `PoolOpponents`.
    """
    names = [WIN_RATE_NAME.format(index) for index in range(pool.games.shape[0])]
    games, wins = (
        jnp.stack([metrics.episodes.info[name][field] for name in names]) for field in (0, 1)
    )
    return pool._replace(
        games=RESULT_DECAY * pool.games + games, wins=RESULT_DECAY * pool.wins + wins
    )


def add_version(
    config: PoolConfig, pool: PoolState, version: tuple[jax.Array, ...], episodes: PoolEpisode
) -> PoolState:
    """Add a version of the policy if one is due. The oldest version is replaced.

    A version is due after `updates_per_version` updates, and once no running episode uses the
    oldest version, so that no opponent changes during an episode.

    Args:
        config: Settings of the pool.
        pool: State of the pool.
        version: Arrays of the current policy.
        episodes: Running episodes, `[E, ...]`.

    Returns:
        The pool after this update.
    """
    slot, age = jnp.argmin(pool.number), pool.age + 1
    is_used = jnp.any((episodes.opponent == slot) & jnp.any(episodes.is_opponent, axis=-1))
    is_due = (age >= config.updates_per_version) & ~is_used

    def put(values: jax.Array, value: jax.Array | float) -> jax.Array:
        return values.at[slot].set(jnp.where(is_due, value, values[slot]))

    return PoolState(
        versions=tuple(map(put, pool.versions, version)),
        number=put(pool.number, jnp.max(pool.number) + 1),
        games=put(pool.games, 0.0),
        wins=put(pool.wins, 0.0),
        age=jnp.where(is_due, 0, age),
    )


def _is_sampled(config: PoolConfig, pool: PoolState) -> jax.Array:
    """Return which slots hold one of the newest `config.size` versions, bool `[S]`."""
    return (pool.number >= 0) & (pool.number > jnp.max(pool.number) - config.size)


def _version_positions(algorithm: Algorithm, state: State) -> list[int]:
    """Return the positions of the leaves of networks and statistics in a state."""
    structure = jax.tree.structure(state)
    # `parts` only selects nodes, so it also selects the positions of leaves.
    parts = algorithm.parts(structure.unflatten(range(structure.num_leaves)))
    if not jax.tree.leaves(parts.get("networks")):
        raise UsageError(
            "opponent_pool must be used with an algorithm that declares its networks "
            "(Algorithm.parts). Choose another algorithm, or remove opponent_pool."
        )
    return jax.tree.leaves((parts["networks"], parts.get("statistics")))


def _select_version(algorithm: Algorithm, state: State) -> tuple[jax.Array, ...]:
    """Return the arrays of the networks and statistics in a state."""
    leaves = jax.tree.leaves(state)
    return tuple(leaves[position] for position in _version_positions(algorithm, state))


def _insert_version(algorithm: Algorithm, state: State, version: tuple[jax.Array, ...]) -> State:
    """Return a state with the networks and statistics of a version."""
    leaves, structure = jax.tree.flatten(state)
    for position, leaf in zip(_version_positions(algorithm, state), version, strict=True):
        leaves[position] = leaf
    return structure.unflatten(leaves)


def _make_blank(leaf: Any, size: int) -> jax.Array:
    """Return `size` zeros of the shape and type of a leaf. Random keys are copies of one key."""
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return jnp.broadcast_to(jax.random.key(0), (size, *leaf.shape))
    return jnp.zeros((size, *leaf.shape), leaf.dtype)
