"""TD3, SAC or DQN of rejax, with the same work and measurement as `off_policy_rollax.py`.

The program runs in a separate virtual environment.
"""

import json
import sys
import time

import jax
from rejax import DQN, SAC, TD3
from timing import by_turns

work = json.loads(sys.argv[1])
name, width, frames = work["algorithm"], work["width"], work["frames"]
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
# Networks are replaced, because the settings of layer sizes are rejected or have no effect.
for part in ("actor", "critic", "agent"):
    if hasattr(algorithm, part):
        network = getattr(algorithm, part).clone(
            hidden_layer_sizes=(width, width), activation=jax.nn.relu
        )
        algorithm = algorithm.replace(**{part: network})
# Evaluations are not part of the measured work.
algorithm = algorithm.replace(eval_callback=lambda algorithm, state, key: ())

started = time.perf_counter()
program = jax.jit(lambda algorithm, key: type(algorithm).train(algorithm, rng=key))
program = program.lower(algorithm, jax.random.PRNGKey(0)).compile()
compile_seconds = time.perf_counter() - started
by_turns(
    lambda: jax.block_until_ready(program(algorithm, jax.random.PRNGKey(0))),
    frames,
    compile_seconds,
    jax.__version__,
)
