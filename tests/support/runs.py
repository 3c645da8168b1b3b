"""Tiny runs for tests of host code: settings, commands, and comparison of two runs."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from rollax import NetworkConfig, PPOConfig, RunOptions, Transition, load
from rollax.spaces import Box, Discrete
from rollax.training.checkpoints.store import Checkpoints
from rollax.training.checkpoints.summary import read_summary
from rollax.training.compile import program as programs
from rollax.training.run_folder.layout import read_spec
from rollax.training.run_folder.metric_sinks import read_metrics

FRAMES = 32  # steps per update with SMALL
SMALL = PPOConfig(num_envs=4, num_steps=8, num_minibatches=2, num_epochs=1)
NETWORK = NetworkConfig(hidden=(8,))
# The same settings for the command line.
SMALL_WORDS = [
    *(
        "--config.num-envs",
        "4",
        "--config.num-steps",
        "8",
        "--config.num-minibatches",
        "2",
        "--config.num-epochs",
        "1",
    ),
    *("--network.hidden", "8", "--eval-episodes", "8", "--no-tensorboard"),
]


def over(words: Sequence[Any], *changed: Any) -> list[Any]:
    """Return a command line with other values for some options, which must occur only once."""
    kept, options, keep = [], {word for word in changed if str(word).startswith("--")}, True
    for word in words:
        keep = word not in options if str(word).startswith("--") else keep
        kept += [word] * keep
    return [*kept, *changed]


TIMINGS = ("wall_time", "steps_per_second")


def options(folder: Path, updates: int = 12, **changes: Any) -> RunOptions:
    """Return options with evaluations every third update and checkpoints every second."""
    values = {
        "eval_episodes": 8,
        "eval_count": 4,
        "checkpoint_steps": 2 * FRAMES,
        "tensorboard": False,
        **changes,
    }
    return RunOptions(total_steps=updates * FRAMES, run_dir=folder, **values)


class Script:
    """Display that records messages and calls `react(kind, text)` at each event."""

    def __init__(self, react: Any = None) -> None:
        self.lines: list[str] = []
        self._react = react or (lambda kind, text: None)

    def message(self, text: str) -> None:
        self.lines.append(text)
        self._react("message", text)

    def status(self, text: str) -> None:
        self._react(text, text)

    def progress(self, num_done: int, num_total: int, metric_texts: dict[str, str]) -> None:
        self._react("progress", str(num_done))

    def close(self) -> None:
        pass

    @property
    def text(self) -> str:
        return "\n".join(self.lines)


class Bad(eqx.Module):
    """Environment without end, with reward 1 per step until step `good`, and then `value`.

    With a positive `chance`, the reward of any step may be `value`.
    """

    good: int = eqx.field(static=True, default=40)
    chance: float = eqx.field(static=True, default=0.0)
    value: float = eqx.field(static=True, default=float("nan"))

    name = "bad"
    observation_space = Box(0.0, 1.0, (1,))
    action_space = Discrete(2)
    num_agents = None
    time_limit = None

    def reset(self, key: jax.Array) -> tuple[Any, Any]:
        return jnp.zeros((), jnp.int32), jnp.zeros(1)

    def step(self, key: jax.Array, state: Any, action: Any) -> Transition:
        goes_bad = (state >= self.good) | (jax.random.uniform(key) < self.chance)
        no = jnp.zeros((), bool)
        return Transition(state + 1, jnp.zeros(1), jnp.where(goes_bad, self.value, 1.0), no, no, {})


def evaluations(folder: Path) -> dict[str, np.ndarray]:
    with np.load(folder / "evaluations.npz", allow_pickle=False) as file:
        return dict(file)


def metrics(folder: Path) -> list[dict[str, Any]]:
    """Return the lines of a run without timings."""
    lines = read_metrics(folder / "metrics.jsonl")
    return [{name: value for name, value in line.items() if name not in TIMINGS} for line in lines]


def bits(state: Any) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    def raw(leaf: Any) -> np.ndarray:
        return np.asarray(
            jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf
        )

    leaves = {
        jax.tree_util.keystr(path): raw(leaf)
        for path, leaf in jax.tree_util.tree_leaves_with_path(state)
    }
    return {name: (str(leaf.dtype), leaf.shape, leaf.tobytes()) for name, leaf in leaves.items()}


def checksums(folder: Path, step: int) -> dict[str, Any]:
    """Return what a checkpoint records about each leaf of the state of all members."""
    return {
        leaf.path: leaf
        for leaf in read_summary(folder / "checkpoints" / f"step_{step:012d}").leaves
    }


def whole_state(folder: Path, environment: Any = None) -> Any:
    """Return the complete state of all members in the last checkpoint.

    It includes the parts that only training needs.
    """
    spec = read_spec(folder)
    algorithm, _ = programs.build_algorithm_and_environment(spec, environment)
    make = (
        programs.abstract_member_state
        if len(spec.members()) == 1
        else programs.abstract_population_state
    )
    return Checkpoints(folder / "checkpoints").restore("last", make(spec, algorithm))[1]


def rating(folder: Path, step: int) -> dict[str, Any]:
    """Return the metrics of a checkpoint, which determine the best one."""
    document = json.loads(
        (folder / "checkpoints" / f"step_{step:012d}" / "summary.json").read_text()
    )
    return {
        name: value for name, value in document["body"]["metrics"].items() if name not in TIMINGS
    }


def check_same(run: Path, other: Path, **objects: Any) -> None:
    """Check that two runs have equal states, evaluations, metrics and best checkpoints.

    The comparison is bit for bit.
    """
    for which in ("last", "best"):
        mine, theirs = (
            load(run, checkpoint=which, **objects),
            load(other, checkpoint=which, **objects),
        )
        assert mine.step == theirs.step
        assert not mine.warnings
        a, b = checksums(run, mine.step), checksums(other, theirs.step)
        assert [name for name in a | b if a.get(name) != b.get(name)] == []
        assert rating(run, mine.step) == rating(other, mine.step)
    mine, theirs = evaluations(run), evaluations(other)
    assert mine.keys() == theirs.keys()
    for name, values in mine.items():
        assert (values.dtype, values.shape, values.tobytes()) == (
            theirs[name].dtype,
            theirs[name].shape,
            theirs[name].tobytes(),
        )
    assert metrics(run) == metrics(other)


def newest(folder: Path) -> int:
    """Return the step of the newest complete checkpoint, or -1."""
    found = [
        re.fullmatch(r"step_(\d+)", path.name) for path in (folder / "checkpoints").glob("step_*")
    ]
    return max((int(name[1]) for name in found if name), default=-1)
