"""What a run tells: of each evaluation, and how it ended."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from rollax.host.checkpoint_summary import MemberScores
from rollax.host.evaluation import sides


class Evaluated(NamedTuple):
    """An evaluation during a run."""

    step: int  # environment frames, of each member
    values: dict[str, Any]  # its numbers
    scores: MemberScores | None  # of a population: the best metric of each member


StopWhen = Callable[[Evaluated], bool]


class Result(NamedTuple):
    """How a run ended."""

    folder: Path
    status: str  # "done", "stopped", "nonfinite" or "failed": a simulator on the host
    exit_code: int
    steps: int
    evaluation: dict[str, Any]  # the numbers of the last evaluation, not of the best one; empty when there was none
    wall_time: float
    steps_per_second: float  # frames of all members together, without evaluation and compiling
    best: tuple[int, float] | None = None  # the step of the best checkpoint and its best metric
    scores: MemberScores | None = None  # of a population: the best metric of each member as last evaluated

    def summary(self) -> dict[str, Any]:
        """One flat object for scripts."""
        kept = ("return_mean", "return_std", "return_iqm", "return_iqm_low", "return_iqm_high", "return_members", "episodes")
        return {
            "run": str(self.folder),
            "status": self.status,
            "steps": self.steps,
            **{name: self.evaluation[name] for name in kept if name in self.evaluation},
            **({} if self.best is None else {"best_step": self.best[0], "best": self.best[1]}),
            **{name: value for name, value in sides(self.evaluation).items() if name in self.evaluation},
            "any_nan": bool(self.evaluation.get("return_any_nan", 0.0)),
            "wall_time": round(self.wall_time, 3),
            "steps_per_second": round(self.steps_per_second, 1),
        }
