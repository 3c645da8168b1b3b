"""Metrics of an evaluation and their text format."""

import math
from collections.abc import Collection, Iterable

import numpy as np

from rollax.acting.evaluation import TRIAL_END_NAMES, Episodes
from rollax.training.evaluation.statistics import summarize
from rollax.types import MetricValues

RETURN_STATISTICS = (
    "count",
    "any_nan",
    "mean",
    "std",
    "min",
    "max",
    "median",
    "p20",
    "iqm",
    "iqm_low",
    "iqm_high",
)
MAX_SHOWN_VALUES = 8  # printed values of a metric that is a list
USER_METRICS_KEY = "metrics"  # key of an evaluation with the names of custom metrics


def default_metrics(
    episodes: Episodes, agent_types: tuple[str, ...] = (), with_interval: bool = True
) -> MetricValues:
    """Return the default metrics of an evaluation.

    The metrics are return statistics, lengths, rates of termination and truncation, and means of
    info values and descriptors. Return statistics are computed over episodes, or for a population
    over the members' mean returns. With several agents, the return of an episode is the mean over
    agents. The mean returns per agent, per agent type and of the team (sum over agents) are added.

    Args:
        episodes: Episode records, with a leading axis [P] for a population.
        agent_types: Type of each agent.
        with_interval: Whether to compute the bootstrap interval (see `summarize`).

    Returns:
        Metrics, keyed by name.
    """
    returns = np.asarray(episodes.returns, np.float64)
    metrics = _agent_returns(returns, agent_types) if agent_types else {}
    length = np.asarray(episodes.length)
    has_ended = np.asarray(episodes.terminated) | np.asarray(episodes.truncated)
    if length.ndim == 2:
        returns = returns.reshape(length.shape[0], -1).mean(axis=1)
    elif returns.ndim == 2:
        returns = returns.mean(axis=1)
    descriptor = {} if episodes.descriptor is None else {"descriptor_mean": episodes.descriptor}
    for name, values in (episodes.info | descriptor).items():
        per_episode = np.asarray(values, float).reshape(-1, *values.shape[length.ndim :])
        metrics |= _finite_mean(name, per_episode)
    metrics |= {name: float(np.mean(value)) for name, value in episodes.state_metrics.items()}
    return metrics | {
        **{
            f"return_{name}": value
            for name, value in summarize(returns, with_interval=with_interval).items()
        },
        "length_mean": float(length.mean()),
        "length_max": float(length.max()),
        **_ending_rates(episodes),
        "unfinished": float(1 - has_ended.mean()),
    }


def _ending_rates(episodes: Episodes) -> dict[str, float]:
    """Return the rates of termination and truncation. For trials, inner episodes are counted."""
    fields = {"terminated": episodes.terminated, "truncated": episodes.truncated}
    is_trial = all(name in episodes.info for name in TRIAL_END_NAMES)
    ends = [episodes.info[name] for name in TRIAL_END_NAMES] if is_trial else fields.values()
    return {
        name: float(np.mean(np.asarray(value, float)))
        for name, value in zip(fields, ends, strict=True)
    }


def _finite_mean(name: str, values: np.ndarray) -> MetricValues:
    """Return the metric `name`: the mean of the finite entries of `values` [N, ...] over axis 0.

    If an entry is not finite, the result also contains `<name>/count`, the smallest number of
    finite entries in one mean.
    """
    is_finite = np.isfinite(values)
    count = is_finite.sum(axis=0)
    with np.errstate(invalid="ignore"):
        mean = np.where(is_finite, values, 0.0).sum(axis=0) / count
    min_count = int(count.min(initial=len(values)))
    return {name: mean.tolist()} | (
        {f"{name}/count": min_count} if 1 < len(values) != min_count else {}
    )


def format_finite_count(count: float, total: int, noun: str) -> str:
    """Format a count such as "1 of 3 members (2 not finite)", or "3 members" if all are finite."""
    return (
        f"{total:,} {noun}"
        if count == total
        else f"{count:,.0f} of {total:,} {noun} ({total - count:,.0f} not finite)"
    )


def format_number(value: float) -> str:
    """Format a number with four significant digits, or as an integer if it is 1000 or more.

    NaN becomes "-".
    """
    if math.isnan(value):
        return "-"
    return f"{value:,.0f}" if 1e3 <= abs(value) < 1e15 else f"{value + 0.0:,.4g}"


def zero_sum_side_returns(values: MetricValues) -> dict[str, float]:
    """Return the mean return of each side of a zero-sum game.

    In such a game, the mean over all agents is 0 in every episode, for all policies.

    Args:
        values: Metrics of an evaluation.

    Returns:
        Mean returns, keyed by metric name (`return_<agent type>`) or by "agent <index>" for
        agents without types. Empty if the returns do not sum to 0.
    """
    agents = np.asarray(values.get("return_agents", ()), float)
    scale = max(np.abs(agents).max(initial=0.0), 1e-6)
    if (
        not np.isfinite(agents).all()
        or agents.size < 2
        or scale <= 1e-6
        or max(abs(values["return_min"]), abs(values["return_max"])) > 1e-3 * scale
    ):
        return {}
    other_names = ("agents", "team", "members", *RETURN_STATISTICS)
    names_by_type = [
        name
        for name in values
        if name.startswith("return_") and name.removeprefix("return_") not in other_names
    ]
    return {name: values[name] for name in names_by_type} or {
        f"agent {index}": float(value) for index, value in enumerate(agents)
    }


def return_names_by_type(values: MetricValues, agent_types: tuple[str, ...]) -> list[str]:
    """Return the metric names of the mean returns per agent type.

    Args:
        values: Metrics of an evaluation.
        agent_types: Type of each agent.

    Returns:
        The names. Empty for a single agent type, and for zero-sum games (see
        `zero_sum_side_returns`).
    """
    distinct_types = dict.fromkeys(agent_types)
    if len(distinct_types) < 2 or zero_sum_side_returns(values):
        return []
    return [f"return_{agent_type}" for agent_type in distinct_types]


def is_zero_sum_metric(best_metric: str, values: MetricValues) -> bool:
    """Return whether a metric cannot rank checkpoints because it averages returns that sum to 0.

    Args:
        best_metric: Name of the metric.
        values: Metrics of an evaluation, which show whether returns sum to 0.
    """
    return best_metric in (
        *(f"return_{name}" for name in RETURN_STATISTICS),
        "return_team",
    ) and bool(zero_sum_side_returns(values))


def format_training_metrics(
    values: MetricValues,
    evaluation: MetricValues,
    shown_names: Collection[str],
    steps_per_environment: float = math.inf,
) -> dict[str, str]:
    """Format the metrics that are shown during training.

    If none of the metrics in `shown_names` exists, the return is formatted, once it is known. For a
    zero-sum game, the return of each agent type is formatted instead.

    Args:
        values: Training metrics of one line.
        evaluation: Metrics of the last evaluation.
        shown_names: Names of metrics to show.
        steps_per_environment: Number of steps that each environment has taken. If it is below the
            length of the longest evaluated episode, only short episodes have ended. The return is
            then biased and omitted.

    Returns:
        Formatted values, keyed by label.
    """
    selected = {name: values[name] for name in shown_names if name in values}
    if not selected and zero_sum_side_returns(evaluation):
        selected = {
            name.removesuffix("/episode_return"): value
            for name, value in values.items()
            if name.endswith("/episode_return")
        }
    selected = selected or {"return": values.get("episode_return", math.nan)}
    if steps_per_environment < evaluation.get("length_max", 0):
        selected |= {name: math.nan for name in selected if name not in shown_names}
    formatted = {name: _format_mean(value) for name, value in selected.items()}
    return {name: text for name, text in formatted.items() if name in shown_names or text != "-"}


def _format_mean(values: float | list[float]) -> str:
    """Format the mean of the finite values, such as "482", or "482 (3 of 4 members)"."""
    array = np.asarray(values, float)
    finite = array[np.isfinite(array)]
    if not finite.size:
        return "-"
    count = "" if finite.size == array.size else f" ({finite.size} of {array.size} members)"
    return f"{format_number(float(finite.mean()))}{count}"


def format_return(
    values: MetricValues, num_members: int, is_closed_form: bool, mode: str = ""
) -> str:
    """Format the return and the episode length of an evaluation.

    Args:
        values: Metrics of the evaluation.
        num_members: Number of members of a population, 0 for a single run.
        is_closed_form: Whether the environment scores solutions by a function, without episodes.
            The length is then omitted.
        mode: How actions were chosen ("greedy" or "sampled"), or "" to omit it.

    Returns:
        The text.
    """
    actions = f", {mode}" if mode and not is_closed_form else ""
    if side_returns := zero_sum_side_returns(values):
        return _format_side_returns(values, side_returns, actions)
    founders = values.get("founders")
    interval_names = ("iqm_low", "iqm_high") if founders is None else ()
    texts = {
        name: format_number(values[f"return_{name}"])
        for name in ("mean", "std", "iqm", *interval_names)
    }
    if is_closed_form and not num_members:
        return f"return {texts['mean']} (a closed form)"
    total = num_members or values["episodes"]
    count = format_finite_count(
        values.get("return_count", total), total, "members" if num_members else "episodes"
    )
    interval = f"iqm {texts['iqm']}"
    if founders is None:
        interval += f" [{texts['iqm_low']}, {texts['iqm_high']}]"
    else:
        count += (
            f" of {founders} founder{'s' * (founders > 1)}, "
            "no interval because members are not independent"
        )
    length = "" if is_closed_form else f"  length {values['length_mean']:.0f}"
    return f"return {texts['mean']} (std {texts['std']}, {interval}, over {count}{actions}){length}"


def _format_side_returns(values: MetricValues, side_returns: dict[str, float], actions: str) -> str:
    """Format the return of each side of a zero-sum game. `actions` is text such as ", greedy"."""
    returns = "  ".join(
        f"{name.removeprefix('return_')} {format_number(value)}"
        for name, value in side_returns.items()
    )
    total = values["episodes"]
    count = format_finite_count(values.get("return_count", total), total, "episodes")
    episodes = f", over {count}" if values.get("return_any_nan") else ""
    length = f"length {values['length_mean']:.0f}"
    return f"return {returns} (their mean is 0{episodes}{actions})  {length}"


def format_evaluation(
    values: MetricValues,
    agent_types: tuple[str, ...],
    names: Iterable[str],
    num_members: int,
    is_closed_form: bool,
    mode: str = "",
) -> str:
    """Format an evaluation on one line: return, length, returns by agent type, and other metrics.

    Args:
        values: Metrics of the evaluation.
        agent_types: Type of each agent.
        names: Names of metrics to include. Names with a slash, such as "achievements/eat_cow", are
            skipped. Custom metrics are always included.
        num_members: Number of members of a population, 0 for a single run.
        is_closed_form: Whether the environment scores solutions by a function, without episodes.
        mode: How actions were chosen ("greedy" or "sampled"), or "" to omit it.

    Returns:
        The line.
    """
    shown_names = [
        *return_names_by_type(values, agent_types),
        *(name for name in names if "/" not in name),
        *user_metric_names(values),
    ]
    returns = format_return(values, num_members, is_closed_form, mode)
    return "  ".join([returns, *format_metrics(shown_names, values)])


def format_metrics(
    names: Iterable[str], values: MetricValues, max_values: int = MAX_SHOWN_VALUES
) -> list[str]:
    """Format metrics of an evaluation. Names without a value are skipped.

    Args:
        names: Names of the metrics.
        values: Metrics of the evaluation.
        max_values: Maximum number of values to print for a metric that is a list.

    Returns:
        One text per metric. If a mean excludes nonfinite episodes, the text contains the number of
        averaged episodes.
    """
    existing_names = dict.fromkeys(
        name for name in names if name in values and name not in TRIAL_END_NAMES
    )
    return [_format_metric(name, values, max_values) for name in existing_names]


def _format_metric(name: str, values: MetricValues, max_values: int) -> str:
    """Format a metric that is a number, or the first `max_values` numbers of a list."""
    curve = np.ravel(np.asarray(values[name], float))
    ellipsis = " ..." if curve.size > max_values else ""
    text = f"{name} {' '.join(map(format_number, curve[:max_values]))}{ellipsis}"
    count = values.get(f"{name}/count")
    if count is None:
        return text
    total = values.get("episodes")
    out_of = f" of {total}" if isinstance(total, int) else ""
    return f"{text} (over {count}{out_of} episodes)"


def user_metric_names(values: MetricValues) -> tuple[str, ...]:
    """Return the names of custom metrics in an evaluation."""
    names = values.get(USER_METRICS_KEY)
    return (
        tuple(names)
        if isinstance(names, list) and all(isinstance(name, str) for name in names)
        else ()
    )


def _agent_returns(returns: np.ndarray, agent_types: tuple[str, ...]) -> MetricValues:
    """Return the mean return of each agent, of each agent type and of the team.

    `returns` has shape [..., A] for A agents.
    """
    episodes = returns.reshape(-1, len(agent_types))
    finite = episodes[np.isfinite(episodes).all(axis=1)]
    means = finite.mean(axis=0) if len(finite) else np.full(len(agent_types), math.nan)
    agents_by_type = {
        agent_type: [i for i, other in enumerate(agent_types) if other == agent_type]
        for agent_type in dict.fromkeys(agent_types)
    }
    by_type = (
        {f"return_{name}": float(means[agents].mean()) for name, agents in agents_by_type.items()}
        if len(agents_by_type) > 1
        else {}
    )
    return {"return_agents": means.tolist(), "return_team": float(means.sum()), **by_type}


def rank_value(best_metric: str, values: MetricValues) -> float | None:
    """Return the number that ranks the checkpoint of an evaluation.

    An evaluation is not ranked if the return or the metric of an episode is not finite, because a
    mean over the remaining episodes is not comparable. For a population, the number is the mean
    over members.

    Args:
        best_metric: Name of the metric.
        values: Metrics of the evaluation.

    Returns:
        The number, or None if the evaluation cannot be ranked.
    """
    value = values.get(best_metric)
    if values.get("return_any_nan") or f"{best_metric}/count" in values:
        return None
    if isinstance(value, list) and best_metric in user_metric_names(values):
        value = float(np.mean(np.array(value, float)))
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def explain_unranked(
    best_metric: str, values: MetricValues, is_before_training: bool
) -> str | None:
    """Return the reason why the checkpoint of an evaluation is not ranked, or None.

    Args:
        best_metric: Name of the metric that ranks checkpoints.
        values: Metrics of the evaluation.
        is_before_training: Whether this is the evaluation before training. A metric that is always
            0 in a zero-sum game is reported only in this evaluation.

    Returns:
        The reason, or None if the evaluation is ranked or the reason was reported before.
    """
    if is_zero_sum_metric(best_metric, values):
        sides = [name for name in zero_sum_side_returns(values) if name in values]
        remedy = f" Choose one side with --best-metric {sides[0]}." if sides else ""
        reason = f"{best_metric} is always 0, because the returns of all agents sum to 0"
        return (
            f"{reason}. No checkpoint is kept as the best.{remedy}" if is_before_training else None
        )
    if rank_value(best_metric, values) is None:
        return (
            f"{best_metric} is not finite in every episode, so the checkpoint of this step cannot "
            "be the best."
        )
    return None
