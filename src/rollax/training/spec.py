"""Specification of a run, built from the user's settings and a preset."""

import contextlib
import dataclasses
import itertools
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import jax

from rollax.algorithm import Config
from rollax.algorithms.curriculum import Curriculum
from rollax.algorithms.derived_settings import DerivedSettings
from rollax.algorithms.registry import AlgorithmEntry, find_algorithm
from rollax.config import MAX_INT32, DataclassInstance, traced_field_names
from rollax.distributed import processes
from rollax.environments import registry
from rollax.errors import UnknownNameError, UsageError
from rollax.populations.evolution import EPISODE_RETURN, EvolutionConfig, Range, num_selected
from rollax.populations.self_play import PoolConfig
from rollax.replay.demonstrations import RunDemonstrations
from rollax.training.options import RunOptions, check_evolve_options
from rollax.training.presets import Preset, load_preset
from rollax.training.run_folder.phases import Phase, best_phase_starts
from rollax.training.value_ranges import (
    check_curriculum,
    parse_curriculum,
    parse_evolve_ranges,
    parse_randomized_ranges,
    parse_sweep_values,
    to_plain_value,
)
from rollax.types import RunPath, SettingValues
from rollax.user_input.coercion import coerce, coerce_dict, format_value
from rollax.user_input.settings_validation import resolve_settings, validate_settings


@dataclasses.dataclass(frozen=True)
class Spec:
    """Complete specification of a run, stored in config.yaml.

    The intervals `updates_per_*` are fixed when the run is created. A resume with other total steps
    does not change them.

    Attributes:
        algorithm: Name of the algorithm.
        environment: Environment id, or name of an environment object.
        arguments: Arguments of the environment, keyed by name.
        config: Settings of the algorithm.
        network: Settings of the network, or `CUSTOM`.
        options: Options of the training loop.
        sweep: Swept values, keyed by setting name.
        eval_arguments: Arguments of the environment that differ in evaluations, keyed by name.
        opponents: Folder of the run with the opponent's policy, keyed by agent type.
        evolve: Range of each evolving setting, keyed by setting name.
        updates_per_line: Updates between metric lines.
        updates_per_evaluation: Updates between evaluations. 0 disables them.
        updates_per_generation: Updates between generations. 0 disables them.
        updates_per_version: Updates between two versions of the policy in the pool of opponents.
            0 disables the pool.
        own_environment: Whether the user passed an environment object, which cannot be made again
            from its name.
        imports: Names of modules that register environments or algorithms of the run. When a run
            folder is read, these modules are imported only with `trust=True` or `--trust`.
        phases: Settings that each resume changed, in chronological order.
        randomize: Range of each environment parameter that training samples in every episode,
            keyed by name. Evaluations use the fixed values.
        curriculum: Values of each environment parameter at equally spaced levels of the curriculum,
            keyed by name. Evaluations use the last values. Callbacks may change those parameters
            that have only one value.
        demonstrations: Demonstrations that the run learns from.
    """

    algorithm: str
    environment: str
    arguments: dict[str, Any]
    config: Any
    network: Any
    options: RunOptions
    sweep: dict[str, tuple[float, ...]] = dataclasses.field(default_factory=dict)
    eval_arguments: dict[str, Any] = dataclasses.field(default_factory=dict)
    opponents: dict[str, str] = dataclasses.field(default_factory=dict)
    evolve: dict[str, Range] = dataclasses.field(default_factory=dict)
    updates_per_line: int = 1
    updates_per_evaluation: int = 0
    updates_per_generation: int = 0
    updates_per_version: int = 0
    own_environment: bool = False
    imports: tuple[str, ...] = ()
    phases: tuple[Phase, ...] = ()
    randomize: dict[str, tuple[float, float]] = dataclasses.field(default_factory=dict)
    demonstrations: RunDemonstrations = RunDemonstrations()
    curriculum: dict[str, tuple[float, ...]] = dataclasses.field(default_factory=dict)

    @property
    def curriculum_values(self) -> Curriculum:
        """Curriculum of the environment parameters."""
        returns = self.options.curriculum_returns
        return Curriculum(self.curriculum, (returns[0], returns[1]) if returns else None)

    @property
    def best_phase_starts(self) -> tuple[int, ...]:
        """Steps at which phases with a separate best checkpoint begin."""
        return best_phase_starts(self.phases)

    @property
    def num_members(self) -> int:
        """Number of members of the population, 1 for a single run."""
        return self.options.seeds * len(self.swept_settings())

    @property
    def total_updates(self) -> int:
        """Number of updates to run: the total steps, rounded up to whole updates."""
        assert self.options.total_steps is not None, "make_spec sets it"
        return -(-self.options.total_steps // self.config.steps_per_update)

    @property
    def derived_settings(self) -> DerivedSettings:
        """Quantities derived from the algorithm's settings, such as the replay capacity."""
        return get_algorithm_entry(self.algorithm).derive_settings(self.config)

    @property
    def acts_in_training(self) -> bool:
        """Whether the algorithm acts in environments to learn, instead of learning from data."""
        return get_algorithm_entry(self.algorithm).unit != "samples"

    @property
    def method(self) -> EvolutionConfig:
        """Settings of population-based training."""
        options = self.options
        num_envs = self.derived_settings.num_envs
        is_return = self.evolve_metric == EPISODE_RETURN
        return EvolutionConfig(
            fraction=options.evolve_fraction,
            resample=options.evolve_resample,
            factor=options.evolve_factor,
            step=options.evolve_step,
            min_episodes=max(num_envs, MIN_EPISODES_PER_MEMBER) if is_return else 1,
        )

    @property
    def pool_config(self) -> PoolConfig:
        """Settings of the pool of opponents."""
        return self.options.make_pool_config(self.updates_per_version)

    @property
    def evolve_metric(self) -> str:
        """Name of the metric that selects members in population-based training."""
        return self.options.evolve_metric or get_algorithm_entry(self.algorithm).evolve_metric

    def is_window_end(self, updates: int) -> bool:
        """Return whether an interval between generations ends after `updates` updates."""
        interval = self.updates_per_generation
        return bool(interval and updates % interval == 0 and 0 < updates < self.total_updates)

    def is_generation_due(self, updates: int) -> bool:
        """Return whether a generation is due after `updates` updates. Never at the end of a run."""
        return (
            self.is_window_end(updates)
            and updates * self.config.steps_per_update >= self.options.evolve_start
        )

    def members(self) -> list[dict[str, float]]:
        """Return the swept values and the seed of each member, ordered by setting, then seed."""
        seeds = range(self.options.seed, self.options.seed + self.options.seeds)
        return [setting | {"seed": seed} for setting in self.swept_settings() for seed in seeds]

    def swept_settings(self) -> list[dict[str, float]]:
        """Return a dictionary from setting name to value for each combination of swept values.

        Without a sweep, the list is `[{}]`.
        """
        combine = zip if self.options.sweep_paired and self.sweep else itertools.product
        return [
            dict(zip(self.sweep, values, strict=True)) for values in combine(*self.sweep.values())
        ]


# A segment contains at least one line, and a stop waits for the end of the segment, so lines are
# short.
MAX_UPDATES_PER_LINE = 10
MAX_FRAMES_PER_LINE = 250  # for the shortest possible updates
# Defaults if neither the caller nor a preset sets a value.
DEFAULT_TOTAL_STEPS = 1_000_000
DEFAULT_NUM_GENERATIONS = 10
DEFAULT_NUM_VERSIONS = 50  # of the policy in the pool of opponents, over the whole run
MAX_MEMBERS = 100_000
# Minimum number of episodes of a member before it is compared. A run with more environments needs
# one episode per environment. Returns of fewer episodes are too noisy.
MIN_EPISODES_PER_MEMBER = 4


def get_algorithm_entry(algorithm: str) -> AlgorithmEntry:
    """Return the registry entry of an algorithm.

    Args:
        algorithm: Name of the algorithm, or its registry entry.

    Raises:
        UnknownNameError: If the name is unknown.
    """
    return find_algorithm(
        algorithm if isinstance(algorithm, AlgorithmEntry) else coerce("algorithm", algorithm, str)
    )[1]


@contextlib.contextmanager
def explain_missing_imports(imports: Sequence[str]) -> Iterator[None]:
    """Return a context manager that adds a remedy to errors about unknown names.

    The remedy names the modules of the run that are not imported. When a run folder is read, its
    modules are imported only with `trust=True` or `--trust`.

    Args:
        imports: Names of modules that register environments or algorithms of the run.

    Raises:
        UsageError: If the block raises `UnknownNameError` and there is a remedy.
    """
    try:
        yield
    except UnknownNameError as error:
        missing = [module for module in imports if module not in sys.modules]
        if missing:
            import_options = " ".join(f"--import {module}" for module in missing)
            raise UsageError(
                f"{error} The run was started with user modules. If you trust them, add "
                f"{import_options}, or --trust for all modules that the folder names."
            ) from None
        if str(error).startswith(("unknown algorithm", "unknown environment")):
            raise UsageError(
                f"{error} Custom environments and algorithms must be registered first, also to "
                "resume a run: see rollax.register and rollax.register_algorithm."
            ) from None
        raise


def make_spec(
    algorithm: str,
    environment: str,
    arguments: SettingValues | None,
    config: Config | SettingValues | None,
    network: DataclassInstance | SettingValues | None,
    options: RunOptions,
    sweep: SettingValues | None,
    eval_arguments: SettingValues | None = None,
    opponents: Mapping[str, RunPath] | None = None,
    evolve: SettingValues | None = None,
    imports: tuple[str, ...] = (),
    randomize: SettingValues | None = None,
    curriculum: SettingValues | None = None,
) -> Spec:
    """Build and check the specification of a new run.

    Args:
        algorithm: Name of the algorithm.
        environment: Environment id, or name of an environment object.
        arguments: Arguments of the environment, which override the preset's arguments, or None.
        config: Complete settings of the algorithm, a dictionary that overrides the preset, or None.
        network: Complete settings of the network, a dictionary that overrides the preset, or None.
        options: Options of the training loop.
        sweep: Swept values, keyed by setting name, or None.
        eval_arguments: Arguments of the environment that differ in evaluations, or None.
        opponents: Folder of the run with the opponent's policy, keyed by agent type, or None.
        evolve: Range of each evolving setting, keyed by setting name, or None.
        imports: Names of modules that register environments or algorithms of the run.
        randomize: Range of each environment parameter that training samples, or None.
        curriculum: Values of each environment parameter that changes during training, or None.

    Returns:
        The specification.

    Raises:
        UsageError: If a name is unknown, a value has the wrong type or is out of range, or sizes
            are not divisible.
    """
    entry, preset = get_algorithm_entry(algorithm), load_preset(algorithm, environment)
    config_settings = resolve_config(entry, preset.config, config)
    network_settings = validate_settings(
        resolve_settings("network", entry.network_config, preset.network, network), "network."
    )
    opponent_runs = {
        agent_type: str(coerce(f"opponents[{agent_type!r}]", folder, str | Path))
        for agent_type, folder in coerce_dict("opponents", opponents).items()
    }
    differing_arguments = coerce_dict("eval_arguments", eval_arguments)
    run_options = _resolve_options(options, preset)
    if not opponent_runs:  # evaluation arguments of a suite assume that all agents learn
        differing_arguments = registry.evaluation_arguments(environment) | differing_arguments
        if run_options.best_metric == RunOptions.best_metric:
            run_options = dataclasses.replace(
                run_options, best_metric=registry.best_metric(environment)
            )
    run_options.check()
    traced = [name for name in traced_field_names(entry.config) if name != "total_updates"]
    sweep_values = parse_sweep_values(sweep, entry.config, traced)
    ranges = parse_evolve_ranges(evolve, entry.config, traced)
    check_population(sweep_values, ranges, run_options)
    check_varied_settings(entry, config_settings, network_settings, sweep_values, ranges)
    # A run may be evaluated and resumed from a different current folder.
    passed_arguments = to_plain_value("arguments", coerce_dict("arguments", arguments))
    spec = Spec(
        algorithm=algorithm,
        environment=environment,
        arguments=registry.resolve_arguments(environment, preset.arguments | passed_arguments),
        config=config_settings,
        network=network_settings,
        options=run_options,
        sweep=sweep_values,
        opponents=opponent_runs,
        evolve=ranges,
        imports=imports,
        randomize=parse_randomized_ranges(randomize),
        curriculum=parse_curriculum(curriculum),
    )
    check_curriculum(spec.curriculum, spec.randomize, run_options)
    spec = with_eval_arguments(spec, differing_arguments)
    check_step_counts(spec)
    _check_learning_starts(spec)
    return _with_intervals(spec)


def resolve_config(
    entry: AlgorithmEntry, tuned: SettingValues, config: Config | SettingValues | None
) -> Config:
    """Return the settings of an algorithm from a preset and the user's argument.

    Args:
        entry: Registry entry of the algorithm.
        tuned: Settings of the preset, or of the run to continue.
        config: Complete settings, a dictionary that overrides `tuned`, or None.

    Raises:
        UsageError: If a name is unknown, or a value has the wrong type or is out of range.
    """
    resolved = validate_settings(resolve_settings("config", entry.config, tuned, config))
    if resolved.total_updates != entry.config.total_updates:
        raise UsageError(
            "total_updates must not be set, because it follows from total_steps. Set --total-steps "
            "instead."
        )
    return resolved


def _resolve_options(options: RunOptions, preset: Preset) -> RunOptions:
    """Return the options with `total_steps`, `eval_stochastic` and `devices` resolved.

    An option that is None gets the value of the preset.
    """
    if options.total_steps is None:
        total_steps = preset.total_steps or DEFAULT_TOTAL_STEPS
        options = dataclasses.replace(options, total_steps=total_steps)
    if options.eval_stochastic is None:
        options = dataclasses.replace(options, eval_stochastic=preset.eval_stochastic)
    return resolve_devices(options)


def check_varied_settings(
    entry: AlgorithmEntry,
    config: Config,
    network: DataclassInstance,
    sweep: Mapping[str, Sequence[float]],
    ranges: Mapping[str, Range],
) -> None:
    """Check that settings are compatible, also with swept values and upper bounds of ranges.

    Args:
        entry: Registry entry of the algorithm.
        config: Settings of the algorithm.
        network: Settings of the network.
        sweep: Swept values, keyed by setting name.
        ranges: Range of each evolving setting, keyed by setting name.

    Raises:
        UsageError: If settings are incompatible.
    """
    highest = {name: span.high for name, span in ranges.items()}
    swept = ({name: value} for name, values in sweep.items() for value in values)
    for changes in ({}, *swept, highest):
        entry.check(dataclasses.replace(cast(Any, config), **changes), network)


def resolve_devices(options: RunOptions) -> RunOptions:
    """Return the options with `devices` as a number.

    "auto", and in a distributed run also 1, is replaced by the number of all devices.

    Args:
        options: Options of the run.
    """
    is_auto = options.devices == "auto" or (processes.num_processes() > 1 and options.devices == 1)
    return dataclasses.replace(options, devices=jax.device_count()) if is_auto else options


def list_changed_settings(spec: Spec, group: str) -> list[str]:
    """Return the names of settings that differ both from the default and from the preset.

    Args:
        spec: Specification of the run.
        group: Group of settings, "config" or "network".
    """
    preset = load_preset(spec.algorithm, spec.environment)
    values, preset_values = {
        "config": (spec.config, preset.config),
        "network": (spec.network, preset.network),
    }[group]
    default = type(values)()
    tuned = resolve_settings(group, type(values), preset_values, None)
    return [
        field.name
        for field in dataclasses.fields(values)
        if getattr(values, field.name)
        not in (getattr(default, field.name), getattr(tuned, field.name))
    ]


def adapt_to_host(spec: Spec) -> Spec:
    """Return the specification adapted to host simulators.

    With host simulators, one update of a replay algorithm is one cycle of acting and learning
    (see `AlgorithmEntry.adapt_to_host`). A metric line then covers more updates, because the
    updates are shorter.

    Args:
        spec: Specification of the run.

    Raises:
        UsageError: If the user passed a setting that has a different, fixed value on the host.
    """
    config = get_algorithm_entry(spec.algorithm).adapt_to_host(spec.config)
    if config is spec.config:
        return spec
    for name in list_changed_settings(spec, "config"):
        given, adapted = getattr(spec.config, name), getattr(config, name)
        if given != adapted:
            raise UsageError(
                f"config.{name} must be {adapted} for {spec.algorithm} in {spec.environment}, got "
                f"{given}, because an update on simulators is one cycle of acting and learning. "
                "Remove it. log_lines changes how often metrics are written."
            )
    return _with_intervals(
        dataclasses.replace(spec, config=config),
        -(-MAX_FRAMES_PER_LINE // config.steps_per_update),
    )


def _with_intervals(spec: Spec, longest_line: int = 1) -> Spec:
    """Set the numbers of updates per metric line, per evaluation and per generation.

    A metric line has at most `MAX_UPDATES_PER_LINE` updates, or `longest_line` if it is larger.
    """
    per_line = min(
        max(1, spec.total_updates // spec.options.log_lines),
        max(MAX_UPDATES_PER_LINE, longest_line),
    )
    per_evaluation = 0
    if spec.options.eval_count:
        lines = max(1, round(spec.total_updates / spec.options.eval_count / per_line))
        per_evaluation = lines * per_line
    per_generation = _updates_per_generation(spec, per_line) if spec.evolve else 0
    spec = dataclasses.replace(
        spec,
        updates_per_version=_updates_per_version(spec),
        updates_per_line=per_line,
        updates_per_evaluation=per_evaluation,
        updates_per_generation=per_generation,
    )
    _check_generations(spec)
    return spec


def check_step_counts(spec: Spec) -> None:
    """Check that the device can count updates, frames and gradient steps as int32.

    Args:
        spec: Specification of the run.

    Raises:
        UsageError: If a count is too large.
    """
    frames, derived = spec.config.steps_per_update, spec.derived_settings
    if frames > MAX_INT32:
        sizes = ", ".join(f"{name} ({size})" for name, size in derived.sizes.items())
        raise UsageError(
            f"The frames per update must be at most {MAX_INT32}, got {frames}. Lower a size in "
            f"config{f': {sizes}' if sizes else ''}."
        )
    if derived.gradient_steps > MAX_INT32:
        raise UsageError(
            f"The gradient steps per update must be at most {MAX_INT32}, got "
            f"{derived.gradient_steps:.3g} for an update of {frames} frames. Lower replay_ratio."
        )
    if spec.total_updates > MAX_INT32:
        raise UsageError(
            f"total_steps must be at most {MAX_INT32 * frames}, which is {MAX_INT32} updates of "
            f"{frames} frames, got {spec.options.total_steps}. Lower it."
        )


def _check_learning_starts(spec: Spec) -> None:
    """Raise UsageError if the run ends before learning starts, for any swept value."""
    total = spec.options.total_steps or 0
    for name, frames in spec.derived_settings.learning_starts.items():
        longest = max(spec.sweep.get(name, (frames,)))
        if longest >= total and longest > 0:
            raise UsageError(
                f"{name} ({longest:g}) must be smaller than total_steps ({total}), because "
                f"learning starts after it. Raise total_steps or set config.{name} to "
                f"{total // 10}."
            )


def with_eval_arguments(spec: Spec, eval_arguments: SettingValues) -> Spec:
    """Return the specification with additional or replaced evaluation arguments.

    Args:
        spec: Specification of the run.
        eval_arguments: Arguments of the environment that differ in evaluations.

    Returns:
        The specification.

    Raises:
        UsageError: If the run has opponents, or the arguments do not fit the environment.
    """
    if eval_arguments and spec.opponents:
        raise UsageError(
            f"eval_arguments ({eval_arguments}) and opponents ({spec.opponents}) cannot be "
            "combined. Remove one of them."
        )
    resolved = spec.eval_arguments | registry.resolve_arguments(
        spec.environment, to_plain_value("eval_arguments", eval_arguments)
    )
    registry.check_evaluation(spec.environment, spec.arguments, resolved)
    return dataclasses.replace(spec, eval_arguments=resolved)


def check_population(
    sweep: dict[str, tuple[float, ...]], ranges: dict[str, Range], options: RunOptions
) -> None:
    """Check the size of a population and the combination of sweep, evolution and options.

    Args:
        sweep: Swept values, keyed by setting name.
        ranges: Range of each evolving setting, keyed by setting name.
        options: Options of the run.

    Raises:
        UsageError: If the settings of a paired sweep have different numbers of values, or the
            population is too large or too small. Also if a sweep is combined with evolution, or
            an evolution option has no effect.
    """
    lengths = {name: len(values) for name, values in sweep.items()}
    if options.sweep_paired and len(set(lengths.values())) != 1:
        counts = ", ".join(f"{number} of {name}" for name, number in lengths.items()) or "none"
        raise UsageError(
            "sweep_paired must have the same number of values for every setting in the sweep, got "
            f"{counts}. Add or remove values."
        )
    number = options.seeds * (
        max(lengths.values(), default=1) if options.sweep_paired else math.prod(lengths.values())
    )
    if number > MAX_MEMBERS:
        raise UsageError(
            f"a population must have at most {MAX_MEMBERS:,} members, got {format_value(number)} "
            "members. Give fewer values or seeds."
        )
    check_evolve_options(options, ranges)
    if ranges and sweep:
        raise UsageError(
            f"a sweep ({', '.join(sweep)}) and evolve ({', '.join(ranges)}) cannot be combined. "
            "Remove one of them."
        )
    if ranges and num_selected(options.seeds, options.evolve_fraction) < 1:
        raise UsageError(
            f"a population of {options.seeds} cannot evolve. Set --seeds to 2 or more, such as 16."
        )


def _updates_per_generation(spec: Spec, per_line: int) -> int:
    """Return the number of updates between generations, a multiple of `per_line`, or 0."""
    frames = spec.options.evolve_every
    if frames == 0:
        return 0
    updates = (
        spec.total_updates / DEFAULT_NUM_GENERATIONS
        if frames is None
        else frames / spec.config.steps_per_update
    )
    return max(1, round(updates / per_line)) * per_line


def _updates_per_version(spec: Spec) -> int:
    """Return the updates between two versions in the pool of opponents, or 0 without a pool."""
    if not spec.options.opponent_pool:
        return 0
    frames = spec.options.opponent_pool_every
    updates = (
        spec.total_updates / DEFAULT_NUM_VERSIONS
        if frames is None
        else frames / spec.config.steps_per_update
    )
    if frames is not None and updates >= spec.total_updates:
        total = spec.total_updates * spec.config.steps_per_update
        raise UsageError(
            f"opponent_pool_every ({frames:,}) must be less than the {total:,} steps of the run, "
            "so that a version is added to the pool. Lower it, or raise total_steps."
        )
    return max(1, round(updates))


def _check_generations(spec: Spec) -> None:
    """Raise UsageError if the first generation would be at or after the end of the run."""
    if not spec.updates_per_generation:
        return
    options, steps_per_update = spec.options, spec.config.steps_per_update
    interval = spec.updates_per_generation * steps_per_update
    first = max(1, math.ceil(options.evolve_start / interval)) * interval
    total = spec.total_updates * steps_per_update
    if first >= total:
        passed_interval = (
            "" if options.evolve_every is None else f" and evolve_every {options.evolve_every:,}"
        )
        raise UsageError(
            f"With evolve_start {options.evolve_start:,}{passed_interval}, the first generation "
            f"would be at step {first:,}, but the run ends at {total:,}. Lower them, raise "
            "total_steps, or set evolve_every to 0 to disable generations."
        )
