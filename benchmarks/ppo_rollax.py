"""PPO of rollax, measured with `timing.by_turns`.

The argument is a JSON object with the settings of a work in peers.py.
"""

import functools
import json
import sys
import time

import jax
import jax.numpy as jnp
from timing import by_turns

import rollax

work = json.loads(sys.argv[1])
environment = rollax.make(f"gymnax/{work['environment']}")
config = rollax.PPOConfig(
    num_envs=work["num_envs"], num_steps=128, num_epochs=4, num_minibatches=work["minibatches"]
)
settings = rollax.NetworkConfig(hidden=(64, 64), activation=work["activation"], filters=())
algorithm = rollax.ppo(environment, functools.partial(rollax.actor_critic, environment, settings))
key = jax.random.key(0)
if work["seeds"] > 1:
    algorithm = rollax.population(algorithm)
    key = jax.random.split(key, work["seeds"])
    config = jax.tree.map(lambda value: jnp.full(work["seeds"], value, jnp.float32), config)

started = time.perf_counter()
updates = work["updates"]
program = (
    jax.jit(rollax.segment(algorithm, updates), donate_argnums=0)
    .lower(jax.eval_shape(algorithm.init, key, config), jnp.int32(updates))
    .compile()
)
compile_seconds = time.perf_counter() - started
state = [jax.jit(algorithm.init)(key, config)]


def learn() -> None:
    state[0], _ = jax.block_until_ready(program(state[0], jnp.int32(updates)))


by_turns(learn, updates * work["num_envs"] * 128 * work["seeds"], compile_seconds, jax.__version__)
