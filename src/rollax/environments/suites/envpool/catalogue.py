"""Catalogue of the EnvPool environments."""

from rollax.environments.suites.gymnasium.catalogue import (
    ATARI_NAMES,
    CONTROL_DESCRIPTIONS,
    MUJOCO_NAMES,
)
from rollax.environments.suites.suite import Suite

_NAMES = (
    "CartPole-v1",
    "Pendulum-v1",
    "Acrobot-v1",
    "MountainCar-v0",
    "MountainCarContinuous-v0",
    "LunarLander-v3",
    "LunarLanderContinuous-v3",
    "BipedalWalker-v3",
    "BipedalWalkerHardcore-v3",
    "CarRacing-v3",
)

SUITE = Suite(
    adapter="rollax.environments.suites.envpool.adapter",
    names=(
        *_NAMES,
        *MUJOCO_NAMES,
        *(f"{name}-v5" for name in ATARI_NAMES if name != "TicTacToe3D"),
    ),
    descriptions={**CONTROL_DESCRIPTIONS, "*": "an Atari 2600 game, from pictures"},
    extra="envpool",
    module="envpool",
    packages=("envpool",),
    is_on_host=True,
)
