"""Catalogue of the memory tasks."""

from rollax.environments.suites.suite import Suite

_NAMES = (
    "repeat-previous",
    "repeat-first",
    "autoencode",
    "count-recall",
    "higher-lower",
    "CartPole-v1",
    "Pendulum-v1",
    "MountainCarContinuous-v0",
)

_DESCRIPTIONS = {
    "repeat-previous": "repeat the symbol observed a number of steps ago",
    "repeat-first": "recall the suit of the first card dealt",
    "autoencode": "recall a sequence of cards in reverse order",
    "count-recall": "count how many cards of the queried kind have been dealt",
    "higher-lower": "guess whether the next card of the deck is higher or lower",
    "*": "the gymnax environment with positions only: velocities must be inferred from memory",
}

SUITE = Suite(
    adapter="rollax.environments.native.memory.adapter",
    names=_NAMES,
    descriptions=_DESCRIPTIONS,
    drawing="rollax.environments.native.memory.drawing",
)
