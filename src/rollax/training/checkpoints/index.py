"""Index of the checkpoints of a run and the metric that ranks them."""

from pathlib import Path
from typing import NamedTuple

from rollax.training.checkpoints import compatibility
from rollax.training.evaluation.metrics import format_number
from rollax.training.run_folder import layout


class CheckpointEntry(NamedTuple):
    """Step of a checkpoint, and the value of the run's `best_metric` at that step.

    The value is None if the metric is missing or not finite.
    """

    step: int
    value: float | None


class CheckpointIndex(NamedTuple):
    """Readable checkpoints of a run, in order of their steps.

    Attributes:
        metric: Name of the best metric.
        all: All readable checkpoints.
        best: Checkpoint with the best metric, or None if no checkpoint has a finite metric.
    """

    metric: str
    all: list[CheckpointEntry]
    best: CheckpointEntry | None

    def describe(self, step: int) -> str:
        """Return text such as "step 1,000 (the best and the last, return_mean 5)"."""
        value = next((checkpoint.value for checkpoint in self.all if checkpoint.step == step), None)
        is_best = self.best is not None and step == self.best.step and len(self.all) > 1
        is_last = bool(self.all) and step == self.all[-1].step
        labels = [
            name for name, is_shown in (("the best", is_best), ("the last", is_last)) if is_shown
        ]
        evaluated = (
            "without an evaluation" if value is None else f"{self.metric} {format_number(value)}"
        )
        return (
            f"step {step:,} "
            f"({', '.join([' and '.join(labels), evaluated] if labels else [evaluated])})"
        )


def read_checkpoint_index(folder: Path) -> CheckpointIndex:
    """Read the index of the checkpoints of a run.

    Args:
        folder: Folder of the run.

    Returns:
        The index, without checkpoints that cannot be read.

    Raises:
        UsageError: If the folder is not a run folder.
    """
    spec = layout.read_spec(folder)
    metric = spec.options.best_metric
    with compatibility.open_checkpoints(folder, spec) as checkpoints:
        entries = [
            CheckpointEntry(summary.step, summary.metrics.get(metric))
            for summary in checkpoints.readable_summaries()
        ][::-1]
        best = checkpoints.best()
    return CheckpointIndex(
        metric, entries, next((entry for entry in entries if entry.step == best), None)
    )
