"""PPO or SAC of Stable-Baselines3 or sbx in gymnasium, with the same work as `host_rollax.py`.

Usage: `host_sb3.py sb3|sbx ppo|sac FRAMES REPEATS`. The program runs in a separate virtual
environment and prints one JSON object. FRAMES is the number of frames per measurement.
"""

import functools
import importlib
import json
import sys

import timing
from stable_baselines3.common.env_util import make_vec_env

package, name, frames, repeats = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])
algorithms = importlib.import_module({"sb3": "stable_baselines3", "sbx": "sbx"}[package])
if name == "ppo":
    environment = make_vec_env("CartPole-v1", 8)
    sizes = {
        "n_steps": 128,
        "batch_size": 256,
        "n_epochs": 4,
        "policy_kwargs": {"net_arch": {"pi": [64, 64], "vf": [64, 64]}},
    }
else:
    environment = make_vec_env("HalfCheetah-v5", 1)
    layers = {"pi": [256, 256], "qf": [256, 256]}
    sizes = {
        "batch_size": 256,
        "train_freq": 1,
        "gradient_steps": 1,
        "learning_starts": 100,
        "policy_kwargs": {"net_arch": layers},
    }
algorithm = getattr(algorithms, name.upper())(
    "MlpPolicy", environment, verbose=0, device="cpu", **sizes
)

print(
    json.dumps(
        timing.by_calls(
            functools.partial(algorithm.learn, reset_num_timesteps=False), 1024, frames, repeats
        )
    )
)
