"""Where a study is worked on: in this process, in several of this machine, in jobs of Slurm, or by workers of a Ray cluster.

Every one of them runs `worker.work` on the study's folder, which all must see. One that ends early, for whatever reason, leaves
its batch to the others; what nobody finishes goes on with `rollax sweep FOLDER`.
"""

import contextlib
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from rollax.errors import UsageError
from rollax.host.progress import Display, Lines
from rollax.host.signals import stop_on_signals
from rollax.studies import results
from rollax.studies.study import Study
from rollax.studies.worker import work

Launcher = Literal["local", "slurm", "ray"]
SECONDS = 2.0  # between looks at what others do
PATIENCE = 60.0  # seconds that a worker has to save and end


def launch(
    folder: Path,
    launcher: Launcher,
    workers: int,
    show: Display,
    hours: float | None = None,
    resources: Mapping[str, Any] | None = None,
) -> int | None:
    """Works on the study until every trial has a result, or nobody works on it any more. The number of the signal that stopped
    it, if one did.

    `resources`: of a job of Slurm as submitit names them (`slurm_partition`, `timeout_min`, ...), of a worker of Ray as Ray
    does (`num_cpus`, `num_gpus`). Raises UsageError where the launcher is not there, and for numbers that cannot be.
    """
    if workers < 1:
        raise UsageError(f"workers ({workers}) must be at least 1")
    if hours is not None and not hours > 0:
        raise UsageError(f"hours ({hours}) must be more than 0")
    if launcher == "slurm":
        return _slurm(folder, workers, show, hours, dict(resources or {}))
    if launcher == "ray":
        return _ray(folder, workers, show, hours, dict(resources or {}))
    if resources:
        raise UsageError(f"resources ({', '.join(resources)}) are for the launchers slurm and ray: leave them out")
    return work(folder, show, hours) if workers == 1 else _processes(folder, workers, show, hours)


def worker(folder: str, hours: float | None) -> int | None:
    """Works on a study as one of several, its output in lines."""
    return work(Path(folder), Lines(seconds=30.0), hours)


def _processes(folder: Path, number: int, show: Display, hours: float | None) -> int | None:
    """Several processes of this machine, their output in files of the study's folder."""
    (folder / "workers").mkdir(exist_ok=True)
    command = [sys.executable, "-m", "rollax", "sweep", str(folder), "--worker"]
    command += [word for module in Study(folder).spec.imports for word in ("--import", module)]
    command += [] if hours is None else ["--hours", str(hours)]
    with contextlib.ExitStack() as files, stop_on_signals() as request:
        logs = [files.enter_context((folder / "workers" / f"{index}.log").open("ab")) for index in range(number)]
        # Of their own session: a signal of the terminal reaches this process alone, which passes it on once.
        running = [subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True) for log in logs]
        files.callback(_end, running)
        _follow(folder, show, lambda: request.number is not None or all(each.poll() is not None for each in running))
        _end(running)
        failed = [index for index, each in enumerate(running) if each.returncode not in (0, 143)]
        for index in failed:
            show.message(f"warning: worker {index} ended with {running[index].returncode}: see {folder}/workers/{index}.log")
        return request.number


def _end(running: list[Any]) -> None:
    """Asks processes to stop, and waits until they have saved."""
    for each in running:
        if each.poll() is None:
            each.terminate()
    for each in running:
        with contextlib.suppress(subprocess.TimeoutExpired):
            each.wait(PATIENCE)


def _follow(folder: Path, show: Display, is_over: Any) -> None:
    """Says how far the study is whenever that changes, until it is over."""
    study, told = Study(folder), ""
    while not is_over():
        time.sleep(SECONDS)
        now = results.progress(study)
        if now != told:
            show.message(now)
        told = now


def _slurm(folder: Path, number: int, show: Display, hours: float | None, resources: dict[str, Any]) -> int | None:
    """An array of jobs by submitit, which this process follows. A signal to it cancels them; killed, it leaves them running."""
    try:
        import submitit
    except ImportError as error:
        raise UsageError('--launcher slurm needs submitit: pip install "rollax[slurm]"') from error
    cluster = resources.pop("cluster", "slurm")  # submitit's "local" runs the same in processes, to try it out
    try:
        executor = submitit.AutoExecutor(folder=str(folder / "slurm"), cluster=cluster)
        executor.update_parameters(**resources)
        jobs = executor.map_array(worker, [str(folder)] * number, [hours] * number)
    except (RuntimeError, TypeError, NameError, AssertionError) as error:
        raise UsageError(f"Slurm took no jobs ({error}): run this where `sbatch` is, and see --resources.NAME") from error
    show.message(f"jobs {', '.join(job.job_id for job in jobs)}: their output is in {folder}/slurm")
    with stop_on_signals() as request:
        _follow(folder, show, lambda: request.number is not None or all(job.done() for job in jobs))
        if request.number is not None:
            for job in jobs:
                job.cancel()
    return request.number


def _ray(folder: Path, number: int, show: Display, hours: float | None, resources: dict[str, Any]) -> int | None:
    """Tasks of a Ray cluster: that of RAY_ADDRESS, or one of this machine alone. Ray begins one anew whose worker dies."""
    try:
        import ray
    except ImportError as error:
        raise UsageError('--launcher ray needs Ray: pip install "rollax[ray]"') from error
    with contextlib.ExitStack() as cluster, stop_on_signals() as request:
        if not ray.is_initialized():
            _begin_ray(ray)
            cluster.callback(ray.shutdown)
        settings: Any = {"num_cpus": 1, "max_retries": 2} | resources
        task = ray.remote(**settings)(worker)
        tasks = [task.remote(str(folder.resolve()), hours) for _ in range(number)]
        _follow(folder, show, lambda: request.number is not None or not ray.wait(tasks, num_returns=number, timeout=0)[1])
        for each in tasks if request.number is not None else []:
            ray.cancel(each)
        return request.number


def _begin_ray(ray: Any) -> None:
    """Joins the cluster of RAY_ADDRESS, or begins one of this machine. Raises UsageError where that cannot be."""
    os.environ.setdefault("RAY_worker_niceness", "0")  # else workers of a cluster of this machine yield to all else
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "os.fork", RuntimeWarning)  # Ray's own processes run no JAX
            ray.init(address=os.environ.get("RAY_ADDRESS"), log_to_driver=False, include_dashboard=False)
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        raise UsageError(f"the Ray cluster cannot be reached ({error}): see RAY_ADDRESS, or `ray start --head`") from error
