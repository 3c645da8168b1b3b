"""Speed of granular physics by number of spheres: `python benchmarks/granular.py`.

Measures time steps per second of spheres in a periodic square. The programs compare all pairs, or
use neighbor lists that are rebuilt every `--every` time steps. The square grows with the number of
spheres, so that they always cover the same share of it. An exponent states how the time per step
grows: the slope of log time over log number across the three largest sizes. Results are medians
over repeats, in which the programs take turns.
"""

import argparse
import math
import os
import platform
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from rollax.environments.native.granular.neighbors import make_neighbor_search
from rollax.environments.native.granular.physics import (
    Bodies,
    Domain,
    Material,
    Spheres,
    World,
    advance,
    sphere_inertia,
)

RADIUS = 0.5
SKIN = 0.4  # distance by which two spheres may approach between two rebuilds


def crowd(number: int, covered: float) -> tuple[World, Spheres, float]:
    """Return a world, spheres on a jittered grid with random velocities, and the side length."""
    per_side = math.ceil(math.sqrt(number))
    side = per_side * math.sqrt(math.pi * RADIUS**2 / covered)
    place_key, velocity_key = jax.random.split(jax.random.key(0))
    cell = jnp.arange(number)
    corner = (jnp.stack([cell // per_side, cell % per_side], axis=1) + 0.5) * side / per_side
    position = corner + 0.05 * jax.random.uniform(place_key, (number, 2), minval=-1.0)
    spheres = Spheres(
        position, jax.random.normal(velocity_key, (number, 2)), jnp.zeros((number, 1))
    )
    mass, radius = jnp.ones(number), jnp.full(number, RADIUS)
    material = Material(*(jnp.float32(x) for x in (1e3, 0.1, 0.3, 10.0)))
    domain = Domain(jnp.zeros(2), jnp.full(2, side), (True, True))
    bodies = Bodies(radius, mass, sphere_inertia(mass, radius))
    return (
        World(
            bodies, material, domain, jnp.zeros(2), jnp.zeros(()), jnp.zeros(()), jnp.float32(5e-3)
        ),
        spheres,
        side,
    )


def program(
    number: int, covered: float, listed: bool, rounds: int, every: int
) -> tuple[Callable[[Any], Any], Spheres]:
    """Compile a program of `rounds` times `every` time steps.

    Returns:
        Function from spheres to the next spheres and whether the neighbor list of each round
        overflowed, and the initial spheres.
    """
    world, spheres, side = crowd(number, covered)
    cutoff = 2 * RADIUS + SKIN
    # Cell lists need at least three cells per side. Smaller squares are searched over all pairs.
    find = (
        make_neighbor_search(number, (side, side), True, cutoff, 16, 1.8 * RADIUS)
        if listed
        else None
    )

    def play(now: Spheres, _: None) -> tuple[Spheres, jax.Array]:
        near = None if find is None else find(now.position)
        still = jnp.zeros_like(now.velocity), jnp.zeros_like(now.spin)
        return advance(world, now, *still, every, near), jnp.zeros(
            (), bool
        ) if near is None else near.overflow

    return jax.jit(lambda now: jax.lax.scan(play, now, None, rounds)).lower(
        spheres
    ).compile(), spheres


def seconds(run: Callable[[Any], Any], state: Any) -> float:
    started = time.perf_counter()
    _, overflow = jax.block_until_ready(run(state))
    took = time.perf_counter() - started
    if overflow.any():
        raise SystemExit("a list of neighbors was too short: raise its capacity")
    return took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[16, 64, 256, 1024, 4096])
    parser.add_argument(
        "--covered", type=float, default=0.5, help="share of the square that spheres cover"
    )
    parser.add_argument("--every", type=int, default=10, help="time steps between two lists")
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    print(
        f"{jax.devices()[0].device_kind}, {os.cpu_count()} processors, {platform.system()}, jax "
        f"{jax.__version__}"
    )
    print(f"{'spheres':>8} {'all pairs, steps/s':>20} {'lists, steps/s':>16} {'ratio':>7}")
    taken: dict[bool, list[float]] = {False: [], True: []}
    for number in arguments.sizes:
        # Similar work for all sizes, with at least two neighbor lists.
        rounds = max(2, min(50, 200_000 // number**2))
        programs = {
            kind: program(number, arguments.covered, kind, rounds, arguments.every)
            for kind in taken
        }
        for run, state in programs.values():
            seconds(run, state)
        times = [
            {kind: seconds(*programs[kind]) for kind in programs} for _ in range(arguments.repeats)
        ]
        steps = rounds * arguments.every
        for kind in taken:
            taken[kind].append(statistics.median(one[kind] for one in times) / steps)
        print(f"{number:>8} {1 / taken[False][-1]:>20,.1f} {1 / taken[True][-1]:>16,.1f}", end="")
        print(f" {statistics.median(one[False] / one[True] for one in times):>7.2f}", flush=True)
    if len(arguments.sizes) > 1:
        first = max(0, len(arguments.sizes) - 3)
        grown = math.log(arguments.sizes[-1] / arguments.sizes[first])
        slopes = {kind: math.log(times[-1] / times[first]) / grown for kind, times in taken.items()}
        print(
            (
                f"from {arguments.sizes[first]} to {arguments.sizes[-1]} spheres the time of a "
                "step grows"
            ),
            end=" ",
        )
        print(f"as N^{slopes[False]:.2f} with all pairs and N^{slopes[True]:.2f} with lists")


if __name__ == "__main__":
    main()
