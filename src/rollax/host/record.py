"""What a run writes while it goes: metrics by line, evaluations by episode."""

import io
from pathlib import Path
from typing import Any

import numpy as np

from rollax.algorithm import Finite, Metrics
from rollax.host import logging
from rollax.host.run_folder import EVALUATIONS, LINEAGE, METRICS, write_atomically
from rollax.host.settings import Spec

# What is no longer finite, by the fields of `Finite`.
CULPRITS = {
    "observation": "an observation of the environment became NaN or infinite",
    "reward": "a reward of the environment became NaN or infinite",
    "advantage": "an advantage became NaN or infinite (values or rewards are too large)",
    "loss": "the loss became NaN or infinite (try a smaller learning rate)",
    "parameters": "the parameters became NaN or infinite (try a smaller learning rate or max_grad_norm)",
}


def line(rows: Metrics, first: int, stop: int) -> dict[str, Any]:
    """One line of metrics from the updates `first` to `stop` of `[n]` or `[n, P]`: means, and means per episode that ended."""
    count, total_return, total_length = (values[first:stop].sum(axis=0) for values in rows.episodes)
    with np.errstate(invalid="ignore", divide="ignore"):
        episodes = {"episode_return": total_return / count, "episode_length": total_length / count, "episodes": count}
    means = {name: values[first:stop].mean(axis=0) for name, values in rows.values.items()}
    return {name: value.tolist() for name, value in {**episodes, **means}.items()}


def first_nonfinite(rows: Metrics) -> tuple[int, str] | None:
    """The first update and what went bad in it, the cause before its effects; None while all is well.

    Of a population, members that are still well hide those that are not: it takes all of them.
    """
    well = np.stack([values.reshape(len(values), -1) for values in rows.finite], axis=1)  # [n, checks, P]
    bad = ~np.any(np.all(well, axis=1), axis=1)
    if not np.any(bad):
        return None
    update = int(np.argmax(bad))
    return update, Finite._fields[int(np.argmin(np.all(well[update], axis=1)))]


def bad_members(rows: Metrics) -> np.ndarray:
    """Which members `[P]` are no longer finite after the last of these updates."""
    return ~np.all(np.stack([values[-1] for values in rows.finite]), axis=0)


class Recorder:
    """The sinks of a run, and its evaluations in one file. `resume_from`: the step that a resumed run goes on from."""

    def __init__(self, folder: Path, spec: Spec, resume_from: int | None) -> None:
        options, name, resumed = spec.options, folder.resolve().name, resume_from is not None
        self._path = folder / EVALUATIONS
        self._lines = logging.json_lines(folder / METRICS, resume_from)
        # A generation comes after the checkpoint of its step, so a resumed run does that of the same step again.
        again = None if resume_from is None else resume_from - 1
        self._lineage = logging.json_lines(folder / LINEAGE, again) if spec.evolve else logging.every([])
        others = []
        if options.tensorboard:
            others.append(logging.tensorboard(folder / "tensorboard", resume_from))
        plain = {"algorithm": spec.algorithm, "environment": spec.environment, **vars(spec.config)}
        if options.wandb:
            others.append(logging.wandb(options.wandb, name, folder, plain, resumed))
        if options.trackio:
            others.append(logging.trackio(options.trackio, name, plain, resumed))
        self._others = logging.every(others)
        self._evaluations = _load_evaluations(self._path, evaluated_steps(folder)) if resumed else {}

    def has_evaluation(self, step: int) -> bool:
        return step in self._evaluations.get("step", [])

    def metrics(self, step: int, values: dict[str, Any]) -> None:
        self._lines.write(step, values)
        numbers = {name: _scalar(value) for name, value in values.items() if not isinstance(value, str)}
        # Where no episode ended there is no return; sinks complain of what is no number.
        self._others.write(step, {name: value for name, value in numbers.items() if np.isfinite(value)})

    def evaluation(self, step: int, values: dict[str, Any], episodes: dict[str, Any]) -> None:
        """`episodes`: arrays of one evaluation, kept for all evaluations under a leading axis."""
        numbers = {f"evaluation/{name}": _scalar(value) for name, value in values.items()}
        self._others.write(step, numbers)
        arrays = {name: value for name, value in episodes.items() if name != "info" and value is not None}
        arrays |= {f"info/{name}": value for name, value in episodes.get("info", {}).items()}
        for name, value in {"step": step, **arrays}.items():
            self._evaluations.setdefault(name, []).append(np.asarray(value))
        buffer = io.BytesIO()
        stacked: dict[str, Any] = {name: np.stack(values) for name, values in self._evaluations.items()}
        np.savez_compressed(buffer, **stacked)
        write_atomically(self._path, buffer.getvalue())
        # Last, because its line is what says that an evaluation is complete.
        self._lines.write(step, {**values, "event": "evaluation"})

    def generation(self, step: int, values: dict[str, Any]) -> None:
        """What members became, for the history of every lineage."""
        self._lineage.write(step, values)

    def close(self) -> None:
        self._lines.close()
        self._lineage.close()
        self._others.close()


def _scalar(value: Any) -> float:
    finite = np.asarray(value, float)
    finite = finite[np.isfinite(finite)]
    return float(finite.mean()) if finite.size else float("nan")


def evaluated_steps(folder: Path) -> set[int]:
    """The steps at which a run was evaluated."""
    path = folder / METRICS
    lines = logging.read_metrics(path) if path.exists() else []
    return {line["step"] for line in lines if line.get("event") == "evaluation"}


def _load_evaluations(path: Path, steps: set[int]) -> dict[str, list[np.ndarray]]:
    if not path.exists():
        return {}
    with np.load(path, allow_pickle=False) as file:
        arrays = dict(file)
    keep = [i for i, step in enumerate(arrays["step"]) if int(step) in steps]
    return {name: [values[i] for i in keep] for name, values in arrays.items()}
