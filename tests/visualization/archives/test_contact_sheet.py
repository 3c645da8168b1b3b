"""Tests of contact sheets, which show different elites in an episode."""

import jax
import numpy as np
import pytest
from PIL import Image

import rollax
from rollax.archives.archive import Elites, ScoredSolutions
from rollax.errors import UsageError
from rollax.training.elites.selection import get_elites
from rollax.visualization.archives import contact_sheet as sheets
from rollax.visualization.archives.contact_sheet import (
    farthest_point_sample,
    sort_in_reading_order,
    write_contact_sheet,
)
from rollax.visualization.render.render import render


@pytest.fixture(scope="module")
def maze(tmp_path_factory):
    options = {
        "eval_episodes": 4,
        "eval_count": 1,
        "tensorboard": False,
        "run_dir": tmp_path_factory.mktemp("sheet") / "run",
    }
    config = {"batch_size": 32, "num_iterations": 2, "grid": (6, 6)}
    arguments = {"time_limit": 20, "start_spread": 0.0}
    return rollax.train(
        "map_elites",
        "control/point-maze",
        config=config,
        network={"hidden": (8,)},
        arguments=arguments,
        total_steps=320,
        options=options,
        quiet=True,
    ).folder


def elites_at(descriptor, fitness, mask=None):
    descriptor, fitness = np.asarray(descriptor, np.float32), np.asarray(fitness, np.float32)
    mask = np.ones(len(fitness), bool) if mask is None else np.asarray(mask)
    return Elites(
        ScoredSolutions((), np.where(mask, fitness, -np.inf), descriptor),
        mask,
        descriptor,
        np.bool_(False),
    )


def test_farthest_points_by_hand():
    """Distances are relative to bounds.

    Empty places are left out, and duplicates are last.
    """
    found = elites_at(
        [[0.0, 0], [1, 5], [4, 0], [9, 0], [10, 0], [4, 0]], [1, 0, 3, 0, 0, 2], [1, 1, 1, 1, 0, 1]
    )
    bounds = (0.0, 0.0), (10.0, 1000.0)
    assert farthest_point_sample(found, 4, bounds) == [2, 3, 0, 1]
    assert farthest_point_sample(found, 1, bounds) == [2]
    assert farthest_point_sample(found, 99, bounds) == [2, 3, 0, 1, 5]


@pytest.mark.parametrize("seed", range(3))
def test_farthest_points_equal_brute_force(seed):
    numbers = np.random.default_rng(seed)
    at, fitness, mask = numbers.random((40, 3)), numbers.normal(size=40), numbers.random(40) < 0.6
    found = elites_at(at, fitness, mask)
    chosen = farthest_point_sample(found, 8, ((0.0,) * 3, (1.0,) * 3))
    assert len(set(chosen)) == 8 and all(mask[chosen])
    for number in range(1, 8):
        away = [
            min(np.sum((at[i] - at[j]) ** 2) for j in chosen[:number]) if mask[i] else -1
            for i in range(40)
        ]
        assert away[chosen[number]] == pytest.approx(max(away), rel=1e-4)


def test_the_reading_order_is_that_of_a_map():
    corners = elites_at([[0.0, 0.0], [1.0, 1.0], [1.0, 0.0], [0.0, 1.0]], [4, 3, 2, 1])
    assert sort_in_reading_order(corners, [0, 1, 2, 3]) == [3, 1, 0, 2]
    assert sort_in_reading_order(elites_at([[2.0], [0.0], [1.0]], [0, 0, 0]), [0, 1, 2]) == [
        1,
        2,
        0,
    ]
    assert sort_in_reading_order(elites_at(np.zeros((3, 3)), [1, 3, 2]), [0, 1, 2]) == [1, 2, 0]


def test_a_sheet_is_written(maze, tmp_path):
    path = write_contact_sheet(maze, 7)
    assert path == maze / "figures" / "sheet.png"
    with Image.open(path) as image:
        assert (
            image.format == "PNG"
            and image.width == 3 * (sheets.TILE_WIDTH + sheets.TILE_GAP) + sheets.TILE_GAP
        )
        assert len(np.unique(np.asarray(image.convert("RGB")).reshape(-1, 3), axis=0)) > 20
    assert write_contact_sheet(maze, 1, tmp_path / "new" / "one.PNG").exists()
    count = len(rollax.load(maze).elites()["place"])
    # All elites, because there are fewer.
    with Image.open(write_contact_sheet(maze, sheets.MAX_TILES, tmp_path / "all.png")) as image:
        assert (
            image.width
            == max(1, sheets.num_sheet_columns(count)) * (sheets.TILE_WIDTH + sheets.TILE_GAP)
            + sheets.TILE_GAP
        )


def test_tiles_show_the_episode_of_the_elite(maze):
    """Without noise the episode has the fitness of the elite, and ends at its descriptor."""
    policy = rollax.load(maze)
    places = policy.elites()["place"].tolist()
    found = get_elites(policy)
    for place, (frame, total) in zip(
        places, sheets.select_frames(policy, places, 0, True), strict=True
    ):
        assert total == pytest.approx(float(found.solutions.fitness[place]), rel=1e-4)
        np.testing.assert_allclose(
            frame.state.position, found.solutions.descriptor[place], atol=1e-5
        )
        assert frame.end
    (one,) = [sheets.make_tile(policy, found, places[0], frame, total)]
    row, column = divmod(places[0], 6)
    assert one.location.endswith(f"cell {row} {column}") and one.picture.width == sheets.TILE_WIDTH


def test_invalid_contact_sheets_raise_usage_error(maze, run, tmp_path):
    for folder, arguments, message in (
        (maze, (0,), "sheet must be between 1 and 144 elites, got 0"),
        (maze, (145,), "sheet must be between 1 and 144 elites, got 145"),
        (maze, (4, tmp_path / "sheet.gif"), "must end in .png"),
        (run, (4,), "ppo has no archive"),
        (tmp_path, (4,), "is not a run"),
    ):
        with pytest.raises(UsageError, match=message):
            write_contact_sheet(folder, *arguments)
    options = {
        "eval_episodes": 4,
        "eval_count": 1,
        "tensorboard": False,
        "run_dir": tmp_path / "arm",
    }
    config = {"batch_size": 32, "num_iterations": 2, "grid": (6, 6)}
    arm = rollax.train(
        "map_elites", "task/arm", config=config, total_steps=64, options=options, quiet=True
    ).folder
    for draw in (lambda: write_contact_sheet(arm, 4), lambda: render(arm)):
        with pytest.raises(UsageError, match="task/arm cannot be drawn.*rollax plot"):
            draw()


def test_a_tile_names_the_cell_of_a_front(maze):
    """If a cell has several places, the number is that of the cell."""
    policy = rollax.load(maze)
    found = get_elites(policy)
    twice = jax.tree.map(
        lambda x: np.repeat(x, 2, axis=0), (found.solutions, found.mask, found.center)
    )
    fronts, place = Elites(*twice, found.is_grid, 2), int(np.flatnonzero(found.mask)[-1])
    shown = sheets.select_frames(policy, [place], 0, True)[0]
    where = sheets.make_tile(policy, found, place, *shown).location
    assert f"cell {place // 6} {place % 6}" in where
    assert [sheets.make_tile(policy, fronts, 2 * place + i, *shown).location for i in (0, 1)] == [
        where
    ] * 2
