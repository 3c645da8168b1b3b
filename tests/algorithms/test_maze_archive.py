"""Tests of the archive of the point maze.

Reachable cells are computed by brute force, and MAP-Elites fills them.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rollax import make
from rollax.acting.evaluation import make_evaluator
from rollax.algorithm import Algorithm
from rollax.algorithms.registry import ALGORITHMS
from rollax.environments.native.control.point_maze import GOAL, START, WALLS
from rollax.networks.solutions import PolicyConfig, make_solution

FINE = 800  # points per side, so that walls, edges of cells and steps are on the grid


def moved(alive: np.ndarray, is_wall: np.ndarray) -> np.ndarray:
    """Return the points reached by moves of at most 0.05 along the first axis.

    The result has shape `[FINE + 1, FINE + 1]`.
    """
    for _ in range(round(0.05 * FINE)):
        alive = alive | np.pad(alive, ((1, 0), (0, 0)))[:-1] | np.pad(alive, ((0, 1), (0, 0)))[1:]
        alive &= ~is_wall
    return alive


def share(cells: int, steps: int = 100) -> np.ndarray:
    """Return the share of each cell where an episode can end, `[cells, cells]`.

    Episodes end at the time limit or at the goal. Some policy makes any displacement, so a step
    reaches every point within it, first along x and then along y.
    """
    x, y = np.meshgrid(*[np.arange(FINE + 1)] * 2, indexing="ij")
    edges = np.round(np.asarray(WALLS) * FINE)
    is_wall = np.any(
        [(x > left) & (x < right) & (y > low) & (y < high) for left, low, right, high in edges],
        axis=0,
    )
    at_goal = np.hypot(x / FINE - GOAL[0], y / FINE - GOAL[1]) < 0.1 - 1e-6
    alive = np.maximum(np.abs(x / FINE - START[0]), np.abs(y / FINE - START[1])) <= 0.02
    ends = np.zeros_like(alive)
    for _ in range(steps):
        after = moved(moved(alive, is_wall).T, is_wall.T).T
        ends |= after & at_goal
        after &= ~at_goal
        if np.array_equal(after, alive):
            break
        alive = after
    place = np.nonzero(ends | alive)
    found = np.zeros((cells, cells))
    np.add.at(
        found,
        tuple(np.minimum(axis * cells // FINE, cells - 1) for axis in place),
        (cells / FINE) ** 2,
    )
    return found


def reachable(cells: int, steps: int = 100) -> np.ndarray:
    """Return which cells have a point where an episode can end, bool `[cells, cells]`."""
    return share(cells, steps) > 0


def filled(cells: int, batch_size: int, iterations: int, seed: int) -> np.ndarray:
    """Return which cells MAP-Elites has elites in, bool `[cells, cells]`."""
    world = make("control/point-maze")
    made: Any = ALGORITHMS["map_elites"].make(
        world, lambda key: make_solution(world, PolicyConfig(hidden=(32,)), key)
    )
    settings = ALGORITHMS["map_elites"].config(
        batch_size=batch_size,
        num_iterations=iterations,
        grid=(cells, cells),
        iso_sigma=0.05,
        line_sigma=0.1,
    )
    state, metrics = jax.jit(made.step)(jax.jit(made.init)(jax.random.key(seed), settings))
    assert metrics.values["outside"] == 0
    archive, archive_state = made.archived.archive(state)
    return np.asarray(archive.elites(archive_state).mask).reshape(cells, cells)


def test_reachable_cells() -> None:
    """All of 16 x 16 cells are reachable.

    Of 32 x 32, all but those in the bottom of the cup are, which is thicker than a cell.
    """
    assert np.all(reachable(16))
    inside = np.zeros((32, 32), bool)
    inside[8:24, 18] = (
        # x from 0.25 to 0.75 and y from 0.5625 to 0.59375, within 0.22 ... 0.78 and 0.56 ... 0.6
        True
    )
    np.testing.assert_array_equal(reachable(32), ~inside)
    # In 10 steps: 6 to the left side of the cup, where y may be 0.35 at the fifth, and then 0.05
    # per step to 0.6.
    early = reachable(32, steps=10)
    assert early[5, 18] and early[16, 17] and not early[:, 20:].any()


def test_episodes_end_in_reachable_cells() -> None:
    """Policies whose direction depends on the position end in cells that the brute force found."""
    world: Any = make("control/point-maze")

    def act(state: Any, obs: Any, carry: Any, key: jax.Array, greedy: Any) -> Any:
        return jnp.tanh(carry[:2] + carry[2:].reshape(2, 4) @ obs), carry

    for seed in range(3):
        way = jax.random.normal(jax.random.key(seed), (10,)) * 3
        policy = Algorithm(None, None, act, lambda state, way=way: way)  # pyright: ignore[reportArgumentType]
        ends = jax.jit(make_evaluator(world, policy, 64, 100, True))(
            (), jax.random.key(seed)
        ).descriptor
        cell = np.minimum((np.asarray(ends) * 32).astype(int), 31)
        assert reachable(32)[tuple(cell.T)].all()


def test_map_elites_fills_reachable_cells() -> None:
    """The grid is coarse, because a grid of 16 x 16 would take longer."""
    np.testing.assert_array_equal(filled(8, 64, 40, seed=0), reachable(8))


@pytest.mark.slow
def test_map_elites_fills_a_fine_grid() -> None:
    """It fills no unreachable cell.

    It misses only cells behind the rim of the goal that need a long step.
    """
    found, can_be = filled(32, 512, 400, seed=0), share(32)
    assert not np.any(found & (can_be == 0))
    missed = {(int(i), int(j)) for i, j in np.argwhere(~found & (can_be > 0))}
    assert missed <= {(15, 26), (15, 27), (16, 26), (16, 27)}, missed
