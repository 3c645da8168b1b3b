"""What a run is told: options of the host, presets, and the specification that is kept in the run's folder."""

import dataclasses
import fnmatch
import importlib.resources
import itertools
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import yaml

from rollax.algorithms import AlgorithmEntry, find
from rollax.config import check_choices, check_settings, traced_fields
from rollax.environments import registry
from rollax.errors import UnknownNameError, UsageError
from rollax.populations.evolution import Method, Range, selected


@dataclasses.dataclass(frozen=True)
class RunOptions:
    """What the host does around the program. Only steps, seeds and how a population evolves change what is learnt."""

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
    evolve_every: int | None = None
    """Environment frames between generations of a population that evolves (--evolve.NAME); default: a 10th of the total steps;
    0: never, so that every member keeps the settings that it drew at the start."""
    evolve_start: int = 0
    """Environment frames before there is a generation."""
    evolve_fraction: float = Method().fraction
    """Share of the members that are replaced in a generation, and of those that they become copies of; at most a half."""
    evolve_resample: float = Method().resample
    """Chance that a setting of a copy is drawn anew from its range; else it is perturbed."""
    evolve_factor: float = Method().factor
    """Most that a perturbation multiplies or divides a setting by, where its range is logarithmic."""
    evolve_step: float = Method().step
    """Most that a perturbation adds to a setting or takes from it, as a share of its range, where that is linear."""

    def check(self) -> None:
        """Raises UsageError when a number is out of its range."""
        for name, low in {**dict.fromkeys(_COUNTS, 1), **dict.fromkeys(_AMOUNTS, 0)}.items():
            value = getattr(self, name)
            if value is not None and not value >= low:
                raise UsageError(f"{name} ({value}) must be at least {low}")
        for name, (low, high) in _SPANS.items():
            if not low <= getattr(self, name) <= high:
                raise UsageError(f"{name} ({getattr(self, name)}) must be between {low:g} and {high:g}")
        if self.seed + self.seeds > 2**32:
            raise UsageError(f"seed ({self.seed}) must be less than 2^32: seeds beyond it repeat")
        check_choices(self)


_COUNTS = ("total_steps", "seeds", "eval_episodes", "eval_max_steps", "keep_last", "log_lines", "devices")
_AMOUNTS = ("seed", "eval_count", "checkpoint_minutes", "checkpoint_steps", "keep_best", "evolve_every", "evolve_start")
_SPANS = {"evolve_fraction": (0, 0.5), "evolve_resample": (0, 1), "evolve_factor": (1, 100), "evolve_step": (0, 1)}


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
    evolve: dict[str, Range] = dataclasses.field(default_factory=dict)  # settings of a population that evolves
    # Chosen once, so that a run resumed with other total steps keeps its rhythm.
    updates_per_line: int = 1
    updates_per_evaluation: int = 0
    updates_per_generation: int = 0
    own_environment: bool = False  # an object, which cannot be made from the name

    @property
    def total_updates(self) -> int:
        """Updates to run: the total steps, rounded up to whole updates."""
        assert self.options.total_steps is not None, "make_spec sets it"
        return -(-self.options.total_steps // self.config.steps_per_update)

    @property
    def method(self) -> Method:
        """The numbers that a population evolves by."""
        options = self.options
        return Method(options.evolve_fraction, options.evolve_resample, options.evolve_factor, options.evolve_step)

    def is_generation(self, updates: int) -> bool:
        """Whether there is a generation after so many updates; none at the end, where nothing would be learnt by it."""
        every, is_begun = self.updates_per_generation, updates * self.config.steps_per_update >= self.options.evolve_start
        return bool(every and is_begun and updates % every == 0 and 0 < updates < self.total_updates)

    def members(self) -> list[dict[str, float]]:
        """What tells the members of a population apart: every combination of swept values with every seed."""
        seeds = range(self.options.seed, self.options.seed + self.options.seeds)
        combinations = itertools.product(*self.sweep.values())
        return [{**dict(zip(self.sweep, values, strict=True)), "seed": s} for values in combinations for s in seeds]


# A segment is at least a line, and a stop waits for the segment: lines stay short however long the run is.
MOST_UPDATES_PER_LINE = 10
# When neither the caller nor a preset says.
DEFAULT_TOTAL_STEPS = 1_000_000
DEFAULT_GENERATIONS = 10


class Preset(NamedTuple):
    """Tuned settings for an environment."""

    total_steps: int | None
    config: dict[str, Any]
    network: dict[str, Any]


def entry(algorithm: str) -> AlgorithmEntry:
    """Raises UnknownNameError for an algorithm that is not there."""
    return find(algorithm)[1]


def preset(algorithm: str, environment: str) -> Preset:
    """The settings for this pair: an exact id comes before a pattern, no entry gives the defaults."""
    table = _presets(algorithm)
    matching = [pattern for pattern in table if fnmatch.fnmatchcase(environment, pattern)]
    found = table[min(matching, key=lambda p: (p != environment, -len(p)))] if matching else {}
    return Preset(found.get("total_steps"), found.get("config", {}), found.get("network", {}))


def example(algorithm: str) -> str:
    """An environment for the algorithm: the first that it has tuned settings for."""
    return next(iter(_presets(algorithm)), "gymnax/CartPole-v1")


def _presets(algorithm: str) -> dict[str, Any]:
    file = importlib.resources.files("rollax.presets") / f"{algorithm}.yaml"
    return yaml.safe_load(file.read_text()) if file.is_file() else {}


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
    evolve: Mapping[str, Any] | None = None,
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
    check_settings(config)
    if network is not None:
        check_choices(network, "network.")
    known = [name for name in traced_fields(kinds.config) if name != "total_updates"]
    for name, values in sweep.items():
        if name not in known:
            raise UnknownNameError("setting to sweep over (static ones cannot be)", name, known)
        if not values:
            raise UsageError(f"a sweep over {name} needs values")
        for value in values:
            check_settings(dataclasses.replace(config, **{name: float(value)}))
    sweep = {name: tuple(float(v) for v in values) for name, values in sweep.items()}
    ranges = ranges_of(dict(evolve or {}), config, known)
    _check_evolution(ranges, sweep, options)
    if network is not None:
        for changed in ({}, *({name: value} for name, values in sweep.items() for value in values)):
            kinds.check(dataclasses.replace(config, **changed), network)
        kinds.check(dataclasses.replace(config, **{name: span.high for name, span in ranges.items()}), network)
    differing = registry.evaluation_arguments(environment) | dict(eval_arguments or {})
    against = {kind: str(folder) for kind, folder in (opponents or {}).items()}
    # A run may be evaluated and resumed from other folders than this.
    arguments = registry.resolve_arguments(environment, arguments)
    spec = Spec(algorithm, environment, arguments, config, network, options, sweep, {}, against, ranges)
    spec = evaluated_with(spec, differing)
    _check_learns(spec)
    per_line = min(max(1, spec.total_updates // options.log_lines), MOST_UPDATES_PER_LINE)
    per_evaluation = 0
    if options.eval_count:
        lines = max(1, round(spec.total_updates / options.eval_count / per_line))
        per_evaluation = lines * per_line
    per_generation = _updates_per_generation(spec, per_line) if ranges else 0
    spec = dataclasses.replace(
        spec, updates_per_line=per_line, updates_per_evaluation=per_evaluation, updates_per_generation=per_generation
    )
    _check_generations(spec)
    return spec


def _check_learns(spec: Spec) -> None:
    """Raises UsageError for a run that ends before a member of it begins to learn."""
    total = spec.options.total_steps or 0
    for name in ("warmup", "learning_starts"):
        longest = max(spec.sweep.get(name, (getattr(spec.config, name, 0.0),)))
        if longest >= total and longest > 0:
            raise UsageError(
                f"nothing would be learnt: {name} ({longest:g} frames) is no less than total_steps ({total}): try more "
                f"steps, or config.{name} {total // 10}"
            )


def evaluated_with(spec: Spec, differing: Mapping[str, Any]) -> Spec:
    """The specification with these arguments of evaluations over those that it has. Raises UsageError when they do not fit."""
    if differing and spec.opponents:
        raise UsageError(
            f"eval_arguments ({differing}) and opponents ({spec.opponents}) do not go together: leave one of them out"
        )
    differing = spec.eval_arguments | registry.resolve_arguments(spec.environment, differing)
    registry.check_evaluation(spec.environment, spec.arguments, differing)
    return dataclasses.replace(spec, eval_arguments=differing)


def ranges_of(given: dict[str, Any], config: Any, known: list[str]) -> dict[str, Range]:
    """Ranges from `(low, high)` or `(low, high, scale)`; the scale is by default "log" where low > 0, else "linear".

    Raises UsageError for a setting that is not `known`, or a range that is none or that the setting cannot have.
    """
    ranges = {}
    for name, values in given.items():
        if name not in known:
            raise UnknownNameError("setting to evolve (static ones cannot be)", name, known)
        try:
            low, high, *scales = values
            span = Range(float(low), float(high), *(scales or ["log" if float(low) > 0 else "linear"]))
        except (TypeError, ValueError):
            raise UsageError(f"evolve {name} takes the ends of a range, and log or linear if you like, not {values}") from None
        if span.scale not in ("log", "linear"):
            raise UsageError(f"the scale of the range of {name} ({span.scale}) must be log or linear")
        if not (math.isfinite(span.low) and math.isfinite(span.high) and span.low < span.high):
            raise UsageError(f"the range of {name} ({span.low:g} to {span.high:g}) must be finite, its lower end first")
        if span.scale == "log" and span.low <= 0:
            raise UsageError(f"the range of {name} begins at {span.low:g}: a log range needs more than 0, else make it linear")
        for end in (span.low, span.high):
            check_settings(dataclasses.replace(config, **{name: end}))
        ranges[name] = span
    return ranges


def _check_evolution(ranges: dict[str, Range], sweep: dict[str, Any], options: RunOptions) -> None:
    """Raises UsageError when a population cannot evolve."""
    if ranges and sweep:
        raise UsageError(f"a sweep ({', '.join(sweep)}) and evolve ({', '.join(ranges)}) do not go together: leave one out")
    if ranges and selected(options.seeds, options.evolve_fraction) < 1:
        raise UsageError(f"a population of {options.seeds} cannot evolve: give --seeds 2 or more, such as 16")


def _updates_per_generation(spec: Spec, per_line: int) -> int:
    """Updates between generations, a whole number of lines; 0 for none."""
    frames = spec.options.evolve_every
    if frames == 0:
        return 0
    updates = spec.total_updates / DEFAULT_GENERATIONS if frames is None else frames / spec.config.steps_per_update
    return max(1, round(updates / per_line)) * per_line


def _check_generations(spec: Spec) -> None:
    """Raises UsageError when a population that is to evolve never would."""
    if not spec.updates_per_generation:
        return
    every, options = spec.updates_per_generation * spec.config.steps_per_update, spec.options
    first = max(1, math.ceil(options.evolve_start / every)) * every
    total = spec.total_updates * spec.config.steps_per_update
    if first >= total:
        given = "" if options.evolve_every is None else f" and evolve_every {options.evolve_every:,}"
        raise UsageError(
            f"with evolve_start {options.evolve_start:,}{given} the first generation would come at {first:,} steps, but the "
            f"run ends at {total:,}: lower them, or give more total_steps, or evolve_every 0 for no generation at all"
        )


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
