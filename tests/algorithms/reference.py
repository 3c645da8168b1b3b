"""TD3, SAC and dense networks in NumPy, in double precision, with gradients by hand."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from rollax.environments import Transition
from rollax.replay.ring import ReplayBatch
from rollax.spaces import Box

Layers = list[
    tuple[np.ndarray, np.ndarray]
]  # (weight [n, m], bias [n]) of each dense layer, with ReLU between them


def layers_of(dense: Any, last: Any) -> Layers:
    """Return the layers of a network's dense part and its last one."""
    return [
        (np.asarray(x.weight, float).T, np.asarray(x.bias, float)) for x in (*dense.layers, last)
    ]


def forward(layers: Layers, x: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return outputs `[B, n]` and the inputs of every layer."""
    inputs = []
    for i, (weight, bias) in enumerate(layers):
        inputs.append(x)
        x = x @ weight.T + bias
        x = np.maximum(x, 0) if i + 1 < len(layers) else x
    return x, inputs


def backward(
    layers: Layers, inputs: list[np.ndarray], slope: np.ndarray
) -> tuple[Layers, np.ndarray]:
    """Return gradients of all parameters and of the network's input, from those of its outputs."""
    gradients: Layers = []
    for (weight, _), x in zip(reversed(layers), reversed(inputs), strict=True):
        gradients.insert(0, (slope.T @ x, slope.sum(axis=0)))
        slope = slope @ weight * (x > 0 if len(gradients) < len(layers) else 1)
    return gradients, slope


class Adam:
    """Adam for one set of layers or for one number, with its state."""

    def __init__(self, rate: float, epsilon: float) -> None:
        self.rate, self.epsilon, self.steps = rate, epsilon, 0
        self.first: list[np.ndarray] = []
        self.second: list[np.ndarray] = []

    def step(self, values: list[np.ndarray], gradients: list[np.ndarray]) -> list[np.ndarray]:
        self.steps += 1
        self.first = self.first or [np.zeros_like(g) for g in gradients]
        self.second = self.second or [np.zeros_like(g) for g in gradients]
        after = []
        for i, (value, gradient) in enumerate(zip(values, gradients, strict=True)):
            self.first[i] = 0.9 * self.first[i] + 0.1 * gradient
            self.second[i] = 0.999 * self.second[i] + 0.001 * gradient**2
            mean, square = (
                self.first[i] / (1 - 0.9**self.steps),
                self.second[i] / (1 - 0.999**self.steps),
            )
            after.append(value - self.rate * mean / (np.sqrt(square) + self.epsilon))
        return after

    def on(self, many: list[Layers], gradients: list[Layers]) -> list[Layers]:
        """Return several networks after one step."""
        flat = [x for layers in many for pair in layers for x in pair]
        slopes = [x for layers in gradients for pair in layers for x in pair]
        new = iter(self.step(flat, slopes))
        return [[(next(new), next(new)) for _ in layers] for layers in many]


def blended(target: Layers, layers: Layers, tau: float) -> Layers:
    return [
        ((1 - tau) * a + tau * c, (1 - tau) * b + tau * d)
        for (a, b), (c, d) in zip(target, layers, strict=True)
    ]


def value(critic: Layers, obs: np.ndarray, action: np.ndarray) -> np.ndarray:
    return forward(critic, np.concatenate([obs, action], axis=1))[0][:, 0]


def critic_gradients(critics: list[Layers], batch: Any, target: np.ndarray) -> list[Layers]:
    """Return gradients of the sum over critics of mean (Q - y)^2."""
    found = []
    for critic in critics:
        q, inputs = forward(critic, np.concatenate([batch.obs, batch.action], axis=1))
        found.append(backward(critic, inputs, 2 * (q - target[:, None]) / len(target))[0])
    return found


def action_slope(critic: Layers, obs: np.ndarray, action: np.ndarray) -> np.ndarray:
    """Return d Q / d action of each sample."""
    q, inputs = forward(critic, np.concatenate([obs, action], axis=1))
    return backward(critic, inputs, np.ones_like(q))[1][:, obs.shape[1] :]


class TD3:
    """Algorithm 1 of Fujimoto et al. 2018, one gradient step at a time."""

    def __init__(self, agent: Any, config: Any) -> None:
        self.config, self.steps = config, 0
        self.actor = layers_of(agent.network.actor.dense, agent.network.actor.head.layer)
        self.critics = [layers_of(c.dense, c.head) for c in agent.network.critic]
        self.target_actor, self.target_critics = self.actor, self.critics
        self.actor_adam = Adam(config.learning_rate, config.adam_epsilon)
        self.critic_adam = Adam(
            config.critic_learning_rate or config.learning_rate, config.adam_epsilon
        )

    def update(self, batch: Any, normal: np.ndarray) -> None:
        config = self.config
        noise = np.clip(
            config.target_noise * normal, -config.target_noise_clip, config.target_noise_clip
        )
        action = np.clip(np.tanh(forward(self.target_actor, batch.next_obs)[0]) + noise, -1, 1)
        lower = np.minimum(
            *[value(critic, batch.next_obs, action) for critic in self.target_critics]
        )
        target = config.reward_scale * batch.reward + batch.discount * lower
        self.critics = self.critic_adam.on(
            self.critics, critic_gradients(self.critics, batch, target)
        )
        self.steps += 1
        if self.steps % config.policy_delay:
            return
        before, inputs = forward(self.actor, batch.obs)
        action = np.tanh(before)
        slope = -action_slope(self.critics[0], batch.obs, action) * (1 - action**2) / len(action)
        self.actor = self.actor_adam.on([self.actor], [backward(self.actor, inputs, slope)[0]])[0]
        self.target_actor = blended(self.target_actor, self.actor, config.tau)
        pairs = zip(self.target_critics, self.critics, strict=True)
        self.target_critics = [blended(target, critic, config.tau) for target, critic in pairs]


class SAC:
    """Algorithm 1 of Haarnoja et al. 2018b, one gradient step at a time.

    The policy and alpha are updated every `policy_delay` steps.
    """

    def __init__(self, agent: Any, config: Any) -> None:
        self.config, self.steps = config, 0
        self.actor = layers_of(agent.network.actor.dense, agent.network.actor.head.layer)
        self.critics = [layers_of(c.dense, c.head) for c in agent.network.critic]
        self.target_critics = self.critics
        self.log_alpha = np.log(config.initial_temperature)
        rates = config.learning_rate, config.critic_learning_rate, config.temperature_learning_rate
        adams = (Adam(rate or config.learning_rate, config.adam_epsilon) for rate in rates)
        self.actor_adam, self.critic_adam, self.alpha_adam = adams

    def sample(self, obs: np.ndarray, normal: np.ndarray) -> tuple[np.ndarray, ...]:
        """Return the action, log pi, and the values that its gradient needs."""
        out, inputs = forward(self.actor, obs)
        mean, log_std = np.split(out, 2, axis=1)
        draw = mean + np.exp(log_std) * normal
        action = np.tanh(draw)
        density = -0.5 * normal**2 - log_std - 0.5 * np.log(2 * np.pi) - np.log(1 - action**2)
        return action, density.sum(axis=1), np.exp(log_std), inputs

    def update(self, batch: Any, normal: np.ndarray, policy_normal: np.ndarray) -> None:
        config, alpha = self.config, np.exp(self.log_alpha)
        action, log_pi, _, _ = self.sample(batch.next_obs, normal)
        lower = np.minimum(
            *[value(critic, batch.next_obs, action) for critic in self.target_critics]
        )
        target = config.reward_scale * batch.reward + batch.discount * (lower - alpha * log_pi)
        self.critics = self.critic_adam.on(
            self.critics, critic_gradients(self.critics, batch, target)
        )
        self.steps += 1
        if self.steps % config.policy_delay == 0:
            self.improve(batch, policy_normal, alpha)
        pairs = zip(self.target_critics, self.critics, strict=True)
        self.target_critics = [blended(target, critic, config.tau) for target, critic in pairs]

    def improve(self, batch: Any, normal: np.ndarray, alpha: float) -> None:
        action, log_pi, std, inputs = self.sample(batch.obs, normal)
        values = [value(critic, batch.obs, action) for critic in self.critics]
        slopes = [action_slope(critic, batch.obs, action) for critic in self.critics]
        slope = np.where((values[0] <= values[1])[:, None], *slopes)
        # d log pi / d u is 2 tanh(u), and d log pi / d log_std has an additional -1. u moves with
        # the mean, and with log_std by std times the noise.
        by_draw = alpha * 2 * action - slope * (1 - action**2)
        by_output = np.concatenate([by_draw, by_draw * std * normal - alpha], axis=1) / len(action)
        self.actor = self.actor_adam.on([self.actor], [backward(self.actor, inputs, by_output)[0]])[
            0
        ]
        goal = self.config.target_entropy * action.shape[1]
        gradient = alpha * np.mean(-log_pi - goal)
        self.log_alpha = self.alpha_adam.step([np.asarray(self.log_alpha)], [np.asarray(gradient)])[
            0
        ]


class Reward(eqx.Module):
    """Environment with reward 1 per step, like `probe/truncation`.

    Episodes are truncated after 8 steps, or terminated with `terminate`.
    """

    terminate: bool = eqx.field(static=True, default=False)

    name = "test/reward"
    action_space = Box(-2.0, 2.0, (1,))
    num_agents = None
    time_limit = 8

    @property
    def observation_space(self) -> Box:
        return Box(0.0, 1.0, (8,))

    def reset(self, key: jax.Array) -> tuple[Any, Any]:
        return jnp.zeros((), jnp.int32), self.observe(jnp.zeros((), jnp.int32))

    def step(self, key: jax.Array, state: Any, action: Any) -> Transition:
        end = state + 1 >= 8
        is_over = jnp.asarray(self.terminate)
        return Transition(
            state + 1, self.observe(state + 1), jnp.ones(()), end & is_over, end & ~is_over, {}
        )

    def observe(self, time: jax.Array) -> jax.Array:
        """Return the time if it matters, or else zeros."""
        return jax.nn.one_hot(time, 8) * self.terminate


def batch_of(
    obs: Any, action: jax.Array, reward: jax.Array, discount: jax.Array, next_obs: Any
) -> ReplayBatch:
    """Return a batch with weights of 1 for an agent without memory."""
    return ReplayBatch(
        obs,
        action,
        reward,
        discount,
        next_obs,
        jnp.ones_like(reward),
        jnp.zeros(reward.shape, bool),
        (),
    )


def random_batches(number: int, size: int, seed: int = 0) -> list[ReplayBatch]:
    """Return batches with observations [3] and actions [3]."""
    numbers = np.random.default_rng(seed)

    def draw(*shape):
        return jnp.asarray(numbers.normal(size=shape), jnp.float32)

    made = []
    for _ in range(number):
        action, over = jnp.tanh(draw(size, 3)), jnp.asarray(numbers.random(size) < 0.2)
        discount = jnp.where(over, 0.0, 0.9)
        made.append(batch_of(draw(size, 3), action, draw(size), discount, draw(size, 3)))
    return made


def doubles(tree: Any) -> Any:
    """Convert every float to double precision.

    In single precision, Adam would turn rounding errors of zero gradients into steps of any size.
    """
    return jax.tree.map(
        lambda x: x.astype(jnp.float64) if jnp.issubdtype(x.dtype, jnp.floating) else x, tree
    )


def check_layers(found: Layers, expected: Layers) -> None:
    """Check that parameters are equal, up to the single precision of settings."""
    for pair, other in zip(found, expected, strict=True):
        for a, b in zip(pair, other, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-8)
