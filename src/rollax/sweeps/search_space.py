"""Search space of a study: the settings that differ between trials, and their values."""

import dataclasses
import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast, get_args, get_origin

from rollax import environments
from rollax.algorithm import Config
from rollax.algorithms.registry import AlgorithmEntry
from rollax.config import traced_field_names
from rollax.environments.registry import has_host_suite
from rollax.errors import UsageError
from rollax.populations.evolution import Range
from rollax.replay.replay_config import ReplayConfig
from rollax.synonyms.lookup import UnknownSettingError
from rollax.training.value_ranges import parse_range
from rollax.types import SettingValues
from rollax.user_input.coercion import coerce, coerce_dict, field_types, format_value
from rollax.user_input.settings_validation import check_range

if TYPE_CHECKING:
    import optuna

# Values of settings, keyed by full name: config.learning_rate, network.hidden, env.gravity, ...
Settings = dict[str, Any]
StorageLabel = bool | int | float | str | None  # value that Optuna can store
# A positive range has a log scale by default if high / low is at least this ratio.
MIN_LOG_RATIO = 100.0
MAX_GRID_SIZE = 100_000


@dataclasses.dataclass(frozen=True)
class Dimension:
    """Setting of a search space, with a list of values or a range.

    Attributes:
        name: Full name, such as `config.learning_rate`.
        choices: Values, or empty for a range.
        value_range: Range, or None.
        is_whole: Whether the range contains only integers.
        is_traced: Whether the setting is traced. Trials that differ only in traced settings
            train in one program.
        when: Accepted values of other settings, keyed by their full name. The setting is inactive
            unless all of these conditions hold.
    """

    name: str
    choices: tuple[Any, ...] = ()
    value_range: Range | None = None
    is_whole: bool = False
    is_traced: bool = False
    when: Mapping[str, tuple[Any, ...]] = dataclasses.field(default_factory=dict)

    def is_active(self, settings: Settings) -> bool:
        """Return whether the settings chosen so far fulfill all conditions in `when`."""
        return all(
            name in settings and settings[name] in values for name, values in self.when.items()
        )

    def has_value(self, value: object) -> bool:
        """Return whether this dimension contains a value that was read from JSON."""
        if self.value_range is None:
            return json.dumps(value) in {json.dumps(choice) for choice in self.choices}
        return (
            isinstance(value, int | float)
            and self.value_range.low <= value <= self.value_range.high
        )

    @property
    def extreme_values(self) -> tuple[Any, ...]:
        """All choices, or the lowest and highest value of the range."""
        if self.value_range is None:
            return self.choices
        ends = self.value_range.low, self.value_range.high
        return tuple(map(int, ends)) if self.is_whole else ends

    @property
    def labels(self) -> dict[StorageLabel, Any]:
        """Choices, keyed by the value that represents them in the trial storage of Optuna."""
        return {to_storage_label(value): value for value in self.choices}


class SearchSpace(tuple[Dimension, ...]):
    """Tuple of the dimensions of a study. A dimension follows all dimensions it depends on."""

    @property
    def is_finite(self) -> bool:
        """Whether every dimension is a list of choices, so that a grid can contain all points."""
        return all(dimension.value_range is None for dimension in self)

    def ask(self, trial: "optuna.Trial") -> Settings:
        """Sample the settings of a trial with Optuna.

        Args:
            trial: The `optuna.Trial` that suggests values.

        Returns:
            The active settings, keyed by full name.
        """
        settings: Settings = {}
        for dimension in self:
            if not dimension.is_active(settings):
                continue
            name, span = dimension.name, dimension.value_range
            if span is None:
                labels = dimension.labels
                settings[name] = labels[trial.suggest_categorical(name, list(labels))]
                continue
            is_log = span.scale == "log"
            if dimension.is_whole:
                settings[name] = trial.suggest_int(name, int(span.low), int(span.high), log=is_log)
            else:
                settings[name] = trial.suggest_float(name, span.low, span.high, log=is_log)
        return settings

    def max_total_steps(self, config: Config, total_steps: int) -> int:
        """Return the maximum number of steps of a run over all settings in the space.

        Settings such as `num_envs` change the number of steps per update.

        Args:
            config: Base settings of the algorithm.
            total_steps: Requested steps. Runs round them up to whole updates.

        Returns:
            The maximum number of steps.
        """

        def steps_per_update(sizes: Settings) -> int:
            return dataclasses.replace(cast(Any, config), **sizes).steps_per_update

        sizes: dict[str, set[Any]] = {}
        has_range = False
        for dimension in self:
            group, _, name = dimension.name.partition(".")
            if group != "config":
                continue
            values = set(dimension.extreme_values)
            if {steps_per_update({name: value}) for value in values} != {steps_per_update({})}:
                sizes[name] = values | ({vars(config)[name]} if dimension.when else set())
                has_range |= dimension.value_range is not None
        frames = {
            steps_per_update(dict(zip(sizes, values, strict=True)))
            for values in itertools.product(*sizes.values())
        }
        # The worst size within a range adds up to one update less one step.
        if has_range:
            return total_steps + max(frames) - 1
        return max(-(-total_steps // number) * number for number in frames)

    def grid(self) -> list[dict[str, StorageLabel]]:
        """Return all combinations of choices. Values are storage labels (see `to_storage_label`).

        Combinations that train in one program are adjacent.

        Raises:
            UsageError: If there are more than `MAX_GRID_SIZE` combinations.
        """
        assert self.is_finite
        combinations = list(itertools.islice(self._iterate_combinations(0, {}), MAX_GRID_SIZE + 1))
        if len(combinations) > MAX_GRID_SIZE:
            raise UsageError(
                f"The grid must have at most {MAX_GRID_SIZE:,} combinations. "
                "Use fewer values or --method random."
            )
        # Keep the trials of one program together.
        static = [dimension.name for dimension in self if not dimension.is_traced]
        groups: dict[str, list[dict[str, StorageLabel]]] = {}
        for settings in combinations:
            program = json.dumps([settings.get(name) for name in static])
            groups.setdefault(program, []).append(settings)
        return list(itertools.chain(*groups.values()))

    def _iterate_combinations(
        self, index: int, settings: Settings
    ) -> Iterator[dict[str, StorageLabel]]:
        if index == len(self):
            yield {name: to_storage_label(value) for name, value in settings.items()}
            return
        dimension = self[index]
        if not dimension.is_active(settings):
            yield from self._iterate_combinations(index + 1, settings)
            return
        for value in dimension.choices:
            yield from self._iterate_combinations(index + 1, settings | {dimension.name: value})


def to_storage_label(value: object) -> StorageLabel:
    """Return the representation of a value in Optuna: the value, or JSON text for other types."""
    return value if isinstance(value, bool | int | float | str | None) else json.dumps(value)


def make_search_space(
    entry: AlgorithmEntry,
    environment: str,
    sweep: SettingValues,
    ranges: SettingValues,
    when: SettingValues,
) -> SearchSpace:
    """Build the search space of a study.

    Names are those of `rollax train`: `learning_rate`, `config.gamma`, `network.hidden` or
    `hidden`, `env.gravity`.

    Args:
        entry: Entry of the algorithm.
        environment: Id of the environment.
        sweep: Values of each setting, keyed by setting name.
        ranges: Ranges `(low, high)` or `(low, high, "log" or "linear")`, keyed by setting name.
        when: Conditions, keyed by setting name. A condition maps names of other settings to one or
            more accepted values.

    Returns:
        The search space.

    Raises:
        UsageError: If a value, range or condition is invalid.
        UnknownSettingError: If a setting does not exist.
    """
    dimensions: dict[str, Dimension] = {}
    for name, values in coerce_dict("sweep", sweep).items():
        dimension = _parse_choices(entry, environment, name, values)
        dimensions[dimension.name] = dimension
    for name, ends in coerce_dict("range", ranges).items():
        dimension = _parse_dimension_range(entry, environment, name, ends)
        if dimension.name in dimensions:
            raise UsageError(f"{dimension.name} has both values and a range. Remove one of them.")
        dimensions[dimension.name] = dimension
    if (
        "config.num_steps" in dimensions
        and issubclass(entry.config, ReplayConfig)
        and has_host_suite(environment)
    ):
        raise UsageError(
            f"num_steps has no effect in {environment}, because one update of a replay algorithm "
            "with host simulators is one cycle of acting and learning. Remove it from the study."
        )
    if not dimensions:
        raise UsageError(
            "A study needs settings to compare. "
            "Add --sweep.NAME VALUES or --range.NAME LOW HIGH [log]."
        )
    for name, conditions in coerce_dict("when", when).items():
        full_name = _full_name(entry, environment, name)
        if full_name not in dimensions:
            raise UsageError(
                f"when.{name} needs values or a range of {full_name}. "
                f"Add --sweep.{name} or --range.{name}."
            )
        when_values = _parse_conditions(entry, environment, dimensions, name, conditions)
        dimensions[full_name] = dataclasses.replace(dimensions[full_name], when=when_values)
    return SearchSpace(_sort_by_dependency(dimensions))


def _full_name(entry: AlgorithmEntry, environment: str, name: str) -> str:
    """Return the full name of a setting, or raise an error if it is ambiguous or unknown."""
    config, network = field_types(entry.config), field_types(entry.network_config)
    groups = {
        "config.": config,
        "network.": network,
        "env.": environments.default_arguments(environment),
    }
    full_names = [
        prefix + setting_name
        for prefix, known_names in groups.items()
        for setting_name in known_names
    ]
    full_names.remove("config.total_updates")
    if name in full_names:
        return name
    matching = [full_name for full_name in full_names if full_name.partition(".")[2] == name]
    if not matching:
        setting_name = [full_name.removeprefix("config.") for full_name in full_names]
        raise UnknownSettingError("setting", name, setting_name)
    if len(matching) > 1:
        raise UsageError(f"{name} is ambiguous. Write {' or '.join(matching)}.")
    return matching[0]


def literal_values(entry: AlgorithmEntry, environment: str, name: str) -> tuple[str, ...]:
    """Return the allowed strings of a setting with a `Literal` type, otherwise an empty tuple.

    Args:
        entry: Entry of the algorithm.
        environment: Id of the environment.
        name: Name of the setting.

    Returns:
        The strings. For such settings, "none" is a string and not the value None.

    Raises:
        UsageError: If the name is ambiguous.
        UnknownSettingError: If the setting does not exist.
    """
    hint = _find_field(entry, _full_name(entry, environment, name)).hint
    return get_args(hint) if get_origin(hint) is Literal else ()


class _SettingField(NamedTuple):
    """Declaration of a setting.

    Attributes:
        field: Field of the settings class, or None for an argument of the environment.
        hint: Type of the field, or `Any`.
    """

    field: dataclasses.Field[Any] | None
    hint: Any


def _find_field(entry: AlgorithmEntry, full_name: str) -> _SettingField:
    """Return the declaration of a setting."""
    group, _, name = full_name.partition(".")
    if group == "env":
        return _SettingField(None, Any)
    settings_class = entry.config if group == "config" else entry.network_config
    field = next(field for field in dataclasses.fields(settings_class) if field.name == name)
    return _SettingField(field, field_types(settings_class)[name])


def _parse_choices(
    entry: AlgorithmEntry, environment: str, name: str, choices: object
) -> Dimension:
    """Return the dimension of a setting with a list of values, or raise UsageError."""
    full_name = _full_name(entry, environment, name)
    field, hint = _find_field(entry, full_name)
    is_single = isinstance(choices, str | Mapping) or not isinstance(choices, Sequence)
    unconverted = [choices] if is_single else list(cast(Sequence[Any], choices))
    if not unconverted:
        raise UsageError(f"sweep over {name} must have at least one value.")
    values = [coerce(f"a value of {name}", value, hint) for value in unconverted]
    for value in values:
        if field is not None:
            check_range(full_name, value, field)
    if len({to_storage_label(value) for value in values}) < len(values):
        raise UsageError(f"sweep over {name} has a duplicate value. Remove one of them.")
    return Dimension(full_name, tuple(values), is_traced=_is_traced(entry, full_name))


def _parse_dimension_range(
    entry: AlgorithmEntry, environment: str, name: str, value: object
) -> Dimension:
    """Return the dimension of a setting with a range, or raise UsageError."""
    full_name = _full_name(entry, environment, name)
    field, hint = _find_field(entry, full_name)
    span = parse_range(value, MIN_LOG_RATIO)
    if span is None:
        raise UsageError(
            f"range of {name} must be two ends and optionally log or linear, "
            f"got {format_value(value)}."
        )
    low, high = span.low, span.high
    if span.scale not in ("log", "linear"):
        raise UsageError(
            f"The scale of the range of {name} must be log or linear, "
            f"got {format_value(span.scale)}."
        )
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise UsageError(
            f"The range of {name} must be finite with the lower end first, got {low:g} to {high:g}."
        )
    if span.scale == "log" and low <= 0:
        raise UsageError(
            f"The lower end of the log range of {name} must be more than 0, got {low:g}. "
            "Raise it, or make the range linear."
        )
    if hint not in (int, float, Any):
        raise UsageError(
            f"{full_name} is not a number. Give values instead of a range: --sweep.{name} VALUE "
            "VALUE."
        )
    for end in (low, high):
        if field is not None:
            check_range(full_name, coerce(f"an end of the range of {name}", end, hint), field)
    is_whole = hint is int or (
        hint is Any
        and type(environments.default_arguments(environment)[full_name.partition(".")[2]]) is int
        and low.is_integer()
        and high.is_integer()
    )
    return Dimension(
        full_name, value_range=span, is_whole=is_whole, is_traced=_is_traced(entry, full_name)
    )


def _is_traced(entry: AlgorithmEntry, full_name: str) -> bool:
    return full_name.partition(".")[0] == "config" and full_name.partition(".")[
        2
    ] in traced_field_names(entry.config)


def _parse_conditions(
    entry: AlgorithmEntry,
    environment: str,
    dimensions: Mapping[str, Dimension],
    name: str,
    conditions: object,
) -> dict[str, tuple[Any, ...]]:
    """Return the accepted values of other settings, keyed by full name, or raise UsageError."""
    accepted_values = {}
    for other, values in coerce_dict(f"when.{name}", conditions).items():
        full_name = _full_name(entry, environment, other)
        if full_name not in dimensions or dimensions[full_name].value_range is not None:
            raise UsageError(
                f"when.{name} needs values of {full_name}. Add --sweep.{other} VALUES."
            )
        labels = dimensions[full_name].labels  # maps a list to the tuple of the setting
        is_single = to_storage_label(values) in labels or not isinstance(values, list | tuple)
        accepted = [values] if is_single else list(values)
        unknown = [value for value in accepted if to_storage_label(value) not in labels]
        if unknown or not accepted:
            listed = ", ".join(str(value) for value in dimensions[full_name].choices)
            raise UsageError(
                f"when.{name} must use values of {full_name} ({listed}), "
                f"got {format_value(unknown[0]) if unknown else 'no values'}."
            )
        accepted_values[full_name] = tuple(labels[to_storage_label(value)] for value in accepted)
    return accepted_values


def _sort_by_dependency(dimensions: dict[str, Dimension]) -> list[Dimension]:
    """Order dimensions so that each follows all dimensions it depends on.

    Raises:
        UsageError: If dependencies are cyclic.
    """
    remaining, ordered = dict(dimensions), []
    while remaining:
        independent = [
            dimension
            for dimension in remaining.values()
            if not set(dimension.when) & set(remaining)
        ]
        if not independent:
            raise UsageError(
                f"The conditions of {' and '.join(remaining)} form a cycle. Remove one of them."
            )
        ordered += independent
        remaining = {
            name: dimension for name, dimension in remaining.items() if dimension not in independent
        }
    return ordered
