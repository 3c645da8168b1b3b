"""Options of the host: what surrounds the program that learns."""

import dataclasses
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from rollax.config import LARGEST_INT, span
from rollax.environments.core import REDUCTIONS
from rollax.errors import UsageError
from rollax.populations.evolution import Method
from rollax.typed import hints, shown, typed

LARGEST_COUNT = 2**53


@dataclasses.dataclass(frozen=True)
class RunOptions:
    """What the host does around the program. Only steps, seeds and how a population evolves change what is learnt."""

    total_steps: int | None = None
    """Environment frames to train for (each member of a population as many); by default what is tuned, or a million."""
    seed: int = 0
    """Seed of the first member; the same seed gives the same run, bit for bit."""
    seeds: int = 1
    """How many seeds to train at once, in one compiled program."""
    sweep_paired: bool = False
    """Values of a sweep over several settings go together, first with first, in place of every combination."""
    run_dir: Path | None = None
    """Folder of the run; default: runs/<environment>/<algorithm>-<date>-<id>."""
    eval_episodes: int = 128
    """Whole episodes per evaluation."""
    eval_count: int = 10
    """Evaluations during training, besides the one before it."""
    eval_stochastic: bool = False
    """Evaluate with sampled instead of greedy actions."""
    eval_fresh: bool = False
    """Evaluate on new episodes every time instead of always the same."""
    eval_info: tuple[str, ...] = ()
    """NAME=mean, NAME=sum or NAME=last: a number of the environment's info over an episode; default: as the environment says,
    else its mean."""
    eval_max_steps: int = 10_000
    """Steps after which an episode under evaluation is given up, where the environment sets no limit."""
    checkpoint_minutes: float = 5.0
    """Checkpoint after so many minutes, besides those at evaluations; 0: only at evaluations."""
    checkpoint_steps: int = 0
    """Checkpoint after so many environment frames as well; 0: not."""
    keep_last: int = 2
    """Newest checkpoints kept."""
    keep_best: int = 1
    """Best checkpoints kept."""
    best_metric: str = "return_mean"
    """What is best: a number of the evaluation (return_mean, return_iqm, length_mean, ...)."""
    best_mode: Literal["max", "min"] = "max"
    """Whether more or less of it is better."""
    on_nonfinite: Literal["stop", "rollback"] = "stop"
    """When a loss or parameter is no longer finite: stop, or go back to the last checkpoint and go on with other keys."""
    log_lines: int = 500
    """About how many lines of metrics to write over the whole run; more where a line would span over ten updates."""
    tensorboard: bool = True
    """Write event files for TensorBoard."""
    wandb: str | None = None
    """Project of Weights & Biases to log to."""
    trackio: str | None = None
    """Project of Trackio to log to."""
    env_workers: int = 0
    """Processes that run the simulators of an environment on the host, such as gymnasium's; 0: this one."""
    env_timeout: float = 60.0
    """Seconds in which simulators have to answer, before the run is stopped."""
    devices: int | Literal["auto"] = 1
    """Devices to spread over: members of a population, or the environments of a single run; "auto": all there are."""
    evolve_every: int | None = None
    """Environment frames between generations of a population that evolves (--evolve.NAME); default: a 10th of the total steps;
    0: never, so that every member keeps the settings that it drew at the start."""
    evolve_start: int = 0
    """Environment frames before there is a generation."""
    evolve_fraction: float = Method().fraction
    """Share of the members that are replaced in a generation, and of those that they become copies of; at most a half."""
    evolve_resample: float = Method().resample
    """Chance that a setting of a copy is drawn anew from its range; else it is perturbed."""
    evolve_factor: float = Method().factor
    """Most that a perturbation multiplies or divides a setting by, where its range is logarithmic."""
    evolve_step: float = Method().step
    """Most that a perturbation adds to a setting or takes from it, as a share of its range, where that is linear."""

    def __post_init__(self) -> None:
        """Raises UsageError for a value that cannot be of its option's type."""
        for field in dataclasses.fields(self):
            value = typed(field.name, getattr(self, field.name), hints(type(self))[field.name])
            object.__setattr__(self, field.name, value)

    @property
    def info(self) -> dict[str, str]:
        """How numbers of `info` are reduced over an episode, by name. Raises UsageError for what is no NAME=HOW."""
        return info_choices(self.eval_info, "eval_info")

    def check(self) -> None:
        """Raises UsageError when a number is out of its range, or a path none that there could be."""
        for name, (low, high) in _SPANS.items():
            value = getattr(self, name)
            if value is not None and value != "auto" and not low <= value <= high:
                raise UsageError(f"{name} ({shown(value)}) must be {span(value, low, high)}")
        if self.seed + self.seeds > 2**32:
            raise UsageError(f"seed ({self.seed}) must be less than 2^32: seeds beyond it repeat")
        self.info  # noqa: B018
        if self.run_dir is not None:
            check_path("run_dir", self.run_dir)


# Counts on the device are int32; those on the host end where numbers of steps are no longer exact as floats.
_ON_DEVICE = dict.fromkeys(("eval_episodes", "eval_max_steps"), (1, LARGEST_INT))
_COUNTS = dict.fromkeys(("total_steps", "seeds", "keep_last", "log_lines", "devices"), (1, LARGEST_COUNT))
_AMOUNTS = dict.fromkeys(
    (
        "seed",
        "eval_count",
        "env_workers",
        "checkpoint_minutes",
        "checkpoint_steps",
        "keep_best",
        "evolve_every",
        "evolve_start",
    ),
    (0, LARGEST_COUNT),
)
_SHARES = {"evolve_fraction": (0, 0.5), "evolve_resample": (0, 1), "evolve_factor": (1, 100), "evolve_step": (0, 1)}
EVOLVE_OPTIONS = ("evolve_every", "evolve_start", *_SHARES)  # for nothing but a population that evolves
_SPANS = {"env_workers": (0, 1024), "env_timeout": (0.1, 86_400), **_ON_DEVICE, **_COUNTS, **_AMOUNTS, **_SHARES}

LONGEST_NAME, LONGEST_PATH = 255, 3000  # bytes, in the usual file systems; the folder has long names of its own


def info_choices(words: Iterable[str], option: str) -> dict[str, str]:
    """NAME=HOW as a dictionary. Raises UsageError for anything else."""
    pairs = [word.partition("=") for word in words]
    for name, _, how in pairs:
        if not name or how not in REDUCTIONS:
            raise UsageError(f"{option} ({shown(f'{name}={how}')}) must be NAME=HOW with HOW one of {', '.join(REDUCTIONS)}")
    return {name: how for name, _, how in pairs}


def check_path(name: str, path: Path) -> None:
    """Raises UsageError for a path that no file system has."""
    if "\0" in str(path):
        raise UsageError(f"{name} ({shown(str(path))}) must have no zero bytes")
    longest = max((len(os.fsencode(part)) for part in path.parts), default=0)
    if longest > LONGEST_NAME or len(os.fsencode(path)) > LONGEST_PATH:
        raise UsageError(
            f"{name} ({shown(str(path))}) is too long: a name may have {LONGEST_NAME} bytes, and a path {LONGEST_PATH} in all"
        )
