"""Catalogue of the trials of XLand-MiniGrid tasks."""

from rollax.environments.suites.suite import Suite
from rollax.environments.suites.xminigrid.catalogue import XLAND_NAMES

_DESCRIPTIONS = {
    "*": (
        "meta-learning: several consecutive episodes of one XLand-MiniGrid task, with memory kept "
        "between them"
    ),
}

SUITE = Suite(
    adapter="rollax.environments.suites.rl2.adapter",
    names=XLAND_NAMES,
    descriptions=_DESCRIPTIONS,
    drawing="rollax.environments.suites.xminigrid.drawing",
    extra="xland",
    module="xminigrid",
    packages=("xminigrid",),
    evaluation={"*": {"split": "validation"}},
)
