"""Tests of evaluation metrics: reductions of info values, eval_arguments, and formatting."""

import dataclasses
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import yaml

import rollax
from configuration import configured
from rollax.acting.evaluation import Episodes, make_evaluator
from rollax.environments.suites.table import SUITES
from rollax.environments.suites.xminigrid import ruleset_files, rulesets
from rollax.environments.wrappers import Trials
from rollax.networks import NetworkConfig
from rollax.training import loop
from rollax.training.evaluation.metrics import (
    default_metrics,
    format_metrics,
    format_number,
    format_return,
)
from rollax.training.spec import RunOptions, make_spec, with_eval_arguments
from support.counting_environment import EPISODES, LONGEST, Counting, constant, evaluated
from support.runs import FRAMES, NETWORK, SMALL, Script, check_same, evaluations, metrics, options


def interrupted(kind: str, text: str) -> None:
    """Stop a run after its fourth update."""
    if kind == "progress" and int(text) == 4 * FRAMES:
        signal.raise_signal(signal.SIGTERM)


def test_info_is_summed_until_the_episode_ends() -> None:
    """A value of 1 per step is summed to the length, and so is a boolean that is always true.

    The curve has a 1 for each step of the episode.
    """
    played = evaluated(Counting())
    assert set(played.length) == set(range(1, LONGEST + 1))
    assert (played.terminated ^ played.truncated).all()
    np.testing.assert_array_equal(played.returns, 2 * played.length)
    np.testing.assert_array_equal(played.info["steps"], played.length)
    np.testing.assert_array_equal(played.info["right"], played.length)
    np.testing.assert_array_equal(played.info["place"], np.arange(8) < played.length[:, None])
    assert not evaluated(Counting(), action=0).info["right"].any()


def test_info_is_summed_until_the_last_agent_ends() -> None:
    """It is summed once for the environment, not once per agent."""
    played = evaluated(Counting(agents=3))
    assert played.returns.shape == (EPISODES, 3)
    assert set(played.length) == set(range(3, LONGEST + 3))
    np.testing.assert_array_equal(played.info["steps"], played.length)
    np.testing.assert_array_equal(played.info["place"], np.arange(8) < played.length[:, None])


class TimedOut(Counting):
    """Environment with a single task, whose episodes have three steps and are all truncated."""

    time_limit = 3

    def sample_task(self, key: jax.Array) -> Any:
        return jnp.zeros(())

    def reset_task(self, key: jax.Array, task: Any) -> tuple[Any, Any]:
        return self.reset(key)

    def step(self, key: jax.Array, state: Any, action: Any) -> Any:
        after = super().step(key, (state[0] + LONGEST, state[1]), action)
        return after._replace(terminated=jnp.zeros((), bool), truncated=after.state[1] >= 3)


def test_ends_of_a_trial_are_those_of_its_episodes() -> None:
    """A trial terminates with its last episode, also if all of its episodes were truncated."""
    played = evaluated(Trials(TimedOut(), 4))
    assert played.length.tolist() == [12] * EPISODES and played.terminated.all()
    values = default_metrics(played)
    assert (values["terminated"], values["truncated"]) == (pytest.approx(0), pytest.approx(1))


def test_rewards_of_an_agent_count_until_its_end() -> None:
    """Rewards that the agent receives after its end do not count, as in training."""
    played = evaluated(Counting(agents=3))
    np.testing.assert_array_equal(
        played.returns, 2 * (played.length[:, None] - np.asarray([2, 1, 0]))
    )


def test_agents_without_types_are_trained(train: Callable) -> None:
    result = train(
        environment=Counting(agents=2), config=dataclasses.replace(SMALL, sharing="none")
    )
    assert np.shape(result.evaluation["return_agents"]) == (2,)


def test_info_is_summed_until_max_steps() -> None:
    played = evaluated(Counting(), max_steps=3)
    given_up = ~(played.terminated | played.truncated)
    assert given_up.any() and not given_up.all()
    assert (played.length[given_up] == 3).all()
    np.testing.assert_array_equal(played.info["steps"], played.length)
    assert default_metrics(played)["unfinished"] == pytest.approx(given_up.mean())


@pytest.mark.quick
def test_metrics_of_an_evaluation_are_means() -> None:
    """They are means over episodes, and of a population over episodes of all members.

    A curve remains a curve.
    """
    run = jax.jit(jax.vmap(make_evaluator(Counting(), constant(Counting()), EPISODES, 20, True)))
    many = jax.tree.map(
        np.asarray, run(jnp.asarray([0, 1]), jax.random.split(jax.random.key(0), 2))
    )
    for played in (evaluated(Counting()), many):
        numbers = default_metrics(played)
        assert numbers["steps"] == pytest.approx(numbers["length_mean"])
        length = played.length.reshape(-1, 1)
        np.testing.assert_allclose(
            numbers["place"], (np.arange(8) < length).mean(axis=0), rtol=1e-6
        )
        assert isinstance(numbers["steps"], float) and isinstance(numbers["place"], list)
    assert default_metrics(many)["right"] == pytest.approx(many.length[1].sum() / many.length.size)


def test_info_is_recorded_in_a_run(train: Callable, tmp_path: Path) -> None:
    """Values of every episode are in evaluations.npz, and their means in metrics and messages.

    They may rate checkpoints, and a resumed run equals an uninterrupted one.
    """
    environment, show = Counting(), Script()

    def longest(played: Episodes) -> dict[str, Any]:
        return {"longest": np.max(played.info["steps"])}

    given = {
        "environment": environment,
        "metrics": longest,
        "best_metric": "steps",
        "eval_fresh": True,
    }
    result = train(**given, show=show)
    kept = evaluations(result.folder)
    assert {name for name in kept if name.startswith("info/")} == {
        "info/steps",
        "info/right",
        "info/place",
    }
    np.testing.assert_array_equal(kept["info/steps"], kept["length"])
    assert kept["info/place"].shape == (5, 8, 8)
    lines = [line for line in metrics(result.folder) if line.get("event") == "evaluation"]
    assert [line["steps"] for line in lines] == kept["length"].mean(axis=1).tolist()
    assert [line["longest"] for line in lines] == kept["length"].max(axis=1).tolist()
    assert np.shape([line["place"] for line in lines]) == (5, 8)
    assert f"  steps {lines[-1]['steps']:.2f}" in show.text
    best = rollax.load(result.folder, checkpoint="best", environment=environment)
    assert (
        kept["length"].mean(axis=1)[kept["step"] == best.step] == kept["length"].mean(axis=1).max()
    )
    stopped = train("stopped", **given, show=Script(interrupted))
    assert stopped.exit_code == 143
    rollax.resume(stopped.folder, environment=environment, metrics=longest, show=Script())
    check_same(stopped.folder, result.folder, environment=environment)


def test_info_may_have_names_of_the_run(train: Callable) -> None:
    """Values of the run with these names are not replaced."""
    result = train(environment=Counting(names=("step", "return_mean", "event")))
    kept = evaluations(result.folder)
    lines = [line for line in metrics(result.folder) if line.get("event") == "evaluation"]
    assert (
        kept["step"].tolist()
        == [line["step"] for line in lines]
        == [n * 3 * FRAMES for n in range(5)]
    )
    assert [line["return_mean"] for line in lines] == kept["returns"].mean(axis=1).tolist()
    np.testing.assert_array_equal(kept["info/step"], kept["length"])


ELSEWHERE = {
    "environment": "probe/memory",
    "arguments": {"delay": 1},
    "eval_arguments": {"delay": 4},
}


def test_evaluations_have_their_own_environment_arguments(train: Callable, tmp_path: Path) -> None:
    """They affect only evaluations, and a resumed run keeps them."""
    result = train(**ELSEWHERE)
    assert (evaluations(result.folder)["length"] == 5).all()
    lines = [line for line in metrics(result.folder) if "event" not in line]
    assert {line["episode_length"] for line in lines if line["episodes"]} == {2.0}
    document = yaml.safe_load((result.folder / "config.yaml").read_text())
    assert (document["arguments"], document["eval_arguments"]) == ({"delay": 1}, {"delay": 4})
    policy = rollax.load(result.folder)
    assert policy.environment.delay == 4
    assert (policy.evaluate(3, jax.random.key(0))[1].length == 5).all()
    stopped = train("stopped", **ELSEWHERE, show=Script(interrupted))
    assert stopped.exit_code == 143
    rollax.resume(stopped.folder, show=Script())
    check_same(stopped.folder, result.folder)


def test_training_does_not_depend_on_eval_arguments(train: Callable) -> None:
    """The final state is equal bit for bit. So are evaluations with equal arguments."""
    runs = [
        train(name, **{**ELSEWHERE, "eval_arguments": given})
        for name, given in (("a", {"delay": 4}), ("b", None))
    ]
    runs.append(train("c", **{**ELSEWHERE, "eval_arguments": {"delay": "1"}}))
    networks = [jax.tree.leaves(rollax.load(run.folder).state.train.network) for run in runs]
    for other in networks[1:]:
        jax.tree.map(np.testing.assert_array_equal, networks[0], other)
    here, same = (evaluations(run.folder) for run in runs[1:])
    jax.tree.map(np.testing.assert_array_equal, here, same)
    assert (here["length"] == 2).all()


def test_invalid_eval_arguments_raise_usage_error(train: Callable, tmp_path: Path) -> None:
    """The error is raised before anything is written.

    They change observations, are unknown or invalid, or the environment is an object.
    """
    truncation = {"environment": "probe/truncation", "arguments": {"terminate": True}}
    masked = {"environment": "memory/repeat-previous", "arguments": {"symbols": 3}}
    wrong = [
        (
            {**truncation, "eval_arguments": {"time_limit": 9}},
            r"eval_arguments must not change the observation_space, got \{'time_limit': 9\}",
        ),
        (
            {**masked, "eval_arguments": {"symbols": 5}},
            "must not change the observation_space, got .* Remove those",
        ),
        (
            {**ELSEWHERE, "eval_arguments": {"dely": 2}},
            "unknown argument of probe/memory 'dely': did you mean delay",
        ),
        ({**ELSEWHERE, "eval_arguments": {"delay": -1}}, r"delay \(-1\) must be at least 0"),
        (
            {"environment": Counting(), "eval_arguments": {"delay": 1}},
            "eval_arguments are for environments made from their id",
        ),
    ]
    for number, (given, message) in enumerate(wrong):
        with pytest.raises(rollax.UsageError, match=message):
            train(f"refused{number}", **given)
        assert not (tmp_path / f"refused{number}").exists()


def test_eval_arguments_on_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """--eval-env.NAME sets them like --env.NAME. Several values are a list."""
    from rollax import api
    from rollax.cli.main import main

    class Taken(Exception):
        pass

    def take(*positional: Any, **given: Any) -> Any:
        raise Taken(given["arguments"], given["eval_arguments"])

    monkeypatch.setattr(api, "train", take)
    words = [
        "--env.delay",
        "1",
        "--eval-env.delay=4",
        "--eval-env.other",
        "1",
        "2",
        "--run-dir",
        str(tmp_path / "run"),
    ]
    with pytest.raises(Taken) as taken:
        main(["train", "ppo", "probe/memory", *words])
    assert taken.value.args == ({"delay": "1"}, {"delay": "4", "other": ["1", "2"]})


TRIALS, GRID = "rl2/XLand-MiniGrid-R1-9x9", "xminigrid/XLand-MiniGrid-R1-9x9"


def held_elsewhere(
    environment: str,
    arguments: dict[str, Any],
    eval_arguments: dict[str, Any],
    algorithm: str = "ppo",
) -> dict[str, Any]:
    spec = make_spec(
        algorithm, environment, arguments, None, None, RunOptions(), {}, eval_arguments
    )
    return spec.eval_arguments


@pytest.mark.parametrize("algorithm", ["ppo", "impala", "pqn"])
def test_trials_are_evaluated_on_the_validation_split(algorithm: str) -> None:
    """This is the default of every algorithm, so that held-out tasks do not rate checkpoints."""
    assert held_elsewhere(TRIALS, {}, {}, algorithm) == {"split": "validation"}
    assert held_elsewhere(TRIALS, {}, {"episodes": 9}, algorithm) == {
        "split": "validation",
        "episodes": 9,
    }
    assert held_elsewhere(TRIALS, {}, {"split": "train"}, algorithm) == {"split": "train"}
    assert held_elsewhere(GRID, {}, {}, algorithm) == {}
    assert held_elsewhere("probe/memory", {}, {}, algorithm) == {}


@pytest.mark.parametrize(
    ("environment", "arguments", "eval_arguments"),
    [
        (TRIALS, {"split": "all"}, {}),
        (TRIALS, {"split": "validation"}, {"episodes": 2}),
        (GRID, {}, {"split": "held-out"}),
        # Rulesets that contain some of the training tasks.
        (TRIALS, {}, {"ruleset_seed": 1}),
        (GRID, {"split": "train"}, {"split": "held-out", "num_rulesets": 2000}),
        (GRID, {"split": "train"}, {"split": "held-out", "held_out": 0.3}),
        (GRID, {}, {"ruleset_seed": "1"}),
    ],
)
def test_splits_that_contain_training_tasks_raise_usage_error(
    environment: str, arguments: dict[str, Any], eval_arguments: dict[str, Any]
) -> None:
    with pytest.raises(
        rollax.UsageError,
        match="claim tasks that training does not sample, but .*--eval-env.split all",
    ):
        held_elsewhere(environment, arguments, eval_arguments)
    allowed = {**eval_arguments, "split": "all"}
    assert held_elsewhere(environment, arguments, allowed) == allowed


def test_splits_without_training_tasks_are_accepted() -> None:
    """They are other parts of the split, rulesets without common tasks, and single rulesets."""
    for training in ("train", "validation"):
        assert held_elsewhere(TRIALS, {"split": training}, {"split": "held-out"}) == {
            "split": "held-out"
        }
    deeper = {"recipe": ("chain_depth=1",)}
    assert held_elsewhere(GRID, {}, deeper) == deeper
    assert held_elsewhere(TRIALS, {}, {"ruleset": 3}) == {"split": "validation", "ruleset": 3}
    assert held_elsewhere(GRID, {}, {"num_rulesets": 10}) == {"num_rulesets": 10}
    train, _, held_out = rulesets.split_indices(
        rulesets.generate_rulesets(rulesets.RECIPES["trivial"], 1000, 0), 0.1, 0.1, 0
    )
    every = {"split": "held-out", "ruleset": -1}
    assert held_elsewhere(GRID, {"ruleset": int(train[0])}, every) == every
    with pytest.raises(rollax.UsageError, match="but 1 of the "):
        held_elsewhere(GRID, {"ruleset": int(held_out[0])}, every)


def test_an_environment_object_is_used_in_evaluations(
    train: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A warning reports that the suite has other arguments for evaluations by default."""
    monkeypatch.setitem(SUITES, "probe", SUITES["probe"]._replace(evaluation={"*": {"delay": 4}}))
    named, passed = Script(), Script()
    result = train("named", arguments={"delay": 1}, updates=1, show=named)
    assert set(evaluations(result.folder)["length"].ravel()) == {5} and "warning" not in named.text
    result = train(
        "passed", environment=rollax.make("probe/memory", delay=1), updates=1, show=passed
    )
    assert set(evaluations(result.folder)["length"].ravel()) == {2}
    assert (
        "warning: Evaluations use the environment that was passed, without delay 4. To use "
        "these arguments, pass its id"
    ) in passed.text


def test_ruleset_files_have_absolute_paths_in_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name of a recipe is not a file, even if a file of this name exists."""
    monkeypatch.chdir(tmp_path)
    for name in ("tasks.npz", "small"):
        ruleset_files.save_rulesets(
            rulesets.generate_rulesets(rulesets.RECIPES["trivial"], 4, 0), name
        )
    kept = {"rulesets": str(tmp_path / "tasks.npz")}
    for suite, given, wanted in (
        ("rl2", "tasks.npz", kept),
        ("xminigrid", "small", {"rulesets": "small"}),
    ):
        arguments = {"rulesets": given}
        more = {**arguments, "split": "all"}
        spec = make_spec(
            "ppo",
            f"{suite}/XLand-MiniGrid-R1-9x9",
            arguments,
            SMALL,
            NETWORK,
            RunOptions(),
            {},
            more,
        )
        assert spec.arguments == wanted and spec.eval_arguments == {**wanted, "split": "all"}
        assert arguments == {"rulesets": given}


def test_a_policy_is_evaluated_with_other_arguments(train: Callable) -> None:
    """They override those of the run, and do not change it.

    Environment objects raise an error.
    """
    run = train(updates=1, **ELSEWHERE).folder
    policy = rollax.load(run, eval_arguments={"delay": 6})
    assert (policy.evaluate(3, jax.random.key(0))[1].length == 7).all()
    assert rollax.load(run).environment.delay == 4
    own = train("own", environment=Counting(), updates=1).folder
    for folder, objects in (
        (own, {}),
        (own, {"environment": Counting()}),
        (run, {"environment": Counting()}),
    ):
        with pytest.raises(
            rollax.UsageError, match="eval_arguments are for environments made from their id"
        ):
            rollax.load(folder, eval_arguments={"delay": 6}, **objects)


def test_trials_are_evaluated_over_more_episodes(train: Callable) -> None:
    """A finished run is evaluated on held-out tasks, unless it was trained on all tasks."""
    small = {"num_rulesets": 20, "max_steps": 4, "episodes": 2}
    network = NetworkConfig(hidden=(8,), filters=())
    with configured(
        jax_numpy_rank_promotion="allow", jax_debug_key_reuse=False
    ):  # the suite needs rank promotion and reuses keys
        folder = train(
            environment=TRIALS, arguments=small, updates=1, eval_count=0, network=network
        ).folder
        policy = rollax.load(folder, eval_arguments={"episodes": "5", "split": "held-out"})
        numbers, played = policy.evaluate(3, jax.random.key(0))
    assert policy.spec.eval_arguments == {"split": "held-out", "episodes": "5"}
    assert (played.length <= 5 * 4).all() and played.info["episode_returns"].shape == (3, 5)
    (words,) = format_metrics(played.info, numbers)
    assert words == "episode_returns " + " ".join(map(format_number, numbers["episode_returns"]))
    every = make_spec(
        "ppo", TRIALS, {"split": "all"}, None, None, RunOptions(), {}, {"split": "all"}
    )
    with pytest.raises(rollax.UsageError, match="claim tasks that training does not sample"):
        with_eval_arguments(every, {"split": "held-out"})


def test_formatted_metrics_of_info() -> None:
    """A curve is truncated after the given number of values."""
    played = evaluated(Counting())._replace(info={"steps": np.ones(3), "place": np.ones((3, 12))})
    numbers = {"steps": 3.0, "place": list(range(12))}
    assert format_metrics(played.info, numbers, 3) == ["steps 3", "place 0 1 2 ..."]
    assert format_metrics(played.info, numbers, 12)[1].endswith("10 11")


def test_numbers_of_any_magnitude_are_formatted() -> None:
    """They have four significant digits, and exponents only for very large or small numbers."""
    numbers = (
        -0.000123456,
        0.97266,
        -9.2441,
        999.97,
        60786.17,
        -753842.4,
        -0.0,
        2e20,
        float("inf"),
        float("nan"),
    )
    words = [
        "-0.0001235",
        "0.9727",
        "-9.244",
        "1,000",
        "60,786",
        "-753,842",
        "0",
        "2e+20",
        "inf",
        "-",
    ]
    assert list(map(format_number, numbers)) == words


def test_the_return_of_a_closed_form() -> None:
    """A single run has its return alone, and members have statistics over members."""
    values = dict.fromkeys(("return_std", "return_iqm", "return_iqm_low", "return_iqm_high"), 0.5)
    values |= {"return_mean": -0.0001, "episodes": 128, "length_mean": 1.0}
    assert format_return(values, 0, True) == "return -0.0001 (a closed form)"
    assert (
        format_return(values, 3, True)
        == "return -0.0001 (std 0.5, iqm 0.5 [0.5, 0.5], over 3 members)"
    )
    assert (
        format_return(values, 0, False)
        == "return -0.0001 (std 0.5, iqm 0.5 [0.5, 0.5], over 128 episodes)  length 1"
    )


def test_an_unknown_best_metric_raises_usage_error(tmp_path: Path) -> None:
    """Info metrics are known before a run, also for an environment object."""
    spec = make_spec(
        "ppo",
        "probe/memory",
        {},
        SMALL,
        NETWORK,
        options(tmp_path / "run", best_metric="steps"),
        {},
    )
    with pytest.raises(rollax.UsageError, match="unknown best_metric 'steps'"):
        loop.check_metrics_and_loggers(spec, None)
    loop.check_metrics_and_loggers(spec, None, Counting())
