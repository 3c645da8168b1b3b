"""TD3, SAC or DQN of sbx, with the same work and measurement as `off_policy_rollax.py`.

The program runs in a separate virtual environment. It uses gymnasium environments in one process:
one environment for TD3 and SAC, and ten for DQN.
"""

import json
import sys
import time

import jax
from sbx import DQN, SAC, TD3
from stable_baselines3.common.env_util import make_vec_env
from timing import by_turns

work = json.loads(sys.argv[1])
name, width, frames = work["algorithm"], work["width"], work["frames"]
# sbx is slower. With fewer frames, turns of all libraries take a similar time.
frames = frames // 20 if name == "dqn" else frames // 4
environment = make_vec_env(
    "CartPole-v1" if name == "dqn" else "Pendulum-v1", 10 if name == "dqn" else 1
)
layers = [width, width]
sizes = {"batch_size": 64, "policy_kwargs": {"net_arch": layers}}
if name != "dqn":
    sizes = {"batch_size": 256, "policy_kwargs": {"net_arch": {"pi": layers, "qf": layers}}}
algorithm = {"td3": TD3, "sac": SAC, "dqn": DQN}[name](
    "MlpPolicy",
    environment,
    buffer_size=20_000,
    learning_starts=100,
    train_freq=1,
    gradient_steps=1,
    verbose=0,
    **sizes,
)

started = time.perf_counter()
algorithm.learn(500, reset_num_timesteps=False)
compile_seconds = time.perf_counter() - started
by_turns(
    lambda: algorithm.learn(frames, reset_num_timesteps=False),
    frames,
    compile_seconds,
    jax.__version__,
)
