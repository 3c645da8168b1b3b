"""PPO of rejax, with the same work and measurement as `ppo_rollax.py`.

The program runs in a separate virtual environment.
"""

import json
import sys
import time

import jax
from rejax import PPO
from timing import by_turns

work = json.loads(sys.argv[1])
frames = work["num_envs"] * 128 * work["updates"]
algorithm = PPO.create(
    env=work["environment"],
    num_envs=work["num_envs"],
    num_steps=128,
    num_epochs=4,
    num_minibatches=work["minibatches"],
    total_timesteps=frames,
    eval_freq=frames,
    skip_initial_evaluation=True,
    agent_kwargs={"hidden_layer_sizes": (64, 64), "activation": work["activation"]},
)
# Evaluations are not part of the measured work.
algorithm = algorithm.replace(eval_callback=lambda algorithm, state, key: ())
keys = jax.random.split(jax.random.PRNGKey(0), work["seeds"])

started = time.perf_counter()
train = jax.jit(jax.vmap(lambda key: PPO.train(algorithm, rng=key)))
program = train.lower(keys).compile()
compile_seconds = time.perf_counter() - started
by_turns(
    lambda: jax.block_until_ready(program(keys)),
    frames * work["seeds"],
    compile_seconds,
    jax.__version__,
)
