"""Tests of SAC: updates against the paper's algorithm, the temperature, and time limits."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algorithms.reference import (
    SAC,
    Reward,
    batch_of,
    check_layers,
    doubles,
    layers_of,
    random_batches,
)
from laws.programs import differs
from laws.walk import Walk
from rollax import tree
from rollax.algorithms.sac import SACConfig, init_agent, sac, update
from rollax.networks.critics import (
    StochasticActorCriticsConfig,
    make_stochastic_actor_critics,
    sample_actions,
)

SHAPE = StochasticActorCriticsConfig(hidden=(8, 8))
CONFIG = SACConfig(
    learning_rate=1e-2, tau=0.1, initial_temperature=0.3, target_entropy=-0.5, reward_scale=2.0
)


def begun(config: SACConfig) -> Any:
    return init_agent(
        make_stochastic_actor_critics(Walk(continuous=True), SHAPE, jax.random.key(0)),
        tree.to_arrays(config),
    )


RATES = [
    (1.0, {}),
    (2.0, {"critic_learning_rate": 2e-2}),
    (3.0, {"temperature_learning_rate": 5e-3}),
]


@pytest.mark.usefixtures("double_precision")
@pytest.mark.parametrize(("delay", "rates"), RATES)
def test_updates_are_those_of_the_paper(delay: float, rates: dict[str, float]) -> None:
    """Six gradient steps equal those in NumPy.

    Critics and their targets change in every step, policy and temperature every `delay` steps.
    """
    config = dataclasses.replace(CONFIG, policy_delay=delay, **rates)
    agent, settings = doubles((begun(config), tree.to_arrays(config)))
    expected, step = SAC(agent, config), jax.jit(update)
    for i, batch in enumerate(doubles(random_batches(6, 16))):
        normals = np.asarray(jax.random.normal(jax.random.key(i), (2, 16, 3)), float)
        expected.update(jax.tree.map(lambda x: np.asarray(x, float), batch), *normals)
        before = agent
        agent, _ = step(agent, settings, batch, jax.random.key(i))
        assert differs(before.network.actor, agent.network.actor) == ((i + 1) % delay == 0)
        assert differs(before.log_temperature, agent.log_temperature) == ((i + 1) % delay == 0)
        assert differs(before.target, agent.target)
    actor = agent.network.actor
    check_layers(layers_of(actor.dense, actor.head.layer), expected.actor)
    for critics, others in (
        (agent.network.critic, expected.critics),
        (agent.target, expected.target_critics),
    ):
        for critic, other in zip(critics, others, strict=True):
            check_layers(layers_of(critic.dense, critic.head), other)
    assert float(agent.log_temperature["continuous"]) == pytest.approx(
        float(expected.log_alpha), rel=1e-4
    )


def test_the_temperature_controls_the_entropy() -> None:
    """One action is best, but the entropy converges to its target instead of its minimum."""
    config = dataclasses.replace(CONFIG, target_entropy=-1.0, reward_scale=1.0, learning_rate=3e-3)
    agent, settings = begun(config), tree.to_arrays(config)
    obs = random_batches(1, 64)[0].obs

    def step(agent: Any, i: jax.Array) -> tuple[Any, jax.Array]:
        action_key, update_key = jax.random.split(jax.random.fold_in(jax.random.key(0), i))
        action = jax.random.uniform(action_key, (64, 3), minval=-1.0, maxval=1.0)
        batch = batch_of(obs, action, -5 * jnp.sum(action**2, axis=1), jnp.zeros(64), obs)
        agent, metrics = update(agent, settings, batch, update_key)
        return agent, metrics["entropy"]

    agent, entropy = jax.jit(lambda agent: jax.lax.scan(step, agent, jnp.arange(3000)))(agent)
    assert float(entropy[0]) > 0
    assert float(jnp.mean(entropy[-500:])) == pytest.approx(3 * -1.0, abs=0.4)


def test_the_temperature_can_be_fixed() -> None:
    config = tree.to_arrays(dataclasses.replace(CONFIG, learn_temperature=False))
    agent = begun(config)
    after, metrics = jax.jit(update)(agent, config, random_batches(1, 16)[0], jax.random.key(0))
    assert after.log_temperature == agent.log_temperature
    assert float(metrics["temperature"]) == pytest.approx(0.3)


@pytest.mark.quick
def test_densities_integrate_to_one() -> None:
    """The density of actions in one dimension is summed over -1 ... 1."""
    environment = Reward()
    actor = make_stochastic_actor_critics(environment, SHAPE, jax.random.key(0)).actor
    obs = jnp.full((4001, 8), 0.3)
    action, log_prob = sample_actions(jax.vmap(actor)(obs), jnp.linspace(-7, 7, 4001)[:, None])
    assert float(jnp.trapezoid(jnp.exp(log_prob), action[:, 0])) == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize("terminate", [False, True])
def test_values_at_time_limits(terminate: bool) -> None:
    """With reward 1, discount 0.9 and no entropy, the value is 10 if episodes are truncated.

    If they terminate, it is (1 - 0.9^(8 - t)) / 0.1 at step t.
    """
    environment = Reward(terminate)
    config = SACConfig(
        num_envs=8, num_steps=32, capacity=8000, batch_size=64, warmup=100.0, gamma=0.9,
        tau=0.05, replay_ratio=0.5,
        learning_rate=1e-2, learning_rate_final_fraction=0.0, total_updates=25.0,
        initial_temperature=0.0, learn_temperature=False,
    )  # fmt: skip
    algorithm = sac(
        environment,
        lambda key: make_stochastic_actor_critics(
            environment, StochasticActorCriticsConfig(hidden=(16, 16)), key
        ),
    )
    state = jax.jit(algorithm.init)(jax.random.key(0), config)
    step = jax.jit(algorithm.step)
    for _ in range(25):
        state, _ = step(state)
    times = jnp.arange(8)
    look = jax.vmap(
        lambda time: state.agent.network.critic[0](environment.observe(time), jnp.zeros(1))
    )
    expected = (1 - 0.9 ** (8 - times)) / 0.1 if terminate else jnp.full(8, 10.0)
    np.testing.assert_allclose(look(times), expected, rtol=0.05)
