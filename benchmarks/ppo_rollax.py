"""PPO on CartPole by rollax: prints one JSON object. Arguments: environments, minibatches, updates, repeats."""

import functools
import json
import sys
import time

import jax
import jax.numpy as jnp

import rollax

environments, minibatches, updates, repeats = map(int, sys.argv[1:])
environment = rollax.make("gymnax/CartPole-v1")
config = rollax.PPOConfig(num_envs=environments, num_steps=128, num_epochs=4, num_minibatches=minibatches)
network = functools.partial(rollax.actor_critic, environment, rollax.NetworkConfig(hidden=(64, 64), activation="tanh"))
algorithm = rollax.ppo(environment, network)

started = time.perf_counter()
program = (
    jax.jit(rollax.segment(algorithm, updates), donate_argnums=0)
    .lower(jax.eval_shape(algorithm.init, jax.random.key(0), config), jnp.int32(updates))
    .compile()
)
compile_seconds = time.perf_counter() - started
state = jax.jit(algorithm.init)(jax.random.key(0), config)
state, _ = jax.block_until_ready(program(state, jnp.int32(updates)))
rates = []
for _ in range(repeats):
    started = time.perf_counter()
    state, _ = jax.block_until_ready(program(state, jnp.int32(updates)))
    rates.append(updates * environments * 128 / (time.perf_counter() - started))
print(json.dumps({"compile_seconds": compile_seconds, "steps_per_second": rates, "jax": jax.__version__}))
