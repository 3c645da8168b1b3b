"""Catalogue of the probe environments."""

from rollax.environments.suites.suite import Suite

_NAMES = (
    "one-action",
    "two-observations",
    "two-steps",
    "action-reward",
    "action-observation",
    "memory",
    "two-agents",
    "truncation",
    "continuous",
    "multi-discrete",
    "masked",
)

_DESCRIPTIONS = {
    "one-action": "probe: a constant observation, one action, reward 1",
    "*": "probe: a tiny environment with a known solution, to test an algorithm",
}

SUITE = Suite(
    adapter="rollax.environments.native.probe.adapter",
    names=_NAMES,
    descriptions=_DESCRIPTIONS,
)
