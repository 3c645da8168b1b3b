"""Training and export of a thermostat policy with a custom network.

Usage: `python heater.py check | train [STEPS] | export | drive`.

The environment is defined in `own_environment.py`. `export` writes the policy in the NumPy format,
and `drive` runs it without JAX.
"""

import sys
from pathlib import Path
from typing import Any

RUN, POLICY = Path("runs/own"), Path("own")


def check() -> None:
    from own_environment import thermostat

    import rollax

    print(rollax.check_environment(thermostat()))


def train(steps: int) -> None:
    from own_environment import thermostat

    import rollax

    config = {"num_envs": 16, "num_steps": 96, "num_minibatches": 8, "learning_rate": 1e-3}
    options = {"run_dir": RUN, "tensorboard": False}
    rollax.train(
        "ppo", thermostat(), network=network, total_steps=steps, config=config, options=options
    )


def network(key: Any) -> Any:
    """Build a network from three observed numbers to the logits of three actions and a value."""
    import equinox as eqx
    import jax
    import jax.numpy as jnp
    from own_environment import thermostat

    from rollax.networks.interop import from_equinox

    class Gated(eqx.Module):
        body: eqx.nn.Linear
        gate: eqx.nn.Linear
        out: eqx.nn.Linear

        def __init__(self, key: Any) -> None:
            keys = jax.random.split(key, 3)
            self.body, self.gate = (eqx.nn.Linear(3, 32, key=k) for k in keys[:2])
            self.out = eqx.nn.Linear(32, 4, key=keys[2])

        def __call__(self, obs: Any) -> Any:
            out = self.out(jnp.tanh(self.body(obs)) * jax.nn.sigmoid(self.gate(obs)))
            return out[:3], out[3]

    return from_equinox(Gated, thermostat())(key)


def export() -> None:
    from own_environment import thermostat

    import rollax

    exported = rollax.export(
        RUN, "numpy", POLICY, checkpoint="best", environment=thermostat(), network=network
    )
    print(*exported.files, exported.parity, sep="\n")


def drive() -> None:
    """Simulate one day with the exported policy, using only NumPy."""
    import numpy as np

    sys.path.insert(0, str(POLICY))
    from numpy_policy import load

    act, random, room, far = load(POLICY / "policy.npz"), np.random.default_rng(0), 15.0, []
    for quarter in range(96):
        angle = 2 * np.pi * quarter / 96
        obs = np.asarray([[(room - 20) / 10, np.sin(angle), np.cos(angle)]], np.float32)
        heat = int(act({"observation": obs})["action"][0])
        outside = 5 - 5 * np.cos(angle) + random.normal()
        room = outside + 0.95 * (room - outside) + 0.6 * heat
        far.append(abs(room - 20))
    print(f"{np.mean(far):.2f} degrees from comfort in the mean of a day")


def register() -> None:
    from own_environment import thermostat

    import rollax

    rollax.register("mine/Thermostat", thermostat)


if __name__ != "__main__":  # --import heater
    register()
else:
    command, *words = sys.argv[1:]
    {"check": check, "train": train, "export": export, "drive": drive}[command](*map(int, words))
