"""Training session: start or resume of a run, its state, records and checkpoints."""

import dataclasses
import functools
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from rollax.acting.evaluation import Episodes
from rollax.algorithm import State
from rollax.config import traced_field_names
from rollax.distributed import processes
from rollax.training.callbacks.dispatch import CallbackRunner, NamedCallback
from rollax.training.callbacks.events import EventKind, RunEvent
from rollax.training.callbacks.user_functions import MetricsFn
from rollax.training.checkpoints import carry_over, changed_state
from rollax.training.checkpoints import warm_start as warm_starts
from rollax.training.checkpoints.leaves import LeafChanges, add_missing_settings
from rollax.training.checkpoints.store import Checkpoints, RestoredCheckpoint
from rollax.training.checkpoints.summary import CheckpointSummary, MemberScores
from rollax.training.checkpoints.warm_start import WarmStart
from rollax.training.compile import update_program
from rollax.training.compile.program import Program
from rollax.training.console.progress import Display
from rollax.training.console.run_timing import RunTiming
from rollax.training.evaluation import curve_warnings, members
from rollax.training.evaluation.metrics import is_zero_sum_metric, rank_value
from rollax.training.result import Result, StopWhenFn
from rollax.training.run_folder import layout, lineage, phases, recorder
from rollax.training.run_folder.layout import CHECKPOINTS_FOLDER, METRICS_FILE
from rollax.training.run_folder.metric_sinks import read_metrics
from rollax.training.run_folder.phases import Phase
from rollax.training.spec import Spec
from rollax.types import MetricValues


class Session:
    """Training session of a run in one process: state, program, records and checkpoints.

    Functions of a session run between segments. A segment is one call that runs several compiled
    updates.

    Args:
        spec: Specification of the run.
        folder: Folder of the run.
        program: Compiled program.
        display: Display for messages and progress.
        metric: User function that computes custom metrics of an evaluation, or None.
        stop_when: User function that may stop the run early, or None.
        callbacks: Callbacks of the user.
        warm_start: Arrays from another run for the initial state, or None.
        quiet: Whether to suppress the output of dashboards such as Weights & Biases.
    """

    def __init__(
        self,
        *,
        spec: Spec,
        folder: Path,
        program: Program,
        display: Display,
        metric: MetricsFn | None = None,
        stop_when: StopWhenFn | None = None,
        callbacks: Sequence[NamedCallback] = (),
        warm_start: WarmStart | None = None,
        quiet: bool = False,
    ) -> None:
        self.spec = spec
        self.folder = folder
        self.program = program
        self.display = display
        self.metric = metric
        self.stop_when = stop_when
        self.callbacks = CallbackRunner(callbacks, display.message)
        self.warm_start = warm_start
        self.quiet = quiet
        self.monitor = curve_warnings.CurveMonitor(
            curve_warnings.describe_watched_run(spec, program.environment)
        )
        self.checkpoints = Checkpoints(
            folder / CHECKPOINTS_FOLDER,
            keep_last=spec.options.keep_last,
            keep_best=spec.options.keep_best,
            best_metric=spec.options.best_metric,
            best_mode=spec.options.best_mode,
            phase_starts=spec.best_phase_starts,
        )
        self.recorder: recorder.Recorder | recorder.NullRecorder
        self.persistent_settings = layout.persistent_settings(spec)
        self.updates = 0
        self.state: State = None
        self.evaluation: MetricValues = {}
        self.scores: MemberScores | None = None  # only for a population
        self.bad: np.ndarray | None = None
        self.num_rollbacks = 0
        self.update_seconds = 0.0
        self.num_timed_updates = 0
        self.timing = RunTiming()
        self.metric_texts: dict[str, str] = {}  # formatted training metrics of the last segment
        self.start_time = time.monotonic()
        self.last_checkpoint_time = time.monotonic()
        # All processes agree on these two values.
        self.is_checkpoint_overdue = False  # by the clock
        self.updates_per_segment = 1.0

    @property
    def num_frames(self) -> int:
        """Number of environment steps that each member has trained for."""
        return self.updates * self.spec.config.steps_per_update

    @property
    def wall_time(self) -> float:
        """Seconds since the run started, including earlier sessions."""
        return time.monotonic() - self.start_time

    @property
    def steps_per_second(self) -> float:
        """Frames of all members per second, without evaluation and compilation."""
        if not self.update_seconds:
            return 0.0
        return self.frames_of_all_members(self.num_timed_updates) / self.update_seconds

    def frames_of_all_members(self, num_updates: int) -> int:
        """Return the number of environment steps, over all members, in `num_updates` updates."""
        return num_updates * self.spec.config.steps_per_update * (self.program.num_members or 1)

    def warn(self, text: str) -> None:
        """Show a warning."""
        self.display.message(f"warning: {text}")


def restore_or_init(session: Session) -> None:
    """Restore the newest intact checkpoint. Without a checkpoint, initialize a new state."""
    if not session.checkpoints.steps():
        # The process ended before its first checkpoint, so the records are written again.
        open_recorder(session, -1 if recorder.has_records(session.folder) else None)
        session.state = _init_state(session)
        update_program.restart_simulator_episodes(session)
        start_lineage(session)
        return
    step, state, warnings = restore_newest(session)
    for warning in warnings:
        session.warn(warning)
    session.scores = session.checkpoints.summary(step).scores
    session.checkpoints.set_aside_after(step)
    _start_new_phases(session, step)
    session.updates = step // session.spec.config.steps_per_update
    evaluations = _restore_records(session, step)
    # All processes must have read the records before the first process writes to them.
    processes.run_on_all(lambda: None)
    open_recorder(session, step, [record["step"] for record in evaluations])
    session.state = apply_settings(session, state, step)
    start_lineage(session)
    update_program.restart_simulator_episodes(session)
    has_simulators = session.program.simulators is not None
    note = update_program.EPISODES_RESTART_NOTE if has_simulators else ""
    session.display.message(f"Continuing from step {step:,}{note}")
    for phase in _new_phases(session, step):
        session.display.message(f"New phase from {phase.describe()}")


def restore_newest(session: Session) -> RestoredCheckpoint:
    """Read the newest checkpoint. Arrays that a new network or optimizer needs are initialized."""
    return session.checkpoints.restore(
        "last", session.program.abstract_state, functools.partial(_change_leaves, session)
    )


def _change_leaves(session: Session, summary: CheckpointSummary, template: State) -> LeafChanges:
    """Return the leaves of the state that are not read from a checkpoint."""
    new_phases = session.spec.phases[phases.count_phases(summary.settings) :]
    if not any(phase.changes_structure for phase in new_phases):
        return add_missing_settings(summary, template)
    initial, algorithm = session.program.init(), session.program.algorithm
    return carry_over.carry_over(algorithm, summary, initial, session.display.message)


def _init_state(session: Session) -> State:
    """Return the initial state, with the arrays of a warm start."""
    state = session.program.init()
    if session.warm_start is None:
        return state
    for line in warm_starts.describe_warm_start(session.warm_start):
        session.display.message(line)
    if processes.is_first_process():
        warm_starts.write_warm_start(session.folder, session.warm_start)
    return warm_starts.apply_warm_start(session.warm_start, session.program.algorithm, state)


def _restore_records(session: Session, step: int) -> list[MetricValues]:
    """Restore time, evaluation and warnings. Return the evaluation records up to `step`."""
    path = session.folder / METRICS_FILE
    records = read_metrics(path) if path.exists() else []
    records = [record for record in records if record["step"] <= step]
    times = [record.get("wall_time") for record in records]
    session.start_time -= max((each for each in times if isinstance(each, int | float)), default=0)
    for record in records:
        session.monitor.observe(record)
    evaluations = [record for record in records if record.get("event") == "evaluation"]
    session.evaluation = evaluations[-1] if evaluations else {}
    return evaluations


def _new_phases(session: Session, step: int) -> tuple[Phase, ...]:
    """Return the phases that the checkpoint of a step does not include."""
    settings = session.checkpoints.summary(step).settings
    return session.spec.phases[phases.count_phases(settings) :]


def _start_new_phases(session: Session, step: int) -> None:
    """Set the start of new phases to the restored step, which may not be the newest one."""
    num_old = len(session.spec.phases) - len(_new_phases(session, step))
    started = phases.with_starts(session.spec.phases, num_old, step)
    session.spec = dataclasses.replace(session.spec, phases=started)
    session.persistent_settings = layout.persistent_settings(session.spec)


def apply_settings(session: Session, state: State, step: int) -> State:
    """Return a restored state with the schedule length and the settings of new phases.

    Args:
        session: Session of the run.
        state: State in the checkpoint.
        step: Step of the checkpoint.
    """
    config = session.spec.config
    traced = traced_field_names(type(config))
    names = {name for phase in _new_phases(session, step) for name in phase.config_names}
    values = {name: getattr(config, name) for name in traced if name in names}
    values["total_updates"] = session.spec.total_updates
    return changed_state.with_settings(session.program.algorithm, state, values)


def start_lineage(session: Session) -> None:
    """Write the initial settings of the members at the start of an evolving run."""
    if not session.spec.evolve:
        return
    config = processes.gather_arrays(session.program.algorithm.config(session.state))
    lineage.record_initial_generation(session.spec, session.updates, config, session.recorder)


def open_recorder(
    session: Session, resume_from: int | None, evaluated_steps: Iterable[int] = ()
) -> None:
    """Open the recorder and show its warnings.

    Args:
        session: Session of the run.
        resume_from: Step at which a resumed run continues, or None for a new run.
        evaluated_steps: Steps with a recorded evaluation, for processes that write no files.
    """
    if not processes.is_first_process():
        session.recorder = recorder.NullRecorder(evaluated_steps)
        return
    session.recorder = recorder.Recorder(session.folder, session.spec, resume_from, session.quiet)
    for warning in session.recorder.warnings:
        session.warn(warning)


def run_callbacks(
    session: Session,
    kind: EventKind,
    values: MetricValues,
    *,
    updates: int | None = None,
    episodes: Episodes | None = None,
    result: Result | None = None,
) -> MetricValues:
    """Call the callbacks for an event.

    Args:
        session: Session of the run.
        kind: Kind of the event.
        values: Recorded values, keyed by name.
        updates: Number of completed updates at the event, or None for `session.updates`.
        episodes: Episodes for an "evaluation" event, or None.
        result: Result of the run for an "end" event, or None.

    Returns:
        The values that the callbacks logged, keyed by name.
    """
    if not session.callbacks.handles(kind):
        return {}
    updates = session.updates if updates is None else updates

    def make_event() -> RunEvent:
        return RunEvent(
            kind=kind,
            step=updates * session.spec.config.steps_per_update,
            updates=updates,
            total_steps=session.spec.total_updates * session.spec.config.steps_per_update,
            folder=session.folder,
            num_members=session.program.num_members or 0,
            values=dict(values),
            scores=session.scores,
            episodes=episodes,
            result=result,
            adjustable=session.spec.curriculum_values.adjustable,
        )

    logged = session.callbacks.run(make_event, kind)
    if session.callbacks.arguments:
        session.state = changed_state.with_parameters(
            session.program.algorithm, session.state, session.callbacks.arguments
        )
    return logged


def save_checkpoint(session: Session) -> None:
    """Save a checkpoint. If this step was evaluated, the checkpoint includes its metrics."""
    evaluation, best_metric = session.evaluation, session.spec.options.best_metric
    metrics = {
        name: float(value) for name, value in evaluation.items() if isinstance(value, int | float)
    }
    rank = rank_value(best_metric, evaluation)
    metrics.pop(best_metric, None)
    if rank is not None and not is_zero_sum_metric(best_metric, evaluation):
        metrics[best_metric] = rank
    is_evaluated = evaluation.get("updates") == session.updates
    scores = (
        None
        if session.scores is None
        else members.drop_nonfinite_scores(session.scores, session.bad)
    )
    session.recorder.sync()  # so that the checkpoint never refers to records that are not on disk
    is_saved = session.checkpoints.save(
        session.num_frames,
        session.state,
        metrics if is_evaluated else {},
        session.persistent_settings,
        scores,
    )
    if is_evaluated and not is_saved:  # it was saved at a stop, before its evaluation
        session.checkpoints.update_metrics(session.num_frames, metrics, scores)
    session.last_checkpoint_time = time.monotonic()
    # A checkpoint that a rollback restored does not count, or failing rollbacks would never end.
    if is_saved:
        session.num_rollbacks = 0
    if is_saved and session.callbacks.handles("checkpoint"):
        session.checkpoints.wait()  # so that a callback can load it
        run_callbacks(session, "checkpoint", evaluation if is_evaluated else {})
