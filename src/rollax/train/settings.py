"""What a run is told: options of the host, presets, and the specification that is kept in the run's folder."""

import dataclasses
import fnmatch
import importlib.resources
import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import yaml

from rollax import tree
from rollax.algorithms import ALGORITHMS, Entry
from rollax.errors import UnknownNameError, UsageError


@dataclasses.dataclass(frozen=True)
class RunOptions:
    """What the host does around the program. Nothing here changes what is learnt, but the steps, the seed and the seeds."""

    total_steps: int | None = None
    """Environment frames to train for (each member of a population as many); by default what is tuned, or a million."""
    seed: int = 0
    """Seed of the first member; the same seed gives the same run, bit for bit."""
    seeds: int = 1
    """How many seeds to train at once, in one compiled program."""
    run_dir: Path | None = None
    """Folder of the run; default: runs/<environment>/<algorithm>-<date>-<id>."""
    eval_episodes: int = 128
    """Whole episodes per evaluation."""
    eval_count: int = 10
    """Evaluations during training, besides the one before it."""
    eval_stochastic: bool = False
    """Evaluate with sampled instead of greedy actions."""
    eval_fresh: bool = False
    """Evaluate on new episodes every time instead of always the same."""
    eval_max_steps: int = 10_000
    """Steps after which an episode under evaluation is given up, where the environment sets no limit."""
    checkpoint_minutes: float = 5.0
    """Checkpoint after so many minutes, besides those at evaluations; 0: only at evaluations."""
    checkpoint_steps: int = 0
    """Checkpoint after so many environment frames as well; 0: not."""
    keep_last: int = 2
    """Newest checkpoints kept."""
    keep_best: int = 1
    """Best checkpoints kept."""
    best_metric: str = "return_mean"
    """What is best: a number of the evaluation (return_mean, return_iqm, length_mean, ...)."""
    best_mode: Literal["max", "min"] = "max"
    """Whether more or less of it is better."""
    on_nonfinite: Literal["stop", "rollback"] = "stop"
    """When a loss or parameter is no longer finite: stop, or go back to the last checkpoint and go on with other keys."""
    log_lines: int = 500
    """About how many lines of metrics to write over the whole run; more where a line would span over ten updates."""
    tensorboard: bool = True
    """Write event files for TensorBoard."""
    wandb: str | None = None
    """Project of Weights & Biases to log to."""
    trackio: str | None = None
    """Project of Trackio to log to."""
    devices: int = 1
    """Devices to spread over: members of a population, or the environments of a single run."""

    def check(self) -> None:
        """Raises UsageError when a number is out of its range."""
        for name, low in {**dict.fromkeys(_COUNTS, 1), **dict.fromkeys(_AMOUNTS, 0)}.items():
            value = getattr(self, name)
            if not value >= low:
                raise UsageError(f"{name} ({value}) must be at least {low}")
        if self.seed + self.seeds > 2**32:
            raise UsageError(f"seed ({self.seed}) must be less than 2^32: seeds beyond it repeat")
        tree.check_choices(self)


_COUNTS = ("total_steps", "seeds", "eval_episodes", "eval_max_steps", "keep_last", "log_lines", "devices")
_AMOUNTS = ("seed", "eval_count", "checkpoint_minutes", "checkpoint_steps", "keep_best")


@dataclasses.dataclass(frozen=True)
class Spec:
    """Everything needed to repeat a run; config.yaml holds it."""

    algorithm: str
    environment: str
    arguments: dict[str, Any]
    config: Any
    network: Any
    options: RunOptions
    sweep: dict[str, tuple[float, ...]] = dataclasses.field(default_factory=dict)
    eval_arguments: dict[str, Any] = dataclasses.field(default_factory=dict)  # of the environment, where evaluations differ
    opponents: dict[str, str] = dataclasses.field(default_factory=dict)  # by type of agents: the run whose policy they follow
    # Chosen once, so that a run resumed with other total steps keeps its rhythm.
    updates_per_line: int = 1
    updates_per_evaluation: int = 0
    own_environment: bool = False  # an object, which cannot be made from the name

    @property
    def total_updates(self) -> int:
        """Updates to run: the total steps, rounded up to whole updates."""
        assert self.options.total_steps is not None, "make_spec sets it"
        return -(-self.options.total_steps // self.config.frames_per_update)

    def members(self) -> list[dict[str, float]]:
        """What tells the members of a population apart: every combination of swept values with every seed."""
        seeds = range(self.options.seed, self.options.seed + self.options.seeds)
        combinations = itertools.product(*self.sweep.values())
        return [{**dict(zip(self.sweep, values, strict=True)), "seed": s} for values in combinations for s in seeds]


# A segment is at least a line, and a stop waits for the segment: lines stay short however long the run is.
MOST_UPDATES_PER_LINE = 10
# When neither the caller nor a preset says.
DEFAULT_TOTAL_STEPS = 1_000_000


class Preset(NamedTuple):
    """Tuned settings for an environment."""

    total_steps: int | None
    config: dict[str, Any]
    network: dict[str, Any]
    eval_arguments: dict[str, Any]


def entry(algorithm: str) -> Entry:
    """Raises UnknownNameError for an algorithm that is not there."""
    if algorithm not in ALGORITHMS:
        raise UnknownNameError("algorithm", algorithm, ALGORITHMS)
    return ALGORITHMS[algorithm]


def preset(algorithm: str, environment: str) -> Preset:
    """The settings for this pair: an exact id comes before a pattern, no entry gives the defaults."""
    file = importlib.resources.files("rollax.presets") / f"{algorithm}.yaml"
    table = yaml.safe_load(file.read_text()) if file.is_file() else {}
    matching = [pattern for pattern in table if fnmatch.fnmatchcase(environment, pattern)]
    found = table[min(matching, key=lambda p: (p != environment, -len(p)))] if matching else {}
    return Preset(found.get("total_steps"), found.get("config", {}), found.get("network", {}), found.get("eval_arguments", {}))


def make_spec(
    algorithm: str,
    environment: str,
    arguments: dict[str, Any],
    config: Any,
    network: Any,
    options: RunOptions,
    sweep: dict[str, Any],
    eval_arguments: Mapping[str, Any] | None = None,
    opponents: Mapping[str, Any] | None = None,
) -> Spec:
    """A checked specification. `config` and `network` are settings or dictionaries that override the preset.

    Raises UsageError when anything is unknown, out of range or does not divide.
    """
    kinds = entry(algorithm)
    tuned = preset(algorithm, environment)
    config = settings_of(kinds.config, tuned.config, config)
    network = settings_of(kinds.network_config, tuned.network, network)
    if options.total_steps is None:
        options = dataclasses.replace(options, total_steps=tuned.total_steps or DEFAULT_TOTAL_STEPS)
    options.check()
    tree.check_settings(config)
    if network is not None:
        kinds.check(config, network)
    known = [name for name in tree.traced_fields(kinds.config) if name != "total_updates"]
    for name, values in sweep.items():
        if name not in known:
            raise UnknownNameError("setting to sweep over (static ones cannot be)", name, known)
        if not values:
            raise UsageError(f"a sweep over {name} needs values")
        for value in values:
            tree.check_settings(dataclasses.replace(config, **{name: float(value)}))
    sweep = {name: tuple(float(v) for v in values) for name, values in sweep.items()}
    differing = tuned.eval_arguments | dict(eval_arguments or {})
    against = {kind: str(folder) for kind, folder in (opponents or {}).items()}
    if against and differing:
        raise UsageError(f"eval_arguments ({differing}) and opponents ({against}) do not go together: leave one of them out")
    spec = Spec(algorithm, environment, dict(arguments), config, network, options, sweep, differing, against)
    per_line = min(max(1, spec.total_updates // options.log_lines), MOST_UPDATES_PER_LINE)
    per_evaluation = 0
    if options.eval_count:
        lines = max(1, round(spec.total_updates / options.eval_count / per_line))
        per_evaluation = lines * per_line
    return dataclasses.replace(spec, updates_per_line=per_line, updates_per_evaluation=per_evaluation)


def settings_of(kind: type, tuned: dict[str, Any], given: Any) -> Any:
    """Settings from the preset and what was given: settings as they are, a dictionary over the preset, None for the preset."""
    if given is not None and not isinstance(given, dict):
        return given
    values = {**tuned, **(given or {})}
    fields = {field.name: field for field in dataclasses.fields(kind)}
    for name in values:
        if name not in fields:
            raise UnknownNameError("setting", name, fields)
    return kind(**{name: _as_default(value, fields[name].default) for name, value in values.items()})


def _as_default(value: Any, default: Any) -> Any:
    """YAML has no tuples and writes 1e-3 as a text: give both the type of the default."""
    if isinstance(value, list):
        return tuple(tuple(v) if isinstance(v, list) else v for v in value)
    if isinstance(default, float) and not isinstance(value, bool):
        return float(value)
    return value
