"""Training loop on the host, which runs compiled segments of any algorithm.

Evaluation, checkpoints, evolution and logging happen between segments.
"""

import contextlib
import functools
import time
from collections.abc import Sequence

import jax.numpy as jnp

from rollax.acting.episode_metrics import info_shapes, validate_reductions
from rollax.acting.evaluation import Episodes
from rollax.algorithm import Metrics
from rollax.distributed import processes
from rollax.environments.capabilities import capabilities, is_on_host
from rollax.environments.environment import Environment
from rollax.errors import UsageError
from rollax.training.callbacks.dispatch import NamedCallback
from rollax.training.callbacks.stop_conditions import check_condition_names
from rollax.training.callbacks.user_functions import MetricsFn, check_best_metric
from rollax.training.checkpoints import changed_state
from rollax.training.checkpoints.store import CheckpointSaveError
from rollax.training.compile import cache, update_program
from rollax.training.compile import program as programs
from rollax.training.console.progress import format_duration
from rollax.training.console.signals import StopRequest, StopRequested
from rollax.training.evaluation import members
from rollax.training.evaluation.curve_warnings import warn_about_curves
from rollax.training.evaluation.metrics import default_metrics, format_training_metrics
from rollax.training.evaluation.run_evaluation import evaluate_if_due, num_remaining_evaluations
from rollax.training.result import Result
from rollax.training.run_folder import layout, lineage, recorder
from rollax.training.run_folder.layout import installed_version
from rollax.training.run_folder.metric_sinks import missing_package_error
from rollax.training.session import (
    Session,
    apply_settings,
    open_recorder,
    restore_newest,
    restore_or_init,
    run_callbacks,
    save_checkpoint,
    start_lineage,
)
from rollax.training.simulators.restarts import SimulatorError
from rollax.training.spec import Spec, get_algorithm_entry
from rollax.types import MetricValues

MAX_ROLLBACKS = 10


def run_session(session: Session, request: StopRequest) -> Result:
    """Train from the newest checkpoint, or from the start, until the end or a stop request.

    In a distributed run, all processes must call this function. Decisions that depend on clocks or
    signals are synchronized between processes.

    Args:
        session: Session of the run.
        request: Stop request that signal handlers set.

    Returns:
        The result of the run.

    Raises:
        UsageError: If a callback raises an exception. The run is saved first.
    """
    # With several processes, the first one passes the request on between segments.
    agreed_request = request if processes.num_processes() == 1 else StopRequest()
    update_program.connect_simulators(session, functools.partial(_show_progress, session))
    try:
        restore_or_init(session)
        update_program.report_compilation(session)
        if processes.is_first_process():
            # The specification is written only after everything else was checked.
            layout.write_spec(session.folder, session.spec)
        is_finite = _train_until_stop(session, request, agreed_request)
        status = "done" if is_finite else "nonfinite"
        session.checkpoints.wait()
    except SimulatorError as error:
        session.display.message(f"error: {error}")
        status = "failed"
        save_checkpoint(session)
        session.checkpoints.wait()
    finally:
        update_program.close_simulators(session)
        if session.state is not None:
            session.recorder.close()
        with contextlib.suppress(CheckpointSaveError):
            session.checkpoints.close()
    if status == "done" and not _is_complete(session):
        status = "stopped"
    result = Result(
        folder=session.folder,
        status=status,
        exit_code=_exit_code(status, agreed_request),
        steps=session.num_frames,
        evaluation=session.evaluation,
        wall_time=session.wall_time,
        steps_per_second=session.steps_per_second,
        best=session.checkpoints.best_value(),
        scores=session.scores,
    )
    run_callbacks(session, "end", session.evaluation, result=result)
    session.callbacks.raise_failure()
    return result


def _train_until_stop(session: Session, request: StopRequest, agreed_request: StopRequest) -> bool:
    """Train until the end or a stop. Return False if nonfinite values stopped the run."""
    while True:
        update_program.agree_on_stop_and_pace(session, request, agreed_request)
        is_evaluated = not _is_interrupted(session, agreed_request) and evaluate_if_due(session)
        is_at_end = session.updates >= session.spec.total_updates
        # A signal may also arrive during the evaluation.
        is_interrupted = _is_interrupted(session, agreed_request)
        should_end = is_at_end or is_interrupted or session.callbacks.should_stop
        if is_evaluated or should_end or _is_checkpoint_due(session):
            save_checkpoint(session)
        if should_end or session.callbacks.should_stop:
            return True
        if is_evaluated and update_program.should_stop_early(session):
            return True
        update_program.finish_compilation(session)
        _evolve_if_due(session)
        if not _run_segment(session):
            return False


def _is_complete(session: Session) -> bool:
    """Return whether all updates are done and evaluated."""
    is_at_end = session.updates >= session.spec.total_updates
    return is_at_end and session.recorder.has_evaluation(session.num_frames)


def _exit_code(status: str, request: StopRequest) -> int:
    """Return the exit code of the command line for a status."""
    if status == "stopped":
        return 128 + request.signal_number if request.signal_number else 0
    return {"done": 0, "nonfinite": 3, "failed": 4}[status]


def _evolve_if_due(session: Session) -> None:
    """Replace members of the population if a generation is due.

    The evaluation and the checkpoint of the same step run first, with the members before
    replacement.
    """
    spec, updates = session.spec, session.updates
    if session.program.evolve is None or not spec.is_window_end(updates):
        return
    if not spec.is_generation_due(updates):  # before `evolve_start`
        session.state = update_program.restart_window(session.state, spec.method)
        return
    session.state, generation = session.program.evolve(session.state)
    update_program.restart_simulator_episodes(session, lineage.replaced_members(generation))
    session.recorder.write_generation(
        session.num_frames, lineage.make_generation_record(spec, updates, generation)
    )
    if session.scores is not None:
        session.scores = members.inherit_scores(session.scores, generation)
    if session.bad is not None:
        session.bad &= ~lineage.replaced_members(generation)
    if lineage.should_log_generation(spec, updates):
        session.display.message(lineage.format_generation(spec, updates, generation))


def _is_interrupted(session: Session, request: StopRequest) -> bool:
    """Return whether a signal requests a stop, or a callback has raised."""
    return bool(request.signal_number) or session.callbacks.failure is not None


def _is_checkpoint_due(session: Session) -> bool:
    interval = _updates_per_checkpoint(session.spec)
    return session.is_checkpoint_overdue or bool(
        session.updates and session.updates % interval == 0
    )


def _updates_per_checkpoint(spec: Spec) -> int:
    """Return the number of updates between checkpoints, a multiple of `updates_per_line`."""
    if not spec.options.checkpoint_steps:
        return spec.total_updates + 1
    updates = spec.options.checkpoint_steps / spec.config.steps_per_update
    return max(1, round(updates / spec.updates_per_line)) * spec.updates_per_line


def check_metrics_and_loggers(
    spec: Spec,
    metric: MetricsFn | None,
    environment: Environment | None = None,
    callbacks: Sequence[NamedCallback] = (),
) -> None:
    """Check that the packages of loggers and the metrics named in the options exist.

    Args:
        spec: Specification of the run.
        metric: User function that computes custom metrics of an evaluation, or None. Its metric
            names are not known in advance, so with a function no metric names are checked.
        environment: Environment object, or None if the environment is made from its id.
        callbacks: Callbacks. If one of them receives evaluations, it may log metrics, so the names
            in `stop_when` are not checked.

    Raises:
        UsageError: If a package is missing, or evaluations do not contain the best metric or a
            metric of `stop_when`.
        UnknownNameError: If `eval_info` names a number that the environment does not report.
    """
    for package, project in (("wandb", spec.options.wandb), ("trackio", spec.options.trackio)):
        if project and installed_version(package) is None:
            raise missing_package_error(package)
    evaluated = programs.evaluation_environment(spec, environment)
    if not is_on_host(evaluated):
        validate_reductions(evaluated, spec.options.info)
    if metric is not None:
        return
    example = _example_metrics(spec, environment)
    condition = spec.options.stop_when
    source = "metrics=..."
    try:
        check_best_metric(spec, example, custom={})
        if condition and not any("evaluation" in each.functions for each in callbacks):
            source = "metrics=... or a callback"
            check_condition_names(condition, example)
    except UsageError as error:
        raise UsageError(
            f"{error} If {source} computes it, train and resume from Python with that function."
        ) from None


def _example_metrics(spec: Spec, environment: Environment | None) -> MetricValues:
    """Return example metrics with the same names and shapes as the metrics of an evaluation."""
    evaluated = programs.evaluation_environment(spec, environment)
    types = capabilities(evaluated).agent_types
    episode = Episodes(
        returns=jnp.ones((1, len(types)) if types else 1),
        length=jnp.ones(1),
        terminated=jnp.ones(1, bool),
        truncated=jnp.ones(1, bool),
    )
    names = get_algorithm_entry(spec.algorithm).console_metrics
    return {
        **default_metrics(episode, types),
        **dict.fromkeys(names, 0.0),
        **info_shapes(evaluated),
        "episodes": 1,
    }


def _run_segment(session: Session) -> bool:
    """Run one segment. Return False if nonfinite values in every member stop the run."""
    try:
        update_program.start_simulators(session)
    except StopRequested:
        return True
    started = time.monotonic()
    session.state, rows = session.program.advance(session.state, _segment_length(session))
    seconds = time.monotonic() - started
    # Fewer updates than requested where a simulator failed, or a stop was requested.
    number = len(rows.episodes.number)
    if not number:
        return True
    session.update_seconds += seconds
    session.num_timed_updates += number
    session.timing.add_segment(number, seconds)
    failure = recorder.find_first_nonfinite(rows)
    if failure is not None:
        return _roll_back(session, failure)
    update_program.warn_about_nonfinite_members(session, rows)
    update_program.warn_about_archive(session, rows)
    # The speed is measured over this segment alone, so that a slowdown is visible.
    speed = session.frames_of_all_members(number) / max(seconds, 1e-9)
    values = _record_segment(session, rows, number, speed)
    session.updates += number
    cache.confirm_start()
    session.metric_texts = _format_training(session, values)
    _show_progress(session)
    update_program.raise_simulator_failure(session)
    return True


def _record_segment(
    session: Session, rows: Metrics, num_updates: int, speed: float
) -> MetricValues:
    """Write the metric lines of a segment, and return the values of the last line."""
    per_line, values = session.spec.updates_per_line, MetricValues()
    for line_start in _metric_line_starts(session.updates, num_updates, per_line):
        first = max(line_start - session.updates, 0)
        stop = min(num_updates, (line_start // per_line + 1) * per_line - session.updates)
        updates = session.updates + stop
        values = recorder.make_metrics_record(rows, first, stop)
        timing = {
            "updates": updates,
            "wall_time": session.wall_time,
            "steps_per_second": speed,
        }
        if session.program.simulators is not None and session.spec.options.env_restarts:
            timing["env_restarts"] = session.program.simulators.num_restarts
        values |= timing
        values |= run_callbacks(session, "metrics", values, updates=updates)
        step = updates * session.spec.config.steps_per_update
        session.recorder.write_metrics(step, values)
        warn_about_curves(session, step, values)
    return values


def _metric_line_starts(updates: int, num_updates: int, per_line: int) -> range:
    """Return the index of the first update of each metric line that a segment contributes to."""
    return range(updates // per_line * per_line, updates + num_updates, per_line)


def _segment_length(session: Session) -> int:
    """Return the number of updates of the next segment.

    A segment ends at a metric line, or at the next evaluation, generation or checkpoint. If a
    callback receives metrics, the segment ends at the next metric line. The step of a requested
    stop then does not depend on speed.
    """
    spec, updates = session.spec, session.updates
    line = spec.updates_per_line
    intervals = (
        spec.updates_per_evaluation,
        spec.updates_per_generation,
        _updates_per_checkpoint(spec),
    )
    ends = [(updates // interval + 1) * interval for interval in intervals if interval]
    pace = 1 if session.callbacks.handles("metrics") else max(int(session.updates_per_segment), 1)
    length = min(pace, session.program.capacity)
    end_of_line = max((updates + length) // line, updates // line + 1) * line
    return min(spec.total_updates, *ends, end_of_line) - updates


def _roll_back(session: Session, failure: recorder.NonfiniteUpdate) -> bool:
    """Restore the newest checkpoint. Return whether training continues from it.

    Training ends with `on_nonfinite="stop"`, or after `MAX_ROLLBACKS` rollbacks to one checkpoint.
    """
    update = session.updates + failure.update + 1
    step, state, _ = restore_newest(session)
    cause = recorder.describe_nonfinite(failure.failed_check, session.spec)
    session.display.message(
        f"error: {cause} at step {update * session.spec.config.steps_per_update:,} (update "
        f"{update}). The last good state is the checkpoint of step {step:,}."
    )
    session.updates = step // session.spec.config.steps_per_update
    session.state = state
    if session.spec.options.on_nonfinite == "stop":
        return False
    session.num_rollbacks += 1
    if session.num_rollbacks > MAX_ROLLBACKS:
        session.display.message(
            f"error: Values became nonfinite again after {MAX_ROLLBACKS} rollbacks to the same "
            "checkpoint."
        )
        return False
    session.checkpoints.set_aside_after(step)
    session.recorder.close()
    if isinstance(session.recorder, recorder.NullRecorder):
        session.recorder = session.recorder.roll_back(step)
    else:
        open_recorder(session, step)
    session.scores = session.checkpoints.summary(step).scores
    session.state = changed_state.with_rollback_keys(
        session.program.algorithm,
        session.spec,
        apply_settings(session, state, step),
        session.updates,
        session.num_rollbacks,
    )
    start_lineage(session)
    update_program.restart_simulator_episodes(session)
    session.display.message(
        f"Continuing from there with other random keys (rollback {session.num_rollbacks})"
    )
    return True


def _format_training(session: Session, values: MetricValues) -> dict[str, str]:
    """Format the training metrics of the progress line, keyed by label."""
    num_envs = max(session.spec.derived_settings.num_envs, 1)
    return format_training_metrics(
        values,
        session.evaluation,
        get_algorithm_entry(session.spec.algorithm).console_metrics,
        steps_per_environment=session.num_frames / num_envs,
    )


def _show_progress(session: Session, num_updates: float = 0.0, seconds: float = 0.0) -> None:
    """Show the progress of a run.

    Args:
        session: Session of the run.
        num_updates: Number of updates of a segment that is not complete.
        seconds: Duration of that segment.
    """
    steps_per_update, total = session.spec.config.steps_per_update, session.spec.total_updates
    speed = (session.num_timed_updates + num_updates) / (session.update_seconds + seconds)
    unit = get_algorithm_entry(session.spec.algorithm).unit
    metric_texts = session.metric_texts | {
        f"{unit}/s": f"{session.frames_of_all_members(1) * speed:,.0f}"
    }
    share = session.timing.evaluation_share(seconds)
    if session.program.simulators is not None and share:
        metric_texts["evaluation"] = f"{share:.0%} of the time"
    remaining = session.timing.remaining_seconds(
        total - session.updates - num_updates,
        num_remaining_evaluations(session),
        partial=(num_updates, seconds),
    )
    if remaining is not None:
        metric_texts["left"] = format_duration(remaining)
    num_frames = round((session.updates + num_updates) * steps_per_update)
    session.display.progress(num_frames, total * steps_per_update, metric_texts)
