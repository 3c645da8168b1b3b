"""Tests of names of other libraries: the table, its page, and errors that use it."""

import dataclasses
import inspect
from pathlib import Path
from typing import Any

import pytest

import rollax
from rollax.algorithms.registry import list_algorithms
from rollax.cli.main import main
from rollax.synonyms.lookup import (
    UnknownSettingError,
    find_synonym,
    format_table,
    read_synonyms,
)
from rollax.training.callbacks.dispatch import METHODS
from rollax.training.evaluation.metrics import RETURN_STATISTICS

pytestmark = pytest.mark.quick

PAGE = Path(__file__).parents[2] / "docs" / "tutorials" / "from-sb3-and-cleanrl.md"


def names_of(*classes: Any) -> set[str]:
    return {field.name for kind in classes for field in dataclasses.fields(kind)}


def test_the_page_has_the_current_tables() -> None:
    page = PAGE.read_text()
    for title in read_synonyms():
        assert f"### {title}\n\n{format_table(title)}\n\n" in page, (
            f"replace the table {title!r} of {PAGE.name} by that of "
            "rollax.synonyms.lookup.format_table"
        )


def test_the_tables_have_existing_names() -> None:
    """Every rollax name exists, and names of other libraries are unique within a table."""
    entries = list_algorithms().values()
    run = names_of(rollax.RunOptions) | set(inspect.signature(rollax.train).parameters)
    config = names_of(*(entry.config for entry in entries))
    known = {
        "Arguments and options": run,
        "PPO and other on-policy algorithms": config,
        "SAC, TD3 and DQN": config,
        "Networks": names_of(*(entry.network_config for entry in entries)),
        "Metrics": {
            *(f"return_{name}" for name in RETURN_STATISTICS),
            *("episode_return", "length_mean", "steps_per_second"),
        },
        "Methods of a callback": set(METHODS),
    }
    assert known.keys() == read_synonyms().keys()
    for title, synonyms in read_synonyms().items():
        missing = {name for each in synonyms for name in each.rollax} - known[title]
        assert not missing, f"{title} has names that rollax does not have: {missing}"
        foreign = [name for each in synonyms for name in dict.fromkeys(each.foreign)]
        assert len(foreign) == len(set(foreign)), title


@pytest.mark.parametrize(
    ("name", "known", "names"),
    [
        ("ent_coef", ["entropy_coefficient", "gamma"], ("entropy_coefficient",)),
        ("ENT_COEF", ["entropy_coefficient"], ("entropy_coefficient",)),
        ("--ent-coef", ["--entropy-coefficient"], ("--entropy-coefficient",)),
        ("config.lr", ["config.learning_rate"], ("config.learning_rate",)),
        ("batch_size", ["num_minibatches"], ("num_minibatches",)),
        ("clip_range_vf", ["clip_values", "value_clip"], ("clip_values", "value_clip")),
        ("mean_reward", ["return_mean"], ("return_mean",)),
        ("_on_step", METHODS, ("on_metrics",)),
        ("on_train_end", METHODS, ("on_end",)),
    ],
)
def test_synonyms_are_found(name: str, known: Any, names: tuple[str, ...]) -> None:
    match = find_synonym(name, known)
    assert match is not None and match.names == names
    assert f"rollax calls it {' and '.join(names)}" in str(UnknownSettingError("name", name, known))


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("ent_coef", ["gamma"]),  # names that do not apply here are not suggested
        ("exploration_noise", ["noise_correlation"]),  # a name that rollax uses for something else
        ("nothing", ["entropy_coefficient"]),
    ],
)
def test_other_names_are_not_found(name: str, known: list[str]) -> None:
    assert find_synonym(name, known) is None


@pytest.mark.parametrize(
    ("algorithm", "arguments", "words"),
    [
        ("ppo", {"total_timesteps": 1}, "rollax calls it total_steps"),
        ("ppo", {"n_steps": 1}, "num_steps .* Pass config={'num_steps': ...}"),
        ("ppo", {"batch_size": 64}, "num_minibatches .* Pass config={'num_minibatches': ...}"),
        ("sac", {"ent_coef": 0.1}, "rollax calls it learn_temperature and initial_temperature"),
        ("ppo", {"policy_kwargs": {}}, "rollax calls it hidden .* Pass network={'hidden': ...}"),
        ("ppo", {"eval_freq": 100}, "number of evaluations .* Pass options={'eval_count': ...}"),
        ("ppo", {"callbacks": []}, "rollax calls it callback"),
        ("ppo", {"config": {"vf_coef": 0.5}}, "rollax calls it value_coefficient"),
        ("ppo", {"options": {"n_eval_episodes": 5}}, "rollax calls it eval_episodes"),
        ("ppo", {"sweep": {"lr": [1e-3]}}, "rollax calls it learning_rate"),
        ("ppo", {"stop_when": "mean_reward>1"}, "rollax calls it return_mean"),
    ],
)
def test_errors_in_python_name_the_synonym(
    algorithm: str, arguments: dict[str, Any], words: str
) -> None:
    with pytest.raises(rollax.UsageError, match=words):
        rollax.train(algorithm, "probe/memory", **arguments)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--ent-coef 0.1", "unknown option '--ent-coef': rollax calls it --entropy-coefficient."),
        ("--config.ent_coef=0.1", "rollax calls it --config.entropy-coefficient."),
        ("--network.net-arch 64 64", "rollax calls it --network.hidden (sizes of"),
        ("--total-timesteps 1e6", "rollax calls it --total-steps (frames of"),
        ("--sweep.lr 1 2", "rollax calls it learning_rate"),
    ],
)
def test_errors_of_commands_name_the_synonym(
    words: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "ppo", "probe/memory", *words.split()]) == 2
    assert message in capsys.readouterr().err
    if not words.startswith("--sweep"):
        assert main(["sweep", "ppo", "probe/memory", "--sweep.gamma", "1", *words.split()]) == 2
        assert message in capsys.readouterr().err
