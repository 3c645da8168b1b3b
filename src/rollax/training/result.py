"""Results of a training run and of the evaluations during it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from rollax.coercion import format_repr
from rollax.training.checkpoints.summary import MemberScores
from rollax.training.evaluation.metrics import user_metric_names, zero_sum_side_returns
from rollax.types import MetricValues


class Evaluated(NamedTuple):
    """Result of one evaluation during a run.

    Attributes:
        step: Environment frames that each member has trained for.
        values: Values of the evaluation by name.
        scores: Best metric of each member of a population, or None for a single run.
    """

    step: int
    values: MetricValues
    scores: MemberScores | None

    def __repr__(self) -> str:
        return format_repr(
            "Evaluated",
            step=self.step,
            return_mean=self.values.get("return_mean"),
            values=len(self.values),
        )


StopWhenFn = Callable[[Evaluated], bool]


class Result(NamedTuple):
    """Result of a run.

    Attributes:
        folder: Folder of the run.
        status: "done", "stopped", "nonfinite", or "failed" if a host simulator failed.
        exit_code: Exit code of the command line for this status.
        steps: Environment frames that each member has trained for.
        evaluation: Values of the last evaluation, which may differ from the best one. Empty without
            an evaluation.
        wall_time: Duration of the run in seconds.
        steps_per_second: Frames of all members per second, without evaluation and compilation.
        best: Step and best metric of the best checkpoint, or None.
        scores: Best metric of each member of a population at its last evaluation, or None for a
            single run.
    """

    folder: Path
    status: str
    exit_code: int
    steps: int
    evaluation: MetricValues
    wall_time: float
    steps_per_second: float
    best: tuple[int, float] | None = None
    scores: MemberScores | None = None

    def __repr__(self) -> str:
        member_returns = self.evaluation.get("return_members")
        return format_repr(
            "Result",
            status=self.status,
            steps=self.steps,
            folder=self.folder,
            return_mean=self.evaluation.get("return_mean"),
            best=self.best and self.best[1],
            best_step=self.best and self.best[0],
            members=None if member_returns is None else len(member_returns),
        )

    def summary(self) -> dict[str, Any]:
        """Return the result as one flat dictionary for scripts."""
        # The number of finite returns is included only if some returns are not finite.
        counts = ("return_count",) if self.evaluation.get("return_any_nan") else ()
        # Members of an evolved population that share a founder are not independent, so there is no
        # interval.
        interval = () if "founders" in self.evaluation else ("return_iqm_low", "return_iqm_high")
        names = (
            "return_mean",
            "return_std",
            "return_iqm",
            *interval,
            "return_members",
            "founders",
            "episodes",
            *counts,
            *user_metric_names(self.evaluation),
            *zero_sum_side_returns(self.evaluation),
        )
        return {
            "run": str(self.folder),
            "status": self.status,
            "steps": self.steps,
            **{name: self.evaluation[name] for name in names if name in self.evaluation},
            **({} if self.best is None else {"best_step": self.best[0], "best": self.best[1]}),
            "any_nan": bool(self.evaluation.get("return_any_nan", 0.0)),
            "wall_time": round(self.wall_time, 3),
            "steps_per_second": round(self.steps_per_second, 1),
        }
