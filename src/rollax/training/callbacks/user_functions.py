"""User functions that a run calls: `metrics` during an evaluation, and `stop_when` after it."""

import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any

import jax
import numpy as np

from rollax.acting.evaluation import Episodes
from rollax.errors import UsageError, describe_error
from rollax.synonyms.lookup import UnknownSettingError
from rollax.training.result import Evaluated, StopWhenFn
from rollax.training.spec import Spec
from rollax.types import MetricValues
from rollax.user_input.coercion import format_value

MetricsFn = Callable[[Episodes], Mapping[str, Any]]

MAX_NAME_LENGTH = 100
# Type of the argument of each function.
ARGUMENT_TYPES = {
    "metrics": "rollax.Episodes",
    "stop_when": "rollax.Evaluated",
}
# Names that metrics.jsonl, tables and figures already use.
RESERVED_NAMES = (
    *(
        "step",
        "event",
        "updates",
        "wall_time",
        "steps_per_second",
        "episodes",
        "return_members",
        "metrics",
    ),
    *("run", "member", "episode", "return", "length", "terminated", "truncated", "descriptor"),
    *("status", "steps", "best", "best_step", "any_nan"),
    *("loss", "episode_return", "episode_length"),
)
RESERVED_PREFIXES = ("info/", "episode_info/", "return/", "state_metrics/", "descriptor/")


def check_user_functions(**values: object) -> None:
    """Check that each value is None or a function of one argument.

    Args:
        **values: User functions, keyed by the name of the public parameter (`metrics`,
            `stop_when`).

    Raises:
        UsageError: If a value is neither.
    """
    for name, value in values.items():
        if value is None:
            continue
        if not callable(value):
            or_condition = ", a condition," if name == "stop_when" else ""
            raise UsageError(
                f"{name} must be a function{or_condition} or None, got {format_value(value)}."
            )
        check_takes_one_argument(name, value, ARGUMENT_TYPES[name])


def check_takes_one_argument(name: str, function: Callable[..., object], argument: str) -> None:
    """Check that a function can be called with one argument.

    Args:
        name: Name of the function in the error message.
        function: Function to check.
        argument: Name of the argument's type, for the error message.

    Raises:
        UsageError: If the function cannot be called with one positional argument.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # built-in functions may have no signature
        return
    try:
        signature.bind(None)
    except TypeError:
        raise UsageError(
            f"{name} must be a function of one argument ({argument}), got "
            f"{function_name(function)}{signature}. Change its parameters."
        ) from None


def should_stop(stop_when: StopWhenFn, evaluated: Evaluated) -> bool:
    """Return whether `stop_when` requests an early stop after an evaluation.

    Raises:
        UsageError: If the function raises, or returns anything other than True or False.
    """
    name = function_name(stop_when)
    try:
        result = stop_when(evaluated)
    except Exception as error:
        key = error.args[0] if isinstance(error, KeyError) and error.args else None
        if isinstance(key, str) and key not in evaluated.values:
            raise UnknownSettingError(
                f"evaluation metric in stop_when ({name})", key, evaluated.values
            ) from error
        raise UsageError(
            f"stop_when: {name} raised {describe_error(error)}. "
            "Correct the function, which receives rollax.Evaluated."
        ) from error
    is_bool = isinstance(result, bool | np.bool_) or (
        isinstance(result, jax.Array) and result.dtype == bool and result.ndim == 0
    )
    if not is_bool:
        raise UsageError(
            f"stop_when: {name} must return True or False, got {_describe_value(result)}. "
            "Return the result of a comparison."
        )
    return bool(result)


def compute_custom_metrics(
    metrics_fn: MetricsFn | None,
    episodes: Episodes,
    default_values: Mapping[str, object],
    num_members: int = 0,
) -> MetricValues:
    """Return the values of the user's `metrics` function as plain numbers or lists of numbers.

    Args:
        metrics_fn: User function that maps the episodes of an evaluation to a dictionary of
            metrics, or None.
        episodes: Episodes that are passed to the function.
        default_values: Metrics that the evaluation already has. Their names cannot be reused.
        num_members: Number of members of a population, or 0 for a single run. For a population, a
            value may be an array with one number per member.

    Returns:
        The metrics, keyed by name. Empty if `metrics_fn` is None.

    Raises:
        UsageError: If the function raises, or returns names or values that cannot be recorded.
    """
    if metrics_fn is None:
        return {}
    try:
        values = metrics_fn(episodes)
    except Exception as error:
        raise UsageError(
            f"metrics: {function_name(metrics_fn)} raised {describe_error(error)}. "
            "Correct the function, which receives rollax.Episodes."
        ) from error
    if not isinstance(values, Mapping):
        raise UsageError(
            f"metrics: {function_name(metrics_fn)} must return a dictionary of numbers by name, "
            f"got {format_value(values)}. Return {{'name': value}}."
        )
    source = f"of metrics function {function_name(metrics_fn)}"
    return validate_custom_values(values, default_values, num_members, source)


def validate_custom_values(
    values: Mapping[str, Any], used_names: Collection[str], num_members: int, source: str
) -> MetricValues:
    """Convert custom metrics to Python numbers or lists of numbers.

    Args:
        values: Custom metrics, keyed by name.
        used_names: Names of the other metrics in the same line, which cannot be reused.
        num_members: Number of members of a population, or 0 for a single run.
        source: Origin of the values, for the error message.

    Returns:
        The metrics, keyed by name.

    Raises:
        UsageError: If a name or a value cannot be recorded.
    """
    return {
        _validate_metric_name(name, used_names, source): _validate_metric_value(
            name, value, num_members, source
        )
        for name, value in values.items()
    }


def function_name(function: Callable[..., object]) -> str:
    """Return the name of a function, or the class name of another callable, for messages."""
    return getattr(function, "__qualname__", type(function).__name__).rpartition("<locals>.")[2]


def _validate_metric_name(name: object, used_names: Collection[str], source: str) -> str:
    """Return the name of a metric, or raise UsageError if it is not valid or is reserved."""
    if (
        not isinstance(name, str)
        or not name.strip()
        or not name.isprintable()
        or len(name) > MAX_NAME_LENGTH
    ):
        raise UsageError(
            f"the name {name!r:.100} {source} must be a printable string of 1 to {MAX_NAME_LENGTH} "
            "characters. Rename that number."
        )
    if name in used_names or name in RESERVED_NAMES or name.startswith(RESERVED_PREFIXES):
        raise UsageError(
            f"the name {name!r} {source} is reserved for another number. Choose another name."
        )
    return name


def _validate_metric_value(
    name: str, value: object, num_members: int, source: str
) -> float | list[float]:
    """Return a value as a number or a list of numbers, or raise UsageError for anything else."""
    constraint = (
        "a number, or an array with one number per member"
        if num_members
        else "a number, or a list of numbers"
    )
    fault = UsageError(
        f"{name!r} {source} must be {constraint}, got {_describe_value(value)}. Return a number "
        "for it."
    )
    try:
        array = np.asarray(value)
        # Kind V: floats that only JAX has, such as bfloat16.
        array = array.astype(float) if array.dtype.kind in "bfV" else array
    except (TypeError, ValueError) as error:
        raise fault from error
    has_shape = array.ndim == 0 or (
        array.ndim == 1 and len(array) == (num_members or max(1, len(array)))
    )
    if array.dtype.kind not in "fiu" or not has_shape:
        raise fault
    return array.tolist()


def _describe_value(value: object) -> str:
    if isinstance(value, np.ndarray | jax.Array) and value.shape:
        return f"an array of shape {list(value.shape)}"
    return format_value(value)


def check_best_metric(spec: Spec, values: MetricValues, custom: MetricValues) -> None:
    """Check that the best metric can rank evaluations.

    Args:
        spec: Specification of the run.
        values: Metrics of an evaluation, keyed by name.
        custom: Metrics from the user's `metrics` function, keyed by name. Lists have one number per
            member.

    Raises:
        UnknownSettingError: If the evaluation does not have the metric.
        UsageError: If the metric is a list of numbers.
    """
    name = spec.options.best_metric
    if name not in values:
        raise UnknownSettingError("best_metric", name, values)
    if np.ndim(values[name]) and name not in custom:
        raise UsageError(
            f"best_metric ({name}) must be a single number, but it is a list in every evaluation. "
            "Choose another."
        )
