"""Rows of the table of algorithms, and functions that build them."""

import dataclasses
import sys
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from laws import archives
from laws.walk import Walk
from rollax.action_spaces import make_normalized_zeros
from rollax.algorithm import Algorithm
from rollax.algorithms.bc import BCConfig, bc
from rollax.algorithms.impala import ImpalaConfig, impala
from rollax.algorithms.ppo import PPOConfig, ppo
from rollax.algorithms.ppo_rnd import PPORNDConfig, ppo_rnd
from rollax.algorithms.registry import ALGORITHMS
from rollax.environments import Environment
from rollax.learning import normalization, train_state
from rollax.networks import NetworkConfig, actor_critic
from rollax.networks.action_values.q_networks import (
    RecurrentQNetworkConfig,
    mask_illegal_values,
)
from rollax.networks.critics import StochasticActorCriticsConfig
from rollax.spaces import Box, Discrete
from support.demonstrations import random_demonstrations

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

SMALL_REPLAY = (("num_envs", 2), ("num_steps", 2), ("capacity", 8), ("batch_size", 2))
REPLAY = {"capacity": 500, "batch_size": 32, "replay_ratio": 0.25, "warmup": 40.0, "tau": 0.05}


Family = Literal["on-policy", "replay", "offline", "archive"]


class Row(NamedTuple):
    """Algorithm with small settings, and its properties that the tests depend on.

    A test runs over the rows that have a property, such as a family, probes or a memory. It does
    not select rows by name.
    """

    name: str
    algorithm: str
    family: Family
    make: Callable[[Environment], Algorithm]
    config: Any
    environment: Environment  # for the tests of compiled programs
    probes: tuple[str, ...] = ()  # probes that the row should learn
    telling: tuple[str, ...] = ()  # Probes that are tested by default. The others are slow tests.
    # (state, carry, obs) -> (carry, value in units of reward), None without a value estimate.
    value: Callable[[Any, Any, Any], tuple[Any, jax.Array]] | None = None
    memory: bool = False
    rounding: float = 1e-5  # Largest absolute log importance ratio before the first gradient step.
    smallest: tuple[tuple[str, Any], ...] = SMALLEST  # settings of the smallest possible update
    carry: Callable[[Any], Any] = lambda state: state.train.network.initial_carry()
    # Whether several devices exchange only sums when environments are distributed over them.
    spreads: bool = True
    varied: str = "learning_rate"  # setting that differs between members of a population
    forgets: bool = False  # whether its archive may lose an occupied cell
    comparable: int = 2  # updates after which programs that round differently are still close


def ppo_row(
    name: str,
    telling: tuple[str, ...],
    environment: Environment | None = None,
    network: Any = None,
    rounding: float = 1e-5,
    **settings: Any,
) -> Row:
    """Return a row of PPO. `network` and `settings` replace the settings that all rows share."""
    shape = dataclasses.replace(
        NetworkConfig(hidden=(16,), activation="relu", core_size=8), **(network or {})
    )
    shared = PPOConfig(
        num_envs=8, num_steps=8, num_minibatches=2, num_epochs=2, learning_rate=1e-2, gamma=0.9
    )
    config = dataclasses.replace(shared, **settings)

    def make(environment: Environment) -> Algorithm:
        return ppo(environment, lambda key: actor_critic(environment, shape, key))

    environment, memory = environment or Walk(), shape.core != "none"
    discrete = DISCRETE + ("memory",) * memory
    probes = discrete if isinstance(environment.action_space, Discrete) else ("continuous",)
    return Row(
        name=name,
        algorithm="ppo",
        family="on-policy",
        make=make,
        config=config,
        environment=environment,
        probes=probes,
        telling=telling,
        value=ppo_value,
        memory=memory,
        rounding=rounding,
    )


def impala_row(name: str, telling: tuple[str, ...], network: Any = None, **settings: Any) -> Row:
    """Return a row of IMPALA. The arguments are those of `ppo_row`."""
    shape = dataclasses.replace(
        NetworkConfig(hidden=(16,), activation="relu", core_size=8), **(network or {})
    )
    shared = ImpalaConfig(
        num_envs=8, num_steps=8, sequence_length=8, num_epochs=4, learning_rate=1e-2, gamma=0.9
    )
    config = dataclasses.replace(shared, **settings)
    memory = shape.core != "none"

    def make(environment: Environment) -> Algorithm:
        return impala(environment, lambda key: actor_critic(environment, shape, key))

    smallest = tuple({**dict(SMALLEST), "sequence_length": 2, "num_minibatches": 1}.items())
    return Row(
        name=name,
        algorithm="impala",
        family="on-policy",
        make=make,
        config=config,
        environment=Walk(),
        probes=DISCRETE + ("memory",) * memory,
        telling=telling,
        value=ppo_value,
        memory=memory,
        smallest=smallest,
    )


def ppo_value(state: Any, carry: Any, obs: Any) -> tuple[Any, jax.Array]:
    """Return the critic's value with the normalization of observations and rewards undone."""
    train = state.train
    carry, output = train_state.add_normalization(train.network, train.observations, train.values)(
        carry, obs
    )
    return carry, output.value * reward_scale(state.train)


def reward_scale(train: train_state.TrainState) -> jax.Array | float:
    """Return the divisor of scaled rewards."""
    return 1.0 if train.returns is None else jnp.sqrt(train.returns.variance + 1e-8)


def ppo_rnd_row(
    name: str, telling: tuple[str, ...], environment: Environment | None = None, **settings: Any
) -> Row:
    """Return a row of PPO with random network distillation.

    The arguments are those of `ppo_row`.
    """
    row, sizes = (
        ppo_row(name, telling, environment, **settings),
        {"novelty_hidden": 8, "novelty_outputs": 4},
    )
    given = {
        field.name: getattr(row.config, field.name) for field in dataclasses.fields(row.config)
    }
    shape = NetworkConfig(hidden=(16,), activation="relu")

    def make(environment: Environment) -> Algorithm:
        return ppo_rnd(environment, lambda key: actor_critic(environment, shape, key))

    config = PPORNDConfig(**given, **sizes, intrinsic_coefficient=0.2)
    return row._replace(algorithm="ppo_rnd", make=make, config=config)


CHOICES = ("action-reward", "action-observation", "two-agents", "multi-discrete", "masked")
VALUED = tuple(probe for probe in DISCRETE if probe != "multi-discrete")


def dqn_row(
    name: str,
    telling: tuple[str, ...],
    network: Any = None,
    algorithm: str = "dqn",
    **settings: Any,
) -> Row:
    """Return a row of DQN or a variant. The other arguments are those of `ppo_row`."""
    kinds = ALGORITHMS[algorithm]
    shape = kinds.network_config(**({"hidden": (16,)} | (network or {})))
    action_values = sys.modules[kinds.make.__module__].FNS.values
    sizes = {
        "num_envs": 8,
        "num_steps": 8,
        "gamma": 0.9,
        "learning_rate": 1e-2,
        "exploration_fraction": 0.5,
    }
    config = kinds.config(**(sizes | REPLAY | settings))

    def make(environment: Environment) -> Algorithm:
        return kinds.make(environment, lambda key: kinds.make_network(environment, shape, key))

    def value(state: Any, carry: Any, obs: Any) -> tuple[Any, jax.Array]:
        normalized = (
            obs if state.observations is None else normalization.normalize(state.observations, obs)
        )
        values = action_values(state.agent.network, state.config, normalized)
        return carry, jnp.max(mask_illegal_values(values, obs))

    return Row(
        name=name,
        algorithm=algorithm,
        family="replay",
        make=make,
        config=config,
        environment=Walk(),
        probes=VALUED,
        telling=telling,
        value=value,
        smallest=SMALL_REPLAY,
        carry=lambda state: (),
        spreads=False,
    )


def pqn_row(
    name: str,
    telling: tuple[str, ...],
    environment: Any = None,
    network: Any = None,
    **settings: Any,
) -> Row:
    """Return a row of PQN. The arguments are those of `ppo_row`."""
    kinds = ALGORITHMS["pqn"]
    shape = RecurrentQNetworkConfig(hidden=(16,), **({"core_size": 8} | (network or {})))
    sizes = {
        "num_envs": 8,
        "num_steps": 8,
        "num_minibatches": 2,
        "num_epochs": 4,
        "gamma": 0.9,
        "learning_rate": 1e-2,
    }
    config = kinds.config(**(sizes | {"exploration_fraction": 0.5, "q_lambda": 0.9} | settings))

    def make(environment: Environment) -> Algorithm:
        return kinds.make(environment, lambda key: kinds.make_network(environment, shape, key))

    def value(state: Any, carry: Any, obs: Any) -> tuple[Any, jax.Array]:
        carry, values = train_state.add_normalization(
            state.train.network, state.train.observations
        )(carry, obs)
        return carry, jnp.max(mask_illegal_values(values, obs)) * reward_scale(state.train)

    environment, memory = environment or Walk(), shape.core != "none"
    return Row(
        name=name,
        algorithm="pqn",
        family="on-policy",
        make=make,
        config=config,
        environment=environment,
        probes=VALUED + ("memory",) * memory,
        telling=telling,
        value=value,
        memory=memory,
    )


def actor_critics_row(
    name: str,
    algorithm: str,
    telling: tuple[str, ...],
    environment: Environment | None = None,
    **settings: Any,
) -> Row:
    """Return a row of an off-policy algorithm with a policy and critics."""
    kinds = ALGORITHMS[algorithm]
    shape = StochasticActorCriticsConfig(hidden=(16,))
    sizes = {
        "num_envs": 4,
        "num_steps": 8,
        "capacity": 500,
        "batch_size": 16,
        "replay_ratio": 0.5,
        "warmup": 40.0,
    }
    config = kinds.config(**(sizes | {"gamma": 0.9, "learning_rate": 1e-2, "tau": 0.05} | settings))

    def make(environment: Environment) -> Algorithm:
        return kinds.make(environment, lambda key: kinds.make_network(environment, shape, key))

    environment = environment or Walk(continuous=True)
    is_continuous = isinstance(environment.action_space, Box)

    def value(state: Any, carry: Any, obs: Any) -> tuple[Any, jax.Array]:
        action = make_normalized_zeros(environment.action_space)
        return carry, jnp.min(
            jnp.stack([critic(obs, action) for critic in state.agent.network.critic])
        )

    return Row(
        name=name,
        algorithm=algorithm,
        family="replay",
        make=make,
        config=config,
        environment=environment,
        probes=("continuous",) if is_continuous else CHOICES,
        telling=telling,
        value=value if is_continuous else None,
        smallest=SMALL_REPLAY,
        carry=lambda state: (),
        spreads=False,
    )


def bc_row(name: str, environment: Any = None, network: Any = None, **settings: Any) -> Row:
    """Return a row of behavior cloning on random demonstrations.

    The arguments are those of `ppo_row`.
    """
    shape = NetworkConfig(**({"hidden": (16,), "core_size": 8} | (network or {})))
    sizes = {"batch_size": 16, "num_gradient_steps": 4, "learning_rate": 1e-2}

    def make(environment: Environment) -> Algorithm:
        data = random_demonstrations(environment)
        return bc(environment, lambda key: actor_critic(environment, shape, key), data)

    return ppo_row(name, (), environment, network)._replace(
        algorithm="bc",
        family="offline",
        make=make,
        config=BCConfig(**(sizes | settings)),
        probes=(),
        value=None,
        smallest=(("batch_size", 2), ("num_gradient_steps", 1)),
    )


def archive_row(name: str, varied: str, forgets: bool = False) -> Row:
    """Return a row of a quality-diversity algorithm with the settings of `laws.archives`."""
    kinds = ALGORITHMS[name]
    shape = kinds.network_config(hidden=(8,))

    def make(environment: Environment) -> Algorithm:
        return kinds.make(environment, lambda key: kinds.make_network(environment, shape, key))

    return Row(
        name=name,
        algorithm=name,
        family="archive",
        make=make,
        config=archives.config(name),
        environment=archives.environment(name),
        smallest=(("num_iterations", 1), ("grid", (2, 2))),
        carry=lambda state: (),
        varied=varied,
        forgets=forgets,
        comparable=1,  # later, rounding affects which solution wins a cell
    )
