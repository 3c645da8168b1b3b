"""Options of the training loop that runs on the host."""

import dataclasses
import math
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal, NamedTuple

from rollax.config import MAX_INT32
from rollax.environments.environment import INFO_REDUCTIONS
from rollax.errors import UnknownNameError, UsageError
from rollax.populations.evolution import EvolutionConfig, Range
from rollax.populations.self_play import OpponentSampling, PoolConfig
from rollax.training.callbacks.stop_conditions import parse_stop_condition
from rollax.user_input.coercion import coerce, field_types, format_value
from rollax.user_input.settings_validation import describe_range

MAX_COUNT = 2**53
INIT_PARTS = ("networks", "optimizer", "statistics", "replay", "archive")
MAX_WORKERS, MAX_RAY_WORKERS = 1024, 65_536  # simulator workers on this machine, and on a cluster
# Defaults of `eval_episodes` in compiled environments, and in simulators on the host.
COMPILED_EVAL_EPISODES, HOST_EVAL_EPISODES = 128, 10


@dataclasses.dataclass(frozen=True)
class RunOptions:
    """Options of the training loop on the host.

    Only the number of steps, the seeds, `frame_stack`, `curriculum_returns`, and the options of
    warm starts, opponent pools and evolution affect the trained policy.
    """

    total_steps: int | None = None
    """Environment steps to train for, per member; default: that of the preset, else 1,000,000."""
    seed: int = 0
    """Seed of the first member; the same seed gives the same run, bit for bit."""
    seeds: int = 1
    """Number of seeds to train at once in one compiled program."""
    frame_stack: int = 1
    """Number of observations that the policy observes at once, the current one and those before."""
    sweep_paired: bool = False
    """Pair the values of a sweep over several settings instead of training every combination."""
    run_dir: Path | None = None
    """Folder of the run; default: runs/<environment>/<algorithm>-<date>-<id>."""
    eval_episodes: int | None = None
    """Number of complete episodes per evaluation; default: 10 for simulators on the host, otherwise
    128."""
    eval_count: int = 10
    """Number of evaluations during training, in addition to the one before training."""
    eval_stochastic: bool | None = None
    """Evaluate with sampled instead of greedy actions (default: that of the preset, else greedy)"""
    eval_fresh: bool = False
    """Evaluate on new episodes every time instead of always the same ones."""
    eval_seed: int | None = None
    """Seed of the evaluation episodes, the same for all members. Default: that of each member."""
    eval_info: tuple[str, ...] = ()
    """NAME=mean, NAME=sum or NAME=last: reduction of a value of the environment's info over an
    episode; default: the reduction that the environment declares, else the mean."""
    eval_max_steps: int = 10_000
    """Length in steps at which evaluation cuts off an episode if the environment has no time
    limit."""
    checkpoint_minutes: float = 5.0
    """Minutes between checkpoints, in addition to those at evaluations. 0 disables them."""
    checkpoint_steps: int = 0
    """Environment steps between additional checkpoints. 0 disables them."""
    keep_last: int = 2
    """Number of newest checkpoints to keep."""
    keep_best: int = 1
    """Number of best checkpoints to keep."""
    best_metric: str = "return_mean"
    """Evaluation metric that ranks checkpoints (return_mean, return_iqm, length_mean, ...)."""
    best_mode: Literal["max", "min"] = "max"
    """Whether larger (max) or smaller (min) values of best_metric are better."""
    on_nonfinite: Literal["stop", "rollback"] = "stop"
    """Action when a loss or parameter is not finite: stop, or roll back to the last checkpoint and
    continue with other random keys."""
    log_lines: int = 500
    """Approximate number of metric lines over the whole run; more if a line would span over ten
    updates."""
    stop_when: str | None = None
    """Condition that stops the run after an evaluation: comparisons such as "return_mean>=195" with
    >=, >, <= or <, joined by "and"."""
    curriculum_returns: tuple[float, ...] = ()
    """Returns of training at which a curriculum (--curriculum.NAME) has its first and its last
    values; default: the start and the end of training."""
    init_from: str | None = None
    """Folder of a run whose checkpoint initializes this run (warm start)."""
    init_checkpoint: str = "best"
    """Checkpoint of init_from: best, last or a step."""
    init_parts: tuple[str, ...] = ()
    """Parts of init_from to copy: networks, optimizer, statistics, replay, archive; default:
    networks and statistics, or the archive of an algorithm without networks."""
    init_strict: bool = False
    """Refuse init_from if an array does not fit, instead of adapting it or keeping its initial
    value."""
    demonstrations: str | None = None
    """File of demonstrations (see rollax record): bc imitates them, and algorithms with replay,
    such as dqn, sac and td3, start with them in the replay buffer."""
    tensorboard: bool = True
    """Write TensorBoard event files."""
    wandb: str | None = None
    """Weights & Biases project to log to."""
    trackio: str | None = None
    """Trackio project to log to."""
    env_workers: int | str = 0
    """Number of worker processes for host simulators such as gymnasium's. 0 runs them in the main
    process, "ray:N" in N workers on a Ray cluster."""
    env_timeout: float = 60.0
    """Seconds to wait for one reset or step of a simulator, which has failed after that."""
    env_restarts: int = 0
    """Maximum number of consecutive restarts of a host simulator that fails. The episode is
    truncated. With 0, the first failure stops the run."""
    devices: int | Literal["auto"] = 1
    """Number of devices for the members of a population or the environments of a single run; "auto"
    uses all."""
    opponent_pool: int = 0
    """Number of past versions of the policy in the pool of opponents for self-play. 0 disables the
    pool."""
    opponent_pool_every: int | None = None
    """Environment frames between two versions in the pool; default: a fiftieth of total_steps."""
    opponent_pool_fraction: float = 0.5
    """Fraction of the training episodes against an opponent from the pool; in the others, the
    current policy plays all agents."""
    opponent_pool_sampling: OpponentSampling = "uniform"
    """Opponents from the pool: uniform samples all of them, newest is the newest version, win_rate
    prefers opponents that win."""
    opponent_pool_power: float = 2.0
    """Exponent p of the sampling weight (1 - win rate)^p of opponent_pool_sampling win_rate."""
    opponent_pool_types: tuple[str, ...] = ()
    """Agent types that opponents of the pool play; default: all agents except one side, which is
    sampled for each episode."""
    opponent_pool_runs: tuple[str, ...] = ()
    """Folders of runs, RUN or RUN@CHECKPOINT, whose policies are also in the pool."""
    evolve_every: int | None = None
    """Environment steps between generations of an evolving population (--evolve.NAME); default: a
    tenth of total_steps; 0 disables generations, so members keep their initial settings."""
    evolve_start: int = 0
    """Environment steps before the first generation."""
    evolve_metric: str | None = None
    """Metric that selects members, larger is better: episode_return (mean return in training) or a
    metric of the algorithm (default: qd_score for archives, moqd_score for mome, else
    episode_return)"""
    evolve_fraction: float = EvolutionConfig().fraction
    """Fraction of members replaced in a generation, and of members that are copied; at most 0.5."""
    evolve_resample: float = EvolutionConfig().resample
    """Probability that a setting of a copy is resampled from its range instead of perturbed."""
    evolve_factor: float = EvolutionConfig().factor
    """Largest factor of a perturbation, for a setting with a logarithmic range."""
    evolve_step: float = EvolutionConfig().step
    """Largest perturbation of a setting with a linear range, as a fraction of the range."""

    def __post_init__(self) -> None:
        """Convert the values to the types of their options.

        Raises:
            UsageError: If a value cannot be converted.
        """
        for field in dataclasses.fields(self):
            value = coerce(
                field.name, getattr(self, field.name), field_types(type(self))[field.name]
            )
            object.__setattr__(self, field.name, value)

    @property
    def info(self) -> dict[str, str]:
        """Reduction of each value of `info` over an episode ("mean", ...), keyed by value name."""
        return parse_info_reductions(self.eval_info, "eval_info")

    def check(self) -> None:
        """Check the ranges of numbers and the encoding of paths.

        Raises:
            UsageError: If a number is out of range, an entry of `eval_info` or `stop_when` is not
                valid, or the file system cannot store `run_dir`.
        """
        for name, (low, high) in _OPTION_RANGES.items():
            value = getattr(self, name)
            if value is not None and value != "auto" and not low <= value <= high:
                raise UsageError(
                    f"{name} ({format_value(value)}) must be {describe_range(value, low, high)}"
                )
        if self.seed + self.seeds > 2**32:
            raise UsageError(
                f"seed ({self.seed}) plus seeds ({self.seeds}) must be at most 2^32, because "
                "larger seeds repeat. Lower seed."
            )
        self.info  # noqa: B018
        parse_workers(self.env_workers)
        if self.stop_when is not None:
            parse_stop_condition(self.stop_when)
        self._check_curriculum_returns()
        self._check_warm_start()
        self._check_opponent_pool()
        if self.run_dir is not None:
            check_path("run_dir", self.run_dir)

    def _check_curriculum_returns(self) -> None:
        """Raise UsageError unless there are two finite returns in ascending order, or none."""
        returns = self.curriculum_returns
        if returns and not (
            len(returns) == 2 and all(map(math.isfinite, returns)) and returns[0] < returns[1]
        ):
            raise UsageError(
                f"curriculum_returns must be two numbers LOW HIGH with LOW < HIGH, got "
                f"{format_value(returns)}."
            )

    def _check_warm_start(self) -> None:
        """Raise UsageError for an unknown part, or an option that has no effect."""
        for part in self.init_parts:
            if part not in INIT_PARTS:
                raise UnknownNameError("part in init_parts", part, INIT_PARTS)
        default = RunOptions()
        for name in ("init_checkpoint", "init_parts", "init_strict"):
            value = getattr(self, name)
            if self.init_from is None and value != getattr(default, name):
                raise UsageError(
                    f"{name} ({format_value(value)}) has no effect without init_from. Set "
                    "init_from to a run, or remove the option."
                )

    def make_pool_config(self, updates_per_version: int) -> PoolConfig:
        """Return the settings of the pool of opponents."""
        return PoolConfig(
            size=self.opponent_pool,
            updates_per_version=updates_per_version,
            sampling=self.opponent_pool_sampling,
            fraction=self.opponent_pool_fraction,
            power=self.opponent_pool_power,
            types=self.opponent_pool_types,
        )

    def _check_opponent_pool(self) -> None:
        """Raise UsageError for an option of the pool that has no effect."""
        default = RunOptions()
        for name in OPPONENT_POOL_OPTIONS:
            value = getattr(self, name)
            if value != getattr(default, name) and not self.opponent_pool:
                raise UsageError(
                    f"{name} ({format_value(value)}) has no effect without a pool of opponents. "
                    "Set opponent_pool to a number of versions, such as 8, or remove the option."
                )
        if self.opponent_pool and not self.opponent_pool_fraction:
            raise UsageError(
                "opponent_pool_fraction must be greater than 0, got 0, which disables the pool. "
                "Raise it, or remove opponent_pool."
            )
        runs = ", ".join(self.opponent_pool_runs)
        if runs and self.opponent_pool_sampling == "newest":
            raise UsageError(
                f"opponent_pool_runs ({runs}) has no effect with opponent_pool_sampling newest, "
                "which samples only the newest version of the policy. Choose uniform or win_rate."
            )
        power = self.opponent_pool_power
        if power != default.opponent_pool_power and self.opponent_pool_sampling != "win_rate":
            raise UsageError(
                f"opponent_pool_power ({format_value(power)}) has no effect with "
                f"opponent_pool_sampling {self.opponent_pool_sampling}. Set it to win_rate, or "
                "remove opponent_pool_power."
            )


# Counts on the device are int32. Counts on the host are limited to integers that floats represent
# exactly.
_DEVICE_COUNT_RANGES = dict.fromkeys(
    ("eval_episodes", "eval_max_steps", "frame_stack"), (1, MAX_INT32)
)
_COUNT_RANGES = dict.fromkeys(
    ("total_steps", "seeds", "keep_last", "log_lines", "devices", "opponent_pool_every"),
    (1, MAX_COUNT),
)
_NONNEGATIVE_RANGES = dict.fromkeys(
    (
        "seed",
        "eval_count",
        "checkpoint_minutes",
        "checkpoint_steps",
        "keep_best",
        "evolve_every",
        "evolve_start",
    ),
    (0, MAX_COUNT),
)
_EVOLVE_RANGES = {
    "evolve_fraction": (0, 0.5),
    "evolve_resample": (0, 1),
    "evolve_factor": (1, 100),
    "evolve_step": (0, 1),
}
# Options that apply only to a pool of opponents.
OPPONENT_POOL_OPTIONS = tuple(
    f"opponent_pool_{name}" for name in ("every", "fraction", "sampling", "power", "types", "runs")
)
# Options that apply only to population-based training.
EVOLVE_OPTIONS = ("evolve_every", "evolve_start", "evolve_metric", *_EVOLVE_RANGES)
_OPTION_RANGES = {
    "eval_seed": (0, 2**32 - 1),  # larger seeds repeat
    "env_timeout": (0.1, 86_400),
    "env_restarts": (0, 1000),
    "opponent_pool": (0, 1000),
    "opponent_pool_fraction": (0, 1),
    "opponent_pool_power": (0, 100),
    **_DEVICE_COUNT_RANGES,
    **_COUNT_RANGES,
    **_NONNEGATIVE_RANGES,
    **_EVOLVE_RANGES,
}

# Limits of common file systems in bytes. The path limit leaves room for long names inside the
# folder.
MAX_NAME_BYTES, MAX_PATH_BYTES = 255, 3000


def check_evolve_options(options: RunOptions, ranges: Mapping[str, Range]) -> None:
    """Check that options of population-based training have an effect.

    Args:
        options: Options of the run.
        ranges: Range of each evolving setting, keyed by setting name.

    Raises:
        UsageError: If an option differs from its default but has no effect on these settings.
    """
    default = RunOptions()
    unused = [n for n in EVOLVE_OPTIONS if getattr(options, n) != getattr(default, n)]
    if unused and not ranges:
        raise UsageError(
            f"{unused[0]} ({getattr(options, unused[0])}) has no effect without settings that "
            "evolve. Add --evolve.NAME LOW HIGH, or remove the option."
        )
    scales = {"evolve_factor": "log", "evolve_step": "linear"}
    for name in unused:
        value = getattr(options, name)
        if options.evolve_every == 0 and name != "evolve_every":
            raise UsageError(
                f"{name} ({value}) has no effect with evolve_every 0, which disables generations. "
                "Remove one of them."
            )
        if name in scales and all(span.scale != scales[name] for span in ranges.values()):
            raise UsageError(
                f"{name} ({value}) has no effect, because no setting evolves in a {scales[name]} "
                "range. Remove it."
            )


class WorkerPlacement(NamedTuple):
    """Place of simulators on the host.

    Attributes:
        number: Number of workers. 0 runs the simulators in the main process.
        is_on_ray: Whether the workers run on a Ray cluster.
    """

    number: int
    is_on_ray: bool = False


def parse_workers(value: int | str) -> WorkerPlacement:
    """Parse the option `env_workers`.

    Args:
        value: Number of worker processes, or "ray:N".

    Raises:
        UsageError: If the value has another form, or the number is out of range.
    """
    place, _, number = str(value).rpartition(":")
    if place not in ("", "ray") or not number.isdecimal():
        raise UsageError(
            f"env_workers must be a number of processes, or ray:N for N workers on a Ray cluster, "
            f"got {format_value(value)}."
        )
    workers = WorkerPlacement(int(number), is_on_ray=place == "ray")
    low, high = (1, MAX_RAY_WORKERS) if workers.is_on_ray else (0, MAX_WORKERS)
    if not low <= workers.number <= high:
        raise UsageError(f"env_workers ({value}) must be {describe_range(low, low, high)}")
    return workers


def parse_info_reductions(entries: Iterable[str], option: str) -> dict[str, str]:
    """Parse entries `NAME=REDUCTION` into a dictionary from name to reduction.

    Args:
        entries: Entries. REDUCTION is one of `INFO_REDUCTIONS`.
        option: Name of the option, for the error message.

    Raises:
        UsageError: If an entry does not have this form.
    """
    reductions = {}
    for entry in entries:
        name, _, reduction = entry.partition("=")
        if not name or reduction not in INFO_REDUCTIONS:
            raise UsageError(
                f"{option} must be NAME=HOW with HOW one of {', '.join(INFO_REDUCTIONS)}, got "
                f"{format_value(entry)}."
            )
        reductions[name] = reduction
    return reductions


def _check_encodable(name: str, path: Path, encoding: str) -> None:
    """Raise UsageError for a path that checkpoints or the file system cannot encode."""
    try:
        str(path.absolute()).encode(
            encoding, "strict" if encoding == "utf-8" else sys.getfilesystemencodeerrors()
        )
    except UnicodeEncodeError:
        is_ascii = sys.getfilesystemencoding() != "utf-8"
        remedy = "Set PYTHONUTF8=1" if is_ascii else "Choose another name"
        raise UsageError(
            f"{name} must be a path in {encoding}, got {str(path.absolute())!a}. {remedy}, because "
            "checkpoints need names in UTF-8."
        ) from None


def check_path(name: str, path: Path) -> None:
    """Check that file systems and checkpoints can store a path.

    Args:
        name: Name of the path in error messages.
        path: Path to check.

    Raises:
        UsageError: If the path is too long, contains zero bytes, or cannot be encoded.
    """
    if "\0" in str(path):
        raise UsageError(f"{name} ({format_value(str(path))}) must not contain zero bytes.")
    for encoding in ("utf-8", sys.getfilesystemencoding()):
        _check_encodable(name, path, encoding)
    longest = max((len(os.fsencode(part)) for part in path.parts), default=0)
    if longest > MAX_NAME_BYTES or len(os.fsencode(path)) > MAX_PATH_BYTES:
        raise UsageError(
            f"{name} ({format_value(str(path))}) is too long: it must have at most "
            f"{MAX_NAME_BYTES} bytes per name and {MAX_PATH_BYTES} in total. Choose a shorter path."
        )
