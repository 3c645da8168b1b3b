"""PPO on CartPole by rejax, the same work as `ppo_rollax.py`. Runs in a virtual environment of its own."""

import json
import sys
import time

import jax
from rejax import PPO

environments, minibatches, updates, repeats = map(int, sys.argv[1:])
frames = environments * 128 * updates
algorithm = PPO.create(
    env="CartPole-v1",
    num_envs=environments,
    num_steps=128,
    num_epochs=4,
    num_minibatches=minibatches,
    total_timesteps=frames,
    eval_freq=frames,
    skip_initial_evaluation=True,
    agent_kwargs={"hidden_layer_sizes": (64, 64), "activation": "tanh"},
)
# Its evaluation is no part of the work that is compared.
algorithm = algorithm.replace(eval_callback=lambda algorithm, state, key: ())

started = time.perf_counter()
program = jax.jit(lambda algorithm, key: PPO.train(algorithm, rng=key)).lower(algorithm, jax.random.PRNGKey(0)).compile()
compile_seconds = time.perf_counter() - started
jax.block_until_ready(program(algorithm, jax.random.PRNGKey(0)))
rates = []
for i in range(repeats):
    started = time.perf_counter()
    jax.block_until_ready(program(algorithm, jax.random.PRNGKey(i)))
    rates.append(frames / (time.perf_counter() - started))
print(json.dumps({"compile_seconds": compile_seconds, "steps_per_second": rates, "jax": jax.__version__}))
