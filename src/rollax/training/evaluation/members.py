"""Scores and ranking of population members by `options.best_metric`."""

import jax
import numpy as np

from rollax.acting.evaluation import Episodes
from rollax.errors import UsageError
from rollax.populations.evolution import Generation
from rollax.training.callbacks.user_functions import MetricsFn, compute_custom_metrics
from rollax.training.checkpoints.summary import MemberScores
from rollax.training.evaluation.metrics import default_metrics, rank_value, user_metric_names
from rollax.training.spec import Spec
from rollax.types import MetricValues, PyTree

# Metrics from a bootstrap, which is slow for many members.
_INTERVAL_METRICS = ("return_iqm_low", "return_iqm_high")


def score_members(
    spec: Spec,
    step: int,
    episodes: Episodes,
    agent_types: tuple[str, ...],
    metrics_fn: MetricsFn | None,
    values: MetricValues | None = None,
) -> MemberScores:
    """Return the value of `options.best_metric` for each member, over the member's episodes.

    The score of a member is None if the return or the metric of an episode is not finite. It is
    also None if the custom metrics function returns no number for the member.

    Args:
        spec: Specification of the run.
        step: Environment steps at the evaluation.
        episodes: Episode records with leading axis [P].
        agent_types: Type of each agent.
        metrics_fn: Custom metrics function, or None. It is called with the episodes of each member.
        values: Metrics of the whole population. If `best_metric` is a custom metric with a list of
            one number per member, these numbers are the scores.

    Returns:
        The scores.
    """
    name = spec.options.best_metric
    singles = [jax.tree.map(lambda x, i=i: x[i], episodes) for i in range(len(episodes.length))]
    custom = values[name] if values and name in user_metric_names(values) else None
    custom_values: list[float | None] = [None] * len(singles)
    if isinstance(custom, list) and len(custom) == len(singles):
        custom_values = custom
    scores = [
        _score_member(name, single, agent_types, metrics_fn, value)
        for single, value in zip(singles, custom_values, strict=True)
    ]
    return MemberScores(metric=name, step=step, num_generations=0, values=scores)


def compute_member_metrics(episodes: dict[str, PyTree], member: int) -> MetricValues:
    """Return the metrics of one member's episodes, without bootstrap intervals.

    Args:
        episodes: Arrays of an evaluation with leading axis [P], keyed by field of `Episodes`.
        member: Index of the member.

    Returns:
        Metrics, keyed by name.
    """
    fields = {name: episodes[name] for name in Episodes._fields if episodes.get(name) is not None}
    single = Episodes(**jax.tree.map(lambda x: np.asarray(x)[member], fields))
    agent_types = tuple(map(str, episodes.get("agent_types", ())))
    return default_metrics(single, agent_types, with_interval=False)


def _score_member(
    name: str,
    episodes: Episodes,
    agent_types: tuple[str, ...],
    metrics_fn: MetricsFn | None,
    custom_value: float | None,
) -> float | None:
    """Return the score of one member, or None if the member cannot be ranked.

    `custom_value` is the member's entry in a custom metric, or None.
    """
    values = default_metrics(episodes, agent_types, name in _INTERVAL_METRICS)
    if custom_value is not None:
        values |= {name: custom_value}
    elif metrics_fn is not None and name not in values:
        try:
            values |= compute_custom_metrics(metrics_fn, episodes, values)
        except UsageError:  # a custom function for populations may fail for a single member
            return None
    return rank_value(name, values)


def inherit_scores(scores: MemberScores, generation: Generation) -> MemberScores:
    """Return the scores after a generation. A replaced member has the score of its parent."""
    values = [scores.values[parent] for parent in np.asarray(generation.parent)]
    return scores._replace(values=values, num_generations=scores.num_generations + 1)


def drop_nonfinite_scores(scores: MemberScores, is_nonfinite: np.ndarray | None) -> MemberScores:
    """Return the scores with None for members with nonfinite values.

    Args:
        scores: Scores of all members.
        is_nonfinite: Mask of the members with nonfinite values, bool [P], or None if no member has
            nonfinite values.

    Returns:
        The scores.
    """
    if is_nonfinite is None:
        return scores
    return scores._replace(
        values=[
            None if is_member_nonfinite else value
            for value, is_member_nonfinite in zip(scores.values, is_nonfinite, strict=True)
        ]
    )


def find_best_member(spec: Spec, scores: MemberScores | None) -> tuple[int, list[str]]:
    """Return the member with the best score.

    Args:
        spec: Specification of the run.
        scores: Scores of the members, or None.

    Returns:
        The index of the member (0 if scores are unknown), and warnings about scores that are
        unknown or outdated.
    """
    name = spec.options.best_metric
    choose = "Choose another with member=... or --member."
    if scores is None:
        return 0, [f"No evaluation has ranked the members, so member 0 is used. {choose}"]
    if scores.metric != name:
        return 0, [
            f"Members were ranked by {scores.metric}, not by {name}, so member 0 is used. {choose}"
        ]
    sign = 1 if spec.options.best_mode == "max" else -1
    values = [-np.inf if value is None else sign * value for value in scores.values]
    if not np.isfinite(values).any():
        return 0, [f"{name} is unknown for every single member, so member 0 is used. {choose}"]
    best_member = int(np.argmax(values))
    if not scores.num_generations:
        return best_member, []
    generations_text = (
        f"{scores.num_generations} generation{'s' if scores.num_generations > 1 else ''}"
    )
    return best_member, [
        f"Member {best_member} is the best by its ancestors. Since the evaluation at step "
        f"{scores.step:,} there were {generations_text}. Copies inherit the score of their parent. "
        f"{choose}"
    ]
