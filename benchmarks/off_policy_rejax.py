"""TD3, SAC or DQN by rejax, the same work as `off_policy_rollax.py`. Runs in a virtual environment of its own."""

import json
import sys
import time

import jax
from rejax import DQN, SAC, TD3

name, width, frames, repeats = sys.argv[1], *map(int, sys.argv[2:])
sizes = {"num_envs": 10, "batch_size": 64} if name == "dqn" else {"num_envs": 1, "batch_size": 256}
algorithm = {"td3": TD3, "sac": SAC, "dqn": DQN}[name].create(
    env="CartPole-v1" if name == "dqn" else "Pendulum-v1",
    total_timesteps=frames,
    eval_freq=frames,
    skip_initial_evaluation=True,
    fill_buffer=0,
    buffer_size=20_000,
    **sizes,
)
# Its settings for sizes of layers are refused or without effect, so the networks are replaced.
for part in ("actor", "critic", "agent"):
    if hasattr(algorithm, part):
        network = getattr(algorithm, part).clone(hidden_layer_sizes=(width, width), activation=jax.nn.relu)
        algorithm = algorithm.replace(**{part: network})
# Its evaluation is no part of the work that is compared.
algorithm = algorithm.replace(eval_callback=lambda algorithm, state, key: ())

started = time.perf_counter()
program = jax.jit(lambda algorithm, key: type(algorithm).train(algorithm, rng=key))
program = program.lower(algorithm, jax.random.PRNGKey(0)).compile()
compile_seconds = time.perf_counter() - started
jax.block_until_ready(program(algorithm, jax.random.PRNGKey(0)))
rates, efforts = [], []
for i in range(repeats):
    started, processor = time.perf_counter(), time.process_time()
    jax.block_until_ready(program(algorithm, jax.random.PRNGKey(i)))
    rates.append(frames / (time.perf_counter() - started))
    efforts.append(frames / (time.process_time() - processor))
found = {"compile_seconds": compile_seconds, "steps_per_second": rates, "steps_per_processor_second": efforts}
print(json.dumps(found | {"jax": jax.__version__}))
