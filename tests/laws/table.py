"""The table of algorithms: a new algorithm is one more row, and passes every law of this folder."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import pytest

from laws.walk import Walk
from rollax.algorithm import Algorithm
from rollax.algorithms import ALGORITHMS
from rollax.algorithms.impala import ImpalaConfig, impala
from rollax.algorithms.ppo import PPOConfig, ppo
from rollax.algorithms.ppo_rnd import PPORNDConfig, ppo_rnd
from rollax.environments import Environment
from rollax.learning import normalization, train_state
from rollax.networks import NetworkConfig, actor_critic
from rollax.networks.critics import ActorCriticsConfig
from rollax.networks.q_networks import QNetworkConfig, RecurrentQNetworkConfig, mask_actions
from rollax.spaces import Discrete

DISCRETE = (
    "one-action",
    "two-observations",
    "two-steps",
    "action-reward",
    "action-observation",
    "two-agents",
    "multi-discrete",
    "masked",
)


SMALLEST = (("num_envs", 2), ("num_steps", 2), ("num_epochs", 1), ("num_minibatches", 2))


class Row(NamedTuple):
    name: str
    make: Callable[[Environment], Algorithm]
    config: Any
    environment: Environment  # of the program laws
    probes: tuple[str, ...]  # that apply to it
    telling: tuple[str, ...]  # those of them that say something about this row; the others are slow tests
    value: Callable[[Any, Any, Any], tuple[Any, jax.Array]]  # (state, carry, obs) -> (carry, value in units of reward)
    memory: bool = False
    rounding: float = 1e-5  # how far from 0 the logarithm of an importance ratio may be before the first gradient step
    smallest: tuple[tuple[str, int], ...] = SMALLEST  # settings of the smallest update there is
    carry: Callable[[Any], Any] = lambda state: state.train.network.initial_carry()
    spreads: bool = True  # whether its environments may lie on several devices without more traffic than sums


def ppo_row(
    name: str,
    telling: tuple[str, ...],
    environment: Environment | None = None,
    network: Any = None,
    rounding: float = 1e-5,
    **settings: Any,
) -> Row:
    """A row of PPO: `network` and `settings` differ from those that all rows share."""
    shape = dataclasses.replace(NetworkConfig(hidden=(16,), activation="relu", core_size=8), **(network or {}))
    shared = PPOConfig(num_envs=8, num_steps=8, num_minibatches=2, num_epochs=2, learning_rate=1e-2, gamma=0.9)
    config = dataclasses.replace(shared, **settings)

    def make(environment: Environment) -> Algorithm:
        return ppo(environment, lambda key: actor_critic(environment, shape, key))

    environment, memory = environment or Walk(), shape.core != "none"
    discrete = DISCRETE + ("memory",) * memory
    probes = discrete if isinstance(environment.action_space, Discrete) else ("continuous",)
    return Row(name, make, config, environment, probes, telling, ppo_value, memory, rounding)


def impala_row(name: str, telling: tuple[str, ...], network: Any = None, **settings: Any) -> Row:
    """A row of IMPALA, in the terms of `ppo_row`."""
    shape = dataclasses.replace(NetworkConfig(hidden=(16,), activation="relu", core_size=8), **(network or {}))
    shared = ImpalaConfig(num_envs=8, num_steps=8, sequence_length=8, num_epochs=4, learning_rate=1e-2, gamma=0.9)
    config = dataclasses.replace(shared, **settings)
    memory = shape.core != "none"

    def make(environment: Environment) -> Algorithm:
        return impala(environment, lambda key: actor_critic(environment, shape, key))

    smallest = tuple({**dict(SMALLEST), "sequence_length": 2, "num_minibatches": 1}.items())
    return Row(name, make, config, Walk(), DISCRETE + ("memory",) * memory, telling, ppo_value, memory, smallest=smallest)


def ppo_value(state: Any, carry: Any, obs: Any) -> tuple[Any, jax.Array]:
    """What the critic expects, with the scales of observations and rewards undone."""
    train = state.train
    carry, output = train_state.normalized(train.network, train.observations, train.values)(carry, obs)
    return carry, output.value * reward_scale(state.train)


def reward_scale(train: train_state.TrainState) -> jax.Array | float:
    """What scaled rewards were divided by."""
    return 1.0 if train.returns is None else jnp.sqrt(train.returns.variance + 1e-8)


def ppo_rnd_row(name: str, telling: tuple[str, ...], environment: Environment | None = None, **settings: Any) -> Row:
    """A row of PPO with random network distillation, in the terms of `ppo_row`."""
    row, sizes = ppo_row(name, telling, environment, **settings), {"novelty_hidden": 8, "novelty_outputs": 4}
    given = {field.name: getattr(row.config, field.name) for field in dataclasses.fields(row.config)}
    shape = NetworkConfig(hidden=(16,), activation="relu")

    def make(environment: Environment) -> Algorithm:
        return ppo_rnd(environment, lambda key: actor_critic(environment, shape, key))

    return row._replace(make=make, config=PPORNDConfig(**given, **sizes, intrinsic_coefficient=0.2))


VALUED = tuple(probe for probe in DISCRETE if probe != "multi-discrete")


def dqn_row(name: str, telling: tuple[str, ...], network: Any = None, **settings: Any) -> Row:
    """A row of DQN, in the terms of `ppo_row`."""
    kinds = ALGORITHMS["dqn"]
    shape = QNetworkConfig(hidden=(16,), **(network or {}))
    sizes = {"num_envs": 8, "num_steps": 8, "gamma": 0.9, "learning_rate": 1e-2, "exploration_fraction": 0.5}
    config = kinds.config(**(sizes | REPLAY | settings))

    def make(environment: Environment) -> Algorithm:
        return kinds.make(environment, lambda key: kinds.make_network(environment, shape, key))

    def value(state: Any, carry: Any, obs: Any) -> tuple[Any, jax.Array]:
        normalized = obs if state.observations is None else normalization.normalize(state.observations, obs)
        return carry, jnp.max(mask_actions(state.agent.network(normalized), obs))

    rest = {"smallest": SMALL_REPLAY, "carry": lambda state: (), "spreads": False}
    return Row(name, make, config, Walk(), VALUED, telling, value, **rest)


def pqn_row(name: str, telling: tuple[str, ...], environment: Any = None, network: Any = None, **settings: Any) -> Row:
    """A row of PQN, in the terms of `ppo_row`."""
    kinds = ALGORITHMS["pqn"]
    shape = RecurrentQNetworkConfig(hidden=(16,), **({"core_size": 8} | (network or {})))
    sizes = {"num_envs": 8, "num_steps": 8, "num_minibatches": 2, "num_epochs": 4, "gamma": 0.9, "learning_rate": 1e-2}
    config = kinds.config(**(sizes | {"exploration_fraction": 0.5, "q_lambda": 0.9} | settings))

    def make(environment: Environment) -> Algorithm:
        return kinds.make(environment, lambda key: kinds.make_network(environment, shape, key))

    def value(state: Any, carry: Any, obs: Any) -> tuple[Any, jax.Array]:
        carry, values = train_state.normalized(state.train.network, state.train.observations)(carry, obs)
        return carry, jnp.max(mask_actions(values, obs)) * reward_scale(state.train)

    environment, memory = environment or Walk(), shape.core != "none"
    return Row(name, make, config, environment, VALUED + ("memory",) * memory, telling, value, memory)


def actor_critics_row(name: str, telling: tuple[str, ...], **settings: Any) -> Row:
    """A row of an algorithm that learns continuous actions from replay."""
    kinds = ALGORITHMS[name.split("-")[0]]
    shape = ActorCriticsConfig(hidden=(16,))
    sizes = {"num_envs": 4, "num_steps": 8, "capacity": 500, "batch_size": 16, "replay_ratio": 0.5, "warmup": 40.0}
    config = kinds.config(**(sizes | {"gamma": 0.9, "learning_rate": 1e-2, "tau": 0.05} | settings))

    def make(environment: Environment) -> Algorithm:
        return kinds.make(environment, lambda key: kinds.make_network(environment, shape, key))

    def value(state: Any, carry: Any, obs: Any) -> tuple[Any, jax.Array]:
        action = jnp.zeros(environment.action_space.shape)
        return carry, jnp.min(jnp.stack([critic(obs, action) for critic in state.agent.network.critic]))

    environment = Walk(continuous=True)
    rest = {"smallest": SMALL_REPLAY, "carry": lambda state: (), "spreads": False}
    return Row(name, make, config, environment, ("continuous",), telling, value, **rest)


SMALL_REPLAY = (("num_envs", 2), ("num_steps", 2), ("capacity", 8), ("batch_size", 2))
REPLAY = {"capacity": 500, "batch_size": 32, "replay_ratio": 0.25, "warmup": 40.0, "tau": 0.05}

# Two memories, whose sequences are solved in parallel, added up, before heads of two layers.
MINGRU = {"core": "mingru", "core_layers": 2, "core_output": "sum", "head_hidden": (16,), "shared": True}
TRANSFORMER = {"core": "gtrxl", "core_layers": 2, "core_heads": 2, "core_memory": 6, "shared": True}
BLOCKS = {"core": "mingru", "core_layers": 2, "core_output": "residual", "shared": True}

ROWS = (
    ppo_row("ppo", DISCRETE),
    ppo_row("ppo-shared", ("action-observation",), network={"shared": True}),
    ppo_row("ppo-gru", ("two-steps", "two-agents", "memory"), network={"core": "gru"}, sequence_length=4),
    ppo_row("ppo-lstm", ("memory",), network={"core": "lstm", "shared": True}, sequence_length=4),
    ppo_row("ppo-mingru", ("memory",), network=MINGRU, sequence_length=4),
    ppo_row("ppo-blocks", (), network=BLOCKS, sequence_length=4),
    ppo_row("ppo-gtrxl", (), network=TRANSFORMER, sequence_length=4),
    # Half precision rounds a step alone in another way than a sequence in parallel; measured are 3e-3 and less.
    ppo_row("ppo-bfloat16", (), network=MINGRU | {"precision": "bfloat16"}, sequence_length=4, rounding=1e-2),
    ppo_row("ppo-continuous", ("continuous",), Walk(continuous=True), network={"initial_std": 0.5}),
    ppo_row("ppo-squashed", ("continuous",), Walk(continuous=True), network={"squash": True, "initial_std": 0.5}),
    ppo_row(
        "ppo-separate-epochs",
        ("two-steps", "action-observation"),
        critic_epochs=3,
        critic_learning_rate=2e-2,
        target_kl=0.05,
    ),
    ppo_row(
        "ppo-normalized",
        ("two-observations", "action-observation"),
        normalize_observations=True,
        normalize_rewards=True,
    ),
    ppo_row("ppo-values", ("two-steps",), network={"shared": True}, normalize_values=True),
    ppo_row("ppo-agents", (), Walk(agents=2)),
    ppo_row("ppo-types", (), Walk(agents=3, early=True), sharing="type", normalize_observations=True),
    ppo_rnd_row("ppo_rnd", ("two-steps",)),
    ppo_rnd_row("ppo_rnd-types", (), Walk(agents=3, early=True), sharing="type"),
    impala_row("impala", ("two-steps", "action-observation")),
    impala_row("impala-gru", ("memory",), network={"core": "gru"}, normalize_advantages="minibatch"),
    impala_row("impala-values", ("two-steps",), normalize_values=True),
    impala_row("impala-gtrxl", (), network=TRANSFORMER | {"shared": False}, sequence_length=4),
    impala_row(
        "impala-priority",
        ("action-observation",),
        network={"shared": True},
        objective="clipped",
        prioritized=True,
        sequence_length=4,
    )._replace(spreads=False),
    ppo_row("ppo-apart", (), Walk(agents=3, early=True), sharing="none", normalize_rewards=True, normalize_values=True),
    dqn_row("dqn", ("two-steps", "action-observation", "two-agents", "masked")),
    dqn_row("dqn-rainbow", ("two-steps",), {"dueling": True}, prioritized=True, n_step=2, normalize_observations=True),
    pqn_row("pqn", ("two-steps", "action-observation")),
    pqn_row("pqn-gru", ("memory",), network={"core": "gru"}, sequence_length=4),
    pqn_row("pqn-types", (), Walk(agents=3, early=True), sharing="type", normalize_observations=True),
    actor_critics_row("td3", ("continuous",)),
    actor_critics_row("sac", ("continuous",)),
)
NAMES = [row.name for row in ROWS]
BY_NAME = {row.name: row for row in ROWS}


# Families of algorithms: a law holds by default for a row of each.
FAMILY = {
    "ppo": "on-policy",
    "ppo_rnd": "on-policy",
    "impala": "on-policy",
    "pqn": "on-policy",
    "dqn": "replay",
    "td3": "replay",
    "sac": "replay",
}
# One row of each algorithm, those with the most parts.
EACH = ("ppo-gru", "impala-gru", "pqn", "dqn-rainbow", "td3", "sac")


def first(*names: str, among: list[str] = NAMES) -> list[Any]:
    """All rows as parameters of a test, those not named here as slow: for laws that cost seconds of compilation a row.

    Of every family that is `among` the rows, at least one is named.
    """
    left_out = {FAMILY[name.split("-")[0]] for name in among} - {FAMILY[name.split("-")[0]] for name in names}
    assert not left_out, f"no row of {left_out} is tried unless asked for with -m slow: name one of them too"
    return [name if name in names else pytest.param(name, marks=pytest.mark.slow) for name in among]
