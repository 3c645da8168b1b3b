"""TD3, SAC or DQN by sbx, the same work as `off_policy_rollax.py`. Runs in a virtual environment of its own.

Its environments are gymnasium's, in Python: one for TD3 and SAC, ten in this process for DQN.
"""

import functools
import json
import sys

import jax
import timing
from sbx import DQN, SAC, TD3
from stable_baselines3.common.env_util import make_vec_env

name, width, frames, repeats = sys.argv[1], *map(int, sys.argv[2:])
frames = frames // 20 if name == "dqn" else frames // 4  # it is slower: so all measurements take about as long
environment = make_vec_env("CartPole-v1" if name == "dqn" else "Pendulum-v1", 10 if name == "dqn" else 1)
layers = [width, width]
sizes = {"batch_size": 64, "policy_kwargs": {"net_arch": layers}}
if name != "dqn":
    sizes = {"batch_size": 256, "policy_kwargs": {"net_arch": {"pi": layers, "qf": layers}}}
algorithm = {"td3": TD3, "sac": SAC, "dqn": DQN}[name](
    "MlpPolicy", environment, buffer_size=20_000, learning_starts=100, train_freq=1, gradient_steps=1, verbose=0, **sizes
)

found = timing.by_calls(functools.partial(algorithm.learn, reset_num_timesteps=False), 500, frames, repeats)
print(json.dumps(found | {"jax": jax.__version__}))
