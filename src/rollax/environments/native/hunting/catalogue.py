"""Catalogue of the hunting games."""

from rollax.environments.suites.suite import Suite

_NAMES = (
    "2-players",
    "3-players",
)

_DESCRIPTIONS = {
    "2-players": "a prey flees from a predator on the unit square",
    "3-players": "a prey flees from two predators on the unit square",
}

SUITE = Suite(
    adapter="rollax.environments.native.hunting.adapter",
    names=_NAMES,
    descriptions=_DESCRIPTIONS,
    drawing="rollax.environments.native.hunting.drawing",
)
