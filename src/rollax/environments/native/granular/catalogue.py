"""Catalogue of the granular environments."""

from rollax.environments.suites.suite import Suite

_NAMES = (
    "single-navigator",
    "many-navigators",
    "single-roller",
)

_DESCRIPTIONS = {
    "single-navigator": "a force pushes a sphere to its goal",
    "many-navigators": (
        "every agent is a disc that a force pushes to a goal, with the other agents in the way"
    ),
    "single-roller": "a torque turns a sphere, and friction rolls it to its goal",
}

SUITE = Suite(
    adapter="rollax.environments.native.granular.adapter",
    names=_NAMES,
    descriptions=_DESCRIPTIONS,
    drawing="rollax.environments.native.granular.drawing",
    module="jax_md",
    packages=("jax-md",),
)
