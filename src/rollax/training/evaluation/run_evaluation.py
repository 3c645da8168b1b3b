"""Evaluation of a run during training: episodes, metrics, records and messages."""

import time

import numpy as np
from rich.text import Text

from rollax.acting.evaluation import Episodes
from rollax.distributed import processes
from rollax.environments.capabilities import capabilities, has_closed_form
from rollax.training.compile import update_program
from rollax.training.console.archive_map import render_archive_map
from rollax.training.console.signals import StopRequested, set_activity
from rollax.training.evaluation import members
from rollax.training.evaluation.curve_warnings import warn_about_curves
from rollax.training.evaluation.metrics import (
    USER_METRICS_KEY,
    default_metrics,
    explain_unranked,
    format_evaluation,
    user_metric_names,
)
from rollax.training.run_folder import lineage
from rollax.training.session import Session, run_callbacks
from rollax.training.spec import Spec, get_algorithm_entry
from rollax.types import MetricValues


def evaluate_if_due(session: Session) -> bool:
    """Evaluate a run if an evaluation is due.

    Evaluations are due before training, at regular intervals and at the end. At most one
    evaluation is recorded per step.

    Args:
        session: Session of the run.

    Returns:
        Whether an evaluation was completed.
    """
    if not _is_evaluation_due(session) or session.recorder.has_evaluation(session.num_frames):
        return False
    session.display.status("evaluating")
    started = time.monotonic()
    try:
        with set_activity("evaluation"):
            episodes = session.program.evaluate(session.state, session.updates)
    except StopRequested:
        return False
    session.timing.add_evaluation(time.monotonic() - started)
    values = _compute_metrics(session, episodes)
    session.evaluation = {**values, "updates": session.updates, "wall_time": session.wall_time}
    logged = run_callbacks(session, "evaluation", session.evaluation, episodes=episodes)
    if logged:
        values |= logged | {USER_METRICS_KEY: [*user_metric_names(values), *logged]}
        session.evaluation |= values
    _record_evaluation(session, episodes)
    _show_evaluation(session, episodes, values)
    return True


def _is_evaluation_due(session: Session) -> bool:
    total = session.spec.total_updates
    return session.updates in (0, total, *_list_evaluations(session.spec))


def _list_evaluations(spec: Spec) -> range:
    """Return the numbers of updates of the evaluations between start and end of a run.

    The end of the run is also evaluated, so no evaluation is due in the last half interval.
    """
    interval = spec.updates_per_evaluation or spec.total_updates
    return range(interval, spec.total_updates - (interval - 1) // 2, interval)


def num_remaining_evaluations(session: Session) -> int:
    """Return the number of evaluations until the end of the run, including the last one."""
    intermediate = _list_evaluations(session.spec)
    num_past = session.updates // intermediate.step
    return max(len(intermediate) - num_past, 0) + (session.updates < session.spec.total_updates)


def _compute_metrics(session: Session, episodes: Episodes) -> MetricValues:
    """Return the metrics of an evaluation. For a population, also update `session.scores`."""
    types, is_population = (
        capabilities(session.program.environment).agent_types,
        session.program.num_members,
    )
    founders = (
        lineage.num_founders(session.folder, session.num_frames) if session.spec.evolve else None
    )
    values = default_metrics(episodes, types, with_interval=founders is None)
    if founders is not None:
        values["founders"] = founders
    if is_population:
        returns = np.asarray(episodes.returns)
        values["return_members"] = returns.reshape(returns.shape[0], -1).mean(axis=1).tolist()
    values["episodes"] = int(np.size(episodes.length))
    values |= update_program.evaluate_custom_metrics(session, episodes, values)
    if is_population:
        session.scores = members.score_members(
            session.spec, session.num_frames, episodes, types, session.metric, values
        )
    return values


def _record_evaluation(session: Session, episodes: Episodes) -> None:
    types = capabilities(session.program.environment).agent_types
    arrays = episodes._asdict()
    if len(set(types)) > 1:
        arrays["agent_types"] = np.array(types)
    warning = session.recorder.write_evaluation(session.num_frames, session.evaluation, arrays)
    if warning is not None:
        session.warn(warning)


def _show_evaluation(session: Session, episodes: Episodes, values: MetricValues) -> None:
    """Show the metrics, a map of the archive, and warnings about the evaluation."""
    spec, environment = session.spec, session.program.environment
    reason = explain_unranked(
        spec.options.best_metric, values, is_before_training=session.updates == 0
    )
    if reason is not None:
        session.warn(reason)
    text = format_evaluation(
        values,
        capabilities(environment).agent_types,
        names=[*episodes.info, *get_algorithm_entry(spec.algorithm).console_metrics],
        num_members=session.program.num_members or 0,
        is_closed_form=has_closed_form(environment),
        mode="sampled" if spec.options.eval_stochastic else "greedy",
    )
    session.display.message(f"{session.num_frames:>13,} steps  {text}")
    if processes.num_processes() == 1:  # other processes hold parts of the state
        session.display.picture(lambda: _render_map(session))
    evaluation = {**session.evaluation, "event": "evaluation"}
    warn_about_curves(session, session.num_frames, evaluation)


def _render_map(session: Session) -> Text | None:
    """Return a map of a single run's archive, or None for a population or without an archive."""
    program = session.program
    if program.num_members:
        return None
    return render_archive_map(
        program.algorithm, session.state, session.spec.config, session.num_frames
    )
