"""Which member of a population is the best: the best metric of each, kept with every checkpoint."""

from typing import Any

import jax
import numpy as np

from rollax.acting.evaluate import Episodes
from rollax.host.checkpoint_summary import MemberScores
from rollax.host.evaluation import Metric, default_metrics, measured
from rollax.host.settings import Spec
from rollax.populations.evolution import Generation

# The summary of returns has these from a bootstrap, which takes long for each of many members.
_INTERVAL = ("return_iqm_low", "return_iqm_high")


def scores(spec: Spec, step: int, episodes: Episodes, agent_types: tuple[str, ...], metric: Metric | None) -> MemberScores:
    """The best metric of each member over its own episodes. `episodes`: with leading axis `[P]`.

    None for a member whose value is not a finite number, or for which the user's own `metric` does not give that number.
    """
    name = spec.options.best_metric
    singles = [jax.tree.map(lambda x, i=i: x[i], episodes) for i in range(len(episodes.length))]
    return MemberScores(name, step, 0, [_number(_of_member(name, one, agent_types, metric)) for one in singles])


def numbers(episodes: dict[str, Any], member: int) -> dict[str, Any]:
    """The numbers of one member's own episodes in an evaluation, whose arrays lead with `[P]`; without intervals."""
    own = {name: episodes[name] for name in Episodes._fields if episodes.get(name) is not None}
    one = Episodes(**jax.tree.map(lambda x: np.asarray(x)[member], own))
    kinds = tuple(str(kind) for kind in episodes["agent_types"]) if "agent_types" in episodes else ()
    return default_metrics(one, kinds, with_interval=False)


def _of_member(name: str, episodes: Episodes, agent_types: tuple[str, ...], metric: Metric | None) -> Any:
    values = default_metrics(episodes, agent_types, name in _INTERVAL)
    if values["return_any_nan"]:
        return None
    if metric is None:
        return values.get(name)
    try:
        return (values | measured(metric, episodes)).get(name)
    except Exception:  # made for the episodes of a population, it may not take those of a single member
        return values.get(name)


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and np.isfinite(value) else None


def after_generation(scores: MemberScores, generation: Generation) -> MemberScores:
    """A member that was replaced has the score of its parent, whose parameters it has."""
    values = [scores.values[parent] for parent in np.asarray(generation.parent)]
    return scores._replace(values=values, generations=scores.generations + 1)


def without(scores: MemberScores, bad: np.ndarray | None) -> MemberScores:
    """Members `[P]` that are no longer finite have no score."""
    if bad is None:
        return scores
    return scores._replace(values=[None if is_bad else value for value, is_bad in zip(scores.values, bad, strict=True)])


def best(spec: Spec, scores: MemberScores | None) -> tuple[int, list[str]]:
    """The member with the best score, and warnings where it was not evaluated as it is, or where no score is known."""
    name = spec.options.best_metric
    choose = "choose another with member=... or --member"
    if scores is None:
        return 0, [f"no evaluation has told which member is the best: member 0 was taken; {choose}"]
    if scores.metric != name:
        return 0, [f"members were compared by {scores.metric}, not by {name}: member 0 was taken; {choose}"]
    sign = 1 if spec.options.best_mode == "max" else -1
    values = [-np.inf if value is None else sign * value for value in scores.values]
    if not np.isfinite(values).any():
        return 0, [f"{name} is not known of any member by itself: member 0 was taken; {choose}"]
    chosen = int(np.argmax(values))
    if not scores.generations:
        return chosen, []
    number = f"{scores.generations} generation{'s' if scores.generations > 1 else ''}"
    return chosen, [
        f"member {chosen} is the best by its ancestors: since the evaluation at step {scores.step:,} there were {number}, "
        f"after which a copy counts as good as the member it was copied from; {choose}"
    ]
