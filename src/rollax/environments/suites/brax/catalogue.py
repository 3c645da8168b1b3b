"""Catalogue of the brax environments."""

from rollax.environments.suites.suite import Suite

_NAMES = (
    "ant",
    "halfcheetah",
    "hopper",
    "humanoid",
    "humanoidstandup",
    "inverted_pendulum",
    "inverted_double_pendulum",
    "pusher",
    "reacher",
    "swimmer",
    "walker2d",
)

_DESCRIPTIONS = {
    "ant": "a robot on four legs runs along x",
    "halfcheetah": "a planar cheetah on two legs runs along x",
    "hopper": "a planar robot on one leg hops along x",
    "humanoid": "a humanoid walks along x",
    "humanoidstandup": "a humanoid stands up",
    "inverted_pendulum": "balance a pole on a cart by a force",
    "inverted_double_pendulum": "balance two poles, one on the other, on a cart by a force",
    "pusher": "an arm pushes an object to a target position",
    "reacher": "a planar arm of two links reaches a target",
    "swimmer": "a chain of three links swims along x",
    "walker2d": "a planar robot on two legs walks along x",
}

SUITE = Suite(
    adapter="rollax.environments.suites.brax.adapter",
    names=_NAMES,
    descriptions=_DESCRIPTIONS,
    drawing="rollax.environments.suites.brax.drawing",
    extra="brax",
    module="brax",
    packages=("brax", "mujoco", "mujoco-mjx"),
    converter="from_brax(environment)",
    unavailable_reasons={"fast": "it is not a task but part of brax's tests"},
)
