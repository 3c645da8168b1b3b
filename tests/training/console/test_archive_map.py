"""Tests of the map of an archive on the terminal, which shows the best elite of every block."""

import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from rich.text import Text

import rollax
from rollax.archives.archive import Elites, ScoredSolutions
from rollax.training import loop
from rollax.training.console import archive_map
from rollax.training.console.archive_map import (
    MAP_COLUMNS,
    MAP_ROWS,
    SHADES,
    compute_block_fitness,
    draw_map,
    render_archive_map,
)
from rollax.training.console.progress import LineDisplay, LiveDisplay, ResilientDisplay
from rollax.training.console.run_timing import RunTiming
from rollax.training.elites import selection

LOW, HIGH = np.array([-1.0, 0.0]), np.array([1.0, 10.0])


def elites_of(number: int, is_grid: bool, seed: int = 0) -> Elites:
    numbers = np.random.default_rng(seed)
    center, descriptor = (LOW + numbers.random((number, 2)) * (HIGH - LOW) for _ in range(2))
    mask = numbers.random(number) < 0.6
    fitness = np.where(mask, numbers.normal(size=number), -np.inf)
    return Elites(ScoredSolutions((), fitness, descriptor), mask, center, np.bool_(is_grid))


@pytest.mark.parametrize("shape", [(4, 3), (32, 16), (40, 20), (100, 100), (33, 5)])
def test_blocks_consist_of_whole_cells(shape: tuple[int, int]) -> None:
    """Every cell belongs to one block in the same order, and blocks are at least one cell."""
    found = elites_of(shape[0] * shape[1], True)
    values = compute_block_fitness(found, shape, LOW, HIGH)
    rows, columns = values.shape
    assert rows <= MAP_ROWS and columns <= MAP_COLUMNS
    assert rows == shape[1] or shape[1] > MAP_ROWS and columns == shape[0] or shape[0] > MAP_COLUMNS
    across, up = -(-shape[0] // columns), -(-shape[1] // rows)
    fitness = np.where(found.mask, found.solutions.fitness, -np.inf).reshape(shape)
    for row in range(rows):
        for column in range(columns):
            block = fitness[column * across : (column + 1) * across, row * up : (row + 1) * up]
            expected = block.max(initial=-np.inf)
            assert values[row, column] == expected or (
                np.isnan(values[row, column]) and expected == -np.inf
            )


def test_blocks_without_a_grid() -> None:
    """A block has the best elite whose descriptor is inside.

    A block without such an elite has that of the Voronoi cell at its center.
    """
    found = elites_of(300, False)
    population = found._replace(center=found.solutions.descriptor)
    best = np.full((MAP_ROWS, MAP_COLUMNS), np.nan)
    share = (found.solutions.descriptor - LOW) / (HIGH - LOW)
    for (x, y), fitness, is_there in zip(share, found.solutions.fitness, found.mask, strict=True):
        place = int(y * MAP_ROWS), int(x * MAP_COLUMNS)
        if is_there and not best[place] >= fitness:
            best[place] = fitness
    np.testing.assert_array_equal(compute_block_fitness(population, None, LOW, HIGH), best)
    values = compute_block_fitness(found, None, LOW, HIGH)
    for row in range(MAP_ROWS):
        for column in range(MAP_COLUMNS):
            middle = LOW + (np.array([column, row]) + 0.5) / (MAP_COLUMNS, MAP_ROWS) * (HIGH - LOW)
            cell = np.argmin(np.sum(((found.center - middle) / (HIGH - LOW)) ** 2, axis=1))
            expected = (
                found.solutions.fitness[cell] if np.isnan(best[row, column]) else best[row, column]
            )
            assert (
                values[row, column] == expected
                or np.isnan(values[row, column])
                and expected == -np.inf
            )


def test_the_drawn_map() -> None:
    """The second descriptor points upwards, shades are quartiles, and empty blocks are blank."""
    text = draw_map(np.array([[1.0, 2.0, np.nan], [3.0, 4.0, 5.0]]), "title")
    title, upper, lower, legend = text.plain.splitlines()
    assert title == "title" and legend.startswith("  fitness ░ 1 to 2")
    assert upper == "  ▒▓█" and lower == "  ░░ "


class NoPicture:
    """Custom display without the method `picture`."""

    def message(self, text: str) -> None: ...
    def status(self, text: str) -> None: ...
    def progress(self, num_done: int, num_total: int, metric_texts: dict[str, str]) -> None: ...
    def close(self) -> None: ...


def live(width: int = 100, height: int = 40) -> tuple[LiveDisplay, io.StringIO]:
    file = io.StringIO()
    return LiveDisplay(Console(file=file, force_terminal=True, width=width, height=height)), file


def refuse() -> Text:
    raise AssertionError("nobody sees it")


def test_a_map_is_drawn_only_with_enough_space() -> None:
    """It is not computed for a pipe, a small terminal or a display without pictures."""
    ResilientDisplay(LineDisplay(silent=True)).picture(refuse)
    ResilientDisplay(NoPicture()).picture(refuse)  # pyright: ignore[reportArgumentType]
    for size in ((40, 40), (100, 12)):
        show, _ = live(*size)
        ResilientDisplay(show).picture(refuse)
        show.close()
    show, file = live()
    ResilientDisplay(show).picture(lambda: Text("a map"))
    show.picture(lambda: None)  # keeps the previous map
    show.close()
    assert "a map" in file.getvalue()


def test_progress_in_a_narrow_terminal() -> None:
    """Figures use more lines if they do not fit, and none is truncated."""
    show, file = live(width=80)
    figures = {
        "coverage": "0.9727",
        "qd_score": "60,786",
        "fitness_best": "-9.244",
        "evaluations/s": "5,094",
        "left": "0:01",
    }
    show.progress(1, 10, figures)
    show.close()
    out = Text.from_ansi(file.getvalue()).plain
    assert "…" not in out and " 10%" in out and "training" in out and "━╺━" in out
    assert [word for word in out.split() if word in {*figures, *figures.values()}] == [
        x for pair in figures.items() for x in pair
    ]


@pytest.mark.parametrize(
    ("figures", "unit"),
    [({"evaluations/s": "5"}, "evaluations"), ({"steps/s": "5"}, "steps"), ({}, "steps")],
)
def test_lines_name_the_unit_of_progress(
    capsys: pytest.CaptureFixture, figures: dict[str, str], unit: str
) -> None:
    """The unit is evaluations of solutions or steps of the environment."""
    LineDisplay().progress(320, 1_000, figures)
    assert capsys.readouterr().out.startswith(f"320/1,000 {unit}")


def trained(
    folder: Path, algorithm: str = "map_elites", environment: str = "task/arm", **more: Any
) -> str:
    show, file = live()
    config = {"batch_size": 32, "num_iterations": 2, "grid": (8, 8)}
    options = {"eval_episodes": 4, "eval_count": 2, "tensorboard": False, "run_dir": folder}
    more = {"config": config, "total_steps": 320} | more
    rollax.train(algorithm, environment, options=options, show=show, **more)
    return file.getvalue()


@pytest.mark.parametrize(
    ("algorithm", "environment"), [("map_elites", "task/arm"), ("mome", "task/rastrigin-multi")]
)
def test_a_run_shows_its_archive_at_evaluations(
    tmp_path: Path, algorithm: str, environment: str
) -> None:
    out = trained(tmp_path / "run", algorithm, environment)
    assert "archive at 320 evaluations" in out and "archive at 0 evaluations" not in out
    assert (
        "(a closed form)" in out
        and "episodes" not in out
        and "length" not in out
        and "nan" not in out.split()
    )
    policy = rollax.load(tmp_path / "run")
    found = render_archive_map(
        policy.algorithm, policy.state, policy.spec.derived_settings.archive, 320
    )
    assert found is not None
    number = sum(found.plain.split("fitness")[0].count(shade) for shade in SHADES)
    cells = policy.elites()["place"] // getattr(policy.spec.config, "front_size", 1)
    assert number == len(set(cells.tolist()))  # the grid is small, so each cell has a block


def test_the_bar_formats_metrics_like_the_lines() -> None:
    seen: list[dict[str, str]] = []
    spec = SimpleNamespace(
        total_updates=2,
        updates_per_evaluation=0,
        algorithm="map_elites",
        config=SimpleNamespace(steps_per_update=10),
        derived_settings=SimpleNamespace(num_envs=0),
    )
    show = SimpleNamespace(progress=lambda done, total, figures: seen.append(figures))
    session: Any = SimpleNamespace(spec=spec, display=show, updates=1, num_frames=10, evaluation={})
    session.update_seconds, session.num_timed_updates, session.timing = 1.0, 1, RunTiming()
    session.program = SimpleNamespace(simulators=None)
    session.frames_of_all_members = lambda num_updates: 10 * num_updates
    session.metric_texts = loop._format_training(
        session, {"coverage": 0.97266, "qd_score": 60786.17, "fitness_best": float("nan")}
    )
    loop._show_progress(session)
    assert list(seen[0].values())[:3] == ["0.9727", "60,786", "-"]


def with_elites(policy: rollax.Policy, archive: Any, found: Elites) -> Any:
    """Return the algorithm of a policy with these elites in its archive."""
    other = archive._replace(elites=lambda state: found)
    return policy.algorithm._replace(
        archived=policy.algorithm.archived._replace(archive=lambda state: (other, None))
    )


def test_other_runs_show_no_map(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """These are runs without an archive, with several members, or without two descriptors."""
    assert "archive at" not in trained(tmp_path / "seeds", seeds=2)
    assert "archive at" not in trained(
        tmp_path / "ppo", "ppo", "probe/one-action", config={}, total_steps=64
    )
    policy = rollax.load(trained_folder(tmp_path / "run"))
    assert (
        render_archive_map(policy.algorithm, policy.state, policy.spec.derived_settings.archive, 1)
        is not None
    )
    archive, archive_state = selection.get_archive(policy)
    found = archive.elites(archive_state)

    def seen(found):
        return with_elites(policy, archive, found)

    assert (
        render_archive_map(
            seen(found._replace(center=found.center[:, :1])),
            policy.state,
            policy.spec.derived_settings.archive,
            1,
        )
        is None
    )
    monkeypatch.setattr(archive_map, "compute_block_fitness", refuse)
    assert (
        render_archive_map(
            seen(found._replace(mask=np.zeros(64, bool))),
            policy.state,
            policy.spec.derived_settings.archive,
            1,
        )
        is None
    )


def trained_folder(folder: Path) -> Path:
    trained(folder)
    return folder
