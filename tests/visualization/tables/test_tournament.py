"""Tests of cross-play between policies and its tables."""

import csv
import io
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import yaml

import rollax
from rollax import UsageError
from rollax.cli.main import main
from rollax.visualization.tables import tournament
from rollax.visualization.tables.cross_play_tables import make_elo_table, make_win_rate_table

SMALL = {"num_envs": 8, "num_steps": 4, "num_minibatches": 2, "num_epochs": 1}
OPTIONS = {
    "total_steps": 6 * 32,
    "eval_episodes": 4,
    "eval_count": 2,
    "tensorboard": False,
    "opponent_pool": 2,
    "opponent_pool_every": 32,
}


def trained(folder: Path, **changes: object) -> Path:
    options = OPTIONS | {"run_dir": folder} | changes
    return rollax.train(
        "ppo",
        "matrix/rock-paper-scissors",
        config=SMALL,
        network={"hidden": (4,)},
        options=options,
        quiet=True,
    ).folder


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    root = tmp_path_factory.mktemp("tournament")
    return [trained(root / "first"), trained(root / "second", seed=1)]


def test_two_runs(runs: list[Path]) -> None:
    result = rollax.cross_play(runs, games=40)
    assert result.names == ("first step 192", "second step 192")
    assert np.all(result.games == 40)
    np.testing.assert_allclose(result.win_rates.value + result.win_rates.value.T, 1.0)
    np.testing.assert_allclose(result.returns.value + result.returns.value.T, 0.0, atol=1e-6)
    assert result.elo.value.mean() == pytest.approx(1000.0)
    again = rollax.cross_play(runs, games=40)
    np.testing.assert_array_equal(again.win_rates.value, result.win_rates.value)


def test_all_versions_of_a_run(runs: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "play.csv"
    words = ["cross-play", str(runs[0]), "--checkpoints", "--games", "8", "--out", str(out)]
    assert main(words) == 0
    rows = list(csv.DictReader(io.StringIO(out.read_text())))
    names = list(dict.fromkeys(row["policy"] for row in rows))
    assert [name.partition(" ")[0] for name in names].count("version") >= 2
    assert {"step 96", "step 192"} <= set(names) and len(rows) == len(names) ** 2
    elo = list(csv.DictReader(io.StringIO((tmp_path / "play-elo.csv").read_text())))
    assert {row["policy"] for row in elo} == set(names)
    assert [float(row["elo"]) for row in elo] == sorted(float(row["elo"]) for row in elo)[::-1]
    assert main(words) == 2  # the files exist


def test_tables(runs: list[Path]) -> None:
    result = rollax.cross_play(runs, games=8)
    matrix, ratings = make_win_rate_table(result), make_elo_table(result)
    assert [column.name for column in matrix.columns] == ["policy", *result.names]
    assert {row[0] for row in ratings.rows} == set(result.names)
    assert "0.50" in matrix.to_string() and "Elo" in ratings.to_string()


def test_games_with_nonfinite_returns_are_left_out(
    runs: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are counted, and the other games are rated. A pair without games has no win rate."""
    make_match = tournament.make_match

    def make_broken_match(*arguments: Any) -> Callable[..., jax.Array]:
        play = make_match(*arguments)
        return lambda *states: play(*states).at[0].set(jnp.nan)

    monkeypatch.setattr(tournament, "make_match", make_broken_match)
    result = rollax.cross_play(runs, games=40)
    assert result.games[0, 1] == 36 and result.nonfinite_games[0, 1] == 4
    np.testing.assert_allclose(result.win_rates.value + result.win_rates.value.T, 1.0)
    assert np.isfinite(result.elo.value).all()
    assert "12 of 120 results are left out" in make_win_rate_table(result).notes[-1]
    assert result.matrix_to_csv().splitlines()[1].endswith(",4")
    empty = rollax.cross_play(runs, games=4)
    assert np.isnan(empty.win_rates.value).all() and np.isfinite(empty.elo.value).all()
    assert make_elo_table(empty).rows and empty.matrix_to_csv()


@pytest.mark.parametrize(
    ("games", "message"), [(0, "games must be at least 1"), (8, "at least two policies")]
)
def test_invalid_arguments(runs: list[Path], games: int, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        rollax.cross_play(runs[0], games=games)


def test_policies_of_other_runs_in_the_pool(runs: list[Path], tmp_path: Path) -> None:
    """The run stores copies, and can be resumed without the other run."""
    folder = trained(tmp_path / "third", opponent_pool_runs=(f"{runs[0]}@96", str(runs[1])))
    spec = rollax.load(folder).spec
    assert spec.options.opponent_pool_runs == ("opponent_pool/0", "opponent_pool/1")
    assert (folder / "opponent_pool/0/checkpoints/step_000000000096").is_dir()
    assert rollax.resume(folder, total_steps=8 * 32, quiet=True).steps == 8 * 32


def test_policies_that_do_not_fit(runs: list[Path], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="must be that of the opponent"):
        rollax.train(
            "ppo",
            "hunting/2-players",
            config=SMALL,
            options=OPTIONS | {"opponent_pool_runs": (str(runs[0]),), "run_dir": tmp_path / "run"},
            quiet=True,
        )
    assert not (tmp_path / "run").exists()


def test_a_report_shows_the_ratings(runs: list[Path], tmp_path: Path) -> None:
    page = Path(rollax.report(runs[0], path=tmp_path / "report.html")).read_text()
    assert "Opponents" in page and re.search(r">version \d", page) and ">Elo<" in page


def test_no_policy_outside_of_the_folder_is_read(runs: list[Path], tmp_path: Path) -> None:
    """A folder from somebody else may name other folders as its opponents."""
    received = Path(shutil.copytree(runs[0], tmp_path / "received"))
    settings = yaml.safe_load((received / "config.yaml").read_text())
    settings["options"]["opponent_pool_runs"] = [str(runs[1])]
    (received / "config.yaml").write_text(yaml.safe_dump(settings))
    with pytest.raises(UsageError, match="must be opponent_pool/0, the run's own copy"):
        rollax.load(received)
    settings["options"]["opponent_pool_runs"] = ["opponent_pool/0"]
    (received / "config.yaml").write_text(yaml.safe_dump(settings))
    (received / "opponent_pool").symlink_to(runs[1].parent)
    with pytest.raises(UsageError, match="must not be a link"):
        rollax.load(received)
