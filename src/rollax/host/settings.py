"""What a run is told: settings over presets, and the specification that is kept in the run's folder."""

import contextlib
import dataclasses
import itertools
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from rollax.algorithms import AlgorithmEntry, find
from rollax.config import LARGEST_INT, check_range, checked, traced_fields
from rollax.environments import registry
from rollax.errors import UnknownNameError, UsageError
from rollax.host.options import EVOLVE_OPTIONS, RunOptions
from rollax.host.presets import preset
from rollax.populations.evolution import Method, Range, selected
from rollax.replay.config import ReplayConfig, cycle
from rollax.scale import processes
from rollax.typed import hints, names, shown, typed

CUSTOM = "custom"  # in place of the settings of a network of the user's own


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
    imports: tuple[str, ...] = ()  # modules that register what the run names; a user imports them, a run folder never does

    @property
    def num_members(self) -> int:
        """How many members the population has, 1 for a single run."""
        return self.options.seeds * len(self.swept())

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
        """What tells the members of a population apart: swept values and a seed. The seeds of a setting lie together."""
        seeds = range(self.options.seed, self.options.seed + self.options.seeds)
        return [setting | {"seed": seed} for setting in self.swept() for seed in seeds]

    def swept(self) -> list[dict[str, float]]:
        """The settings of a sweep, each the values of the names that are swept over; a single one without names is none."""
        combine = zip if self.options.sweep_paired and self.sweep else itertools.product
        return [dict(zip(self.sweep, values, strict=True)) for values in combine(*self.sweep.values())]


# A segment is at least a line, and a stop waits for the segment: lines stay short however long the run is.
MOST_UPDATES_PER_LINE = 10
MOST_FRAMES_PER_LINE = 250  # where updates are as short as they can be
# When neither the caller nor a preset says.
DEFAULT_TOTAL_STEPS = 1_000_000
DEFAULT_GENERATIONS = 10


def entry(algorithm: str) -> AlgorithmEntry:
    """Raises UnknownNameError for an algorithm that is not there."""
    return find(algorithm if isinstance(algorithm, AlgorithmEntry) else typed("algorithm", algorithm, str))[1]


@contextlib.contextmanager
def naming_imports(imports: Sequence[str]) -> Iterator[None]:
    """What is unknown inside says which modules of the run have not been imported: a run folder never imports them."""
    try:
        yield
    except UnknownNameError as error:
        lost = [module for module in imports if module not in sys.modules]
        if not lost and not str(error).startswith(("unknown algorithm", "unknown environment")):
            raise
        if not lost:
            register = "rollax.register and rollax.register_algorithm"
            raise UsageError(f"{error} What a run has of your own must be known before it goes on: see {register}") from None
        give = " ".join(f"--import {module}" for module in lost)
        raise UsageError(f"{error} The run was started with modules of its own: give {give}") from None


def make_spec(
    algorithm: str,
    environment: str,
    arguments: Mapping[str, Any] | None,
    config: Any,
    network: Any,
    options: RunOptions,
    sweep: Mapping[str, Any] | None,
    eval_arguments: Mapping[str, Any] | None = None,
    opponents: Mapping[str, Any] | None = None,
    evolve: Mapping[str, Any] | None = None,
    imports: tuple[str, ...] = (),
) -> Spec:
    """A checked specification. `config` and `network` are settings or dictionaries that override the preset; `arguments` come
    over those of the environment that it has.

    Raises UsageError when anything is unknown, of another type, out of range or does not divide.
    """
    kinds = entry(algorithm)
    tuned = preset(algorithm, environment)
    config = checked(settings_of("config", kinds.config, tuned.config, config))
    network = checked(settings_of("network", kinds.network_config, tuned.network, network), "network.")
    if config.total_updates != kinds.config.total_updates:
        raise UsageError("total_updates follows from --total-steps: set that instead")
    if options.total_steps is None:
        options = dataclasses.replace(options, total_steps=tuned.total_steps or DEFAULT_TOTAL_STEPS)
    against = {
        kind: str(folder) for kind, folder in typed("opponents", names("opponents", opponents), dict[str, str | Path]).items()
    }
    differing = names("eval_arguments", eval_arguments)
    if not against:  # a suite's own evaluations are of agents that all learn
        differing = registry.evaluation_arguments(environment) | differing
        if options.best_metric == RunOptions.best_metric:
            options = dataclasses.replace(options, best_metric=registry.best_metric(environment))
    options = options_on_devices(options)
    options.check()
    known = [name for name in traced_fields(kinds.config) if name != "total_updates"]
    swept = swept_values(sweep, kinds.config, known)
    ranges = ranges_of(evolve, kinds.config, known)
    check_members(swept, ranges, options)
    for changed in ({}, *({name: value} for name, values in swept.items() for value in values)):
        kinds.check(dataclasses.replace(config, **changed), network)
    kinds.check(dataclasses.replace(config, **{name: span.high for name, span in ranges.items()}), network)
    # A run may be evaluated and resumed from other folders than this.
    given = tuned.arguments | plain("arguments", names("arguments", arguments))
    arguments = registry.resolve_arguments(environment, given)
    spec = Spec(algorithm, environment, arguments, config, network, options, swept, {}, against, ranges, imports=imports)
    spec = evaluated_with(spec, differing)
    check_sizes(spec)
    _check_learns(spec)
    return _with_rhythm(spec)


def options_on_devices(options: RunOptions) -> RunOptions:
    """The options with a number of devices: all there are for "auto", and for several processes that are told of none."""
    is_auto = options.devices == "auto" or (processes.count() > 1 and options.devices == 1)
    return dataclasses.replace(options, devices=jax.device_count()) if is_auto else options


def fitted_to_host(spec: Spec) -> Spec:
    """The specification for an environment on the host, where an update of what learns from replay is one cycle.

    So no action is of an agent that has not learnt from all steps before it; lines of metrics stay as far apart.
    """
    if not isinstance(spec.config, ReplayConfig):
        return spec
    config = dataclasses.replace(spec.config, num_steps=cycle(spec.config)[0])
    return _with_rhythm(dataclasses.replace(spec, config=config), -(-MOST_FRAMES_PER_LINE // config.steps_per_update))


def _with_rhythm(spec: Spec, longest_line: int = 1) -> Spec:
    """The specification with the updates between lines, evaluations and generations."""
    per_line = min(max(1, spec.total_updates // spec.options.log_lines), max(MOST_UPDATES_PER_LINE, longest_line))
    per_evaluation = 0
    if spec.options.eval_count:
        lines = max(1, round(spec.total_updates / spec.options.eval_count / per_line))
        per_evaluation = lines * per_line
    per_generation = _updates_per_generation(spec, per_line) if spec.evolve else 0
    spec = dataclasses.replace(
        spec, updates_per_line=per_line, updates_per_evaluation=per_evaluation, updates_per_generation=per_generation
    )
    _check_generations(spec)
    return spec


def check_sizes(spec: Spec) -> None:
    """Raises UsageError for numbers of updates, or of frames in one, that the device cannot count."""
    frames = spec.config.steps_per_update
    if frames > LARGEST_INT:
        raise UsageError(
            f"num_envs ({spec.config.num_envs}) x num_steps ({spec.config.num_steps}) is {frames} frames an update, which is "
            f"more than {LARGEST_INT}: lower one of them"
        )
    ratio = getattr(spec.config, "replay_ratio", 0)
    if ratio * frames > LARGEST_INT:
        raise UsageError(
            f"replay_ratio ({ratio:g}) makes {ratio * frames:.3g} gradient steps of an update of {frames} frames, more "
            f"than {LARGEST_INT}: lower it"
        )
    if spec.total_updates > LARGEST_INT:
        raise UsageError(
            f"total_steps ({spec.options.total_steps}) is more than {LARGEST_INT} updates of {frames} frames: "
            f"give at most {LARGEST_INT * frames}"
        )


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


def plain(name: str, value: Any) -> Any:
    """Values as a file can hold them, arrays as lists. Raises UsageError for objects that it cannot."""
    if isinstance(value, Mapping):
        return {key: plain(f"{name}.{key}", part) for key, part in names(name, value).items()}
    if isinstance(value, list | tuple):
        return type(value)(plain(f"{name}[{i}]", part) for i, part in enumerate(value))
    if isinstance(value, np.generic | np.ndarray | jax.Array):
        return value.tolist()
    if isinstance(value, Path):
        return str(value)
    if not isinstance(value, str | int | float | None):
        kind = type(value).__name__
        raise UsageError(f"{name} ({shown(value)}) is a {kind}: it must be a number, a text, an array or a list of them")
    return value


def evaluated_with(spec: Spec, differing: Mapping[str, Any]) -> Spec:
    """The specification with these arguments of evaluations over those that it has. Raises UsageError when they do not fit."""
    if differing and spec.opponents:
        raise UsageError(
            f"eval_arguments ({differing}) and opponents ({spec.opponents}) do not go together: leave one of them out"
        )
    differing = spec.eval_arguments | registry.resolve_arguments(spec.environment, plain("eval_arguments", differing))
    registry.check_evaluation(spec.environment, spec.arguments, differing)
    return dataclasses.replace(spec, eval_arguments=differing)


def swept_values(given: Mapping[str, Any] | None, kind: type, known: list[str]) -> dict[str, tuple[float, ...]]:
    """What a sweep goes over: numbers, or any sequence of them. Raises UsageError for what a setting cannot be."""
    fields = {field.name: field for field in dataclasses.fields(kind)}
    swept = {}
    for name, values in names("sweep", given).items():
        if name not in known:
            raise UnknownNameError("setting to sweep over (static ones cannot be)", name, known)
        swept[name] = typed(f"sweep over {name}", values, tuple[float, ...])
        if not swept[name]:
            raise UsageError(f"a sweep over {name} needs values")
        check_range(name, swept[name], fields[name])
    return swept


def ranges_of(given: Mapping[str, Any] | None, kind: type, known: list[str]) -> dict[str, Range]:
    """Ranges from `(low, high)` or `(low, high, scale)`; the scale is by default "log" where low > 0, else "linear".

    Raises UsageError for a setting that is not `known`, or a range that is none or that the setting cannot have.
    """
    fields = {field.name: field for field in dataclasses.fields(kind)}
    ranges = {}
    for name, values in names("evolve", given).items():
        if name not in known:
            raise UnknownNameError("setting to evolve (static ones cannot be)", name, known)
        try:
            ends: list[Any] = list(() if isinstance(values, str | Mapping) else values)
            low, high, *scales = ends
            span = Range(float(low), float(high), *(scales or ["log" if float(low) > 0 else "linear"]))
        except (TypeError, ValueError, OverflowError):
            raise UsageError(
                f"evolve {name} takes the ends of a range, and log or linear if you like, not {shown(values)}"
            ) from None
        if span.scale not in ("log", "linear"):
            raise UsageError(f"the scale of the range of {name} ({shown(span.scale)}) must be log or linear")
        if not (math.isfinite(span.low) and math.isfinite(span.high) and span.low < span.high):
            raise UsageError(f"the range of {name} ({span.low:g} to {span.high:g}) must be finite, its lower end first")
        if span.scale == "log" and span.low <= 0:
            raise UsageError(f"the range of {name} begins at {span.low:g}: a log range needs more than 0, else make it linear")
        check_range(name, (span.low, span.high), fields[name])
        ranges[name] = span
    return ranges


def check_members(sweep: dict[str, tuple[float, ...]], ranges: dict[str, Range], options: RunOptions) -> None:
    """Raises UsageError for members that there cannot be: of values that are paired, or of a population that evolves; and when
    options are for one of these and there is none."""
    lengths = {name: len(values) for name, values in sweep.items()}
    if options.sweep_paired and len(set(lengths.values())) != 1:
        told = ", ".join(f"{number} of {name}" for name, number in lengths.items()) or "none"
        raise UsageError(f"sweep_paired takes as many values of every setting that is swept over: there are {told}")
    default = RunOptions()
    unused = [n for n in EVOLVE_OPTIONS if getattr(options, n) != getattr(default, n)]
    if unused and not ranges:
        raise UsageError(
            f"{unused[0]} ({getattr(options, unused[0])}) is for a population that evolves: say which settings it moves "
            "(--evolve.NAME LOW HIGH), or leave it out"
        )
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


def settings_of(name: str, kind: type, tuned: Mapping[str, Any], given: Any) -> Any:
    """Settings from the preset and what was given: settings as they are, a dictionary over the preset, None for the preset.

    Raises UsageError, which calls them `name`, for settings of another kind, and UnknownNameError for one that is unknown.
    """
    if given is not None and not isinstance(given, Mapping):
        if type(given) is not kind:
            other = f"{type(given).__name__} ({shown(given)})"
            raise UsageError(f"{name} must be {kind.__name__} or a dictionary of its settings, not {other}")
        return given
    values = from_yaml(kind, tuned) | names(name, given)
    known = [field.name for field in dataclasses.fields(kind)]
    for setting in values:
        if setting not in known:
            raise UnknownNameError("setting", setting, known)
    return kind(**values)


def from_yaml(kind: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a dataclass as a file has them, where YAML takes 1e-3, without a point, for a text."""
    wanted = hints(kind)
    return {name: _number(value) if wanted.get(name) is float else value for name, value in values.items()}


def _number(value: Any) -> Any:
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value
