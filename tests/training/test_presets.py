"""Tests of presets: environment arguments, and the choice of actions in evaluations."""

import functools
import shlex
from pathlib import Path
from typing import Any

import pytest

import rollax
from rollax import RunOptions
from rollax.cli.train_command import parse_train_words
from rollax.networks.solutions import PolicyConfig, make_solution
from rollax.training.compile import run_check
from rollax.training.presets import load_preset
from rollax.training.run_folder import reproduction
from rollax.training.spec import make_spec


def spec_of(environment: str, **options: Any) -> Any:
    return make_spec("ppo", environment, None, None, None, RunOptions(**options), None)


@pytest.mark.quick
def test_presets_sample_actions_like_their_suites() -> None:
    """Options in Python and on the command line override this, and commands repeat it."""
    for environment in (
        "xminigrid/MiniGrid-FourRooms",
        "rl2/XLand-MiniGrid-R1-9x9",
        "craftax/Craftax-Symbolic-v1",
    ):
        assert load_preset("ppo", environment).eval_stochastic, environment
    assert load_preset("ppo", "gymnax/CartPole-v1").eval_stochastic is False
    name = "probe/memory"
    assert spec_of(name).options.eval_stochastic is False
    for words, wanted in (
        ([], False),
        (["--eval-stochastic"], True),
        (["--eval-stochastic", "false"], False),
    ):
        assert parse_train_words(["ppo", name], words)[0]["options"].eval_stochastic is wanted
    pytest.importorskip("xminigrid")
    grid = "xminigrid/MiniGrid-FourRooms"
    assert spec_of(grid).options.eval_stochastic is True
    greedy = spec_of(grid, eval_stochastic=False)
    assert greedy.options.eval_stochastic is False
    assert "--no-eval-stochastic" in shlex.split(reproduction.format_train_command(greedy, "run"))
    assert "eval-stochastic" not in reproduction.format_train_command(spec_of(grid), "run")
    for words, wanted in (
        ([], True),
        (["--no-eval-stochastic"], False),
        (["--eval-stochastic=false"], False),
    ):
        assert parse_train_words(["ppo", grid], words)[0]["options"].eval_stochastic is wanted


def test_a_preset_file_may_sample_actions(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("probe/memory: {eval_stochastic: true}")
    assert load_preset("ppo", "probe/memory", file).eval_stochastic
    assert (
        parse_train_words(["ppo", "probe/memory"], ["--preset", str(file)])[0][
            "options"
        ].eval_stochastic
        is True
    )
    file.write_text("probe/memory: {eval_stochastic: 1.5}")
    with pytest.raises(rollax.UsageError, match="eval_stochastic"):
        load_preset("ppo", "probe/memory", file)


def test_the_error_of_a_network_names_arguments_of_the_preset(tmp_path: Path) -> None:
    """The policy has four inputs, but the preset adds the time to observations."""
    environment = rollax.make("control/point-maze")
    make = functools.partial(make_solution, environment, PolicyConfig(hidden=(4,)))
    told = {"options": {"run_dir": tmp_path / "run"}, "total_steps": 640, "quiet": True}
    with pytest.raises(rollax.UsageError) as raised:
        rollax.train("map_elites", "control/point-maze", network=make, **told)
    message = str(raised.value)
    assert "The preset of map_elites for control/point-maze sets observe_time True" in message
    assert "Pass arguments=" in message and "'observe_time': False" in message
    assert not (tmp_path / "run").exists()
    defaults = rollax.environments.default_arguments("control/point-maze")
    given = {name: defaults[name] for name in ("observe_time", "start_spread", "step_size")}
    spec = make_spec("map_elites", "control/point-maze", given, None, None, RunOptions(), None)
    run_check.check_run(spec, None, make)
