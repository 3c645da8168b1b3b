"""A custom algorithm: synchronous A2C (Mnih et al. 2016, arXiv:1602.01783).

Run it from this folder:

    python own_algorithm.py
    rollax train a2c gymnax/CartPole-v1 --import own_algorithm
"""

from typing import Any

import jax
import jax.numpy as jnp

import rollax
from rollax.algorithms.derived_settings import derive_on_policy
from rollax.algorithms.on_policy import LearnResult, RolloutEnd, on_policy
from rollax.config import settings_dataclass, static_field, traced_field
from rollax.learning import losses, train_state
from rollax.learning.optimizers import clipped_adam
from rollax.learning.returns import add_values, estimate_advantages
from rollax.networks import memory_windows


@settings_dataclass
class A2CConfig:
    num_envs: int = static_field(16)
    num_steps: int = static_field(8)
    learning_rate: float = traced_field(2e-3, low=0)
    gamma: float = traced_field(0.99, 0, 1)
    gae_lambda: float = traced_field(0.95, 0, 1)
    entropy_coefficient: float = traced_field(0.01)
    total_updates: float = traced_field(float("inf"), low=1)
    sharing, normalize_observations, normalize_rewards = "all", False, False

    @property
    def steps_per_update(self) -> int:
        return self.num_envs * self.num_steps


def optimizers(config: A2CConfig, progress: Any) -> dict[str, Any]:
    optimizer = clipped_adam(config.learning_rate, 1e-5, 0.5)
    return {"actor": optimizer, "critic": optimizer}


def loss(network: Any, rollout: Any, advantage: Any, target: Any, config: A2CConfig) -> Any:
    carry = memory_windows.first_carries(rollout.carry)
    _, output = network.unroll(carry, rollout.obs, rollout.reset)
    log_prob = jax.vmap(jax.vmap(lambda policy, raw: policy.log_prob(raw)))
    entropy = jax.vmap(jax.vmap(lambda policy: policy.entropy()))(output.policy)
    policy_loss = -log_prob(output.policy, rollout.extras.raw_action) * advantage
    value_loss = 0.25 * (output.value - target) ** 2
    total = policy_loss + value_loss - config.entropy_coefficient * entropy
    metrics = losses.masked_means({"loss": total, "entropy": entropy}, rollout.mask)
    return metrics["loss"], metrics


def learn(
    config: A2CConfig, progress: Any, train: Any, rollout: Any, end: RolloutEnd, key: Any
) -> LearnResult:
    network = train.network
    rollout = add_values(network, rollout)
    advantage, target = estimate_advantages(
        network, rollout, rollout.reward, end.carry, config.gamma, config.gae_lambda
    )
    gradient, metrics = jax.grad(loss, has_aux=True)(network, rollout, advantage, target, config)
    is_active = dict.fromkeys(("actor", "critic"), jnp.ones((), bool))
    train = train_state.update_parameters(train, optimizers(config, progress), gradient, is_active)
    more, finite = losses.summarize_update(
        rollout, advantage, target, metrics["loss"], train.network
    )
    return LearnResult(train, end.discounted_return, metrics | more, finite)


def a2c(environment: Any, network: Any) -> rollax.Algorithm:
    make_train = train_state.init_train_state
    return on_policy(environment, network, learn, make_optimizers=optimizers, make_train=make_train)


entry = rollax.AlgorithmEntry(
    make=a2c, config=A2CConfig, summary="advantage actor-critic", derive_settings=derive_on_policy
)
rollax.register_algorithm("a2c", entry)

if __name__ == "__main__":
    print(rollax.check_algorithm("a2c"))
    rollax.train("a2c", "gymnax/CartPole-v1", total_steps=300_000)
