"""Catalogue of the control tasks."""

from rollax.environments.suites.suite import Suite

_NAMES = ("platforms", "point-maze")

_DESCRIPTIONS = {
    "platforms": "jumps of two kinds and of any power from platform to platform",
    "point-maze": "a point moves around a cup of walls to the goal behind it",
}

SUITE = Suite(
    adapter="rollax.environments.native.control.adapter",
    names=_NAMES,
    descriptions=_DESCRIPTIONS,
    drawing="rollax.environments.native.control.drawing",
)
