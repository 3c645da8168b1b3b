"""The numbers of an evaluation, and how they are shown."""

import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from rollax.acting.evaluate import Episodes
from rollax.host.statistics import summarize

SUMMARY = ("count", "any_nan", "mean", "std", "min", "max", "median", "p20", "iqm", "iqm_low", "iqm_high")  # of returns
MOST_SHOWN = 8  # numbers of a curve in a line


Metric = Callable[[Episodes], dict[str, float]]


def measured(metric: Metric | None, episodes: Episodes) -> dict[str, Any]:
    """The numbers of a user's own, as plain values."""
    return {} if metric is None else {name: np.asarray(value).tolist() for name, value in metric(episodes).items()}


def default_metrics(episodes: Episodes, agent_types: tuple[str, ...] = (), with_interval: bool = True) -> dict[str, Any]:
    """The numbers of an evaluation: a summary of returns, lengths, how episodes ended, the means of `info` and descriptors.

    With one member the summary is over episodes, with several over the members' mean returns. With agents it is of their mean
    return; besides there are the mean return of each agent, of the agents of each type, and of the team: the sum over agents.
    `with_interval`: as for `summarize`.
    """
    told = _returns_of_agents(np.asarray(episodes.returns, np.float64), agent_types) if agent_types else {}
    returns = np.asarray(episodes.returns, np.float64)
    length = np.asarray(episodes.length)
    ended = np.asarray(episodes.terminated) | np.asarray(episodes.truncated)
    if length.ndim == 2:
        returns = returns.reshape(length.shape[0], -1).mean(axis=1)
    elif returns.ndim == 2:
        returns = returns.mean(axis=1)
    described = {} if episodes.descriptor is None else {"descriptor_mean": episodes.descriptor}
    told |= {
        name: np.asarray(total, float).reshape(-1, *total.shape[length.ndim :]).mean(axis=0).tolist()
        for name, total in (episodes.info | described).items()
    }
    told |= {name: float(np.mean(value)) for name, value in episodes.state_metrics.items()}
    return told | {
        **{f"return_{name}": value for name, value in summarize(returns, with_interval=with_interval).items()},
        "length_mean": float(length.mean()),
        "length_max": float(length.max()),
        "terminated": float(np.mean(episodes.terminated)),
        "truncated": float(np.mean(episodes.truncated)),
        "unfinished": float(1 - ended.mean()),
    }


def digits(value: float) -> str:
    """A number as a person reads it: four digits that count, from a thousand on a whole number; "-" where there is none."""
    if math.isnan(value):
        return "-"
    return f"{value:,.0f}" if 1e3 <= abs(value) < 1e15 else f"{value + 0.0:,.4g}"


def sides(values: dict[str, Any]) -> dict[str, float]:
    """The mean return of each side of a game whose sum is zero: by type of agents, or by agent. None of any other task.

    The mean over all agents is 0 there in every episode, whoever plays how.
    """
    agents = np.asarray(values.get("return_agents", ()), float)
    scale = max(np.abs(agents).max(initial=0.0), 1e-6)
    if agents.size < 2 or scale <= 1e-6 or max(abs(values["return_min"]), abs(values["return_max"])) > 1e-3 * scale:
        return {}
    known = ("agents", "team", "members", *SUMMARY)
    kinds = [name for name in values if name.startswith("return_") and name.removeprefix("return_") not in known]
    return {name: values[name] for name in kinds} or {f"agent {index}": float(value) for index, value in enumerate(agents)}


def of_types(values: dict[str, Any], agent_types: tuple[str, ...]) -> list[str]:
    """The names of the returns of each type of agents, where there are several and `returned` does not tell them."""
    kinds = dict.fromkeys(agent_types)
    return [f"return_{kind}" for kind in kinds] if len(kinds) > 1 and not sides(values) else []


def tells_nothing(best_metric: str, values: dict[str, Any]) -> bool:
    """Whether the best checkpoint cannot be told by it: a mean over sides whose returns add up to 0."""
    return best_metric in (*(f"return_{name}" for name in SUMMARY), "return_team") and bool(sides(values))


def in_training(
    values: dict[str, Any], evaluation: dict[str, Any], shown: Iterable[str], steps_of_each: float = math.inf
) -> dict[str, str]:
    """What is told of a line of metrics while training goes on: the numbers `shown`, else the return; that of each type of
    agents where the last evaluation says that all of them add up to 0.

    `steps_of_each`: of every environment so far. While these are fewer than the longest episode has, all episodes that ended
    ended early, in success or in failure, and their return would say so: there is none.
    """
    chosen = {name: values[name] for name in shown if name in values}
    if not chosen and sides(evaluation):
        chosen = {name.removesuffix("/episode_return"): x for name, x in values.items() if name.endswith("/episode_return")}
    chosen = chosen or {"return": values.get("episode_return", math.nan)}
    if steps_of_each < evaluation.get("length_max", 0):
        chosen |= {name: math.nan for name in chosen if name not in shown}
    return {name: _mean_in_words(value) for name, value in chosen.items()}


def _mean_in_words(values: Any) -> str:
    """Of those members that have a value."""
    numbers = np.asarray(values, float)
    return digits(float(np.nanmean(numbers))) if np.isfinite(numbers).any() else "-"


def returned(values: dict[str, Any], num_members: int, is_closed_form: bool) -> str:
    """Return and length of an evaluation in words; a closed form has no episodes that it could be the mean of."""
    if of_sides := sides(values):
        told = "  ".join(f"{name.removeprefix('return_')} {digits(value)}" for name, value in of_sides.items())
        return f"return {told} (their mean is 0)  length {values['length_mean']:.0f}"
    numbers = {name: digits(values[f"return_{name}"]) for name in ("mean", "std", "iqm", "iqm_low", "iqm_high")}
    if is_closed_form and not num_members:
        return f"return {numbers['mean']} (a closed form)"
    over = f"{num_members} members" if num_members else f"{values['episodes']} episodes"
    interval = f"iqm {numbers['iqm']} [{numbers['iqm_low']}, {numbers['iqm_high']}]"
    length = "" if is_closed_form else f"  length {values['length_mean']:.0f}"
    return f"return {numbers['mean']} (std {numbers['std']}, {interval}, over {over}){length}"


def in_words(
    values: dict[str, Any], agent_types: tuple[str, ...], names: Iterable[str], num_members: int, is_closed_form: bool
) -> str:
    """An evaluation in a line: return and length, the returns of several types of agents, and the numbers of those names.

    Those with a slash in their name, such as "achievements/eat_cow", are details that would fill the screen: records have them.
    """
    told, short = returned(values, num_members, is_closed_form), [name for name in names if "/" not in name]
    return "  ".join([told, *further([*of_types(values, agent_types), *short], values)])


def further(names: Iterable[str], values: dict[str, Any], most: int = MOST_SHOWN) -> list[str]:
    """Those values of an evaluation in words, as far as there are any: one number each, or a curve of `most` at most."""
    curves = {name: np.ravel(values[name]) for name in names if name in values}
    numbers = {name: " ".join(map(digits, curve[:most])) for name, curve in curves.items()}
    return [f"{name} {numbers[name]}{' ...' if curve.size > most else ''}" for name, curve in curves.items()]


def _returns_of_agents(returns: np.ndarray, agent_types: tuple[str, ...]) -> dict[str, Any]:
    """Mean returns by agent, type and team. `returns`: `[..., A]`."""
    means = returns.reshape(-1, len(agent_types)).mean(axis=0)
    kinds = {kind: [i for i, other in enumerate(agent_types) if other == kind] for kind in dict.fromkeys(agent_types)}
    by_type = {f"return_{kind}": float(means[agents].mean()) for kind, agents in kinds.items()} if len(kinds) > 1 else {}
    return {"return_agents": means.tolist(), "return_team": float(means.sum()), **by_type}


def unranked(best_metric: str, values: dict[str, Any], at_start: bool) -> str | None:
    """Why no checkpoint of this evaluation is kept as the best; `at_start`, why none will be. None where it may be."""
    if at_start and tells_nothing(best_metric, values):
        kinds = [name for name in sides(values) if name in values]
        remedy = f": give one of a side with --best-metric {kinds[0]}" if kinds else ""
        why = f"{best_metric} is 0 whatever is learnt, as the returns of all agents add up to 0"
        return f"{why}, so no checkpoint is kept as the best{remedy}"
    value = values.get(best_metric, 0.0)
    if isinstance(value, float) and not math.isfinite(value):
        return f"{best_metric} is no number in all of these episodes, so the checkpoint of this step cannot be the best"
    return None
