"""Catalogue of the Craftax environments."""

from rollax.environments.suites.suite import Suite

_NAMES = (
    "Craftax-Classic-Symbolic-v1",
    "Craftax-Classic-Pixels-v1",
    "Craftax-Symbolic-v1",
    "Craftax-Pixels-v1",
)

_DESCRIPTIONS = {
    "Craftax-Classic-*": (
        "survive, gather and craft in an open world seen from above: a JAX version of Crafter"
    ),
    "*": "survive, gather, craft, fight and descend through nine worlds; 67 achievements",
}

SUITE = Suite(
    adapter="rollax.environments.suites.craftax.adapter",
    names=_NAMES,
    descriptions=_DESCRIPTIONS,
    drawing="rollax.environments.suites.craftax.drawing",
    extra="craftax",
    module="craftax",
    packages=("craftax",),
)
