"""Runs that continue with another network or optimizer: what is kept, and what is initialized."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import pytest
import yaml

import rollax
from rollax import RunOptions
from rollax.cli.main import main
from rollax.errors import UsageError
from rollax.networks.actor_critic import actor_critic
from rollax.training.checkpoints import changed_settings
from rollax.training.run_folder.layout import read_spec
from rollax.training.spec import make_spec
from support.runs import FRAMES, Script, bits, checksums, newest, whole_state

STEPS = 4 * FRAMES  # of the shared run
GRADIENT_STEPS = 2  # per update
MORE = 2  # updates after the resume
FROZEN = {"learning_rate": 0.0}  # parameters stay as they were when training continued


def continue_run(finished: Path, folder: Path, **changes: Any) -> Script:
    show = Script()
    total_steps = STEPS + MORE * FRAMES
    rollax.resume(finished, fork=folder, total_steps=total_steps, show=show, **changes)
    return show


def optimizer_counts(folder: Path) -> set[int]:
    return {
        int(leaf)
        for path, leaf in jax.tree_util.tree_leaves_with_path(whole_state(folder).train.optimizer)
        if jax.tree_util.keystr(path).endswith(".count")
    }


def test_a_new_network_keeps_what_fits(finished: Path, tmp_path: Path) -> None:
    """A new layer and the optimizer are initialized, and all other arrays continue."""
    folder = tmp_path / "fork"
    old = bits(whole_state(finished).train.network)
    show = continue_run(finished, folder, network={"hidden": [8, 8]}, config=FROZEN)
    new = bits(whole_state(folder).train.network)
    added = {path for path in new if "layers[1]" in path}
    assert {path: new[path] for path in new.keys() - added} == old
    assert added
    assert optimizer_counts(folder) == {MORE * GRADIENT_STEPS}, "no bias of old moments"
    (initialized,) = [line for line in show.lines if line.startswith("  initialized")]
    assert "layers[1].weight absent -> [8, 8]" in initialized
    assert "optimizer state of actor" in initialized
    assert any("step 128: continues" in line and "hidden" in line for line in show.lines)


def test_the_phase_is_recorded_and_has_its_own_best(finished: Path, tmp_path: Path) -> None:
    folder = tmp_path / "fork"
    continue_run(finished, folder, network={"hidden": [8, 8]})
    (phase,) = yaml.safe_load((folder / "config.yaml").read_text())["phases"]
    assert phase["changes"] == {"network.hidden": [[8], [8, 8]]}
    assert read_spec(folder).best_phase_starts == (STEPS,)
    assert rollax.load(folder, checkpoint="best").step > STEPS
    for step, hidden in ((STEPS, (8,)), (STEPS + MORE * FRAMES, (8, 8))):
        policy = rollax.load(folder, checkpoint=step)
        assert policy.spec.network.hidden == hidden
        policy.evaluate(2, jax.random.key(0))
    # A resume without changes, and a second change.
    rollax.resume(folder, total_steps=7 * FRAMES, show=Script())
    rollax.resume(folder, total_steps=8 * FRAMES, network={"hidden": [4]}, show=Script())
    assert [step.step for step in read_spec(folder).phases] == [STEPS, 7 * FRAMES]
    assert rollax.load(folder).spec.network.hidden == (4,)


@pytest.mark.parametrize(
    ("optimizer", "is_kept"), [("nadam", True), ("lion", True), ("amsgrad", False)]
)
def test_the_state_of_an_optimizer_is_kept_if_all_of_it_fits(
    finished: Path, tmp_path: Path, optimizer: str, is_kept: bool
) -> None:
    folder = tmp_path / "fork"
    config = FROZEN | {"optimizer": optimizer}
    show = continue_run(finished, folder, config=config)
    before = 4 * GRADIENT_STEPS if is_kept else 0
    assert optimizer_counts(folder) == {before + MORE * GRADIENT_STEPS}
    assert ("initialized  optimizer state of actor" in show.text) != is_kept
    assert bits(whole_state(folder).train.network) == bits(whole_state(finished).train.network)
    assert read_spec(folder).config.optimizer == optimizer


class Killed(Exception):
    """End of a process at a message."""


def test_a_killed_phase_is_continued(finished: Path, tmp_path: Path) -> None:
    """As if nothing had interrupted it, bit for bit, and with the earlier network until then."""

    def react(kind: str, text: str) -> None:
        if kind == "compiling":
            raise Killed

    words = {"total_steps": 6 * FRAMES, "network": {"hidden": [8, 8]}, "config": {"gamma": 0.5}}
    rollax.resume(finished, fork=tmp_path / "whole", show=Script(), **words)
    folder = tmp_path / "killed"
    with pytest.raises(Killed):
        rollax.resume(finished, fork=folder, show=Script(react), **words)
    assert newest(folder) == STEPS
    assert rollax.load(folder).spec.network.hidden == (8,)
    rollax.resume(folder, fork=tmp_path / "again", show=Script())
    rollax.resume(folder, show=Script())
    last = 6 * FRAMES
    assert checksums(folder, last) == checksums(tmp_path / "whole", last)
    assert checksums(tmp_path / "again", last) == checksums(tmp_path / "whole", last)


def test_a_network_function_replaces_the_settings(finished: Path, tmp_path: Path) -> None:
    folder, environment = tmp_path / "fork", rollax.make("probe/memory")

    def make_network(key: jax.Array) -> Any:
        return actor_critic(environment, rollax.NetworkConfig(hidden=(8, 8)), key)

    show = continue_run(finished, folder, network=make_network)
    assert "network settings -> custom" in show.text
    assert rollax.load(folder, network=make_network).step == STEPS + MORE * FRAMES
    assert rollax.load(folder, checkpoint=STEPS).spec.network.hidden == (8,)
    with pytest.raises(UsageError, match="network must be the network function of this run"):
        rollax.resume(folder, total_steps=8 * FRAMES, network={"hidden": [4]})
    rollax.resume(folder, total_steps=7 * FRAMES, network=make_network, show=Script())


def test_all_members_of_a_population_continue(train: Callable[..., Any]) -> None:
    folder = train("seeds", seeds=2, updates=2).folder
    old = bits(whole_state(folder).train.network)
    words = {"network": {"hidden": [8, 8]}, "config": FROZEN}
    rollax.resume(folder, total_steps=3 * FRAMES, show=Script(), **words)
    new = bits(whole_state(folder).train.network)
    assert {path: new[path] for path in old} == old


def test_the_command_changes_the_network_and_the_optimizer(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["resume", str(finished), "--total-steps", str(6 * FRAMES)]
    assert main([*words, "--hiden", "4"]) == 2
    assert "did you mean --hidden" in capsys.readouterr().err
    folder = tmp_path / "fork"
    changes = ["--network.hidden", "4", "4", "--config.optimizer", "lion"]
    assert main([*words, *changes, "--fork", str(folder)]) == 0
    spec = read_spec(folder)
    assert (spec.network.hidden, spec.config.optimizer) == ((4, 4), "lion")
    assert list(spec.phases[-1].changes) == ["config.optimizer", "network.hidden"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"network": {"hiden": [4]}}, "unknown setting .*'hiden': did you mean hidden"),
        ({"network": {"hidden": [0]}}, "network.hidden"),
        ({"network": [4]}, "network must be"),
        ({"config": {"optimizer": "adamm"}}, "optimizer .*adam"),
        ({"network": {"hidden": [4]}, "config": {"num_envs": 2}}, "num_envs .2. must not change"),
    ],
)
def test_invalid_changes_raise_usage_error(
    finished: Path, changes: dict[str, Any], message: str
) -> None:
    before = (finished / "config.yaml").read_text()
    with pytest.raises(UsageError, match=message):
        rollax.resume(finished, total_steps=6 * FRAMES, quiet=True, **changes)
    assert (finished / "config.yaml").read_text() == before


def test_a_setting_of_the_network_without_effect_raises_usage_error(finished: Path) -> None:
    with pytest.raises(UsageError, match=r"network.core_size .9. has no effect"):
        rollax.resume(finished, total_steps=6 * FRAMES, network={"core_size": 9}, quiet=True)


@pytest.mark.parametrize(
    ("algorithm", "environment", "config", "opponent_pool", "what"),
    [
        (
            "map_elites",
            "granular/single-navigator",
            {"batch_size": 4, "grid": (4, 4)},
            0,
            "the solutions in the archive",
        ),
        (
            "ppo",
            "matrix/rock-paper-scissors",
            {"num_envs": 4, "num_steps": 8, "num_minibatches": 2},
            2,
            "the versions in the pool of opponents",
        ),
    ],
)
def test_what_contains_networks_needs_the_same_network(
    tmp_path: Path,
    algorithm: str,
    environment: str,
    config: dict[str, Any],
    opponent_pool: int,
    what: str,
) -> None:
    spec = make_spec(
        algorithm,
        environment,
        arguments={},
        config=config,
        sweep={},
        network={"hidden": [8]},
        options=RunOptions(total_steps=6400, run_dir=tmp_path / "run", opponent_pool=opponent_pool),
    )
    changed = changed_settings.with_changes(spec, {"hidden": [4]}, None, None, None)
    changed = changed_settings.with_new_phase(changed, spec, tmp_path, 64)
    with pytest.raises(UsageError, match=f"must not change .* it determines {what}"):
        changed_settings.check_changes(changed, spec, None, None)
