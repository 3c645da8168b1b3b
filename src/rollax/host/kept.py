"""The checkpoints that a run keeps, with what was measured at each."""

from pathlib import Path
from typing import NamedTuple

from rollax.host import resuming, run_folder
from rollax.host.evaluation import digits


class Kept(NamedTuple):
    """One checkpoint."""

    step: int
    value: float | None  # the run's best_metric in its evaluation; None where there is none, or it is no finite number


class KeptCheckpoints(NamedTuple):
    """Those of a run that can be read, by rising steps."""

    metric: str
    all: list[Kept]
    best: Kept | None

    def words(self, step: int) -> str:
        """What the checkpoint of a step is: its step, whether it is the best or the last, and its evaluation."""
        value = next((kept.value for kept in self.all if kept.step == step), None)
        is_best = self.best is not None and step == self.best.step and len(self.all) > 1
        is_last = bool(self.all) and step == self.all[-1].step
        which = [name for name, holds in (("the best", is_best), ("the last", is_last)) if holds]
        evaluated = "without an evaluation" if value is None else f"{self.metric} {digits(value)}"
        return f"step {step:,} ({', '.join([' and '.join(which), evaluated] if which else [evaluated])})"


def of_run(folder: Path) -> KeptCheckpoints:
    """The checkpoints of a run. Raises UsageError when there is no such run."""
    spec = run_folder.read_spec(folder)
    metric = spec.options.best_metric
    with resuming.checkpoints_of(folder, spec) as checkpoints:
        found = [Kept(summary.step, summary.metrics.get(metric)) for summary in checkpoints.readable()][::-1]
        best = checkpoints.best()
    return KeptCheckpoints(metric, found, next((kept for kept in found if kept.step == best), None))
