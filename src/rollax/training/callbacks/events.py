"""Events of a run, and the types of the callbacks that receive them."""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias

from rollax.acting.evaluation import Episodes
from rollax.coercion import format_repr, format_value
from rollax.errors import UsageError
from rollax.training.callbacks.user_functions import validate_custom_values
from rollax.training.checkpoints.summary import MemberScores
from rollax.training.result import Result
from rollax.types import MetricValues

EventKind: TypeAlias = Literal["metrics", "evaluation", "checkpoint", "end"]
RECORDED_KINDS = ("metrics", "evaluation")  # events with a line in metrics.jsonl


@dataclasses.dataclass(kw_only=True, repr=False)
class RunEvent:
    """Event of a run, which is passed to callbacks.

    Attributes:
        kind: "metrics" after a line of training metrics, "evaluation" after an evaluation,
            "checkpoint" after a checkpoint is on disk, and "end" once at the end.
        step: Environment frames that each member has trained for.
        updates: Updates so far.
        total_steps: Environment frames of the whole run.
        folder: Folder of the run.
        num_members: Number of members that train in one program, or 0 for a single run.
        values: Copy of the recorded values by name: those of the line of metrics, of the
            evaluation, of the evaluation at the step of a checkpoint (empty without one), or of
            the last evaluation. For a population, training metrics are lists with one number per
            member.
        scores: Best metric of each member at the last evaluation, or None for a single run.
        episodes: Episodes of an evaluation, otherwise None.
        result: Result of the run at its end, otherwise None.
        logged: Values that the callback has logged.
        stop_reason: Reason of the callback to stop the run, or None without a request.
    """

    kind: EventKind
    step: int
    updates: int
    total_steps: int
    folder: Path
    num_members: int
    values: MetricValues
    scores: MemberScores | None = None
    episodes: Episodes | None = None
    result: Result | None = None
    logged: MetricValues = dataclasses.field(default_factory=dict, init=False)
    stop_reason: str | None = dataclasses.field(default=None, init=False)

    def __repr__(self) -> str:
        return format_repr("RunEvent", kind=self.kind, step=self.step, values=len(self.values))

    def log(self, values: Mapping[str, Any]) -> None:
        """Record further numbers in the line of metrics or in the evaluation.

        Args:
            values: Numbers by name. For a population, a value may be an array with one number per
                member.

        Raises:
            UsageError: If the event is a checkpoint or the end, which have no line, or if a name
                or a value cannot be recorded.
        """
        if not isinstance(values, Mapping):
            raise UsageError(
                f"event.log needs a dictionary of numbers by name, got {format_value(values)}. "
                "Write event.log({'name': value})."
            )
        if self.kind not in RECORDED_KINDS:
            raise UsageError(
                f"an event of kind {self.kind} has no line in metrics.jsonl. Log in on_metrics or "
                "on_evaluation."
            )
        self.logged |= validate_custom_values(
            values, set(self.values) - set(self.logged), self.num_members, "that is logged"
        )

    def stop(self, reason: str = "") -> None:
        """Stop the run after this event. The run is saved, and can be resumed.

        Args:
            reason: Reason, for the message at the end.
        """
        self.stop_reason = str(reason)


class MetricsCallback(Protocol):
    """Callback that receives each line of training metrics."""

    def on_metrics(self, event: RunEvent, /) -> object: ...


class EvaluationCallback(Protocol):
    """Callback that receives each evaluation."""

    def on_evaluation(self, event: RunEvent, /) -> object: ...


class CheckpointCallback(Protocol):
    """Callback that is called after each checkpoint."""

    def on_checkpoint(self, event: RunEvent, /) -> object: ...


class EndCallback(Protocol):
    """Callback that is called once at the end of a run."""

    def on_end(self, event: RunEvent, /) -> object: ...


Callback: TypeAlias = (
    Callable[[RunEvent], object]
    | MetricsCallback
    | EvaluationCallback
    | CheckpointCallback
    | EndCallback
)
"""Function of an event, or an object with at least one of the methods of the four protocols."""
