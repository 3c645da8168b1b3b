"""Warnings about known problems of training, which are detected in the metrics of a run.

docs/what-the-curves-say.md explains every warning. Thresholds are conservative, so that the presets
of rollax cause no warnings.
"""

import collections
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from rollax.algorithms.learning_signals import LearningSignals
from rollax.environments.capabilities import has_closed_form
from rollax.environments.environment import Environment
from rollax.spaces import Box, Discrete, MultiDiscrete, Space, flatten_space, list_parts
from rollax.training.compile.evaluators import max_eval_steps
from rollax.training.evaluation.metrics import format_number
from rollax.training.spec import Spec, get_algorithm_entry
from rollax.types import MetricValues, Record

if TYPE_CHECKING:
    import rollax.training.session

PAGE = "docs/what-the-curves-say.md"
WARNING_EVENT = "warning"  # value of "event" in the lines of metrics.jsonl with a warning

NUM_LINES = 5  # number of consecutive metric lines in which a problem must be visible
NUM_EVALUATIONS = 2  # number of consecutive evaluations
MIN_IMPROVEMENT = 0.1  # of the sampled return, relative to its size, before actions are compared
MIN_LATE_FRACTION = 0.5  # of training, after which actions are compared without an improvement
MIN_CLIP_RATIO = 4.0  # of the gradient norm to its maximum, and of the value loss to 1
MIN_CLIP_FRACTION = 0.1  # of training in which the gradient is clipped that much
MAX_ONE_STEP_LENGTH = 1.01
MIN_CONSTANT_FRACTION = 0.2  # of training in which every episode has the same return
MAX_EARLY_FRACTION = 0.3  # of training, in which a collapsed entropy is too early
MIN_ENTROPY_FRACTION = 0.01  # of the entropy of uniform discrete actions
MIN_LOG_STD = -4.9  # relative to half of the range of an action, near the bound of policy heads


class CurveWarning(NamedTuple):
    """Warning about the curves of a run.

    Attributes:
        name: Name of the problem, and anchor of its section in `PAGE`.
        text: Observation and remedy on one line.
    """

    name: str
    text: str


class WatchedRun(NamedTuple):
    """Facts of a run that determine which problems are detected.

    Attributes:
        total_steps: Number of frames of the whole run.
        num_envs: Number of environments in training, at least 1.
        step_limit: Maximum number of steps of an evaluation episode.
        can_end_after_one_step: Whether the environment has a time limit of one step.
        can_compare_actions: Whether evaluations differ from training only by greedy actions.
        has_one_agent: Whether the environment has no agent axis.
        min_entropy: Entropy below which the policy has collapsed, or minus infinity.
        has_policy: Whether the run trains a policy. If it is False, as for archives of solutions,
            only evaluations are checked.
        signals: Metrics that the algorithm declares.
    """

    total_steps: int
    num_envs: int = 1
    step_limit: int = 0
    can_end_after_one_step: bool = False
    can_compare_actions: bool = True
    has_one_agent: bool = True
    min_entropy: float = -math.inf
    has_policy: bool = True
    signals: LearningSignals = LearningSignals()


def describe_watched_run(spec: Spec, environment: Environment) -> WatchedRun:
    """Return the facts of a run that determine which problems are detected.

    Args:
        spec: Specification of the run.
        environment: Environment of evaluations.
    """
    entry = get_algorithm_entry(spec.algorithm)
    # Members of a population may have different settings.
    is_uniform = not spec.sweep and not spec.evolve
    signals = entry.derive_signals(spec.config, spec.network)
    differs = spec.eval_arguments or spec.randomize or spec.curriculum or spec.opponents
    return WatchedRun(
        total_steps=spec.total_updates * spec.config.steps_per_update,
        num_envs=max(spec.derived_settings.num_envs, 1),
        step_limit=max_eval_steps(environment, spec),
        can_end_after_one_step=environment.time_limit == 1,
        can_compare_actions=not (differs or spec.options.eval_stochastic),
        has_one_agent=environment.num_agents is None,
        min_entropy=min_entropy(environment, signals.has_normalized_actions),
        has_policy=entry.unit == "steps" and not has_closed_form(environment),
        signals=signals if is_uniform else signals._replace(shared_clip=None),
    )


def min_entropy(environment: Environment, has_normalized_actions: bool) -> float:
    """Return the entropy in nats below which the policy of an environment has collapsed.

    It is minus infinity for spaces without a scale, and for environments with masks of actions,
    where a single action may be legal.

    Args:
        environment: Environment with the action space.
        has_normalized_actions: Whether the entropy is that of actions between -1 and 1.
    """
    if "action_mask" in list_parts(environment.observation_space):
        return -math.inf
    parts = flatten_space(environment.action_space, "action").values()
    return sum(_min_entropy_of_array(part, has_normalized_actions) for part in parts)


def _min_entropy_of_array(space: Space, is_normalized: bool) -> float:
    match space:
        case Discrete():
            return MIN_ENTROPY_FRACTION * math.log(max(space.n, 1))
        case MultiDiscrete():
            return MIN_ENTROPY_FRACTION * sum(math.log(max(size, 1)) for size in space.sizes)
        case Box() if space.is_bounded:
            width = np.broadcast_to(np.subtract(space.high, space.low), space.shape)
            scale = np.ones(space.shape) if is_normalized else np.maximum(width / 2, 1e-30)
            log_std = np.log(scale) + MIN_LOG_STD
            return float(np.sum(log_std + 0.5 * math.log(2 * math.pi * math.e)))
        case _:
            return -math.inf


class CurveMonitor:
    """Monitor of the metric lines and evaluations of one run. Each warning is given once.

    The state follows from the lines alone, so a resumed run restores it by reading its lines again.
    """

    def __init__(self, run: WatchedRun) -> None:
        self._run = run
        self._given: set[str] = set()
        self._first_return = math.nan
        self._has_constant_return = True
        self._num_lines_with_episodes = 0
        self._recent_returns = collections.deque[float](maxlen=NUM_LINES)
        self._num_low_evaluations = 0
        self._num_low_entropies = 0
        self._num_clipped = 0
        self._clipped_since = 0

    def observe(self, record: Record) -> list[CurveWarning]:
        """Return the new warnings after a line of metrics.jsonl.

        Args:
            record: Line with the key "step". For a population, the median over members counts.
        """
        event = record.get("event")
        if event == WARNING_EVENT:
            self._given.add(str(record.get("name")))
            return []
        if event not in (None, "evaluation"):
            return []
        checks = self._evaluation_checks() if event else self._training_checks()
        if not event:
            self._count_episodes(record)
        found = {name: check(record) for name, check in checks.items()}
        new = [
            CurveWarning(name, f"{text} See {PAGE}#{name}.")
            for name, text in found.items()
            if text is not None and name not in self._given
        ]
        self._given |= {warning.name for warning in new}
        return new

    def _training_checks(self) -> dict[str, Callable[[Record], str | None]]:
        if not self._run.has_policy:
            return {}
        return {
            "episodes-of-one-step": self._check_one_step_episodes,
            "advantages-of-zero": self._check_constant_return,
            "entropy-collapse": self._check_entropy,
            "value-loss-dominates-the-gradient-clip": self._check_shared_clip,
        }

    def _evaluation_checks(self) -> dict[str, Callable[[Record], str | None]]:
        checks = {"evaluation-episodes-cut-off": self._check_step_limit}
        if self._run.has_policy:
            checks["greedy-actions-worse-than-sampled-actions"] = self._check_greedy_actions
        return checks

    def _count_episodes(self, record: Record) -> None:
        """Update the history of returns from a line of training metrics."""
        mean_return = _median(record, "episode_return")
        if not math.isfinite(mean_return):
            return
        if not self._num_lines_with_episodes:
            self._first_return = mean_return
        self._num_lines_with_episodes += 1
        self._recent_returns.append(mean_return)
        tolerance = 1e-6 * max(abs(self._first_return), 1e-6)
        self._has_constant_return &= abs(mean_return - self._first_return) <= tolerance

    def _check_one_step_episodes(self, record: Record) -> str | None:
        length = _median(record, "episode_length")
        if not math.isfinite(length):
            return None
        is_ill = length <= MAX_ONE_STEP_LENGTH and not self._run.can_end_after_one_step
        if not is_ill or self._num_lines_with_episodes != NUM_LINES:
            return None
        return (
            "Episodes of training end after one step, so the policy only observes initial states. "
            "Check that terminated and truncated are false after reset, with "
            "rollax.check_environment."
        )

    def _check_constant_return(self, record: Record) -> str | None:
        is_late = record["step"] >= MIN_CONSTANT_FRACTION * self._run.total_steps
        has_enough = self._num_lines_with_episodes >= NUM_LINES
        if not (self._has_constant_return and is_late and has_enough and self._run.has_one_agent):
            return None
        return (
            f"Every episode so far has the return {format_number(self._first_return)}, so the "
            "advantages of all actions are equal and there is nothing to learn from. Give rewards "
            "for progress, or explore with ppo_rnd."
        )

    def _check_entropy(self, record: Record) -> str | None:
        name = self._run.signals.entropy
        entropy = math.nan if name is None else _median(record, name)
        is_early = record["step"] <= MAX_EARLY_FRACTION * self._run.total_steps
        is_low = is_early and entropy < self._run.min_entropy
        self._num_low_entropies = self._num_low_entropies + 1 if is_low else 0
        if self._num_low_entropies < NUM_LINES:
            return None
        return (
            f"The entropy of the policy is {format_number(entropy)} at "
            f"{record['step'] / self._run.total_steps:.0%} of training, so it no longer explores. "
            "Raise the entropy bonus, or lower the learning rate."
        )

    def _check_shared_clip(self, record: Record) -> str | None:
        clip = self._run.signals.shared_clip
        if clip is None:
            return None
        norm, value_loss = _median(record, clip.grad_norm), _median(record, clip.value_loss)
        is_clipped = norm >= MIN_CLIP_RATIO * clip.max_grad_norm
        is_dominated = is_clipped and clip.value_weight * value_loss >= MIN_CLIP_RATIO
        if not is_dominated:
            self._num_clipped = 0
            return None
        self._clipped_since = self._clipped_since if self._num_clipped else record["step"]
        self._num_clipped += 1
        num_steps = record["step"] - self._clipped_since
        is_long = num_steps >= MIN_CLIP_FRACTION * self._run.total_steps
        if self._num_clipped < NUM_LINES or not is_long:
            return None
        return (
            f"The gradient norm is {format_number(norm)}, max_grad_norm is "
            f"{format_number(clip.max_grad_norm)}, and the value loss is "
            f"{format_number(value_loss)}, so the value loss determines the direction of the "
            "update and the policy learns slowly. Normalize rewards or values, lower "
            "value_coefficient, or set network.shared to false."
        )

    def _check_greedy_actions(self, record: Record) -> str | None:
        self._num_low_evaluations = (
            self._num_low_evaluations + 1 if self._is_greedy_return_low(record) else 0
        )
        if self._num_low_evaluations < NUM_EVALUATIONS:
            return None
        greedy, sampled = _median(record, "return_mean"), min(self._recent_returns)
        return (
            f"Greedy actions reach a return of {format_number(greedy)} in evaluations, and sampled "
            f"actions reach {format_number(sampled)} in training. Evaluate with "
            "--eval-stochastic, or train longer with a lower entropy bonus."
        )

    def _is_greedy_return_low(self, record: Record) -> bool:
        """Return whether the return of greedy actions lies far below that of sampled actions.

        The result is true in two cases: the sampled return has clearly improved and the greedy
        return has reached less than half of the improvement, or, in the second half of training,
        the greedy return is lower than the sampled return by more than its absolute value. During
        the first episodes, the result is false, because only short episodes have ended.
        """
        values = {
            name: _median(record, name)
            for name in ("return_mean", "return_std", "return_count", "length_max", "unfinished")
        }
        steps_per_environment = record["step"] / self._run.num_envs
        is_comparable = (
            self._run.can_compare_actions
            and len(self._recent_returns) == NUM_LINES
            and values["unfinished"] == 0
            and steps_per_environment >= 2 * values["length_max"]
        )
        if not is_comparable:
            return False
        lowest, highest = min(self._recent_returns), max(self._recent_returns)
        spread, improvement = highest - lowest, lowest - self._first_return
        size = max(abs(lowest), abs(self._first_return))
        has_improved = improvement > max(2 * spread, MIN_IMPROVEMENT * size)
        is_late = record["step"] >= MIN_LATE_FRACTION * self._run.total_steps
        error = values["return_std"] / math.sqrt(max(values["return_count"], 1))
        greedy = values["return_mean"] + 2 * error
        return (has_improved and greedy < self._first_return + improvement / 2) or (
            is_late and greedy < lowest - max(3 * spread, abs(lowest))
        )

    def _check_step_limit(self, record: Record) -> str | None:
        unfinished = _median(record, "unfinished")
        if not unfinished > 0:
            return None
        return (
            f"{unfinished:.0%} of these episodes did not end within {self._run.step_limit} steps, "
            "so their returns are incomplete. Raise --eval-max-steps, or give the environment a "
            "time limit."
        )


def _median(record: Record, name: str) -> float:
    """Return a metric as a number: the median over finite members, or NaN without any.

    Values that are not numbers, as in a damaged file, are ignored.
    """
    value = record.get(name)
    values = value if isinstance(value, list) else [value]
    numbers = np.array([x for x in values if isinstance(x, int | float)], float)
    finite = numbers[np.isfinite(numbers)]
    return float(np.median(finite)) if finite.size else math.nan


def warn_about_curves(
    session: "rollax.training.session.Session", step: int, values: MetricValues
) -> None:
    """Show and record the warnings that follow from a line of metrics.

    Args:
        session: Session of the run.
        step: Environment step of the line.
        values: Metrics of the line, keyed by name. An evaluation has `"event": "evaluation"`.
    """
    for warning in session.monitor.observe({**values, "step": step}):
        session.warn(warning.text)
        session.recorder.write_warning(step, warning._asdict())
