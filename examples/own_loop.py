"""A custom training loop: PPO on CartPole with eight seeds in one program.

`ppo(environment, network)` returns pure functions of one pytree. `population` vectorizes them over
seeds, and `segment` compiles ten updates into one call. Between calls, the loop is plain Python.
"""

import functools

import jax
import jax.numpy as jnp

import rollax

environment = rollax.make("gymnax/CartPole-v1")
network = functools.partial(rollax.actor_critic, environment, rollax.NetworkConfig(hidden=(64, 64)))
algorithm = rollax.population(rollax.ppo(environment, network))

SEEDS, UPDATES = 8, 50
config = rollax.PPOConfig(
    num_envs=16,
    num_steps=125,
    num_minibatches=5,
    num_epochs=10,
    learning_rate=1e-3,
    learning_rate_final_fraction=0.0,
    gamma=0.98,
    total_updates=UPDATES,
)
keys = jax.random.split(jax.random.key(0), SEEDS)
configs = jax.tree.map(lambda x: jnp.full(SEEDS, x), config)
state = jax.jit(algorithm.init)(keys, configs)
advance = jax.jit(rollax.segment(algorithm, capacity=10), donate_argnums=0)

for update in range(0, UPDATES, 10):
    state, metrics = advance(state, 10)  # metrics: [10 updates, 8 seeds]
    episodes = metrics.episodes.number.sum(axis=0)
    returns = metrics.episodes.total_return.sum(axis=0) / episodes
    steps = (update + 10) * config.steps_per_update
    print(f"{steps:>7,} steps  return {returns.mean():6.1f}  worst seed {returns.min():6.1f}")
