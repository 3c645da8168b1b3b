"""Launchers of a study: this process, local processes, Slurm jobs, or workers of a Ray cluster.

Every worker runs `work_on_study` on the study folder, so all workers need access to this folder. If
a worker ends early, other workers continue its batch. `rollax sweep FOLDER` continues unfinished
batches.
"""

import contextlib
import datetime
import importlib.util
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from rollax.distributed import connection
from rollax.distributed.ray_cluster import RAY_ADDRESS_VARIABLE, connect_to_ray
from rollax.errors import UsageError
from rollax.runtime.installation import install_command
from rollax.runtime.shell import format_command_line
from rollax.runtime.user_modules import IMPORT_OPTION, import_user_module
from rollax.sweeps import optuna_study, results
from rollax.sweeps.study import Study, list_study_modules, read_study_spec
from rollax.sweeps.trial_worker import work_on_study
from rollax.training.console.progress import Display, LineDisplay, ResilientDisplay
from rollax.training.console.signals import stop_on_signals
from rollax.training.run_folder.files import check_not_symlink, open_for_append
from rollax.training.run_folder.layout import STUDY_FILE
from rollax.training.user_imports import (
    TRUST_OPTION,
    is_trusted,
    list_missing_modules,
    trust_folders,
)
from rollax.types import Record, Setting, SettingValues

if TYPE_CHECKING:
    import submitit

SLURM_FOLDER = "slurm"  # folder in a study with the output of jobs
Launcher = Literal["local", "slurm", "ray"]
PROGRESS_SECONDS = 2.0  # interval between progress checks
SHUTDOWN_SECONDS = 60.0  # time for a worker to save and stop
RAY_CONNECT_SECONDS = 10.0  # timeout of the first connection
DEFAULT_RAY_RESOURCES: dict[str, Any] = {"num_cpus": 1}
# Fraction of the memory of a GPU that JAX allocates when it starts.
MEMORY_FRACTION_VARIABLE = "XLA_PYTHON_CLIENT_MEM_FRACTION"


class WorkerOptions(NamedTuple):
    """Options of each worker.

    Attributes:
        hours: Time limit in hours, or None.
        modules: Names of modules to import.
        trust: Whether workers may import the modules and open the database that the folder names.
    """

    hours: float | None
    modules: tuple[str, ...]
    trust: bool


def launch_workers(
    folder: Path,
    launcher: Launcher,
    workers: int,
    display: Display,
    hours: float | None = None,
    resources: SettingValues | None = None,
    imports: Sequence[str] = (),
    quiet: bool = False,
) -> int | None:
    """Run workers on a study until every trial has a result or no worker is running.

    Args:
        folder: Folder of the study.
        launcher: Kind of workers: local, slurm or ray.
        workers: Number of workers.
        display: Display for progress and warnings.
        hours: Time limit in hours, or None.
        resources: Resources of a Slurm job with the names of submitit (`slurm_partition`,
            `timeout_min`, ...) or of a Ray worker (`num_cpus`, `num_gpus`). `check_launcher` has
            validated them.
        imports: Modules that workers import in addition to those of the study. This process has
            imported them already.
        quiet: Whether to suppress the output of dashboards in this process.

    Returns:
        The number of the signal that stopped the work, or None.

    Raises:
        UsageError: If the study, a cluster or the storage cannot be used.
    """
    display = ResilientDisplay(display)
    with optuna_study.convert_storage_errors(folder):
        study_modules = list_study_modules(read_study_spec(folder / STUDY_FILE))
        check_modules_imported([module for module in study_modules if module not in imports])
        study = Study(folder)  # raises before any worker starts
        if launcher == "local" and workers == 1:
            return work_on_study(folder, display, hours, quiet)
        modules = tuple(dict.fromkeys((*study_modules, *imports)))
        options = WorkerOptions(hours, modules, trust=is_trusted() or study.is_created_here)
        if launcher == "slurm":
            return _run_slurm_jobs(folder, workers, display, options, dict(resources or {}))
        if launcher == "ray":
            return _run_ray_tasks(folder, workers, display, options, dict(resources or {}))
        return _run_local_workers(folder, workers, display, options)


def check_modules_imported(modules: Sequence[str]) -> None:
    """Check that all modules of a study are imported. A study never imports modules itself.

    Args:
        modules: Names of the modules.

    Raises:
        UsageError: If a module is not imported.
    """
    missing = list_missing_modules(modules)
    if missing:
        options = " ".join(f"{IMPORT_OPTION} {module}" for module in missing)
        raise UsageError(
            f"The study names modules that are not imported: {', '.join(missing)}. If you trust "
            f"them, add {options}, or {TRUST_OPTION} for all modules that it names "
            "(in Python: import them, or trust=True)."
        )


def check_launcher(
    launcher: Launcher, workers: int, hours: float | None, resources: SettingValues | None
) -> None:
    """Check the options of a launcher before the folder of a study is created.

    Args:
        launcher: Kind of workers: local, slurm or ray.
        workers: Number of workers.
        hours: Time limit in hours, or None.
        resources: Resources of a worker, or None.

    Raises:
        UsageError: If a number or resource is invalid, a package is missing, or a cluster does not
            respond.
    """
    if workers < 1:
        raise UsageError(f"workers must be at least 1, got {workers}.")
    if hours is not None and not hours > 0:
        raise UsageError(f"hours must be more than 0, got {hours}.")
    if launcher == "local" and resources:
        raise UsageError(
            f"resources ({', '.join(resources)}) require the launcher slurm or ray. "
            "Remove them, or choose another launcher."
        )
    package = {"local": None, "slurm": "submitit", "ray": "ray"}[launcher]
    if package is not None and importlib.util.find_spec(package) is None:
        raise UsageError(
            f"The package {package} is not installed, and --launcher {launcher} needs it. Run: "
            f"{install_command(launcher)}"
        )
    if launcher == "slurm":
        with tempfile.TemporaryDirectory() as scratch:
            _make_slurm_executor(Path(scratch), dict(resources or {}))
    if launcher == "ray":
        _check_ray_cluster(dict(resources or {}))


def run_worker(
    folder: str, hours: float | None, imports: Sequence[str] = (), trust: bool = False
) -> int | None:
    """Run a worker: import modules, and train batches of a study until all trials have a result.

    Args:
        folder: Folder of the study.
        hours: Time limit in hours, or None.
        imports: Modules to import first.
        trust: Whether the starting process trusts the folder or created it.

    Returns:
        The number of the signal that stopped the work, or None.

    Raises:
        UsageError: If a module cannot be imported, or if `work_on_study` raises it.
    """
    for module in imports:
        import_user_module(module)
    with trust_folders(trust), optuna_study.convert_storage_errors(Path(folder)):
        return work_on_study(Path(folder), ResilientDisplay(LineDisplay(seconds=30.0)), hours)


def run_slurm_job(
    folder: str, hours: float | None, imports: Sequence[str], trust: bool = False
) -> int | None:
    """Run a worker in a Slurm job.

    submitit sends a signal before a time limit or preemption ends the job. The worker then saves
    and stops.

    Args:
        folder: Folder of the study.
        hours: Time limit in hours, or None.
        imports: Modules to import first.
        trust: Whether the starting process trusts the folder or created it.

    Returns:
        The number of the signal that stopped the work, or None.
    """
    import submitit

    with stop_on_signals(getattr(signal, f"SIG{submitit.JobEnvironment.USR_SIG}")):
        return run_worker(folder, hours, imports, trust)


def _run_local_workers(
    folder: Path, num_workers: int, display: Display, options: WorkerOptions
) -> int | None:
    """Run local worker processes, which share the GPUs and write logs to the study folder."""
    check_not_symlink(folder / "workers")
    (folder / "workers").mkdir(exist_ok=True)
    # -P excludes the current folder, which may be that of the study, from the import path.
    command = [
        sys.executable,
        "-P",
        "-m",
        "rollax",
        "sweep",
        str(folder),
        "--worker",
        *([TRUST_OPTION] if options.trust else []),
    ]
    command += [word for module in options.modules for word in (IMPORT_OPTION, module)]
    command += [] if options.hours is None else ["--hours", str(options.hours)]
    with contextlib.ExitStack() as files, stop_on_signals(notify_fn=display.message) as request:
        logs = [
            files.enter_context(open_for_append(folder / "workers" / f"{index}.log"))
            for index in range(num_workers)
        ]
        # In a new session, a signal of the terminal reaches only this process, which forwards it.
        processes = [
            subprocess.Popen(
                command,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=os.environ | share,
            )
            for log, share in zip(logs, divide_gpus(_list_gpus(), num_workers), strict=True)
        ]
        files.callback(_stop_processes, processes)
        _show_progress(
            folder,
            display,
            lambda: (
                request.signal_number is not None
                or all(process.poll() is not None for process in processes)
            ),
        )
        _stop_processes(processes)
        for index, process in enumerate(processes):
            if process.returncode not in (0, 143):
                display.message(
                    f"warning: worker {index} ended with {process.returncode}. "
                    f"See {folder}/workers/{index}.log"
                )
        return request.signal_number


def divide_gpus(gpus: list[str], num_workers: int) -> list[dict[str, str]]:
    """Assign GPUs to worker processes.

    With fewer GPUs than processes, several processes share a GPU and its memory is divided.

    Args:
        gpus: Indices or names of the GPUs, as in `CUDA_VISIBLE_DEVICES`.
        num_workers: Number of processes.

    Returns:
        One dictionary of environment variables per process.
    """
    if not gpus:
        return [{}] * num_workers
    parts = [gpus[index::num_workers] or [gpus[index % len(gpus)]] for index in range(num_workers)]
    on_one = -(-num_workers // len(gpus))
    is_shared = on_one > 1 and MEMORY_FRACTION_VARIABLE not in os.environ
    # By default, each process would allocate 75 % of the memory.
    fraction = {MEMORY_FRACTION_VARIABLE: f"{0.75 / on_one:.3f}"} if is_shared else {}
    return [fraction | {"CUDA_VISIBLE_DEVICES": ",".join(part)} for part in parts]


def _list_gpus() -> list[str]:
    """Return the visible NVIDIA GPUs, in the notation of CUDA_VISIBLE_DEVICES.

    The function does not use JAX, because JAX would allocate the memory of the GPUs.
    """
    if "CUDA_VISIBLE_DEVICES" in os.environ:
        return [
            name for name in os.environ["CUDA_VISIBLE_DEVICES"].split(",") if name not in ("", "-1")
        ]
    try:
        listed = subprocess.run(
            ["nvidia-smi", "-L"], capture_output=True, text=True, check=True, timeout=60
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    return [
        str(index) for index in range(sum(line.startswith("GPU ") for line in listed.splitlines()))
    ]


def _stop_processes(running: "list[subprocess.Popen[bytes]]") -> None:
    """Terminate worker processes, and wait until they have saved and ended."""
    for process in running:
        if process.poll() is None:
            process.terminate()
    for process in running:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(SHUTDOWN_SECONDS)


def _show_progress(folder: Path, display: Display, is_finished_fn: Callable[[], bool]) -> None:
    """Print the progress of a study whenever it changes, until `is_finished_fn` returns True."""
    study, last_shown = Study(folder), ""
    while not is_finished_fn():
        time.sleep(PROGRESS_SECONDS)
        progress = results.format_progress(study)
        if progress != last_shown:
            display.message(progress)
        last_shown = progress


def _run_slurm_jobs(
    folder: Path,
    num_jobs: int,
    display: Display,
    options: WorkerOptions,
    resources: dict[str, Setting],
) -> int | None:
    """Submit a Slurm job array, and print progress until all jobs have ended.

    A signal to this process cancels the jobs. If this process is killed, the jobs keep running.

    Returns:
        The number of the signal that stopped the jobs, or None.
    """
    check_not_symlink(folder / SLURM_FOLDER)
    # The folder must be new, because submitit reads pickles from it.
    output = (
        folder / SLURM_FOLDER / f"{datetime.datetime.now():%Y%m%d-%H%M%S}-{secrets.token_hex(4)}"
    )
    executor = _make_slurm_executor(output, resources)
    with _convert_slurm_errors(
        ". Then continue with: "
        f"{format_command_line('rollax', 'sweep', folder, '--launcher', 'slurm')}"
    ):
        jobs = executor.map_array(
            run_slurm_job,
            [str(folder)] * num_jobs,
            [options.hours] * num_jobs,
            [options.modules] * num_jobs,
            [options.trust] * num_jobs,
        )
    display.message(f"jobs {', '.join(job.job_id for job in jobs)} write their output to {output}")
    with stop_on_signals(notify_fn=display.message) as request:
        _show_progress(
            folder,
            display,
            lambda: request.signal_number is not None or all(job.done() for job in jobs),
        )
        if request.signal_number is not None:
            for job in jobs:
                job.cancel()
            return request.signal_number
    for job in jobs:
        if (error := job.exception()) is not None:
            display.message(
                f"warning: job {job.job_id} failed ({_last_line(job.stderr() or error)}). "
                f"See {output}"
            )
    return None


def _last_line(message: str | Exception) -> str:
    """Return the last line of an error message or of the output of a process."""
    return (str(message).strip() or type(message).__name__).splitlines()[-1]


def _make_slurm_executor(folder: Path, resources: dict[str, Setting]) -> "submitit.AutoExecutor":
    """Make a submitit executor, or raise UsageError if Slurm or a resource is not available."""
    import submitit

    # The cluster "local" of submitit runs jobs as processes, for tests.
    cluster = resources.pop("cluster", "slurm")
    with _convert_slurm_errors():
        executor = submitit.AutoExecutor(folder=str(folder), cluster=cluster)
        executor.update_parameters(**resources)
    return executor


@contextlib.contextmanager
def _convert_slurm_errors(next_step: str = "") -> Iterator[None]:
    try:
        yield
    except (RuntimeError, TypeError, ValueError, NameError, AssertionError) as error:
        remedy = f"Run this where `sbatch` is available, and check --resources.NAME{next_step}"
        raise UsageError(f"Slurm rejected the jobs ({error}). {remedy}") from error


def _run_ray_tasks(
    folder: Path,
    num_tasks: int,
    display: Display,
    options: WorkerOptions,
    resources: dict[str, Setting],
) -> int | None:
    """Run workers as tasks of the Ray cluster at RAY_ADDRESS, or of a local cluster.

    If a worker dies, Ray restarts its task.
    """
    import ray

    with contextlib.ExitStack() as cluster:
        is_local = not ray.is_initialized() and RAY_ADDRESS_VARIABLE not in os.environ
        if not ray.is_initialized():
            command = format_command_line("rollax", "sweep", folder, "--launcher", "ray")
            connect_to_ray(f"Then continue with: {command}")
            cluster.callback(ray.shutdown)
        _check_ray_nodes(ray.nodes(), resources, is_local, folder, display)
        # Installed only now, so that a signal can interrupt the wait for the cluster.
        request = cluster.enter_context(stop_on_signals(notify_fn=display.message))
        task = _make_ray_task(ray, resources)
        tasks = [
            task.remote(str(folder.resolve()), options.hours, options.modules, options.trust)
            for _ in range(num_tasks)
        ]
        _show_progress(
            folder,
            display,
            lambda: (
                request.signal_number is not None
                or not ray.wait(tasks, num_returns=num_tasks, timeout=0)[1]
            ),
        )
        for index, running_task in enumerate(tasks):
            if request.signal_number is not None:
                ray.cancel(running_task)
                continue
            try:
                ray.get(running_task)
            except Exception as error:  # errors of the worker or of Ray, which has many types
                display.message(f"warning: worker {index} failed ({_last_line(error)})")
        return request.signal_number


def _check_ray_nodes(
    nodes: list[Record],
    resources: dict[str, Setting],
    is_local: bool,
    folder: Path,
    display: Display,
) -> None:
    """Check that a node of the Ray cluster has the resources of a worker.

    Without this check, Ray waits for resources without a message. For a local cluster, missing
    resources raise UsageError. For the cluster at RAY_ADDRESS, which nodes may still join, they
    cause a warning.
    """
    required = _required_ray_resources(DEFAULT_RAY_RESOURCES | resources)
    available = [node["Resources"] for node in nodes if node["Alive"]]
    if any(
        all(node.get(name, 0) >= amount for name, amount in required.items()) for node in available
    ):
        return
    largest = {name: max((node.get(name, 0) for node in available), default=0) for name in required}
    problem = (
        f"no node of the Ray cluster has {_join_amounts(required)} (at most "
        f"{_join_amounts(largest)})"
    )
    if is_local:
        raise UsageError(
            f"{problem}. Request less with --resources.NAME, or set RAY_ADDRESS to another "
            "cluster. Then continue with: "
            f"{format_command_line('rollax', 'sweep', folder, '--launcher', 'ray')}"
        )
    display.message(f"warning: {problem}. Workers wait until one joins.")


def _required_ray_resources(options: dict[str, Setting]) -> dict[str, float]:
    """Convert options of a Ray task to resource amounts, keyed by Ray's resource names."""
    names = {"num_cpus": "CPU", "num_gpus": "GPU", "memory": "memory"}
    required = {name: options[option] for option, name in names.items() if options.get(option)}
    required |= dict(options.get("resources") or {})
    if options.get("accelerator_type"):
        required[f"accelerator_type:{options['accelerator_type']}"] = 0.001  # as Ray requests it
    return required


def _join_amounts(amounts: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {amount:g}" for name, amount in amounts.items())


def _make_ray_task(ray: ModuleType, resources: dict[str, Setting]) -> Any:
    """Make a Ray task that runs a worker, or raise UsageError for invalid resources."""
    settings = DEFAULT_RAY_RESOURCES | {"max_retries": 2} | resources
    try:
        return ray.remote(**settings)(run_worker)
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"Ray rejected the --resources ({error}). See the options of `ray.remote`."
        ) from error


def _check_ray_cluster(resources: dict[str, Setting]) -> None:
    """Raise UsageError if `resources` is invalid or no Ray cluster responds at RAY_ADDRESS.

    Without this check, Ray waits for 15 minutes before it fails.
    """
    import ray

    _make_ray_task(ray, resources)
    address = os.environ.get(RAY_ADDRESS_VARIABLE, "").removeprefix("ray://")
    if ray.is_initialized() or not connection.is_address(address):
        return
    try:
        connection.wait_for_address(address, RAY_CONNECT_SECONDS)
    except OSError as error:
        raise UsageError(
            f"No Ray cluster responds at {address} within {RAY_CONNECT_SECONDS:.0f} s ({error}). "
            "Set RAY_ADDRESS to a running cluster (`ray start --head`), or unset it to use "
            "workers of this machine."
        ) from error
