"""Tests of runs with an archive: metrics, resuming, and selection of elites."""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from PIL import Image

import rollax
from rollax.errors import UsageError
from rollax.training.run_folder.metric_sinks import read_metrics
from rollax.visualization.archives import archive_comparison
from rollax.visualization.archives import archive_figure as archives
from rollax.visualization.archives import contact_sheet as sheets
from rollax.visualization.archives.archive_figure import (
    draw_archive_map,
    encode_figure,
    write_archive_files,
)
from rollax.visualization.render import render as renders
from rollax.visualization.render.drawings import find_drawing
from rollax.visualization.render.render import add_note, render
from support.figures import plot
from support.runs import checksums

SMALL = {"batch_size": 32, "num_iterations": 2, "grid": (6, 6), "qd_offset": 100.0}
OPTIONS = {"eval_episodes": 4, "eval_count": 2, "tensorboard": False, "log_lines": 10}


def trained(folder: Path, steps: int = 640, **settings: Any) -> Any:
    return rollax.train(
        "map_elites",
        "control/point-maze",
        arguments={"time_limit": 20},
        network={"hidden": (8,)},
        config=SMALL | settings,
        total_steps=steps,
        options=OPTIONS | {"run_dir": folder},
        quiet=True,
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return trained(tmp_path_factory.mktemp("elites") / "run")


@pytest.mark.quick
def test_evaluations_report_the_archive(run: Any) -> None:
    """Coverage and QD score are in evaluations, lines and the file of evaluations."""
    assert 0 < run.evaluation["coverage"] <= 1 and run.evaluation["qd_score"] > 0
    lines = [line for line in read_metrics(run.folder / "metrics.jsonl") if "event" not in line]
    assert lines[-1]["coverage"] == pytest.approx(run.evaluation["coverage"])
    assert all(a["coverage"] <= b["coverage"] for a, b in zip(lines, lines[1:], strict=False))
    with np.load(run.folder / "evaluations.npz") as file:
        assert (
            file["state_metrics/coverage"].shape == (3,) and file["state_metrics/coverage"][0] == 0
        )


def test_a_resumed_archive_equals_the_uninterrupted_one(run: Any, tmp_path: Path) -> None:
    """The run stops at half of its steps. All elites are equal bit for bit."""
    half = trained(tmp_path / "half", steps=320)
    rollax.resume(half.folder, total_steps=640, quiet=True)
    whole, again = rollax.load(run.folder), rollax.load(half.folder)
    for a, b in zip(
        jax.tree.leaves(whole.state.archive), jax.tree.leaves(again.state.archive), strict=True
    ):
        np.testing.assert_array_equal(a, b)


CRITICS = {
    "critic_hidden": (8,),
    "capacity": 2000,
    "critic_updates": 2,
    "policy_updates": 2,
    "samples": 8,
}
CODES = {
    "num_elites": 20,
    "num_frames": 3,
    "encoder_hidden": (8,),
    "encoder_updates": 5,
    "samples": 8,
}


@pytest.mark.parametrize(
    ("name", "environment", "settings"),
    [
        ("pga_me", "control/point-maze", CRITICS),
        ("cma_mae", "task/arm", {"num_emitters": 4}),
        ("aurora", "control/point-maze", CODES),
    ],
)
def test_emitters_and_replay_are_resumed_exactly(
    name: str, environment: str, settings: Any, tmp_path: Path
) -> None:
    """Each leaf of the state in the run folder is equal bit for bit."""

    def run(folder: str, steps: int) -> Path:
        arguments = {"time_limit": 10} if environment.startswith("control") else {}
        options = OPTIONS | {"run_dir": tmp_path / folder}
        config = {"batch_size": 16, "num_iterations": 2, "grid": (6, 6)} | settings
        return rollax.train(
            name,
            environment,
            arguments=arguments,
            config=config,
            total_steps=steps,
            options=options,
            quiet=True,
        ).folder

    whole, half = run("whole", 320), run("half", 160)
    rollax.resume(half, total_steps=320, quiet=True)
    mine, theirs = checksums(whole, 320), checksums(half, 320)
    assert [leaf for leaf in mine | theirs if mine.get(leaf) != theirs.get(leaf)] == []


def test_elites_are_a_table_and_policies(run: Any) -> None:
    policy = rollax.load(run.folder)
    table = policy.elites()
    assert list(table) == ["place", "fitness", "descriptor_0", "descriptor_1"]
    assert np.all(np.diff(table["fitness"]) <= 0) and len(table["place"]) == round(
        36 * run.evaluation["coverage"]
    )
    row, column = divmod(int(table["place"][-1]), 6)
    worst = policy.elite(cell=(row, column))
    wanted = float(table["descriptor_0"][-1]), float(table["descriptor_1"][-1])
    same = policy.elite(descriptor=wanted)
    assert (
        f"fitness {table['fitness'][-1]:.4g}" in worst.warnings[-1]
        and worst.warnings == same.warnings
    )
    obs, key = np.array([-0.3, 0.4, 0.1, 0.7, 0.0], np.float32), jax.random.key(0)
    np.testing.assert_array_equal(worst.act(obs, (), key)[0], same.act(obs, (), key)[0])
    assert not np.array_equal(worst.act(obs, (), key)[0], policy.act(obs, (), key)[0])


def test_invalid_selections_of_elites_raise_usage_error(run: Any) -> None:
    policy = rollax.load(run.folder)
    empty = min(set(range(36)) - set(policy.elites()["place"].tolist()), default=None)
    for wanted, message in (
        ({}, "Pass exactly one of them"),
        ({"descriptor": (0.1,)}, "descriptor must be 2 finite numbers, got 0.1"),
        ({"descriptor": 0.1}, "descriptor must be 2 finite numbers, got 0.1"),
        (
            {"descriptor": "ab"},
            r"descriptor \('ab'\) must be a sequence in which every item is a number",
        ),
        ({"cell": 3}, r"cell must be within 0 ... 5 x 0 ... 5, got 3\."),
        ({"cell": (6, 0)}, r"cell must be within 0 ... 5 x 0 ... 5, got 6 0"),
        *(
            [({"cell": divmod(empty, 6)}, "is empty. The nearest elite is in cell")]
            if empty is not None
            else []
        ),
    ):
        with pytest.raises(UsageError, match=message):
            policy.elite(**wanted)
    other = rollax.train(
        "ppo",
        "probe/one-action",
        total_steps=64,
        quiet=True,
        options=OPTIONS | {"run_dir": run.folder.parent / "ppo"},
    )
    with pytest.raises(UsageError, match="ppo has no archive"):
        rollax.load(other.folder).elites()


def test_figures_of_an_archive(run: Any) -> None:
    """They are curves, the archive, and an episode of an elite."""
    assert plot([run.folder]).exists()
    path, table = write_archive_files(run.folder)
    assert table.read_text().startswith("place,fitness,descriptor_0,descriptor_1\n")
    with Image.open(path) as image:
        assert image.format == "PNG" and min(image.size) > 500
    assert render(run.folder, descriptor=(0.5, 0.5), max_frames=20).exists()


def test_animations_of_elites_have_different_names(run: Any) -> None:
    place = int(rollax.load(run.folder).elites()["place"][0])
    cell = divmod(place, 6)
    paths = [
        render(run.folder, max_frames=4, **which)
        for which in ({}, {"cell": cell}, {"descriptor": (0.5, 1.0)})
    ]
    assert [path.name for path in paths] == [
        "episode.gif",
        "episode-cell-{}-{}.gif".format(*cell),
        "episode-descriptor-0.5-1.gif",
    ]
    assert (
        renders.animation_name((-0.5, 2e-9), None, "best", 3)
        == "episode-descriptor--0.5-2e-09-checkpoint-best-member-3"
    )
    assert renders.animation_name(None, None, "best", 3) == "episode"


def test_an_animation_names_the_elite(run: Any, tmp_path: Path) -> None:
    """It has an additional line at the bottom."""
    chosen, best = (
        render(run.folder, tmp_path / f"{name}.gif", max_frames=4, **which)
        for name, which in (("chosen", {"descriptor": (0.5, 0.5)}), ("best", {}))
    )
    with Image.open(chosen) as a, Image.open(best) as b:
        assert a.height > b.height
    environment = rollax.load(run.folder).environment
    noted = add_note(find_drawing(environment), "the elite at descriptor")
    assert (
        noted.notes is not None
        and noted.notes(environment, None, None)[-1] == "the elite at descriptor"
    )


def test_warnings_of_a_checkpoint_are_passed_on(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A warning may report that an older checkpoint was loaded."""
    damaged = dataclasses.replace(rollax.load(run.folder), warnings=["the last one is damaged"])
    for module in (archives, archive_comparison, renders, sheets):
        monkeypatch.setattr(module, "load", lambda *_, **__: damaged)
    told: list[str] = []
    write_archive_files(run.folder, told.append)
    archive_comparison.write_archive_comparison(
        run.folder, run.folder, run.folder / "both.png", told.append
    )
    render(run.folder, max_frames=4, warn_fn=told.append)
    sheets.write_contact_sheet(run.folder, 1, warn_fn=told.append)
    assert told == ["the last one is damaged"] * 5


@pytest.mark.parametrize(
    ("shape", "dimensions"), [((5,), 1), ((2, 3, 2), 3), ((2, 2, 2, 3), 4), (None, 2), (None, 5)]
)
def test_archives_with_any_number_of_dimensions_are_drawn(
    shape: tuple[int, ...] | None, dimensions: int
) -> None:
    from rollax.archives.archive import Elites, ScoredSolutions

    number = int(np.prod(shape)) if shape else 20
    numbers = np.random.default_rng(0)
    scored = ScoredSolutions((), numbers.normal(size=number), numbers.random((number, dimensions)))
    figure = draw_archive_map(
        Elites(
            scored,
            numbers.random(number) < 0.7,
            numbers.random((number, dimensions)),
            np.bool_(shape is not None),
        ),
        shape,
        "title",
    )
    assert encode_figure(figure, "png").startswith(b"\x89PNG")
