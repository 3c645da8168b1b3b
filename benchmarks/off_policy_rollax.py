"""TD3, SAC or DQN by rollax: prints one JSON object. Arguments: algorithm, width of the networks, frames, repeats."""

import functools
import json
import sys
import time

import jax
import jax.numpy as jnp

import rollax
from rollax.algorithms import ALGORITHMS

name, width, frames, repeats = sys.argv[1], *map(int, sys.argv[2:])
kinds = ALGORITHMS[name]
environment = rollax.make("gymnax/CartPole-v1" if name == "dqn" else "gymnax/Pendulum-v1")
shared = {"capacity": 20_000, "warmup": 0.0, "max_grad_norm": 10.0}
shared |= {"num_envs": 10, "batch_size": 64, "replay_ratio": 0.1} if name == "dqn" else {"batch_size": 256}
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
state = jax.jit(algorithm.init)(jax.random.key(0), config)
state, _ = jax.block_until_ready(program(state, jnp.int32(updates)))
rates, efforts = [], []
for _ in range(repeats):
    started, processor = time.perf_counter(), time.process_time()
    state, _ = jax.block_until_ready(program(state, jnp.int32(updates)))
    done = updates * config.steps_per_update
    rates.append(done / (time.perf_counter() - started))
    efforts.append(done / (time.process_time() - processor))
found = {"compile_seconds": compile_seconds, "steps_per_second": rates, "steps_per_processor_second": efforts}
print(json.dumps(found | {"jax": jax.__version__}))
