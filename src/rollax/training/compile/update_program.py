"""Compiled training programs, and session functions that run between training segments.

Training programs may be compiled after the first evaluation, to show its result earlier.
"""

import dataclasses
import functools
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from rollax.acting.evaluation import Episodes
from rollax.algorithm import Metrics
from rollax.distributed import processes
from rollax.errors import UsageError
from rollax.populations import evolution
from rollax.populations.evolution import EvolutionConfig, EvolutionState
from rollax.training.callbacks.stop_conditions import describe_condition_values, is_condition_met
from rollax.training.callbacks.user_functions import (
    check_best_metric,
    compute_custom_metrics,
    should_stop,
)
from rollax.training.compile import background
from rollax.training.console.progress import format_bytes
from rollax.training.console.signals import StopRequest, set_activity
from rollax.training.elites import archive_warnings
from rollax.training.evaluation.metrics import USER_METRICS_KEY
from rollax.training.result import Evaluated
from rollax.training.run_folder import recorder
from rollax.training.simulators.episodes import EpisodeTracker
from rollax.training.spec import Spec, get_algorithm_entry
from rollax.types import MetricValues, PyTree

if TYPE_CHECKING:
    import rollax.training.session

# Segments of this length let the display update and a run stop promptly, at no measurable cost.
SEGMENT_SECONDS = 0.5
EPISODES_RESTART_NOTE = ". Checkpoints do not contain simulators, so episodes restart"


def compile_with_timing(
    jitted: jax.stages.Wrapped, *arguments: PyTree
) -> tuple[jax.stages.Compiled, dict[str, float]]:
    """Compile a jitted function for the given arguments, and measure the time of each phase.

    Args:
        jitted: Jitted function.
        *arguments: Arguments, or their shapes and types.

    Returns:
        The compiled function, and the duration in seconds of each phase, keyed by "tracing",
        "lowering" and "xla".
    """
    started = time.monotonic()
    traced = jitted.trace(*arguments)
    traced_at = time.monotonic()
    lowered = traced.lower()
    lowered_at = time.monotonic()
    compiled = background.run_in_thread(lowered.compile)
    seconds = {
        "tracing": traced_at - started,
        "lowering": lowered_at - traced_at,
        "xla": time.monotonic() - lowered_at,
    }
    return compiled, seconds


class TrainingPrograms:
    """Training programs of a run, which `make` compiles.

    Args:
        compile_run: Function that returns the compiled program for updates, and the duration in
            seconds of each compilation phase.
        compile_evolve: Function that returns the compiled program for a generation, or None if the
            run does not evolve.
    """

    def __init__(
        self,
        compile_run: Callable[[], tuple[jax.stages.Compiled, dict[str, float]]],
        compile_evolve: Callable[[], Callable[..., PyTree] | None],
    ) -> None:
        self._compile_fns = compile_run, compile_evolve
        self.is_ready = False
        self.run: Any
        self.evolve: Any
        self.memory_bytes: int | None = None  # estimate for one call of `run`
        self.compile_seconds = 0.0  # for all programs
        self.phase_seconds: dict[str, float] = {}  # for the program of updates

    def make(self) -> None:
        """Trace and compile the programs, unless this has already happened."""
        if self.is_ready:
            return
        started = time.monotonic()
        compile_run, compile_evolve = self._compile_fns
        self.run, self.phase_seconds = compile_run()
        self.evolve = compile_evolve()
        usage = self.run.memory_analysis()
        self.memory_bytes = (
            None if usage is None else usage.argument_size_in_bytes + usage.temp_size_in_bytes
        )
        self.compile_seconds += time.monotonic() - started
        self.is_ready = True

    def describe(self, num_members: int | None) -> str:
        """Return a message with compile time, memory estimate and number of members.

        Args:
            num_members: Number of members of a population, or None for a single run.
        """
        memory = f", about {format_bytes(self.memory_bytes)} of memory" if self.memory_bytes else ""
        members = f", {num_members} members in one program" if num_members else ""
        return (
            f"Compiled in {self.compile_seconds:.1f} s for "
            f"{jax.devices()[0].platform}{memory}{members}"
        )


def agree_on_stop_and_pace(
    session: "rollax.training.session.Session",
    local_request: StopRequest,
    agreed_request: StopRequest,
) -> None:
    """Synchronize stop, checkpoint and length of the next segment across all processes.

    The clock of the first process determines checkpoints and segments. A signal to any process
    stops all processes.

    Args:
        session: Session of the run. Its segment length and checkpoint flag are updated.
        local_request: Stop request of this process.
        agreed_request: Stop request that receives the same signal on all processes.
    """
    minutes = (time.monotonic() - session.last_checkpoint_time) / 60
    late = 0 < session.spec.options.checkpoint_minutes <= minutes
    pace = (
        session.num_timed_updates / session.update_seconds * SEGMENT_SECONDS
        if session.update_seconds
        else 1.0
    )
    if processes.num_processes() > 1:
        gathered = processes.all_gather_numbers(local_request.signal_number or 0, late, pace)
        agreed_request.signal_number, late, pace = (
            int(gathered[:, 0].max()) or None,
            gathered[0, 1],
            gathered[0, 2],
        )
    session.is_checkpoint_overdue, session.updates_per_segment = bool(late), float(pace)


def finish_compilation(session: "rollax.training.session.Session") -> None:
    """Compile the training programs if they are not compiled yet, and show the compile time.

    Args:
        session: Session of the run.
    """
    if session.program.training.is_ready:
        return
    started = time.monotonic()
    session.display.status("compiling")
    with set_activity("compilation"):
        session.program.training.make()
    # Compilation does not count as time of the run.
    session.start_time += time.monotonic() - started
    report_compilation(session)


def restart_window(state: EvolutionState, method: EvolutionConfig) -> EvolutionState:
    """Reset the return and episode counts of members with enough episodes for a known fitness."""
    restart = jax.jit(
        functools.partial(evolution.reset_measurements, min_episodes=method.min_episodes)
    )
    total, number = restart(state.total_return, state.episodes)
    return state._replace(total_return=total, episodes=number)


def report_compilation(session: "rollax.training.session.Session") -> None:
    """Show a message about compilation if the training programs are compiled."""
    program = session.program
    if program.training.is_ready:
        session.display.message(program.training.describe(program.num_members))


def restart_simulator_episodes(
    session: "rollax.training.session.Session", members: np.ndarray | None = None
) -> None:
    """Restart the episodes of host simulators after the state has changed.

    Args:
        session: Session of the run.
        members: Mask of the members whose episodes restart, bool [P], or None for all members.
    """
    if session.program.simulators is not None:
        session.program.simulators.restart_episodes(session.updates, members)


def start_simulators(session: "rollax.training.session.Session") -> None:
    """Start the training simulators and their episodes, if the run has simulators on the host.

    Args:
        session: Session of the run.

    Raises:
        StopRequested: If a stop was requested.
        SimulatorError: If a simulator fails.
    """
    if session.program.simulators is not None:
        session.program.simulators.begin(session.state)


def connect_simulators(
    session: "rollax.training.session.Session", report_fn: Callable[[float, float], None]
) -> None:
    """Show the progress and the restarts of simulators on the host, if the run has them.

    Args:
        session: Session of the run.
        report_fn: Function that shows progress during a segment (see `SimulatorRunner.report_fn`).
    """

    def report_evaluation(playing: EpisodeTracker) -> None:
        session.display.status(
            f"evaluating: {playing.num_finished} of {playing.returns.size} episodes finished, "
            f"{playing.num_steps:,} steps"
        )

    def report_restart(message: str) -> None:
        first_line = message.splitlines()[0].rstrip(".")
        session.warn(
            f"{first_line}. The simulator is made again, and its episode is truncated. The metric "
            "env_restarts counts further restarts."
        )

    simulators = session.program.simulators
    if simulators is not None:
        simulators.report_fn = report_fn
        simulators.report_evaluation_fn = report_evaluation
        simulators.report_restart_fn = report_restart


def raise_simulator_failure(session: "rollax.training.session.Session") -> None:
    """Raise SimulatorError if a simulator failed during the last call of `advance`.

    The session's state contains all updates that were completed before the failure.
    """
    if session.program.simulators is not None and session.program.simulators.failure is not None:
        raise session.program.simulators.failure


def close_simulators(session: "rollax.training.session.Session") -> None:
    """Close the host simulators, if there are any."""
    if session.program.simulators is not None:
        session.program.simulators.close()


def warn_about_archive(session: "rollax.training.session.Session", rows: Metrics) -> None:
    """Warn after the first update of a run if archive settings do not fit the fitness.

    The warnings are about an initial threshold that no solution exceeded, and about the selection
    of members or checkpoints by a negative QD score.
    """
    if session.updates:
        return
    spec, first = session.spec, {name: np.asarray(value)[0] for name, value in rows.values.items()}
    warnings = [
        archive_warnings.describe_unreached_threshold(
            first, _common_threshold_start(spec), spec.config.steps_per_update
        )
    ]
    selection_metrics = {spec.options.best_metric, spec.evolve_metric if spec.evolve else None}
    if archive_warnings.QD_SCORE in selection_metrics:
        warnings.append(archive_warnings.describe_negative_qd_score(first))
    for warning in warnings:
        if warning is not None:
            session.display.message(f"warning: {warning}")


def _common_threshold_start(spec: Spec) -> float | None:
    """Return the initial acceptance threshold of the archive, or None if members may differ."""
    derive_settings = get_algorithm_entry(spec.algorithm).derive_settings
    members = [dataclasses.replace(spec.config, **values) for values in spec.swept_settings()]
    archives = [derive_settings(config).archive for config in members]
    starts = {None if archive is None else archive.threshold_start for archive in archives}
    return None if spec.evolve or len(starts) > 1 else starts.pop()


def warn_about_nonfinite_members(session: "rollax.training.session.Session", rows: Metrics) -> None:
    """Show a warning for each member with new nonfinite values. Other members continue."""
    if not session.program.num_members:
        return
    bad = recorder.find_nonfinite_members(rows)
    known = np.zeros_like(bad) if session.bad is None else session.bad
    for index in np.flatnonzero(bad & ~known):
        member = ", ".join(
            f"{name} {value:g}" for name, value in session.spec.members()[index].items()
        )
        session.display.message(
            f"warning: member {index} ({member}) is no longer finite. The other members continue."
        )
    session.bad = bad | known


def evaluate_custom_metrics(
    session: "rollax.training.session.Session", episodes: Episodes, values: MetricValues
) -> MetricValues:
    """Return the metrics that the user's `metrics` function computes.

    Args:
        session: Session of the run.
        episodes: Episodes of the evaluation.
        values: Default metrics of the evaluation.

    Returns:
        The custom metrics, keyed by name, and the list of their names under `USER_METRICS_KEY`.
        Empty without such a function.

    Raises:
        UsageError: If the function fails before training. Later errors are shown as warnings.
    """
    if session.metric is None:
        return {}
    count, found = session.program.num_members or 0, dict[str, Any]()
    try:
        found = compute_custom_metrics(session.metric, episodes, values, count)
        check_best_metric(session.spec, values | found, custom=found if count else {})
    except UsageError as error:
        if session.updates == 0:
            raise
        session.display.message(
            f"warning: {error} The evaluation of step {session.num_frames:,} is kept without it."
        )
    return found | {USER_METRICS_KEY: list(found)}


def should_stop_early(session: "rollax.training.session.Session") -> bool:
    """Return whether `stop_when` of the first process requests an early stop.

    Args:
        session: Session of the run.

    Returns:
        The decision of the first process, the same on all processes.

    Raises:
        UsageError: If the condition or the function fails before training. Later errors are shown
            as warnings.
    """
    condition = session.spec.options.stop_when
    if session.stop_when is None and condition is None:
        return False
    evaluated = Evaluated(session.num_frames, session.evaluation, session.scores)
    enough = False
    try:
        if condition is not None and is_condition_met(condition, evaluated):
            values = describe_condition_values(condition, evaluated)
            session.display.message(
                f"stop_when: {condition} holds at step {session.num_frames:,} ({values})"
            )
            enough = True
        if session.stop_when is not None:
            enough = should_stop(session.stop_when, evaluated) or enough
    except UsageError as error:
        if session.updates == 0:
            raise
        session.display.message(
            f"warning: {error} Training continues without a stop at step {session.num_frames:,}."
        )
    return bool(processes.all_gather_numbers(enough)[0, 0])
