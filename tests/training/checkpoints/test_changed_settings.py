"""Runs that are resumed with other settings: what changes, what continues, and what is refused."""

import contextlib
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import yaml

import rollax
from rollax.algorithms.ppo import PPOConfig
from rollax.cli.main import main
from rollax.config import traced_field_names
from rollax.errors import UsageError
from rollax.training.checkpoints.store import Checkpoints
from rollax.training.checkpoints.summary import read_summary
from rollax.training.run_folder.layout import read_spec
from rollax.training.run_folder.run_summary import summarize_run
from support.runs import (
    FRAMES,
    Script,
    checksums,
    metrics,
    newest,
    whole_state,
)

STEPS = 4 * FRAMES  # of the shared run


def config_document(folder: Path) -> dict[str, Any]:
    return yaml.safe_load((folder / "config.yaml").read_text())


def state_checksums(folder: Path) -> dict[str, int]:
    return {path: leaf.checksum for path, leaf in checksums(folder, newest(folder)).items()}


def test_traced_and_static_settings_change_and_stay_changed(finished: Path, tmp_path: Path) -> None:
    show, folder = Script(), tmp_path / "fork"
    changes = {"entropy_coefficient": 0.25, "num_epochs": 2}
    rollax.resume(finished, total_steps=6 * FRAMES, config=changes, fork=folder, show=show)
    line = f"New phase from step 128: continues {finished}, num_epochs 1 -> 2, entropy_coefficient"
    assert any(message.startswith(line) for message in show.lines)
    state = whole_state(folder)
    assert (state.config.entropy_coefficient, state.config.num_epochs) == (0.25, 2)
    (phase,) = config_document(folder)["phases"]
    assert (phase["step"], phase["run"]) == (STEPS, str(finished))
    assert phase["changes"]["config.num_epochs"] == [1, 2]
    assert config_document(finished)["phases"] == [], "the run that is continued is unchanged"
    assert newest(finished) == STEPS
    # A resume without changes keeps the phase, and a second change adds one.
    rollax.resume(folder, total_steps=8 * FRAMES, show=Script())
    assert len(read_spec(folder).phases) == 1
    rollax.resume(folder, total_steps=9 * FRAMES, config={"entropy_coefficient": 0}, show=Script())
    assert [phase.step for phase in read_spec(folder).phases] == [STEPS, 8 * FRAMES]
    assert whole_state(folder).config.entropy_coefficient == 0
    assert [line["step"] for line in metrics(folder)][-1] == 9 * FRAMES
    assert rollax.load(folder, checkpoint=9 * FRAMES).spec.config.num_epochs == 2


def test_a_fork_from_an_earlier_checkpoint_repeats_the_run(finished: Path, tmp_path: Path) -> None:
    """Without changes, the fork computes the state that the run itself had later."""
    step = min(int(path.name[5:]) for path in (finished / "checkpoints").glob("step_*"))
    assert step < newest(finished)
    folder = rollax.resume(finished, fork=tmp_path / "fork", checkpoint=step, show=Script()).folder
    assert [phase.step for phase in read_spec(folder).phases] == [step]
    assert (newest(folder), state_checksums(folder)) == (STEPS, state_checksums(finished))
    best = rollax.load(finished, checkpoint="best").step
    command = ["resume", str(finished), "--total-steps", str(6 * FRAMES), "--checkpoint", "best"]
    assert main([*command, "--fork", str(tmp_path / "best")]) == 0
    assert [phase.step for phase in read_spec(tmp_path / "best").phases] == [best]


def test_invalid_checkpoints_of_forks_raise_usage_error(finished: Path, tmp_path: Path) -> None:
    fork = tmp_path / "fork"
    with pytest.raises(UsageError, match="checkpoint must be used with fork"):
        rollax.resume(finished, checkpoint="best", quiet=True)
    for checkpoint, message in (("first", "must be last, best or one of"), (7, "No checkpoint of")):
        with pytest.raises(UsageError, match=message):
            rollax.resume(finished, fork=fork, checkpoint=checkpoint, quiet=True)
    with pytest.raises(UsageError, match="is finished"):
        rollax.resume(finished, fork=fork, checkpoint=STEPS, quiet=True)
    assert not fork.exists()
    rollax.resume(finished, fork=fork, total_steps=6 * FRAMES, show=Script())
    with pytest.raises(UsageError, match="must be from the last phase"):
        rollax.resume(fork, fork=tmp_path / "next", checkpoint=STEPS, total_steps=400, quiet=True)


class Killed(Exception):
    """End of a process at a message."""


def test_an_interrupted_fork_is_not_resumed(finished: Path, tmp_path: Path) -> None:
    """It has no checkpoint, so that a resume would start from the beginning."""
    folder = tmp_path / "fork"
    rollax.resume(finished, total_steps=5 * FRAMES, fork=folder, show=Script())
    shutil.rmtree(folder / "checkpoints")
    (folder / "metrics.jsonl").unlink()
    with pytest.raises(UsageError, match="Fork the run again into another folder"):
        rollax.resume(folder, show=Script())


def killed_at(activity: str) -> Script:
    def react(kind: str, text: str) -> None:
        if kind == activity:
            raise Killed

    return Script(react)


def test_a_killed_phase_is_continued(finished: Path, tmp_path: Path) -> None:
    """As if nothing had interrupted it, bit for bit."""
    words = {"total_steps": 6 * FRAMES, "config": {"gamma": 0.5}}
    for name, show in (("whole", Script()), ("killed", killed_at("compiling"))):
        folder = tmp_path / name
        try:
            rollax.resume(finished, fork=folder, show=show, **words)
        except Killed:
            assert newest(folder) == STEPS
            assert state_checksums(folder) == state_checksums(finished)
            rollax.resume(folder, show=Script())
    assert state_checksums(tmp_path / "killed") == state_checksums(tmp_path / "whole")
    assert read_spec(tmp_path / "killed").phases == read_spec(tmp_path / "whole").phases


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"config": {"num_envs": 2}}, "config.num_envs .2. must not change .* steps per update"),
        (
            {"config": {"normalize_observations": True, "num_epochs": 3}},
            "config.normalize_observations .True. must not change .* shapes .*--init-from",
        ),
        ({"config": {"num_minibatches": 3}}, "num_minibatches .3. must split"),
        ({"config": {"gama": 0.5}}, "unknown setting 'gama': did you mean gamma"),
        ({"config": {"gamma": 2}}, "gamma .2.0. must be between 0 and 1"),
        ({"config": {"num_epochs": "2"}}, "num_epochs .'2'. must be an integer"),
        ({"config": {"total_updates": 9}}, "Set --total-steps instead"),
        ({"config": {"value_clip": 0.1}}, "config.value_clip .0.1. has no effect"),
        ({"config": {"gamma": 0.9}, "total_steps": None}, "is finished at 128 steps"),
        ({"eval_sede": 3}, "unknown option to change at a resume 'eval_sede'.*eval_seed"),
        ({"config": {"learning_rate": 1}, "learning_rate": 1.0}, "learning_rate is given twice"),
        ({"config": PPOConfig(), "learning_rate": 1.0}, "learning_rate is given twice"),
        ({"fork": Path("a\0b")}, "must not contain zero bytes"),
    ],
)
def test_what_is_refused(finished: Path, changes: dict[str, Any], message: str) -> None:
    before = config_document(finished)
    with pytest.raises(UsageError, match=message):
        rollax.resume(finished, **({"total_steps": 6 * FRAMES, "quiet": True} | changes))
    assert config_document(finished) == before


def test_settings_that_differ_between_members_do_not_change(train: Callable[..., Any]) -> None:
    folder = train("swept", sweep={"gamma": [0.5, 0.9]}, updates=2).folder
    with pytest.raises(UsageError, match=r"config.gamma must not change, because it is swept"):
        rollax.resume(folder, total_steps=4 * FRAMES, config={"gamma": 0.7})
    rollax.resume(folder, total_steps=3 * FRAMES, config={"clip": 0.5}, show=Script())
    config = whole_state(folder).config
    assert config.clip.tolist() == [0.5, 0.5]
    assert config.gamma.tolist() == pytest.approx([0.5, 0.9])


def test_the_command_changes_settings_and_arguments(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["resume", str(finished), "--total-steps", str(8 * FRAMES)]
    assert main([*words, "--entropy-coefficeint", "0"]) == 2
    assert "did you mean --entropy-coefficient" in capsys.readouterr().err
    folder = tmp_path / "fork"
    changes = ["--entropy-coefficient", "0.5", "--no-clip-values", "--env.delay", "2"]
    assert main([*words, *changes, "--fork", str(folder)]) == 0
    spec = read_spec(folder)
    assert (spec.config.entropy_coefficient, spec.arguments["delay"]) == (0.5, "2")
    assert list(spec.phases[-1].changes) == ["config.entropy_coefficient", "arguments"]


def test_the_best_checkpoint_is_that_of_the_phase(finished: Path, tmp_path: Path) -> None:
    """A change of the environment makes earlier evaluations count no longer."""
    folder = tmp_path / "fork"
    rollax.resume(finished, total_steps=6 * FRAMES, arguments={"delay": 9}, fork=folder, quiet=True)
    result = rollax.resume(folder, total_steps=8 * FRAMES, arguments={"delay": 1}, show=Script())
    assert read_spec(folder).best_phase_starts == (STEPS, 6 * FRAMES)
    assert result.best is not None
    assert result.best[0] == summarize_run(folder)["best_step"] == 8 * FRAMES
    with pytest.raises(UsageError, match="unknown argument of probe/memory 'dealy'"):
        rollax.resume(folder, total_steps=9 * FRAMES, arguments={"dealy": 1})


def remove_setting(folder: Path, name: str) -> None:
    """Remove a setting from a run, as if it had been trained before the setting existed."""
    state, step = whole_state(folder), newest(folder)
    config = state.config
    fields = [field for field in traced_field_names(type(config)) if field != name]
    older = NamedTuple("Older", [(field, Any) for field in fields])  # type: ignore[misc]
    state = state._replace(config=older(*(getattr(config, field) for field in fields)))
    settings = read_summary(folder / "checkpoints" / f"step_{step:012d}").settings
    settings["config"].pop(name)
    shutil.rmtree(folder / "checkpoints")
    with contextlib.closing(Checkpoints(folder / "checkpoints")) as checkpoints:
        checkpoints.save(step, state, {"return_mean": 1.0}, settings)
    document = config_document(folder)
    document["config"].pop(name, None)
    (folder / "config.yaml").write_text(yaml.safe_dump(document))


def test_a_setting_that_an_older_version_lacks_gets_its_default(
    finished: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "older"
    shutil.copytree(finished, folder)
    remove_setting(folder, "learning_rate_kl")
    assert ".config.learning_rate_kl" not in checksums(folder, STEPS)
    assert rollax.load(folder).state.config.learning_rate_kl == np.float32(0.01)
    rollax.resume(folder, total_steps=5 * FRAMES, fork=tmp_path / "fork", show=Script())
    rollax.resume(finished, total_steps=5 * FRAMES, fork=tmp_path / "whole", show=Script())
    assert state_checksums(tmp_path / "fork") == state_checksums(tmp_path / "whole")


def test_other_missing_leaves_raise_usage_error(finished: Path, tmp_path: Path) -> None:
    """Only settings with a default for older versions are filled in."""
    folder = tmp_path / "older"
    shutil.copytree(finished, folder)
    remove_setting(folder, "clip")
    document = config_document(finished)
    (folder / "config.yaml").write_text(yaml.safe_dump(document))
    with pytest.raises(UsageError, match=r"config.clip"):
        rollax.load(folder)
    state = whole_state(finished)
    with contextlib.closing(Checkpoints(tmp_path / "checkpoints")) as checkpoints:
        checkpoints.save(1, state._replace(updates=None), {})
        with pytest.raises(UsageError, match=r".updates: saved nothing, expected"):
            checkpoints.restore("last", state)
