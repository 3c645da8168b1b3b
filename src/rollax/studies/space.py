"""The search space of a study: which settings trials differ in, and which values these may have."""

import dataclasses
import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, get_args, get_origin

from rollax import environments
from rollax.algorithms import AlgorithmEntry
from rollax.config import check_range, traced_fields
from rollax.environments.registry import runs_on_host
from rollax.errors import UnknownNameError, UsageError
from rollax.populations.evolution import Range
from rollax.replay.config import ReplayConfig
from rollax.typed import hints, names, shown, typed

Settings = dict[str, Any]  # by full name, such as config.learning_rate, network.hidden or env.gravity
MOST_SETTINGS = 100_000  # of a grid


@dataclasses.dataclass(frozen=True)
class Dimension:
    """A setting of the search space: choices among values, or a range."""

    name: str  # in full
    choices: tuple[Any, ...] = ()
    span: Range | None = None
    is_whole: bool = False  # a range of whole numbers
    is_traced: bool = False  # data of the program: trials that differ in such settings alone train in one program
    when: Mapping[str, tuple[Any, ...]] = dataclasses.field(default_factory=dict)  # by full name: values that it applies with

    def applies(self, settings: Settings) -> bool:
        """Whether trials that have these settings so far have this one too."""
        return all(name in settings and settings[name] in values for name, values in self.when.items())

    @property
    def labels(self) -> dict[Any, Any]:
        """The choices by what stands for each in a storage, which keeps texts and numbers only."""
        return {label(value): value for value in self.choices}


class Space(tuple[Dimension, ...]):
    """Dimensions in an order in which every one comes after those that it depends on."""

    @property
    def is_finite(self) -> bool:
        return all(dimension.span is None for dimension in self)

    def ask(self, trial: Any) -> Settings:
        """The settings of a trial, from an `optuna.Trial`."""
        settings: Settings = {}
        for one in self:
            if not one.applies(settings):
                continue
            if one.span is None:
                settings[one.name] = one.labels[trial.suggest_categorical(one.name, list(one.labels))]
            elif one.is_whole:
                settings[one.name] = trial.suggest_int(one.name, int(one.span.low), int(one.span.high), log=_is_log(one.span))
            else:
                settings[one.name] = trial.suggest_float(one.name, one.span.low, one.span.high, log=_is_log(one.span))
        return settings

    def most_steps(self, config: Any, total_steps: int) -> int:
        """The most steps that a run with this config takes, over all sizes in the space: whole updates, rounded up."""
        of = lambda sizes: dataclasses.replace(config, **sizes).steps_per_update  # noqa: E731
        sizes: dict[str, set[Any]] = {}
        has_range = False
        for one in self:
            group, _, name = one.name.partition(".")
            if group != "config":
                continue
            ends = () if one.span is None else (one.span.low, one.span.high)
            values = {*one.choices, *(map(int, ends) if one.is_whole else ends)}
            if {of({name: value}) for value in values} != {of({})}:
                sizes[name] = values | ({getattr(config, name)} if one.when else set())
                has_range |= bool(ends)
        frames = {of(dict(zip(sizes, values, strict=True))) for values in itertools.product(*sizes.values())}
        # Within a range there may be one for which it is all but an update more.
        return total_steps + max(frames) - 1 if has_range else max(-(-total_steps // number) * number for number in frames)

    def grid(self) -> list[dict[str, Any]]:
        """Every combination of choices, as what stands for them in a storage. Raises UsageError for too many."""
        assert self.is_finite
        found = list(itertools.islice(self._combinations(0, {}), MOST_SETTINGS + 1))
        if len(found) > MOST_SETTINGS:
            raise UsageError(f"the grid has more than {MOST_SETTINGS:,} settings: give fewer values, or --method random")
        # What trains in one program lies together. Sorting keeps the order of all else.
        static = [one.name for one in self if not one.is_traced]
        places: dict[str, int] = {}
        of = lambda settings: json.dumps([settings.get(name) for name in static])  # noqa: E731
        return sorted(found, key=lambda settings: places.setdefault(of(settings), len(places)))

    def _combinations(self, index: int, settings: Settings) -> Iterator[dict[str, Any]]:
        if index == len(self):
            yield {name: label(value) for name, value in settings.items()}
            return
        one = self[index]
        values: Sequence[Settings] = [{one.name: value} for value in one.choices] if one.applies(settings) else [{}]
        for value in values:
            yield from self._combinations(index + 1, settings | value)


def label(value: Any) -> Any:
    """What stands for a value in a storage."""
    return value if isinstance(value, bool | int | float | str | None) else json.dumps(value)


def space(
    kinds: AlgorithmEntry, environment: str, sweep: Mapping[str, Any], ranges: Mapping[str, Any], when: Mapping[str, Any]
) -> Space:
    """The space of `sweep`, values by name, and `ranges`, `(low, high[, log | linear])` by name.

    `when`: by name the other settings and their values, one or several, with which a setting applies. Names are those of
    `rollax train`: `learning_rate`, `config.gamma`, `network.hidden` or `hidden`, `env.gravity`.

    Raises UsageError for what a setting cannot be, UnknownNameError for a name that none has.
    """
    found: dict[str, Dimension] = {}
    for name, values in names("sweep", sweep).items():
        one = _choices(kinds, environment, name, values)
        found[one.name] = one
    for name, ends in names("range", ranges).items():
        one = _range(kinds, environment, name, ends)
        if one.name in found:
            raise UsageError(f"{one.name} has both values and a range: leave one of them out")
        found[one.name] = one
    if "config.num_steps" in found and issubclass(kinds.config, ReplayConfig) and runs_on_host(environment):
        raise UsageError(
            f"num_steps has no effect in {environment}, where an update of what learns from replay is one cycle of acting and "
            "learning: leave it out of the study"
        )
    if not found:
        raise UsageError("a study needs settings to compare: --sweep.NAME VALUES, or --range.NAME LOW HIGH [log]")
    for name, conditions in names("when", when).items():
        full = _full(kinds, environment, name)
        if full not in found:
            raise UsageError(
                f"when.{name}: there are no values of {full} to choose from: give --sweep.{name} or --range.{name}"
            )
        found[full] = dataclasses.replace(found[full], when=_conditions(kinds, environment, found, name, conditions))
    return Space(_ordered(found))


def _full(kinds: AlgorithmEntry, environment: str, name: str) -> str:
    """The full name of a setting. Raises UsageError where several have it, UnknownNameError where none has."""
    config, network = hints(kinds.config), hints(kinds.network_config)
    groups = {"config.": config, "network.": network, "env.": environments.arguments(environment)}
    full = [prefix + known for prefix, known_names in groups.items() for known in known_names]
    full.remove("config.total_updates")
    if name in full:
        return name
    places = [each for each in full if each.partition(".")[2] == name]
    if not places:
        raise UnknownNameError("setting", name, [each.removeprefix("config.") for each in full])
    if len(places) > 1:
        raise UsageError(f"{name} may be {' or '.join(places)}: write one of them")
    return places[0]


def words(kinds: AlgorithmEntry, environment: str, name: str) -> tuple[str, ...]:
    """The words that a setting may be, such as none, which is no text elsewhere; () of one that is no word.

    Raises UsageError, or UnknownNameError, for a name that is not that of a single setting.
    """
    hint = _field(kinds, _full(kinds, environment, name))[1]
    return get_args(hint) if get_origin(hint) is Literal else ()


def _field(kinds: AlgorithmEntry, full: str) -> tuple[dataclasses.Field[Any] | None, Any]:
    """The field of a setting and its type; None and any type for an argument of the environment."""
    group, _, name = full.partition(".")
    if group == "env":
        return None, Any
    kind = kinds.config if group == "config" else kinds.network_config
    return next(field for field in dataclasses.fields(kind) if field.name == name), hints(kind)[name]


def _choices(kinds: AlgorithmEntry, environment: str, name: str, given: Any) -> Dimension:
    full = _full(kinds, environment, name)
    field, hint = _field(kinds, full)
    values = [given] if isinstance(given, str | Mapping) or not isinstance(given, Sequence) else list(given)
    if not values:
        raise UsageError(f"a sweep over {name} needs values")
    values = [typed(f"a value of {name}", value, hint) for value in values]
    for value in values:
        if field is not None:
            check_range(full, value, field)
    if len({label(value) for value in values}) < len(values):
        raise UsageError(f"a sweep over {name} has a value twice: leave one out")
    return Dimension(full, tuple(values), is_traced=_is_traced(kinds, full))


def _range(kinds: AlgorithmEntry, environment: str, name: str, given: Any) -> Dimension:
    full = _full(kinds, environment, name)
    field, hint = _field(kinds, full)
    try:
        scale: list[Any]
        low, high, *scale = list(() if isinstance(given, str | Mapping) else given)
        low, high = float(low), float(high)
        span = Range(low, high, *(scale or ["log" if low > 0 and high >= 100 * low else "linear"]))
    except (TypeError, ValueError, OverflowError):
        raise UsageError(f"range {name} takes its ends, and log or linear if you like, not {shown(given)}") from None
    if span.scale not in ("log", "linear"):
        raise UsageError(f"the scale of the range of {name} ({shown(span.scale)}) must be log or linear")
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise UsageError(f"the range of {name} ({low:g} to {high:g}) must be finite, its lower end first")
    if span.scale == "log" and low <= 0:
        raise UsageError(f"the range of {name} begins at {low:g}: a log range needs more than 0, else make it linear")
    if hint not in (int, float, Any):
        raise UsageError(f"{full} is no number: give values to choose from, --sweep.{name} VALUE VALUE")
    for end in (low, high):
        if field is not None:
            check_range(full, typed(f"an end of the range of {name}", end, hint), field)
    is_whole = hint is int or (hint is Any and _is_count(environment, full) and low.is_integer() and high.is_integer())
    return Dimension(full, (), span, is_whole, _is_traced(kinds, full))


def _is_count(environment: str, full: str) -> bool:
    """Whether an argument of the environment has a whole number as its default."""
    return type(environments.arguments(environment)[full.partition(".")[2]]) is int


def _is_traced(kinds: AlgorithmEntry, full: str) -> bool:
    return full.partition(".")[0] == "config" and full.partition(".")[2] in traced_fields(kinds.config)


def _is_log(span: Range) -> bool:
    return span.scale == "log"


def _conditions(
    kinds: AlgorithmEntry, environment: str, known: Mapping[str, Dimension], name: str, given: Any
) -> dict[str, tuple[Any, ...]]:
    conditions = {}
    for other, values in names(f"when.{name}", given).items():
        full = _full(kinds, environment, other)
        if full not in known or known[full].span is not None:
            raise UsageError(f"when.{name}: {full} must be a setting that the study has values of: --sweep.{other} VALUES")
        labels = known[full].labels  # by which a list is the tuple that the setting has
        is_one = label(values) in labels or not isinstance(values, list | tuple)
        accepted = [values] if is_one else list(values)
        strange = [value for value in accepted if label(value) not in labels]
        if strange or not accepted:
            listed = ", ".join(str(value) for value in known[full].choices)
            raise UsageError(f"when.{name}: {full} is never {shown(strange[0]) if strange else 'any of none'}: it is {listed}")
        conditions[full] = tuple(labels[label(value)] for value in accepted)
    return conditions


def _ordered(found: dict[str, Dimension]) -> list[Dimension]:
    """Every dimension after those that it depends on. Raises UsageError where conditions go round in a circle."""
    left, ordered = dict(found), []
    while left:
        free = [one for one in left.values() if not set(one.when) & set(left)]
        if not free:
            raise UsageError(f"the conditions of {' and '.join(left)} go round in a circle: leave one out")
        ordered += free
        left = {name: one for name, one in left.items() if one not in free}
    return ordered
