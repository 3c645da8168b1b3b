"""Events of a run, and the types of the callbacks that receive them."""

import dataclasses
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias

from rollax.acting.evaluation import Episodes
from rollax.errors import UsageError
from rollax.training.callbacks.user_functions import validate_custom_values
from rollax.training.checkpoints.summary import MemberScores
from rollax.training.result import Result
from rollax.types import MetricValues
from rollax.user_input.coercion import coerce, format_repr, format_value

EventKind: TypeAlias = Literal["metrics", "evaluation", "checkpoint", "end"]
RECORDED_KINDS = ("metrics", "evaluation")  # events with a line in metrics.jsonl


@dataclasses.dataclass(kw_only=True, repr=False)
class RunEvent:
    """Event of a run, which is passed to callbacks.

    Attributes:
        kind: "metrics" after a line of training metrics, "evaluation" after an evaluation,
            "checkpoint" after a checkpoint is on disk, and "end" once at the end.
        step: Environment steps that each member has trained for.
        updates: Number of completed updates.
        total_steps: Total number of environment steps in the run.
        folder: Folder of the run.
        num_members: Number of members that train in one program, or 0 for a single run.
        values: Copy of the recorded values, keyed by metric name. "metrics" and "evaluation" events
            have the values of that line. A "checkpoint" event has the values of the evaluation
            at the same step, or none. An "end" event has the values of the last evaluation. For
            a population, training metrics are lists with one number per member.
        scores: Best metric of each member at the last evaluation, or None for a single run.
        episodes: Episodes of the evaluation for an "evaluation" event, otherwise None.
        result: Result of the run for an "end" event, otherwise None.
        logged: Values that the callback has logged, keyed by name.
        stop_reason: Reason that was passed to `stop`, or None if no stop was requested.
        adjustable: Names of the environment parameters that `set_arguments` can change.
        arguments: Values that were passed to `set_arguments`, keyed by name.
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
    adjustable: tuple[str, ...] = ()
    logged: MetricValues = dataclasses.field(default_factory=dict, init=False)
    stop_reason: str | None = dataclasses.field(default=None, init=False)
    arguments: dict[str, float] = dataclasses.field(default_factory=dict, init=False)

    def __repr__(self) -> str:
        return format_repr("RunEvent", kind=self.kind, step=self.step, values=len(self.values))

    def log(self, values: Mapping[str, Any]) -> None:
        """Add numbers to the line in metrics.jsonl that belongs to this event.

        Args:
            values: Numbers, keyed by name. For a population, a value may be an array with one
                number per member.

        Raises:
            UsageError: If the event is a "checkpoint" or "end" event, which has no line in
                metrics.jsonl, or if a name or a value cannot be recorded.
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
            reason: Reason that the stop message shows.
        """
        self.stop_reason = str(reason)

    def set_arguments(self, **arguments: float) -> None:
        """Change parameters of the training environment, from the next update on.

        The run must declare each of them with one value, for example with
        `rollax.train(..., curriculum={"gravity": 9.8})`.

        Args:
            **arguments: New values, keyed by the name of the parameter. For a population, they
                apply to all members.

        Raises:
            UsageError: If a parameter is not declared, if a value is not a finite number, or if
                the event is a "checkpoint" or "end" event.
        """
        if self.kind not in RECORDED_KINDS:
            raise UsageError(
                f"set_arguments must be called in on_metrics or on_evaluation, got an event of "
                f"kind {self.kind}, whose step may depend on the clock. Move the call."
            )
        for name, value in arguments.items():
            if name not in self.adjustable:
                raise UsageError(
                    f"set_arguments can change {', '.join(self.adjustable) or 'no parameter'}, got "
                    f"{name}. Declare it as curriculum={{{name!r}: VALUE}} if it is a number, or "
                    f"start a phase: rollax.resume({str(self.folder)!r}, arguments={{...}})."
                )
            number = coerce(f"set_arguments {name}", value, float)
            if not math.isfinite(number):
                raise UsageError(f"set_arguments {name} must be finite, got {number}.")
            self.arguments[name] = number


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
"""Function that takes a `RunEvent`, or object with at least one `on_*` method of the protocols."""
