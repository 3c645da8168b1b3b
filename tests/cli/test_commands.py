"""Tests of the commands: output, files and exit codes."""

import json
import sys
import webbrowser
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import rollax as library
from rollax.distributed import connection
from rollax.environments import registry
from rollax.environments.suites.table import SUITES, missing_python_version
from rollax.runtime.installation import install_command
from rollax.training.evaluation.metrics import format_number
from rollax.version import __version__
from support.command import Command
from support.counting_environment import Counting
from support.runs import FRAMES, SMALL_WORDS, Bad, evaluations, over

Rollax = Callable[..., Any]
NUMBERS = {"return_mean", "return_std", "return_iqm", "return_iqm_low", "return_iqm_high"}
OBJECT = {"run", "steps", "episodes", "wall_time", "steps_per_second"} | NUMBERS
TINY = ["--total-steps", 2 * FRAMES, "--eval-count", 1, *SMALL_WORDS, "--run-dir", "run"]


def test_the_output_of_a_run_in_a_pipe(tmp_path: Path) -> None:
    """A real process writes plain lines with compile time, speed and evaluations.

    The last line is one JSON object.
    """
    folder = tmp_path / "run"
    command = Command(
        "train",
        "ppo",
        "probe/memory",
        *over(TINY, "--run-dir", folder, "--total-steps", 10 * FRAMES),
        quick=True,
    )
    assert command.finish() == 0, command.err
    assert command.err == []
    out = command.out
    assert out[0] == f"ppo on probe/memory, run folder {folder}"
    assert any(line.startswith("Compiled in ") and " s for cpu" in line for line in out)
    assert any("steps/s" in line and f"{10 * FRAMES}/{10 * FRAMES} steps" in line for line in out)
    evaluated = [
        line.split(" steps  return ")[0].strip()
        for line in out
        if "iqm" in line and "over 8 episodes" in line
    ]
    assert evaluated == ["0", "320"]
    assert "\x1b" not in "".join(out), "a terminal's escapes in a pipe"
    assert any(f"rollax eval {folder}" in line for line in out)
    summary = json.loads(out[-1])
    assert summary.keys() >= OBJECT
    assert (summary["run"], summary["status"], summary["steps"], summary["episodes"]) == (
        str(folder),
        "done",
        320,
        8,
    )
    assert summary["return_mean"] == evaluations(folder)["returns"][-1].mean()
    assert summary["wall_time"] > 0 and summary["steps_per_second"] > 0


@pytest.mark.parametrize("words", [[], ["--json"]])
def test_eval_ends_with_a_json_object(rollax: Rollax, finished: Path, words: list[str]) -> None:
    """In a pipe it is the last line.

    With `--json` it is the only one. Other lines agree with it.
    """
    outcome = rollax("eval", finished, "--episodes", 6, *words)
    assert (outcome.code, outcome.err) == (0, "")
    found = outcome.object
    assert found.keys() >= OBJECT
    assert (found["run"], found["steps"], found["episodes"]) == (str(finished), 4 * FRAMES, 6)
    assert found["length_mean"] == 4 and found["terminated"] == 1
    if words:
        assert len(outcome.lines) == 1
    else:
        assert f"mean {format_number(found['return_mean'])}" in outcome.out
        assert "6 episodes" in outcome.lines[0]


def test_eval_is_repeatable(rollax: Rollax, finished: Path) -> None:
    """The same seed gives the same numbers, and sampled actions give others.

    A step can be chosen.
    """
    words = ["eval", finished, "--episodes", 64, "--json", "--checkpoint"]

    def numbers(*more: Any) -> list[float]:
        found = rollax(*words, *more).object
        return [found[name] for name in sorted(NUMBERS)]

    assert numbers("last") == numbers("last", "--seed", 0)
    assert numbers("last") != numbers("last", "--seed", 3)
    assert numbers("last", "--stochastic") == numbers("last", "--stochastic")
    assert rollax(*words, 2 * FRAMES).object["steps"] == 2 * FRAMES


def test_eval_with_other_environment_arguments(rollax: Rollax, finished: Path) -> None:
    """They are not stored in the run, and invalid ones are refused."""
    before = (finished / "config.yaml").read_text()
    outcome = rollax("eval", finished, "--episodes", 6, "--eval-env.delay", 5)
    assert (outcome.code, outcome.object["length_mean"]) == (0, 6)
    assert outcome.lines[0].endswith("6 episodes, greedy actions (with delay 5)")
    assert rollax("eval", finished, "--json", "--eval-env.delay=5").object["length_mean"] == 6
    assert rollax("eval", finished).object["length_mean"] == 4
    assert (finished / "config.yaml").read_text() == before
    for words, message in (
        ("--eval-env.dely 5", "did you mean delay"),
        ("--eval-env.delay -1", "must be at least 0"),
    ):
        outcome = rollax("eval", finished, *words.split())
        assert (
            outcome.code == 2
            and "In evaluations, with eval_arguments" in outcome.err
            and message in outcome.err
        )


def test_eval_shows_all_statistics(
    rollax: Rollax, finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They include the 20th percentile of the return and the info, as a number or a curve."""
    monkeypatch.setattr(registry, "_registered_factories", {})
    library.register("test/counting", Counting)
    assert rollax("train", "ppo", "test/counting", *TINY).code == 0
    outcome = rollax("eval", "run", "--episodes", 9)
    found = outcome.object
    assert (
        f"min {format_number(found['return_min'])}  p20 "
        f"{format_number(found['return_p20'])}  median" in outcome.out
    )
    assert (
        f"  steps {format_number(found['info/steps'])}" in outcome.lines and found["steps"] == 64
    ), "the command's own number"
    assert f"  place {' '.join(map(format_number, found['place']))}" in outcome.lines


def test_eval_of_descriptors(rollax: Rollax, finished: Path) -> None:
    """They are extracted as chosen. Without descriptors, the error has a remedy."""
    outcome = rollax("eval", finished, "--descriptor", "final")
    assert outcome.code == 2 and "must describe behavior" in outcome.err
    assert rollax("train", "ppo", "control/point-maze", "--env.time-limit", 5, *TINY).code == 0
    told = {
        name: rollax("eval", "run", "--episodes", 4, "--descriptor", name)
        for name in ("final", "mean")
    }
    means = {name: outcome.object["descriptor_mean"] for name, outcome in told.items()}
    assert len(means["final"]) == 2 and means["final"] != means["mean"]
    assert (
        f"descriptor mean [{means['final'][0]:.3f}, {means['final'][1]:.3f}]" in told["final"].out
    )
    assert rollax("eval", "run", "--episodes", 4).object["descriptor_mean"] == means["final"]


def test_eval_shows_values_of_agents_and_info(rollax: Rollax) -> None:
    """Returns by agent, team and type and the info of an episode equal those of the JSON object."""
    assert rollax("train", "ppo", "hunting/2-players", "--env.time-limit", 5, *TINY).code == 0
    outcome = rollax("eval", "run", "--episodes", 4)
    found = outcome.object
    first, second = found["return_agents"]
    assert f"  return_agents {format_number(first)} {format_number(second)}" in outcome.lines
    for name in ("return_team", "return_prey", "return_predator", "caught", "survived"):
        assert f"  {name} {format_number(found[name])}" in outcome.lines


@pytest.mark.quick
def test_train_stores_the_settings_of_the_command_line(rollax: Rollax) -> None:
    """Settings include prefixed options, arguments of the environment and an empty list."""
    settings = [
        "--config.learning-rate",
        "3e-4",
        "--env.delay=2",
        "--seed",
        4,
        "--network.core",
        "gru",
        "--network.core-size",
        4,
        "--config.sequence-length",
        4,
        "--network.hidden",
    ]
    place = TINY.index("--network.hidden")
    outcome = rollax("train", "ppo", "probe/memory", *TINY[:place], *TINY[place + 2 :], *settings)
    assert (outcome.code, outcome.err) == (0, "")
    document = yaml.safe_load(Path("run/config.yaml").read_text())
    assert document["config"]["learning_rate"] == 3e-4
    assert document["arguments"] in ({"delay": "2"}, {"delay": 2})
    assert document["options"]["seed"] == 4
    assert (document["network"]["core"], document["network"]["core_size"]) == ("gru", 4)
    assert document["network"]["hidden"] == [], "none, where a name alone is an empty list"
    assert (evaluations(Path("run"))["length"] == 3).all()


def test_a_population(rollax: Rollax) -> None:
    """`--sweep` and `--seeds` make members. `eval --member` evaluates one of them and names it."""
    words = ["--sweep.learning-rate", "1e-3", "1e-2", "--seeds", 2, "--eval-stochastic"]
    outcome = rollax("train", "ppo", "probe/action-reward", *words, *TINY)
    assert outcome.code == 0, outcome.err
    assert "4 members in one program" in outcome.out
    found = outcome.object
    means = evaluations(Path("run"))["returns"][-1].mean(axis=1)
    assert found["return_members"] == pytest.approx(means.tolist())
    assert found["return_mean"] == pytest.approx(means.mean())
    assert found["episodes"] == 4 * 8
    one = rollax("eval", "run", "--member", 3, "--episodes", 4)
    assert one.object["member"] == 3 and "member 3" in one.lines[0]
    assert rollax("eval", "run", "--episodes", 4).object["member"] == int(np.argmax(means))


def test_resume(rollax: Rollax) -> None:
    """A finished run is refused with a remedy, and the remedy continues it."""
    assert rollax("train", "ppo", "probe/memory", *TINY).code == 0
    outcome = rollax("resume", "run")
    assert (outcome.code, outcome.out) == (2, "")
    assert (
        outcome.err == "error: run is finished at 64 steps. To continue, raise --total-steps: "
        "rollax resume run --total-steps 128\n"
    )
    outcome = rollax("resume", "run", "--total-steps", 4 * FRAMES)
    assert (outcome.code, outcome.object["steps"], outcome.object["status"]) == (
        0,
        4 * FRAMES,
        "done",
    )
    assert "Continuing from step 64" in outcome.out


@pytest.fixture
def bad(monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the id of an environment with rewards that are not finite."""
    monkeypatch.setattr(registry, "_registered_factories", {})
    library.register("bad/Bad", Bad)
    return "bad/Bad"


def test_nonfinite_values_stop_a_run(rollax: Rollax, bad: str) -> None:
    """The exit code is 3.

    The output names the cause and its step, and the object is strict JSON.
    """
    words = over(TINY, "--total-steps", 4 * FRAMES, "--eval-max-steps", 12, "--env.good", 10)
    outcome = rollax("train", "ppo", bad, *words)
    assert outcome.code == 3, outcome.err
    assert (
        f"a reward of the environment became NaN, infinite or too large at step {2 * FRAMES}"
        in outcome.out
    )
    found = outcome.object
    assert (found["status"], found["any_nan"], found["steps"]) == ("nonfinite", True, 0)
    assert [found[name] for name in NUMBERS] == [None] * 5
    played = rollax("eval", "run", "--episodes", 3)
    assert (
        played.code == 0
        and played.object["return_mean"] is None
        and played.object["any_nan"] is True
    )


def test_infinite_returns_are_null(rollax: Rollax, bad: str) -> None:
    """This includes those of single members."""
    words = [*TINY, "--eval-max-steps", 2, "--env.good", 0, "--env.value", 3e38, "--seeds", 2]
    outcome = rollax("train", "ppo", bad, *words)
    assert outcome.code == 3
    assert outcome.object["return_members"] == [None, None]


def test_rollback(rollax: Rollax, bad: str) -> None:
    """`resume --on-nonfinite rollback` works as the stopped run suggests."""
    words = [
        "--total-steps",
        16 * FRAMES,
        "--eval-max-steps",
        2,
        "--env.good",
        10**6,
        "--env.chance",
        0.003,
    ]
    outcome = rollax("train", "ppo", bad, *over(TINY, *words, "--checkpoint-steps", FRAMES))
    assert outcome.code == 3
    assert "rollax resume run --on-nonfinite rollback" in outcome.out
    outcome = rollax("resume", "run", "--on-nonfinite", "rollback")
    assert (outcome.code, outcome.object["steps"]) == (0, 16 * FRAMES)


def test_envs_lists_environments(rollax: Rollax) -> None:
    """It lists all, those of a suite, those that contain a word, or one of them, also as JSON."""
    everything = rollax("envs")
    assert everything.code == 0
    assert {"gymnax/CartPole-v1", "probe/memory"} <= set(everything.lines)
    suite = rollax("envs", "probe")
    assert suite.lines and all(line.startswith("probe/") for line in suite.lines)
    assert json.loads(rollax("envs", "probe", "--json").out) == suite.lines
    assert (
        "delay" in rollax("envs", "probe/memory").out
        and "default 3" in rollax("envs", "probe/memory").out
    )
    found = rollax("envs", "cartpole").lines
    assert {"gymnax/CartPole-v1", "memory/CartPole-v1", "gymnasium/CartPole-v1"} <= set(found)
    assert all("cartpole" in line.lower() for line in found)
    one = json.loads(rollax("envs", "hunting/3-players", "--json").out)
    assert (
        one["agents"] == "3 (1 prey, 2 predator)"
        and one["time_limit"] == 200
        and one["arguments"]["catch_radius"] == 0.2
    )
    assert (
        one["choices"] == {"headings": ["continuous", "four"]}
        and "ppo" in one["tuned_for"]
        and "flees" in one["about"]
    )
    text = rollax("envs", "control/point-maze").out
    assert (
        "--env.reward" in text and "(distance, sparse)" in text and "float32 [2], -1 to 1" in text
    )
    assert "takes no arguments" in rollax("envs", "probe/one-action").out


def test_envs_describes_the_network_input(rollax: Rollax) -> None:
    """The description is the one that a run prints."""
    expected = "picture 10 x 10 with 4 channels, through convolutions"
    lines = rollax("envs", "gymnax/Breakout-MinAtar").lines
    assert any(line.split() == ["network", "reads", *expected.split()] for line in lines)
    assert rollax("envs", "gymnax/Breakout-MinAtar", "--json").object["network_input"] == expected


def test_envs_lists_the_arguments_of_a_suites_environment(rollax: Rollax) -> None:
    """Names and defaults are those of the options `--env`."""
    lines = rollax("envs", "gymnax/CartPole-v1").lines
    assert any(line.split() == ["--env.gravity", "default", "9.8"] for line in lines)
    found = rollax("envs", "gymnax/CartPole-v1", "--json").object["arguments"]
    assert found["gravity"] == 9.8 and len(found) == sum(
        line.startswith("    --env.") for line in lines
    )


def test_envs_in_a_terminal(rollax: Rollax, monkeypatch: pytest.MonkeyPatch) -> None:
    """Environments are grouped by suite with missing packages, and each one has a description."""
    from rollax.cli.information import environment_table
    from rollax.environments import list_environments
    from rollax.environments.registry import describe_environment

    monkeypatch.setattr(environment_table, "is_stdout_terminal", lambda: True)
    monkeypatch.setattr(
        environment_table.importlib.util, "find_spec", lambda name: None if name == "brax" else name
    )
    out = rollax("envs").out
    assert "brax/  (11, not installed: extra brax)" in out and "gymnax/  (25)" in out
    assert ("navix/  (83, needs Python 3.12 or newer)" in out) == (
        sys.version_info < (3, 12)
    ) and "navix/  (83" in out
    assert "probe/  (11, part of rollax)" in out and install_command("EXTRA") in out
    assert max(map(len, out.splitlines()[:-1])) <= 100  # the last line has the path of a checkout
    assert [
        id
        for id in list_environments()
        if id.split("/")[0] in SUITES and not describe_environment(id)
    ] == []


def test_envs_describes_tasks(rollax: Rollax) -> None:
    """The environment has several tasks, which an argument selects."""
    words = ["envs", "xminigrid/XLand-MiniGrid-R1-9x9", "--env.ruleset", "17"]
    lines = rollax(*words).lines
    assert [line.split()[0] for line in lines] == ["ruleset", "goal:", "objects:"] and lines[
        0
    ] == "ruleset 17"
    assert json.loads(rollax(*words, "--json").out).splitlines() == lines


@pytest.mark.quick
def test_algorithms(rollax: Rollax) -> None:
    assert "proximal policy optimization" in rollax("algorithms").out
    assert "ppo" in rollax("algorithms", "--json").object


def test_doctor(rollax: Rollax) -> None:
    """It shows versions, devices, missing packages and how to install them."""
    outcome = rollax("doctor")
    assert outcome.code == 0
    import jax

    for part in (
        f"jax {jax.__version__}",
        f"rollax {__version__}",
        "cpu",
        "can be written",
        install_command("EXTRA"),
        "xland     xminigrid ",
    ):
        assert part.lower() in outcome.out.lower()
    found = rollax("doctor", "--json").object
    assert found["packages"]["jax"] == jax.__version__ and found["runs_writable"] is True
    assert {"wandb", "xland", "brax", "granular", "linen"} <= set(
        found["extras"]
    ) and "test" not in found["extras"]
    for extra, packages in found["extras"].items():
        line = next(line for line in outcome.lines if line.startswith(f"{extra} "))
        for package, version in packages.items():
            needed = missing_python_version(SUITES[extra]) if extra in SUITES else ""
            remedy = f"needs Python {needed} or newer" if needed else "missing"
            assert f"{package} {version}" in line if version else remedy in line and package in line


@pytest.mark.quick
def test_version_and_overview(rollax: Rollax) -> None:
    assert rollax("--version").out.strip() == __version__
    overview = rollax()
    assert overview.code == 0 and overview == rollax("--help") == rollax("-h") == rollax("help")
    for command in (
        "train",
        "resume",
        "eval",
        "plot",
        "report",
        "render",
        "export",
        "envs",
        "algorithms",
        "doctor",
    ):
        assert f"rollax {command}" in overview.out


@pytest.mark.parametrize(
    ("command", "options"),
    [
        (
            "train ppo probe/memory",
            "--total-steps --seeds --run-dir --gamma --hidden --sweep --env --help-all",
        ),
        (
            "train",
            "ALGORITHM ENVIRONMENT ppo td3 --total-steps --learning-rate --help-all "
            "--distributed --coordinator --num-processes --process-id",
        ),
        (
            "train ppo probe/memory --distributed",
            "--total-steps --distributed --coordinator --num-processes --process-id",
        ),
        (
            "train sac --coordinator localhost:9 --num-processes 2 --process-id one --distributed",
            "--learning-rate",
        ),
        ("resume --distributed", "--total-steps --devices"),
        ("resume", "--total-steps --on-nonfinite --devices --json"),
        ("eval", "--checkpoint --episodes --stochastic --seed --member --eval-env --json"),
        ("plot", "--out --only --columns --label --x --smooth --aggregate --normalize --csv"),
        ("report", "--out --render --label --open"),
        ("render", "--out --checkpoint --seed --episodes --member"),
        (
            "export",
            "--to --output --batch --stochastic --checkpoint --member --descriptor "
            "--cell --card --overwrite --json",
        ),
        ("train sac", "--learning-rate --warmup"),
        ("envs", "--json"),
        ("ls", "--json"),
        ("algorithms", "--json"),
        ("doctor", "--json"),
    ],
)
def test_help_lists_the_options(
    rollax: Rollax, monkeypatch: pytest.MonkeyPatch, command: str, options: str
) -> None:
    """Nothing is run, and no other processes are waited for."""
    monkeypatch.setattr(
        connection, "connect", lambda *_: pytest.fail("it waits for other processes")
    )
    outcome = rollax(*command.split(), "--help")
    assert (outcome.code, outcome.err) == (0, "")
    assert [name for name in options.split() if name not in outcome.out] == []
    assert list(Path().iterdir()) == []


@pytest.mark.quick
def test_plot(rollax: Rollax, finished: Path) -> None:
    """One run is plotted into its figures, and several into a given file."""
    pytest.importorskip("rollax.visualization.plots.figure")
    outcome = rollax("plot", finished)
    assert outcome.code == 0, outcome.err
    path = Path(outcome.lines[-1])
    assert path.parent == finished / "figures" and path.stat().st_size > 1000
    assert rollax("plot", finished, finished, "--out", "both.png").code == 0
    assert Path("both.png").read_bytes().startswith(b"\x89PNG")
    outcome = rollax(
        "plot", finished.parent, "--only", "return", "--columns", 1, "--csv", "--out", "one.pdf"
    )
    assert (outcome.code, outcome.lines) == (0, ["one.pdf", "one.csv"])
    assert outcome.err == "lines: one seed, without an interval\n"


@pytest.mark.quick
def test_report(rollax: Rollax, finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One run has its report in its figures, several in a new file.

    A message says if no browser starts.
    """
    opened = list[str]()
    monkeypatch.setattr(
        webbrowser, "open", lambda address: opened.append(address) or len(opened) == 1
    )
    outcome = rollax("report", finished, "--open")
    path = finished / "figures" / "report.html"
    assert (outcome.code, outcome.lines, outcome.err) == (0, [str(path)], "")
    assert opened == [path.resolve().as_uri()] and "ppo on probe/memory" in path.read_text()
    outcome = rollax("report", finished, finished.parent, "--out", "page.html", "--open")
    assert outcome.lines == ["page.html"] and "No browser can be started here" in outcome.err


def test_render(rollax: Rollax, finished: Path) -> None:
    """One episode is written as a GIF."""
    pytest.importorskip("rollax.visualization.render.render")
    outcome = rollax("render", finished, "--out", "episode.gif")
    assert outcome.code == 0, outcome.err
    assert Path("episode.gif").read_bytes().startswith(b"GIF8")


def test_eval_of_several_runs(rollax: Rollax, finished: Path) -> None:
    """Runs are evaluated in turn, with one JSON object per line.

    A folder of runs stands for all of them.
    """
    outcome = rollax("eval", finished, finished.parent, "--episodes", "4", "--json")
    assert outcome.code == 0 and [json.loads(line)["run"] for line in outcome.lines] == [
        str(finished)
    ]
    assert "rollax eval RUN" in rollax("eval").err
