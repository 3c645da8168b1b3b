"""Catalogue of the benchmark functions."""

from rollax.environments.suites.suite import Suite

_NAMES = (
    "sphere",
    "rastrigin",
    "rastrigin-multi",
    "arm",
)

_DESCRIPTIONS = {
    "sphere": "closed form: the sphere function with a linear projection as descriptor",
    "rastrigin": "closed form: Rastrigin's function with a linear projection as descriptor",
    "rastrigin-multi": "closed form: two shifted Rastrigin functions as objectives",
    "arm": (
        "closed form: a planar arm, scored by how equal its angles are and described by its hand's "
        "position"
    ),
}

SUITE = Suite(
    adapter="rollax.environments.native.task.adapter",
    names=_NAMES,
    descriptions=_DESCRIPTIONS,
)
