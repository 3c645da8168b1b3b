"""Runs whose environment parameters follow a curriculum, or change in callbacks."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rollax
from rollax.algorithm import EpisodeSums
from rollax.algorithms.curriculum import (
    Curriculum,
    CurriculumState,
    follow_return,
    with_curriculum,
)
from rollax.cli.main import main
from rollax.environments.wrappers import DomainRandomization
from rollax.errors import UsageError
from rollax.training.compile import program as programs
from rollax.training.run_folder.layout import read_spec
from rollax.training.run_folder.reproduction import format_train_command
from rollax.training.value_ranges import parse_curriculum
from support.runs import FRAMES, NETWORK, SMALL_WORDS, Script, bits, metrics, whole_state

CARTPOLE = "gymnax/CartPole-v1"
GRAVITY = "curriculum/gravity"


def values_of(folder: Path, name: str = GRAVITY) -> list[Any]:
    """Return the value of a metric in each line of training."""
    return [line[name] for line in metrics(folder) if "event" not in line]


def test_parameters_follow_the_progress_of_training(
    train: Callable[..., Any], tmp_path: Path
) -> None:
    """A resumed run is bit-identical, and evaluations use the last value."""
    curriculum = {"gravity": (5, 15), "length": lambda level: 0.5 if level < 0.5 else 1.0}
    whole = train("whole", CARTPOLE, curriculum=curriculum)
    expected = [5 + 10 * update / 12 for update in range(12)]
    assert values_of(whole.folder) == pytest.approx(expected)
    lengths = values_of(whole.folder, "curriculum/length")
    assert lengths[:6] == [0.5] * 6 and lengths[6:] == [1.0] * 6

    def early(evaluated: rollax.Evaluated) -> bool:
        return evaluated.step >= 6 * FRAMES

    stopped = train("stopped", CARTPOLE, curriculum=curriculum, stop_when=early)
    assert stopped.status == "stopped" and len(values_of(stopped.folder)) == 6
    rollax.resume(stopped.folder, show=Script())
    assert bits(whole_state(whole.folder)) == bits(whole_state(stopped.folder))
    assert metrics(whole.folder) == metrics(stopped.folder)
    spec = read_spec(whole.folder)
    assert spec.curriculum["gravity"] == (5.0, 15.0)
    policy = rollax.load(whole.folder)
    assert 15.0 in jax.tree.leaves(policy.environment)
    other = rollax.load(whole.folder, eval_arguments={"gravity": 9.0})
    assert 9.0 in jax.tree.leaves(other.environment) and 1.0 in jax.tree.leaves(other.environment)
    assert policy.evaluate(4, jax.random.key(0))[0]["return_mean"] > 0


def test_a_constant_curriculum_does_not_change_training(train: Callable[..., Any]) -> None:
    plain = train("plain", CARTPOLE, updates=3, arguments={"gravity": 9.8})
    constant = train("constant", CARTPOLE, updates=3, curriculum={"gravity": 9.8})
    for mine, theirs in zip(metrics(plain.folder), metrics(constant.folder), strict=True):
        numbers = {name: value for name, value in mine.items() if isinstance(value, int | float)}
        assert {name: theirs[name] for name in numbers} == pytest.approx(
            numbers, rel=1e-4, abs=1e-5
        )


def test_each_member_follows_its_own_return(train: Callable[..., Any]) -> None:
    """A member has the same values as the same run alone, and the level never falls."""
    by_return: dict[str, Any] = {
        "curriculum": {"gravity": (5, 15)},
        "curriculum_returns": (5, 40),
        "updates": 60,
        "eval_count": 1,
    }
    both = np.array(values_of(train("both", CARTPOLE, seeds=2, **by_return).folder))
    alone = np.array(values_of(train("alone", CARTPOLE, seed=1, **by_return).folder))
    np.testing.assert_allclose(both[:, 1], alone, rtol=1e-4)
    assert alone[0] == 5 and alone[-1] > 5 and np.all(np.diff(alone) >= 0)
    assert np.any(both[:, 0] != both[:, 1])


def test_the_level_follows_the_mean_of_recent_returns() -> None:
    """It waits for 50 episodes, ignores updates without episodes, and is clipped to 1."""
    zero = jnp.zeros(())
    state = CurriculumState((), jnp.zeros((), jnp.int32), zero, zero, zero, {})

    def after(state: CurriculumState, number: float, mean: float) -> CurriculumState:
        sums = EpisodeSums(jnp.asarray(number), jnp.asarray(number * mean))
        return follow_return(state, sums, (0.0, 100.0))

    few = after(state, 49.0, 60.0)
    assert few.level == 0
    enough = after(few, 1.0, 60.0)
    assert float(enough.level) == pytest.approx(0.6, rel=1e-5)
    assert float(after(enough, 0.0, 0.0).level) == float(enough.level)
    assert float(after(enough, 200.0, 10.0).level) == float(enough.level)
    assert float(after(enough, 1e4, 900.0).level) == 1.0


def test_callbacks_change_declared_parameters(train: Callable[..., Any]) -> None:
    """The values are recorded and saved, so a run that is resumed without the callback has them."""

    def heavier(event: rollax.RunEvent) -> None:
        if event.kind == "evaluation" and event.updates == 3:
            event.set_arguments(gravity=12)
        if event.kind == "metrics" and event.updates == 7:
            event.set_arguments(gravity=14.0)
        if event.kind == "evaluation" and event.updates == 9:
            event.stop()

    curriculum = {"gravity": 9.8}
    for members in (1, 2):
        result = train(
            f"members-{members}", CARTPOLE, curriculum=curriculum, callback=heavier, seeds=members
        )
        result = rollax.resume(result.folder, show=Script())
        expected = [9.8] * 3 + [12.0] * 4 + [14.0] * 5
        found = np.array(values_of(result.folder)).reshape(12, members)
        np.testing.assert_allclose(found, np.array(expected)[:, None] + np.zeros(members))
    assert "Callbacks may have changed parameters" in rollax.report(result, quiet=True).read_text()


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("evaluation", "set_arguments can change length, got gravity. Declare it as curriculum="),
        ("checkpoint", "set_arguments must be called in on_metrics or on_evaluation"),
    ],
)
def test_what_a_callback_may_not_change(train: Callable[..., Any], kind: str, message: str) -> None:
    def change(event: rollax.RunEvent) -> None:
        if event.kind == kind:
            event.set_arguments(gravity=12.0)

    with pytest.raises(UsageError, match=message):
        train("refused", CARTPOLE, curriculum={"length": 0.5}, callback=change, updates=3)


@pytest.mark.parametrize(
    ("environment", "arguments", "message"),
    [
        (CARTPOLE, {"curriculum": {"gravty": (5, 15)}}, "'gravty': did you mean gravity"),
        (CARTPOLE, {"curriculum": {"gravity": ()}}, "curriculum gravity must be 1 to 129 finite"),
        (CARTPOLE, {"curriculum": {"gravity": (1, float("inf"))}}, "must be 1 to 129 finite"),
        (CARTPOLE, {"curriculum": {"gravity": lambda level: 1 / level}}, "raised ZeroDivision"),
        (
            CARTPOLE,
            {"curriculum": {"gravity": (5, 15)}, "randomize": {"gravity": (5, 15)}},
            "gravity must either follow a curriculum or be sampled",
        ),
        (
            CARTPOLE,
            {"curriculum": {"gravity": (5, 15)}, "randomize": {"params.gravity": (5, 15)}},
            "gravity and params.gravity must be different parameters",
        ),
        (
            CARTPOLE,
            {"curriculum": {"params.gravity": (5, 15), "gravity": (1, 2)}},
            "params.gravity and gravity must be different parameters",
        ),
        (CARTPOLE, {"curriculum": {"gravity": (5, 1e300)}}, "must be 1 to 129 finite"),
        (CARTPOLE, {"curriculum": {"gravity": lambda _: -1e39}}, "must be finite in float32"),
        (
            CARTPOLE,
            {"curriculum": {"params.gravity": (5, 15)}, "arguments": {"gravity": 7.0}},
            r"the argument gravity \(7.0\) has no effect, because the curriculum changes gravity",
        ),
        (CARTPOLE, {"curriculum_returns": (1, 2)}, "has no effect without a parameter"),
        (
            CARTPOLE,
            {"curriculum": {"gravity": (5, 15)}, "curriculum_returns": (2, 1)},
            "curriculum_returns must be two numbers LOW HIGH",
        ),
        (
            "gymnasium/CartPole-v1",
            {"curriculum": {"gravity": (5, 15)}},
            "must be used with a compiled environment.* Start a phase",
        ),
    ],
)
def test_what_is_refused(
    train: Callable[..., Any],
    tmp_path: Path,
    environment: str,
    arguments: dict[str, Any],
    message: str,
) -> None:
    with pytest.raises(UsageError, match=message):
        train("refused", environment, **arguments)
    assert not (tmp_path / "refused").exists()


def test_archives_are_refused() -> None:
    environment = rollax.make(CARTPOLE)
    network = functools.partial(rollax.actor_critic, environment, NETWORK)
    archived: Any = ()  # the functions are not called
    algorithm = rollax.ppo(environment, network)._replace(archived=archived)
    with pytest.raises(UsageError, match="must be used with an algorithm that trains a policy"):
        with_curriculum(lambda _: algorithm, environment, Curriculum({"gravity": (1.0,)}))


def test_the_command_line_and_the_reproduction(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    words = ["train", "ppo", CARTPOLE, *SMALL_WORDS, "--total-steps", str(2 * FRAMES)]
    words += ["--eval-count", "1", "--run-dir", str(folder), "--randomize.length", "0.4", "0.6"]
    words += ["--curriculum.gravity", "5", "5", "15", "--curriculum-returns", "1", "400"]
    assert main(words) == 0
    said = (
        "The curriculum changes gravity from 5 to 15 between the returns 1 and 400. Evaluations "
        "use gravity 15"
    )
    assert said in capsys.readouterr().out
    spec = read_spec(folder)
    assert spec.curriculum == {"gravity": (5.0, 5.0, 15.0)}
    _, environment = programs.build_algorithm_and_environment(spec)
    assert isinstance(environment, DomainRandomization)
    assert not isinstance(rollax.load(folder).environment, DomainRandomization)
    command = format_train_command(spec, str(folder))
    assert "--curriculum.gravity 5.0 5.0 15.0" in command
    assert "--curriculum-returns 1.0 400.0" in command


def test_functions_are_stored_as_few_values() -> None:
    """A linear function has two values, and a function with a jump has all of them."""
    parsed = parse_curriculum(
        {
            "constant": 3,
            "linear": lambda level: 5 + 5 * level,
            "bent": lambda level: max(level, 0.5),
            "jump": lambda level: float(level > 0.3),
        }
    )
    assert parsed["constant"] == (3.0,)
    assert parsed["linear"] == (5.0, 10.0)
    assert parsed["bent"] == (0.5, 0.5, 1.0)
    assert len(parsed["jump"]) == 129
