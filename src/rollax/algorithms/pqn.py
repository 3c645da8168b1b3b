"""Parallelised Q-network: Q-learning from many environments at once, with neither replay nor target network.

Gallici et al. 2024, arXiv:2407.04811, algorithm 1 with its lambda-returns: networks are normalised layer by layer
(`network.layer_norm`), which is what lets them learn without targets that lag behind. It is the rollout of PPO with an
epsilon-greedy policy, whose value is that of its best action. Deviations: Adam (the paper: rectified Adam), and returns
bootstrap where an episode was cut off by time. docs/algorithms/pqn.md has all equations.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from rollax import batch, groups, moments, optimise, rollout, tree
from rollax.algorithm import Algorithm
from rollax.algorithms.off_policy import descend
from rollax.environments.core import Environment, Streams
from rollax.networks.critics import Acting, check_discrete, falling, of_action
from rollax.returns import gae, over_streams


@tree.settings
class PQNConfig:
    """Settings of PQN. Those marked (static) shape the program; all others are data, so they can be swept over."""

    num_envs: int = tree.static(64)
    """(static) Environments run side by side."""
    num_steps: int = tree.static(32)
    """(static) Steps of each environment per update."""
    num_minibatches: int = tree.static(8)
    """(static) Gradient steps per epoch."""
    num_epochs: int = tree.static(2)
    """(static) Passes over each rollout."""
    normalize_observations: bool = tree.static(False)
    """(static) Shift and scale observations by running statistics."""
    epsilon: float = tree.number(1.0, 0, 1)
    """Chance of a random action at the start."""
    epsilon_end: float = tree.number(0.05, 0, 1)
    """Chance of a random action once epsilon_share of training is over, reached linearly."""
    epsilon_share: float = tree.number(0.2, 0, 1)
    """Share of training over which that chance falls."""
    learning_rate: float = tree.number(5e-4, low=0)
    """Adam's step size."""
    learning_rate_end: float = tree.number(1.0, 0, 1)
    """Share of the learning rate left at the end of training, reached linearly."""
    gamma: float = tree.number(0.99, 0, 1)
    """Discount."""
    q_lambda: float = tree.number(0.65, 0, 1)
    """Trace decay of the returns; 0: one step, 1: until the end of the rollout."""
    max_grad_norm: float = tree.number(10.0, low=0)
    """Global norm to which gradients are clipped."""
    adam_epsilon: float = tree.number(1e-8, low=0)
    """Adam's epsilon."""
    total_updates: float = tree.number(float("inf"), low=1)
    """Updates until the schedules end. The run sets it from its total steps."""

    @property
    def frames_per_update(self) -> int:
        """Environment frames in one update."""
        return self.num_envs * self.num_steps


class PQNState(NamedTuple):
    """Everything that changes."""

    key: jax.Array
    config: PQNConfig
    network: Any
    optimiser: Any
    observations: Any  # Moments of observations, or ()
    actor: rollout.Actor
    updates: jax.Array  # int32 []


class Samples(NamedTuple):
    """What is learnt from: `[T, S, ...]`, then `[1, B, ...]`."""

    obs: Any
    action: jax.Array
    target: jax.Array
    present: Any  # which samples count; () for all


def pqn(environment: Environment, network: Callable[[jax.Array], Any]) -> Algorithm:
    """PQN in `environment` with the action values that `network(key)` makes.

    `init` raises ValueError when the sizes in the config do not divide.
    """
    check_discrete(environment.action_space)
    everyone = groups.team(environment, "all")

    def streams(config: PQNConfig) -> Streams:
        return Streams(environment, config.num_envs)

    def policy(state: PQNState, chance: Any) -> Any:
        return moments.view(state.observations)(Acting(state.network, chance))

    def init(key: jax.Array, config: PQNConfig) -> PQNState:
        config = tree.as_leaves(config)
        cut(config, streams(config).num_streams)
        state_key, network_key, actor_key = jax.random.split(key, 3)
        model = network(network_key)
        actor = rollout.start(streams(config), (), actor_key)
        one_obs = jax.tree.map(lambda x: x[0], streams(config).by_stream(actor.streams.obs))
        observations = moments.initial(one_obs) if config.normalize_observations else ()
        adam = optimiser(config, 0.0).init(model)
        return PQNState(state_key, config, model, adam, observations, actor, jnp.zeros((), jnp.int32))

    def step(state: PQNState) -> tuple[PQNState, dict[str, jax.Array]]:
        config, progress = state.config, state.updates / state.config.total_updates
        key, act_key, learn_key = jax.random.split(state.key, 3)

        # 1. act
        chance = falling(config, progress)
        acting = policy(state, chance)
        run = rollout.rollout(streams(config), everyone, acting, state.actor, act_key, config.num_steps)
        actor, trajectory, episodes = run

        # 2. credit: R_t = r_t + gamma ((1 - lambda) max Q(s_(t+1)) + lambda R_(t+1))
        next_value = rollout.next_values(acting, trajectory, actor.carry)
        ends = trajectory.terminated, trajectory.truncated
        lead = over_streams(gae, 2)(trajectory.reward, trajectory.value, next_value, *ends, config.gamma, config.q_lambda)
        target = lead + trajectory.value

        # 3. learn
        obs = tree.over_steps(normaliser(state.observations))(trajectory.obs)
        rate = config.learning_rate * optimise.anneal(config.learning_rate_end, progress)
        samples = Samples(obs, trajectory.draw, target, trajectory.present)
        model, adam, metrics = learn(state.network, state.optimiser, samples, config, rate, learn_key)

        observations = state.observations
        if config.normalize_observations:
            observations = moments.update(observations, trajectory.obs, axes=2, weight=trajectory.present)
        metrics |= {f"episodes/{name}": value for name, value in episodes._asdict().items()}
        metrics |= summary(trajectory, metrics["loss"], model)
        metrics |= {"epsilon": chance, "learning_rate": rate}
        return PQNState(key, config, model, adam, observations, actor, state.updates + 1), metrics

    def act(state: PQNState, carry: Any, obs: Any, key: jax.Array, greedy: bool | jax.Array) -> tuple[Any, jax.Array]:
        last = policy(state, state.config.epsilon_end)
        return rollout.act_together(environment, everyone, last, carry, obs, key, jnp.asarray(greedy))

    return Algorithm(init, step, act, lambda state: ())


def cut(config: PQNConfig, num_streams: int) -> batch.Layout:
    """How rollouts are cut into minibatches."""
    return batch.layout(config.num_steps, num_streams, 1, config.num_minibatches)


def optimiser(config: PQNConfig, rate: jax.Array | float) -> optax.GradientTransformation:
    return optimise.adam(rate, config.adam_epsilon, config.max_grad_norm)


def normaliser(observations: Any) -> Callable[[Any], Any]:
    """How the network sees an observation."""
    return (lambda obs: obs) if observations == () else lambda obs: moments.normalise(observations, obs)


def learn(
    network: Any, state: Any, samples: Samples, config: PQNConfig, rate: jax.Array, key: jax.Array
) -> tuple[Any, Any, dict[str, jax.Array]]:
    """The epochs of one update: the network and its optimiser's state after them, and means of metrics over them all."""
    layout, adam = cut(config, samples.target.shape[1]), optimiser(config, rate)
    rows = batch.to_rows(samples, layout)

    def minibatch(learner: Any, order: jax.Array) -> tuple[Any, dict[str, jax.Array]]:
        network, state = learner
        one_step = jax.tree.map(lambda x: x[0], batch.take(rows, order))
        slope, metrics = jax.grad(loss, has_aux=True)(network, one_step)
        return descend(adam, state, network, slope), metrics | {"grad_norm": optax.tree.norm(slope)}

    orders = jax.vmap(lambda key: batch.shuffle(key, layout))(jax.random.split(key, config.num_epochs))
    (network, state), metrics = jax.lax.scan(minibatch, (network, state), orders.reshape(-1, *orders.shape[2:]))
    return network, state, jax.tree.map(jnp.mean, metrics)


def summary(trajectory: rollout.Trajectory, loss: jax.Array, network: Any) -> dict[str, jax.Array]:
    """What acting met, and what a run's host needs to name what is no longer finite."""
    return {
        "value": moments.mean(trajectory.value, trajectory.present),
        "reward": moments.mean(trajectory.reward, trajectory.present),
        "finite/observation": tree.all_finite((trajectory.obs, trajectory.final_obs)),
        "finite/reward": tree.all_finite(trajectory.reward),
        "finite/loss": jnp.isfinite(loss),
        "finite/parameters": tree.all_finite(network),
    }


def loss(network: Any, samples: Samples) -> tuple[jax.Array, dict[str, jax.Array]]:
    """mean (Q(s, a) - R)^2 / 2, of samples `[B]`."""
    chosen = of_action(jax.vmap(network)(samples.obs), samples.action)
    error = chosen - samples.target
    metrics = moments.means({"loss": 0.5 * error**2, "error": jnp.abs(error), "chosen_value": chosen}, samples.present)
    return metrics["loss"], metrics
