"""Training of a study with workers, followed by a table and a figure of the results."""

from collections.abc import Sequence
from pathlib import Path

from rollax.runtime.shell import is_command_running
from rollax.sweeps import results, sweep_figure
from rollax.sweeps.launchers import Launcher, launch_workers
from rollax.sweeps.study import Study
from rollax.training.console.progress import Display, ResilientDisplay
from rollax.training.console.signals import add_folder_to_interrupt
from rollax.types import SettingValues


def run_study(
    folder: Path,
    launcher: Launcher,
    workers: int,
    display: Display,
    *,
    hours: float | None = None,
    resources: SettingValues | None = None,
    imports: Sequence[str] = (),
    draws_picture: bool = True,
) -> int | None:
    """Train the trials of a study, print the table of results, and draw the figure.

    Args:
        folder: Folder of the study.
        launcher: Kind of workers: local, slurm or ray.
        workers: Number of workers.
        display: Display, which is closed after the last worker has stopped.
        hours: Time limit in hours, or None. The study can be continued later.
        resources: Resources of a worker, as named by submitit (`slurm_partition`, ...) or Ray
            (`num_gpus`, ...).
        imports: Modules that workers import in addition to those of the study.
        draws_picture: Whether to draw `study.png` into the folder.

    Returns:
        The number of the signal that stopped the study, or None.

    Raises:
        UsageError: If the study, its storage or a cluster cannot be used.
    """
    display = ResilientDisplay(display)
    try:
        display.message(f"study {folder}")
        with add_folder_to_interrupt(folder):
            stopped = launch_workers(folder, launcher, workers, display, hours, resources, imports)
    finally:
        display.close()
    study = Study(folder)
    for line in results.format_table(study):
        display.message(line)
    if not study.is_done():
        statement = f"rollax.sweep({str(folder)!r})"
        remedy = study.resume_command if is_command_running() else statement
        display.message(f"Not all trials have a result. Continue with: {remedy}")
    if draws_picture and results.has_result(study):
        path = sweep_figure.draw_study(study)
        display.message(f"  {path or 'no figure, because only one trial has a result'}")
    return stopped
