"""The host's loop: compiled segments, and between them everything else. There is one loop for all algorithms."""

import contextlib
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from rollax.acting.evaluate import Episodes
from rollax.acting.info import info_shapes
from rollax.environments.core import agent_types
from rollax.errors import UnknownNameError, UsageError
from rollax.host import compilation_cache, lineage, members, record, run_folder, schedules, training
from rollax.host import program as programs
from rollax.host.archive_map import map_of
from rollax.host.checkpoint import Checkpoints, SaveFailed
from rollax.host.checkpoint_summary import MemberScores
from rollax.host.evaluation import Metric, default_metrics, in_training, in_words, measured, tells_nothing, unranked
from rollax.host.logging import missing, read_metrics
from rollax.host.progress import Display, duration
from rollax.host.result import Evaluated, Result, StopWhen
from rollax.host.run_folder import CHECKPOINTS, METRICS, installed
from rollax.host.settings import Spec, entry
from rollax.host.signals import StopRequest
from rollax.host.simulators import SimulatorFailed
from rollax.networks.solutions import has_closed_form
from rollax.scale import processes

MOST_ROLLBACKS = 10


class Session:
    """One process' share of a run: the state between segments and what is done with it."""

    def __init__(
        self,
        spec: Spec,
        folder: Path,
        program: programs.Program,
        show: Display,
        metric: Metric | None,
        learning_rate: float | None = None,
        stop_when: StopWhen | None = None,
    ) -> None:
        options = spec.options
        self.stop_when = stop_when
        self.learning_rate = learning_rate  # from here on, in place of its schedule
        self.spec, self.folder, self.program, self.show, self.metric = spec, folder, program, show, metric
        self.checkpoints = Checkpoints(
            folder / CHECKPOINTS, options.keep_last, options.keep_best, options.best_metric, options.best_mode
        )
        self.made_with = run_folder.made_with(spec)
        self.updates = 0
        self.state: Any = None
        self.evaluation: dict[str, Any] = {}
        self.scores: MemberScores | None = None  # of a population
        self.rollbacks = 0
        self.bad: np.ndarray | None = None
        self.busy_seconds, self.busy_updates = 0.0, 0
        self.started = time.monotonic()
        self.last_checkpoint = time.monotonic()
        self.recorder: record.Recorder | record.Unwritten
        self.checkpoint_is_late = False  # by the clock, as all processes have agreed
        self.pace = 1.0  # updates in a segment, likewise

    @property
    def frames(self) -> int:
        return self.updates * self.spec.config.steps_per_update

    @property
    def wall_time(self) -> float:
        return time.monotonic() - self.started

    @property
    def steps_per_second(self) -> float:
        done = self.busy_updates * self.spec.config.steps_per_update * (self.program.num_members or 1)
        return done / self.busy_seconds if self.busy_seconds else 0.0


def run(session: Session, request: StopRequest) -> Result:
    """Trains from where the folder's newest checkpoint is, or from the start, to the end or to a signal.

    Several processes do the same at the same time, so that what depends on clocks and signals is agreed on.
    """
    status, asked = "done", request
    request = asked if processes.count() == 1 else StopRequest()
    try:
        _begin(session)
        training.say(session)
        if processes.is_first():
            run_folder.write_spec(session.folder, session.spec)  # not before all else is known to be good
        while True:
            training.agree(session, asked, request)
            evaluated = not request.number and _evaluate_if_due(session)
            at_end = session.updates >= session.spec.total_updates
            if evaluated or at_end or request.number or _checkpoint_is_due(session):
                _save(session)
            if at_end or request.number or (evaluated and _is_enough(session)):
                break
            training.complete(session)
            _evolve_if_due(session)
            if not _advance(session):
                status = "nonfinite"
                break
        session.checkpoints.wait()
    except SimulatorFailed as error:
        session.show.message(f"error: {error}")
        status = "failed"
        _save(session)
        session.checkpoints.wait()
    finally:
        training.end(session)
        if session.state is not None:
            session.recorder.close()
        with contextlib.suppress(SaveFailed):
            session.checkpoints.close()
    unfinished = session.updates < session.spec.total_updates or not session.recorder.has_evaluation(session.frames)
    if status == "done" and unfinished:
        status = "stopped"
    code = {"done": 0, "nonfinite": 3, "failed": 4, "stopped": 128 + request.number if request.number else 0}[status]
    measured = session.frames, session.evaluation, session.wall_time, session.steps_per_second
    return Result(session.folder, status, code, *measured, session.checkpoints.best_value(), session.scores)


def _is_enough(session: Session) -> bool:
    """Whether who began the run wants no more of it after this evaluation."""
    if session.stop_when is None:
        return False
    enough = session.stop_when(Evaluated(session.frames, session.evaluation, session.scores))
    return bool(processes.gathered(bool(enough))[0, 0])


def _begin(session: Session) -> None:
    """The state to start from: that of the newest good checkpoint, or a new one."""
    folder, program = session.folder, session.program
    if not session.checkpoints.steps():
        # What a run wrote that was killed before its first checkpoint is done again.
        _record(session, -1 if record.is_begun(folder) else None)
        session.state = program.init()
        training.begin_episodes(session)
        _begin_lineage(session)
        return
    step, state, warnings = session.checkpoints.restore("last", program.abstract_state)
    for warning in warnings:
        session.show.message(f"warning: {warning}")
    session.scores = session.checkpoints.summary(step).scores
    session.checkpoints.set_aside_after(step)
    session.updates = step // session.spec.config.steps_per_update
    earlier = [line for line in read_metrics(folder / METRICS) if line["step"] <= step] if (folder / METRICS).exists() else []
    times = [line.get("wall_time") for line in earlier]
    session.started -= max((time for time in times if isinstance(time, int | float)), default=0.0)
    evaluations = [line for line in earlier if line.get("event") == "evaluation"]
    session.evaluation = evaluations[-1] if evaluations else {}
    processes.together(lambda: None)  # before the first writes to what the others have read
    _record(session, step, [line["step"] for line in evaluations])
    session.state = _scheduled(session, state)
    _begin_lineage(session)
    training.begin_episodes(session)
    session.show.message(f"going on from step {step:,}{training.ANEW if program.simulated is not None else ''}")


def _scheduled(session: Session, state: Any) -> Any:
    """A restored state with the schedules of this session."""
    algorithm = session.program.algorithm
    state = schedules.with_total_updates(algorithm, state, session.spec.total_updates)
    return state if session.learning_rate is None else schedules.with_learning_rate(algorithm, state, session.learning_rate)


def _begin_lineage(session: Session) -> None:
    config = processes.whole(session.program.algorithm.config(session.state)) if session.spec.evolve else None
    lineage.begin(session.spec, session.updates, config, session.recorder)


def _record(session: Session, resume_from: int | None, evaluated: Iterable[int] = ()) -> None:
    """Opens the recorder, and says what it found damaged. `evaluated`: steps that have an evaluation."""
    if not processes.is_first():
        session.recorder = record.Unwritten(evaluated)
        return
    session.recorder = record.Recorder(session.folder, session.spec, resume_from)
    for warning in session.recorder.warnings:
        session.show.message(f"warning: {warning}")


def _evaluate_if_due(session: Session) -> bool:
    """Evaluates before training, at intervals and at the end; once per step, also over a resume."""
    every, updates = session.spec.updates_per_evaluation, session.updates
    due = updates == 0 or updates == session.spec.total_updates or (every and updates % every == 0)
    if not due or session.recorder.has_evaluation(session.frames):
        return False
    session.show.status("evaluating")
    episodes = session.program.evaluate(session.state, updates)
    kinds = agent_types(session.program.environment)
    values = default_metrics(episodes, kinds)
    if session.program.num_members:
        returns = np.asarray(episodes.returns)
        values["return_members"] = returns.reshape(returns.shape[0], -1).mean(axis=1).tolist()
    values["episodes"] = int(np.size(episodes.length))
    if session.metric is not None:
        values |= measured(session.metric, episodes)
        _check_best_metric(session.spec, values)
    if session.program.num_members:
        session.scores = members.scores(session.spec, session.frames, episodes, kinds, session.metric)
    session.evaluation = {**values, "updates": updates, "wall_time": session.wall_time}
    by_type = {"agent_types": np.array(kinds)} if len(set(kinds)) > 1 else {}
    warning = session.recorder.evaluation(session.frames, session.evaluation, episodes._asdict() | by_type)
    if warning is not None:
        session.show.message(f"warning: {warning}")
    why = unranked(session.spec.options.best_metric, values, at_start=updates == 0)
    if why is not None:
        session.show.message(f"warning: {why}")
    is_closed, names = has_closed_form(session.program.environment), [*episodes.info, *entry(session.spec.algorithm).shown]
    told = in_words(values, kinds, names, session.program.num_members or 0, is_closed)
    session.show.message(f"{session.frames:>13,} steps  {told}")
    if processes.count() == 1:  # else a part of what is drawn is elsewhere
        session.show.picture(lambda: _map_of(session))
    if values["unfinished"] > 0:
        limit = programs.eval_steps(session.program.environment, session.spec)
        session.show.message(f"warning: {values['unfinished']:.0%} of these episodes had no end within {limit} steps")
    return True


def _map_of(session: Session) -> Any:
    """The archive of a single run as a map, if it has one."""
    program = session.program
    return None if program.num_members else map_of(program.algorithm, session.state, session.spec.config, session.frames)


def _evolve_if_due(session: Session) -> None:
    """After evaluation and checkpoint, so that both are of members as they were trained."""
    spec, updates = session.spec, session.updates
    if session.program.evolve is None or not spec.is_generation(updates):
        return
    session.state, generation = session.program.evolve(session.state)
    training.begin_episodes(session, lineage.children(generation))
    session.recorder.generation(session.frames, lineage.line(spec, updates, generation))
    if session.scores is not None:
        session.scores = members.after_generation(session.scores, generation)
    if session.bad is not None:
        session.bad &= ~lineage.children(generation)
    if lineage.is_shown(spec, updates):
        session.show.message(lineage.words(spec, updates, generation))


def _checkpoint_is_due(session: Session) -> bool:
    every = _checkpoint_updates(session.spec.options.checkpoint_steps, session.spec.config.steps_per_update, session)
    return session.checkpoint_is_late or bool(session.updates and session.updates % every == 0)


def _checkpoint_updates(checkpoint_steps: int, steps_per_update: int, session: Session) -> int:
    """Every how many updates to save; a whole number of lines, so that no line is cut in two."""
    if not checkpoint_steps:
        return session.spec.total_updates + 1
    line = session.spec.updates_per_line
    return max(1, round(checkpoint_steps / steps_per_update / line)) * line


def check(spec: Spec, metric: Metric | None, environment: Any = None) -> None:
    """Raises UsageError when a package is missing, or when no evaluation will have the best metric (if that can be known)."""
    for package in ("wandb", "trackio"):
        if getattr(spec.options, package) and installed(package) is None:
            raise missing(package)
    if metric is None:
        shown = programs.evaluation_environment(spec, environment)
        one, yes, kinds = np.ones(1), np.ones(1, bool), agent_types(shown)
        episodes: Any = Episodes(*(np.ones((1, len(kinds))) if kinds else one, one, yes, yes))  # pyright: ignore
        try:
            further_values = dict.fromkeys(entry(spec.algorithm).shown, 0.0) | info_shapes(shown)
            _check_best_metric(spec, {**default_metrics(episodes, kinds), **further_values, "episodes": 1})
        except UsageError as error:
            raise UsageError(f"{error} If it is a number of your own, train and resume from Python with metrics=...") from None


def _check_best_metric(spec: Spec, values: dict[str, Any]) -> None:
    name = spec.options.best_metric
    if name not in values:
        raise UnknownNameError("best_metric", name, values)
    if np.ndim(values[name]):
        raise UsageError(f"best_metric ({name}) is a list of numbers in every evaluation: choose one that is a single number")


def _save(session: Session) -> None:
    numbers = {k: float(v) for k, v in session.evaluation.items() if isinstance(v, int | float)}
    if tells_nothing(best := session.spec.options.best_metric, session.evaluation):
        numbers.pop(best, None)  # so that none is ranked by it
    is_current = session.evaluation.get("updates") == session.updates
    scores = None if session.scores is None else members.without(session.scores, session.bad)
    session.recorder.sync()  # so that a checkpoint never knows of more than is on disk
    saved = session.checkpoints.save(session.frames, session.state, numbers if is_current else {}, session.made_with, scores)
    if is_current and not saved:  # a stop came between the state and its evaluation
        session.checkpoints.rate(session.frames, numbers, scores)
    session.last_checkpoint = time.monotonic()
    if saved:  # not when the checkpoint is the one that a rollback went to: that would count, and go bad, without end
        session.rollbacks = 0


def _advance(session: Session) -> bool:
    """One segment. False when the run has to stop because nothing in it is finite any more."""
    number = _segment_length(session)
    started = time.monotonic()
    session.state, rows = session.program.advance(session.state, number)
    number = len(rows.episodes.number)  # fewer where a simulator failed
    seconds = time.monotonic() - started
    session.busy_seconds += seconds
    session.busy_updates += number
    # Of this segment alone, so that one sees when a run slows down.
    speed = number * session.spec.config.steps_per_update * (session.program.num_members or 1) / max(seconds, 1e-9)
    bad = record.first_nonfinite(rows)
    if bad is not None:
        return _go_back(session, *bad)
    training.warn_of_members(session, rows)
    values: dict[str, Any] = {}
    for start in _lines(session.updates, number, session.spec.updates_per_line):
        stop = min(number, (start // session.spec.updates_per_line + 1) * session.spec.updates_per_line - session.updates)
        first = max(start - session.updates, 0)
        updates = session.updates + stop
        timing = {"updates": updates, "wall_time": session.wall_time, "steps_per_second": speed}
        values = record.line(rows, first, stop)
        session.recorder.metrics(updates * session.spec.config.steps_per_update, {**values, **timing})
    session.updates += number
    compilation_cache.settled()
    _show_progress(session, values)
    training.raise_failure(session)
    return True


def _lines(updates: int, number: int, per_line: int) -> range:
    """The first update (at or before the segment's own) of every line that a segment touches."""
    return range(updates // per_line * per_line, updates + number, per_line)


def _segment_length(session: Session) -> int:
    """Updates until something is due, at most what a segment takes, in whole lines."""
    spec, updates = session.spec, session.updates
    line = spec.updates_per_line
    due = spec.total_updates
    for every in (
        spec.updates_per_evaluation,
        spec.updates_per_generation,
        _checkpoint_updates(spec.options.checkpoint_steps, spec.config.steps_per_update, session),
    ):
        if every:
            due = min(due, (updates // every + 1) * every)
    wanted = min(max(int(session.pace), 1), session.program.capacity)
    whole = max((updates + wanted) // line, updates // line + 1) * line
    return min(due, whole) - updates


def _go_back(session: Session, offset: int, culprit: str) -> bool:
    """To the last good state, which is the newest checkpoint. True when training goes on from it."""
    frames = (session.updates + offset + 1) * session.spec.config.steps_per_update
    step, state, _ = session.checkpoints.restore("last", session.program.abstract_state)
    what = record.CULPRITS.get(culprit, f"{culprit} became NaN or infinite")
    session.show.message(
        f"error: {what} at step {frames:,} (update {session.updates + offset + 1}); "
        f"the last good state is the checkpoint of step {step:,}"
    )
    session.updates = step // session.spec.config.steps_per_update
    session.state = state
    if session.spec.options.on_nonfinite == "stop":
        return False
    session.rollbacks += 1
    if session.rollbacks > MOST_ROLLBACKS:
        session.show.message(f"error: it went bad again after {MOST_ROLLBACKS} rollbacks to the same checkpoint")
        return False
    session.checkpoints.set_aside_after(step)
    session.recorder.close()
    if isinstance(session.recorder, record.Unwritten):
        session.recorder = session.recorder.after(step)
    else:
        _record(session, step)
    session.scores = session.checkpoints.summary(step).scores
    algorithm = session.program.algorithm
    state = _scheduled(session, state)
    session.state = schedules.with_other_keys(algorithm, session.spec, state, session.updates, session.rollbacks)
    _begin_lineage(session)
    training.begin_episodes(session)
    session.show.message(f"going on from there with other random numbers (rollback {session.rollbacks})")
    return True


def _show_progress(session: Session, values: dict[str, Any]) -> None:
    left = session.spec.total_updates - session.updates
    eta = session.busy_seconds / session.busy_updates * left
    kind = entry(session.spec.algorithm)
    steps_of_each = session.frames / getattr(session.spec.config, "num_envs", 1)
    figures = in_training(values, session.evaluation, kind.shown, steps_of_each)
    figures |= {f"{kind.unit}/s": f"{session.steps_per_second:,.0f}", "left": duration(eta)}
    session.show.progress(session.frames, session.spec.total_updates * session.spec.config.steps_per_update, figures)
