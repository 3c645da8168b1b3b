"""Training of a run in its folder, including its messages and the handling of interrupts."""

import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rollax.distributed import processes
from rollax.environments.environment import Environment
from rollax.runtime.shell import is_command_running
from rollax.training import loop
from rollax.training.callbacks.dispatch import NamedCallback
from rollax.training.callbacks.user_functions import MetricsFn
from rollax.training.checkpoints.warm_start import WarmStart
from rollax.training.compile import program as programs
from rollax.training.console import messages
from rollax.training.console.network_messages import describe_inputs
from rollax.training.console.progress import Display, NullDisplay, ResilientDisplay
from rollax.training.console.signals import (
    add_folder_to_interrupt,
    make_interrupt,
    set_activity,
    stop_on_signals,
)
from rollax.training.datasets.run_demonstrations import describe_demonstrations
from rollax.training.result import Result, StopWhenFn
from rollax.training.session import Session
from rollax.training.spec import Spec
from rollax.types import NetworkFn


class RunOutcome(NamedTuple):
    """Result of a run, and whether an interrupt stopped it."""

    result: Result
    is_interrupted: bool


def run_in_folder(
    spec: Spec,
    folder: Path,
    *,
    environment: Environment | None,
    network: NetworkFn | None,
    metrics: MetricsFn | None,
    show: Display,
    warnings: list[str],
    stop_when: StopWhenFn | None = None,
    callbacks: Sequence[NamedCallback] = (),
    warm_start: WarmStart | None = None,
    is_new: bool = False,
    quiet: bool = False,
) -> RunOutcome:
    """Train a run in its folder from the newest checkpoint or from the start, and show messages.

    Args:
        spec: Specification of the run.
        folder: Folder of the run, which this process has locked.
        environment: Environment object, or None if the environment is made from its id.
        network: Function that maps a random key to a network, or None if settings describe the
            network.
        metrics: User function that computes custom metrics of an evaluation, or None.
        show: Display, which is closed when the run ends.
        warnings: Warnings to show first.
        stop_when: Function that may stop the run early, or None.
        callbacks: Callbacks of the user.
        warm_start: Arrays from another run for the initial state of a new run, or None.
        is_new: Whether the run is new rather than resumed.
        quiet: Whether to suppress the output of dashboards such as Weights & Biases.

    Returns:
        The result, and whether an interrupt stopped the run.

    Raises:
        KeyboardInterrupt: If a second interrupt arrives. The run then ends immediately.
        UsageError: If a callback raises an exception. The run is saved first.
    """
    show = ResilientDisplay(show if processes.is_first_process() else NullDisplay())
    with (
        add_folder_to_interrupt(folder),
        stop_on_signals(notify_fn=show.message) as request,
    ):
        try:
            for warning in warnings:
                show.message(f"warning: {warning}")
            _, observed = programs.build_algorithm_and_environment(spec, environment, network)
            for line in [
                *messages.describe_overridden_switches(),
                messages.describe_run(spec, folder),
                *messages.describe_varied_parameters(spec),
                *messages.describe_opponent_pool(spec),
                *describe_demonstrations(spec, observed),
                *describe_inputs(spec, observed, network),
            ]:
                show.message(line)
            show.status("compiling")
            with set_activity("compilation"):
                program = programs.compile_program(
                    spec, environment, network, should_initialize=is_new
                )
            session = Session(
                spec=spec,
                folder=folder,
                program=program,
                display=show,
                metric=metrics,
                stop_when=stop_when,
                callbacks=callbacks,
                warm_start=warm_start,
                quiet=quiet,
            )
            result = loop.run_session(session, request)
        except KeyboardInterrupt as error:
            error.add_note(
                f"The run in {folder} was aborted. rollax.resume({str(folder)!r}) continues from "
                "its last complete checkpoint, or restarts it if there is none."
            )
            raise
        finally:
            show.close()
        in_python = not is_command_running()
        for line in messages.describe_result(result, spec, program.environment, in_python):
            show.message(line)
        return RunOutcome(result, signal.SIGINT in (request.signal_number, result.exit_code - 128))


def unwrap_outcome(
    outcome: RunOutcome,
    environment: Environment | None,
    network: NetworkFn | None,
    functions: Mapping[str, Any],
) -> Result:
    """Return the result of a run, or raise KeyboardInterrupt if it was interrupted.

    Args:
        outcome: Outcome of the run.
        environment: Environment object that the user passed, or None.
        network: Network function that the user passed, or None.
        functions: Functions that the user passed to settings, keyed by name.

    Raises:
        KeyboardInterrupt: If an interrupt stopped the run. Its attribute `result` is the result.
    """
    result = outcome.result._replace(environment=environment, network=network, **functions)
    if not outcome.is_interrupted:
        return result
    folder, steps = result.folder, result.steps
    raise make_interrupt(
        f"The run was interrupted and is saved at step {steps:,} in {folder}. Load it with "
        f"rollax.load({str(folder)!r}), or continue it with rollax.resume({str(folder)!r}).",
        result,
    )
