"""TD3, SAC or DQN of rollax, measured with `timing.by_turns`.

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
from rollax.algorithms.registry import ALGORITHMS

work = json.loads(sys.argv[1])
name, width, frames = work["algorithm"], work["width"], work["frames"]
kinds = ALGORITHMS[name]
environment = rollax.make("gymnax/CartPole-v1" if name == "dqn" else "gymnax/Pendulum-v1")
shared = {"capacity": 20_000, "warmup": 0.0, "max_grad_norm": 10.0}
shared |= (
    {"num_envs": 10, "batch_size": 64, "replay_ratio": 0.1}
    if name == "dqn"
    else {"batch_size": 256}
)
config = kinds.config(**shared)
shape = kinds.network_config(hidden=(width, width), layer_norm=False)
algorithm = kinds.make(environment, functools.partial(kinds.make_network, environment, shape))

updates = frames // config.steps_per_update
started = time.perf_counter()
program = (
    jax.jit(rollax.segment(algorithm, updates), donate_argnums=0)
    .lower(jax.eval_shape(algorithm.init, jax.random.key(0), config), jnp.int32(updates))
    .compile()
)
compile_seconds = time.perf_counter() - started
state = [jax.jit(algorithm.init)(jax.random.key(0), config)]


def learn() -> None:
    state[0], _ = jax.block_until_ready(program(state[0], jnp.int32(updates)))


by_turns(learn, updates * config.steps_per_update, compile_seconds, jax.__version__)
