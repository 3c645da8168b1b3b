"""Frozen parts keep every bit, all others are trained, and the state has the same structure."""

import shutil
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest
import yaml

import rollax
from rollax.learning.freezing import check_frozen_parts, freeze_parts
from rollax.learning.optimizers import clipped_adam
from rollax.training.checkpoints.summary import read_summary, write_summary
from support.runs import FRAMES, NETWORK, SMALL, Script, bits, options

silent: Any = Script

NETWORK_OF_TWO = {"actor": {"encoder": jnp.ones(2), "head": jnp.ones(3)}, "critic": jnp.ones(1)}


class Settings:
    def __init__(self, frozen: tuple[str, ...] = (), frozen_fraction: float = 1.0) -> None:
        self.frozen, self.frozen_fraction = frozen, frozen_fraction


@pytest.mark.parametrize(("progress", "fixed"), [(0.0, True), (0.49, True), (0.5, False)])
def test_for_a_fraction_of_training(progress: float, fixed: bool) -> None:
    optimizer = clipped_adam(0.1, 1e-8, 1.0)
    frozen = freeze_parts(optimizer, Settings(("encoder",), 0.5), progress)
    state = optimizer.init(NETWORK_OF_TWO)
    assert bits(frozen.init(NETWORK_OF_TWO)) == bits(state)
    gradient = jax.tree.map(jnp.ones_like, NETWORK_OF_TWO)
    updates, after = frozen.update(gradient, state, NETWORK_OF_TWO)
    assert jax.tree.structure(after) == jax.tree.structure(state)
    assert (float(jnp.abs(updates["actor"]["encoder"]).max()) == 0) == fixed
    assert bool(jnp.all(updates["actor"]["head"] != 0) & jnp.all(updates["critic"] != 0))


def test_gradients_of_frozen_parts_do_not_count_in_the_norm() -> None:
    clip = optax.clip_by_global_norm(1.0)
    frozen = freeze_parts(clip, Settings(("actor",)), 0.9)
    gradient = jax.tree.map(lambda x: 100 * jnp.ones_like(x), NETWORK_OF_TWO)
    updates, _ = frozen.update(gradient, frozen.init(NETWORK_OF_TWO))
    assert float(updates["critic"][0]) == pytest.approx(1.0)


def test_unused_it_is_the_optimizer_itself() -> None:
    optimizer = clipped_adam(0.1, 1e-8, 1.0)
    assert freeze_parts(optimizer, Settings(), 0.0) is optimizer


def test_names() -> None:
    check_frozen_parts((), NETWORK_OF_TWO)
    check_frozen_parts(("actor.encoder", "critic"), NETWORK_OF_TWO)
    with pytest.raises(rollax.UsageError, match="'encode': did you mean encoder or actor.encoder"):
        check_frozen_parts(("encode",), {"actor": {"encoder": {"weight": 1.0}}, "critic": 1.0})
    with pytest.raises(rollax.UsageError, match=r"frozen \(actor, critic\) must leave some"):
        check_frozen_parts(("actor", "critic"), NETWORK_OF_TWO)


def test_a_run_that_is_resumed(tmp_path: Path) -> None:
    """The encoders keep the bits of the first checkpoint, also after a resume."""

    def train(folder: str, updates: int, **config: Any) -> Path:
        settings = {**vars(SMALL), "frozen": ("encoder",)} | config
        del settings["total_updates"]
        run = options(tmp_path / folder, updates=updates, keep_last=9)
        words: Any = {"network": NETWORK, "options": run, "show": Script()}
        return rollax.train("ppo", "probe/memory", config=settings, **words).folder

    folder = train("frozen", 2)
    first = rollax.load(folder, checkpoint=0).state.train.network
    rollax.resume(folder, total_steps=4 * FRAMES, show=silent())
    for step in (2 * FRAMES, 4 * FRAMES):
        last = rollax.load(folder, checkpoint=step).state.train.network
        for name in ("actor", "critic"):
            before, after = getattr(first, name), getattr(last, name)
            assert bits(before.encoder) == bits(after.encoder)
            assert bits(before.head) != bits(after.head)
    with pytest.raises(rollax.UsageError, match="'encodre': did you mean .*encoder"):
        train("unknown", 2, frozen=("encodre",))
    with pytest.raises(rollax.UsageError, match="frozen_fraction .* has no effect"):
        train("unused", 2, frozen=(), frozen_fraction=0.5)
    assert not (tmp_path / "unknown").exists()


REPLAY = {"num_envs": 2, "num_steps": 16, "capacity": 128, "batch_size": 8, "warmup": 8.0}


@pytest.mark.parametrize(
    ("algorithm", "environment", "frozen", "config"),
    [
        ("td3", "gymnax/Pendulum-v1", "critic.0", REPLAY),
        ("sac", "gymnax/Pendulum-v1", "actor.dense", REPLAY),
        ("dqn", "probe/memory", "features", REPLAY),
    ],
)
def test_learning_from_replay(
    algorithm: str, environment: str, frozen: str, config: Any, tmp_path: Path
) -> None:
    run = options(tmp_path / "run", updates=1, keep_last=9)
    network = {"hidden": (8,)}
    result = rollax.train(
        algorithm,
        environment,
        config=config | {"frozen": (frozen,)},
        network=network,
        options=run,
        show=silent(),
    )
    before = bits(rollax.load(result, checkpoint=0).state.agent.network)
    after = bits(rollax.load(result).state.agent.network)
    fixed = {path for path in before if f".{frozen}." in path.replace("[", ".").replace("]", "")}
    assert fixed and {path for path in before if before[path] == after[path]} == fixed


def test_a_folder_without_the_settings(undisturbed: Path, tmp_path: Path) -> None:
    """Folders of earlier versions have neither setting in config.yaml nor in their checkpoints."""
    folder = tmp_path / "old"
    shutil.copytree(undisturbed, folder)
    document = yaml.safe_load((folder / "config.yaml").read_text())
    for name in ("frozen", "frozen_fraction"):
        del document["config"][name]
    for name in ("init_from", "init_checkpoint", "init_parts", "init_strict"):
        del document["options"][name]
    (folder / "config.yaml").write_text(yaml.safe_dump(document, sort_keys=False))
    for path in (folder / "checkpoints").iterdir():
        summary = read_summary(path)
        settings = summary.settings | {"config": document["config"]}
        write_summary(path, summary._replace(settings=settings))
    policy = rollax.load(folder)
    assert policy.spec == rollax.load(undisturbed).spec and not policy.warnings
