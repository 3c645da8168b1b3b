"""Catalogue of the matrix games."""

from rollax.environments.suites.suite import Suite

_NAMES = ("rock-paper-scissors",)

_DESCRIPTIONS = {
    "rock-paper-scissors": "two players choose rock, paper or scissors at the same time",
}

SUITE = Suite(
    adapter="rollax.environments.native.matrix.adapter",
    names=_NAMES,
    descriptions=_DESCRIPTIONS,
)
