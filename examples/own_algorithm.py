"""An algorithm of one's own: A2C (Mnih et al. 2016, arXiv:1602.01783, synchronous), one gradient step from every rollout.

From this folder: `python own_algorithm.py`, or `rollax train a2c gymnax/CartPole-v1 --import own_algorithm`.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

import rollax
from rollax.acting import agents
from rollax.acting.streams import by_stream, reseed, unroll, without_actor
from rollax.config import number, settings, static
from rollax.learning import losses, train_state
from rollax.learning.returns import gae, next_values, over_streams


@settings
class A2CConfig:
    num_envs: int = static(16)
    num_steps: int = static(8)
    learning_rate: float = number(2e-3, low=0)
    gamma: float = number(0.99, 0, 1)
    gae_lambda: float = number(0.95, 0, 1)
    entropy_coefficient: float = number(0.01)
    total_updates: float = number(float("inf"), low=1)
    sharing, normalize_observations, normalize_rewards = "all", False, False

    @property
    def steps_per_update(self) -> int:
        return self.num_envs * self.num_steps


class State(NamedTuple):
    key: jax.Array
    config: A2CConfig
    train: Any  # network and optimizer
    actor: Any


def optimizers(config: A2CConfig, progress: Any) -> dict[str, Any]:
    return dict.fromkeys(("actor", "critic"), train_state.adam(config.learning_rate, 1e-5, 0.5))


def loss(network: Any, rollout: Any, advantage: jax.Array, target: jax.Array, config: A2CConfig) -> Any:
    _, output = network.unroll(jax.tree.map(lambda x: x[0], rollout.carry), rollout.obs, rollout.reset)
    density = jax.vmap(jax.vmap(lambda policy, raw_action: (policy.log_prob(raw_action), policy.entropy())))
    log_prob, entropy = density(output.policy, rollout.extras.raw_action)
    total = -log_prob * advantage + 0.25 * (output.value - target) ** 2 - config.entropy_coefficient * entropy
    metrics = losses.means({"loss": total, "entropy": entropy}, rollout.mask)
    return metrics["loss"], metrics


def a2c(environment: Any, network: Any) -> rollax.Algorithm:
    team = agents.team(environment, "all")

    def init(key: jax.Array, config: A2CConfig) -> State:
        config, (state_key, *keys) = rollax.tree.as_leaves(config), jax.random.split(key, 3)
        train, actor, _ = train_state.begin(environment, network, optimizers, config, keys)
        return State(state_key, config, train, actor)

    def step(state: State) -> tuple[State, rollax.Metrics]:
        (key, act_key), config, train = jax.random.split(state.key), state.config, state.train
        policy = agents.policy(team, train_state.sample, train)
        actor, rollout, episodes = unroll(environment, policy, state.actor, act_key, config.num_steps)
        value, ends = rollout.extras.value, (rollout.terminated, rollout.truncated)
        next_value = next_values(train.network, rollout, value, by_stream(environment, actor.carry))
        advantage = over_streams(gae, 2)(rollout.reward, value, next_value, *ends, config.gamma, config.gae_lambda)
        target, on = advantage + value, {"actor": jnp.ones((), bool), "critic": jnp.ones((), bool)}
        gradient, metrics = jax.grad(loss, has_aux=True)(train.network, rollout, advantage, target, config)
        train = train_state.update(train, optimizers(config, 0.0), gradient, on)
        more, finite = losses.report(rollout, advantage, target, metrics["loss"], train.network)
        return State(key, config, train, actor), rollax.Metrics(metrics | more, episodes, finite)

    def act(state: State, obs: Any, carry: Any, key: jax.Array, greedy: Any) -> tuple[Any, Any]:
        return agents.act(team, jax.tree_util.Partial(train_state.choose, jnp.asarray(greedy)), state.train, obs, carry, key)

    def initial_carry(state: State) -> Any:
        return agents.initial_carry(team, train_state.initial_carry, state.train)

    return rollax.Algorithm(init, step, act, initial_carry, without_actor, reseed)


rollax.register_algorithm("a2c", rollax.AlgorithmEntry(a2c, A2CConfig, summary="synchronous advantage actor-critic"))

if __name__ == "__main__":
    print(rollax.check_algorithm("a2c"))
    rollax.train("a2c", "gymnax/CartPole-v1", total_steps=300_000)
