"""An algorithm of one's own: A2C (Mnih et al. 2016, arXiv:1602.01783, synchronous), one gradient step from every rollout.

From this folder: `python own_algorithm.py`, or `rollax train a2c gymnax/CartPole-v1 --import own_algorithm`.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp

import rollax
from rollax.acting import agents
from rollax.acting.streams import Policy, by_stream, unroll
from rollax.algorithms.on_policy import OnPolicyState, begin, to_algorithm
from rollax.config import number, settings, static
from rollax.learning import losses, train_state
from rollax.learning.returns import gae, next_values, over_streams, with_values
from rollax.networks import windows


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


def optimizers(config: A2CConfig, progress: Any) -> dict[str, Any]:
    return dict.fromkeys(("actor", "critic"), train_state.adam(config.learning_rate, 1e-5, 0.5))


def loss(network: Any, rollout: Any, advantage: jax.Array, target: jax.Array, config: A2CConfig) -> Any:
    _, output = network.unroll(windows.first(rollout.carry), rollout.obs, rollout.reset)
    density = jax.vmap(jax.vmap(lambda policy, raw_action: (policy.log_prob(raw_action), policy.entropy())))
    log_prob, entropy = density(output.policy, rollout.extras.raw_action)
    total = -log_prob * advantage + 0.25 * (output.value - target) ** 2 - config.entropy_coefficient * entropy
    metrics = losses.means({"loss": total, "entropy": entropy}, rollout.mask)
    return metrics["loss"], metrics


def a2c(environment: Any, network: Any) -> rollax.Algorithm:
    init = functools.partial(begin, environment, network, optimizers)
    team = agents.team(environment, "all")

    def explore(state: OnPolicyState) -> Policy:
        return agents.policy(team, train_state.sample, state.train)

    def step(state: OnPolicyState) -> tuple[OnPolicyState, rollax.Metrics]:
        (key, act_key, _), config, train = jax.random.split(state.key, 3), state.config, state.train
        actor, rollout, episodes = unroll(environment, explore(state), state.actor, act_key, config.num_steps)
        rollout = with_values(train.network, rollout)
        value, ends = rollout.extras.value, (rollout.terminated, rollout.truncated)
        next_value = next_values(train.network, rollout, value, by_stream(environment, actor.carry))
        advantage = over_streams(gae, 2)(rollout.reward, value, next_value, *ends, config.gamma, config.gae_lambda)
        target, on = advantage + value, {"actor": jnp.ones((), bool), "critic": jnp.ones((), bool)}
        gradient, metrics = jax.grad(loss, has_aux=True)(train.network, rollout, advantage, target, config)
        train = train_state.update(train, optimizers(config, 0.0), gradient, on)
        more, finite = losses.report(rollout, advantage, target, metrics["loss"], train.network)
        state = state._replace(key=key, train=train, actor=actor, updates=state.updates + 1)
        return state, rollax.Metrics(metrics | more, episodes, finite)

    return to_algorithm(environment, init, step, train_state.choose, explore)


rollax.register_algorithm("a2c", rollax.AlgorithmEntry(a2c, A2CConfig, summary="synchronous advantage actor-critic"))

if __name__ == "__main__":
    print(rollax.check_algorithm("a2c"))
    rollax.train("a2c", "gymnax/CartPole-v1", total_steps=300_000)
