"""Where a study is worked on: in this process, in several of this machine, in jobs of Slurm, or by workers of a Ray cluster.

Every one of them runs `worker.work` on the study's folder, which all must see. One that ends early, for whatever reason, leaves
its batch to the others; what nobody finishes goes on with `rollax sweep FOLDER`.
"""

import contextlib
import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from rollax.errors import UsageError
from rollax.host.importing import IMPORT, import_module
from rollax.host.progress import Display, Lines
from rollax.host.run_folder import STUDY
from rollax.host.settings import naming_imports
from rollax.host.signals import stop_on_signals
from rollax.scale import connecting
from rollax.studies import optuna_study as drawing
from rollax.studies import results
from rollax.studies.study import Study, read
from rollax.studies.worker import work

Launcher = Literal["local", "slurm", "ray"]
SECONDS = 2.0  # between looks at what others do
PATIENCE = 60.0  # seconds that a worker has to save and end
RAY_ADDRESS = "RAY_ADDRESS"  # of the cluster, HOST:PORT
RAY_SECONDS = 10.0  # in which something has to answer there
RAY_WORKER: dict[str, Any] = {"num_cpus": 1}  # what a worker has where nothing else is asked for
MEMORY_FRACTION = "XLA_PYTHON_CLIENT_MEM_FRACTION"  # of a GPU, that JAX takes when it starts


def launch(
    folder: Path,
    launcher: Launcher,
    workers: int,
    show: Display,
    hours: float | None = None,
    resources: Mapping[str, Any] | None = None,
    imports: Sequence[str] = (),
) -> int | None:
    """Works on the study until every trial has a result, or nobody works on it any more. The number of the signal that stopped
    it, if one did.

    `resources`: of a job of Slurm as submitit names them (`slurm_partition`, `timeout_min`, ...), of a worker of Ray as Ray
    does (`num_cpus`, `num_gpus`). All of it was looked at by `check`. `imports`: modules that workers elsewhere import beside
    those of the study; this process has them. Raises UsageError where a cluster or the study's storage does not answer.
    """
    with drawing.answering(folder):
        own = read(folder / STUDY).imports
        with naming_imports(own):
            Study(folder)  # before anything is started that would fail by it
        if launcher == "local" and workers == 1:
            return work(folder, show, hours)
        modules = tuple(dict.fromkeys((*own, *imports)))
        if launcher == "slurm":
            return _slurm(folder, workers, show, hours, modules, dict(resources or {}))
        if launcher == "ray":
            return _ray(folder, workers, show, hours, modules, dict(resources or {}))
        return _processes(folder, workers, show, hours, modules)


def check(launcher: Launcher, workers: int, hours: float | None, resources: Mapping[str, Any] | None) -> None:
    """Before a study's folder is made. Raises UsageError where a package is missing or a cluster does not answer, and for
    numbers and resources that cannot be."""
    if workers < 1:
        raise UsageError(f"workers ({workers}) must be at least 1")
    if hours is not None and not hours > 0:
        raise UsageError(f"hours ({hours}) must be more than 0")
    if launcher == "local" and resources:
        raise UsageError(f"resources ({', '.join(resources)}) are for the launchers slurm and ray: leave them out")
    package = {"local": None, "slurm": "submitit", "ray": "ray"}[launcher]
    if package is not None and importlib.util.find_spec(package) is None:
        raise UsageError(f'--launcher {launcher} needs {package}: pip install "rollax[{launcher}]"')
    if launcher == "slurm":
        with tempfile.TemporaryDirectory() as scratch:
            _executor(Path(scratch), dict(resources or {}))
    if launcher == "ray":
        _check_ray(dict(resources or {}))


def worker(folder: str, hours: float | None, imports: Sequence[str] = ()) -> int | None:
    """Works on a study as one of several, its output in lines, after these modules were imported. Raises as `work` does, and
    UsageError for a module that cannot be imported."""
    for module in imports:
        import_module(module)
    with drawing.answering(Path(folder)):
        return work(Path(folder), Lines(seconds=30.0), hours)


def slurm_job(folder: str, hours: float | None, imports: Sequence[str]) -> int | None:
    """A worker as a job of Slurm. What submitit sends it before its time is over, or it has to make way, stops and saves it."""
    import submitit

    with stop_on_signals(getattr(signal, f"SIG{submitit.JobEnvironment.USR_SIG}")):
        return worker(folder, hours, imports)


def _processes(folder: Path, number: int, show: Display, hours: float | None, modules: tuple[str, ...]) -> int | None:
    """Several processes of this machine, which share its GPUs, their output in files of the study's folder."""
    (folder / "workers").mkdir(exist_ok=True)
    command = [sys.executable, "-m", "rollax", "sweep", str(folder), "--worker"]
    command += [word for module in modules for word in (IMPORT, module)]
    command += [] if hours is None else ["--hours", str(hours)]
    with contextlib.ExitStack() as files, stop_on_signals() as request:
        logs = [files.enter_context((folder / "workers" / f"{index}.log").open("ab")) for index in range(number)]
        # Of their own session: a signal of the terminal reaches this process alone, which passes it on once.
        running = [
            subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True, env=os.environ | share)
            for log, share in zip(logs, shares(_gpus(), number), strict=True)
        ]
        files.callback(_end, running)
        _follow(folder, show, lambda: request.number is not None or all(each.poll() is not None for each in running))
        _end(running)
        failed = [index for index, each in enumerate(running) if each.returncode not in (0, 143)]
        for index in failed:
            show.message(f"warning: worker {index} ended with {running[index].returncode}: see {folder}/workers/{index}.log")
        return request.number


def shares(gpus: list[str], number: int) -> list[dict[str, str]]:
    """The environment of each of so many processes, so that they divide these GPUs, or their memory where there are fewer."""
    if not gpus:
        return [{}] * number
    parts = [gpus[index::number] or [gpus[index % len(gpus)]] for index in range(number)]
    on_one = -(-number // len(gpus))
    is_shared = on_one > 1 and MEMORY_FRACTION not in os.environ
    fraction = {MEMORY_FRACTION: f"{0.75 / on_one:.3f}"} if is_shared else {}  # without it each takes .75 of the memory
    return [fraction | {"CUDA_VISIBLE_DEVICES": ",".join(part)} for part in parts]


def _gpus() -> list[str]:
    """The GPUs of NVIDIA that this process may use, without asking JAX, which would take their memory."""
    if "CUDA_VISIBLE_DEVICES" in os.environ:
        return [name for name in os.environ["CUDA_VISIBLE_DEVICES"].split(",") if name not in ("", "-1")]
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True, timeout=60).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    return [str(index) for index in range(sum(line.startswith("GPU ") for line in listed.splitlines()))]


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


def _slurm(
    folder: Path, number: int, show: Display, hours: float | None, modules: tuple[str, ...], resources: dict[str, Any]
) -> int | None:
    """An array of jobs by submitit, which this process follows. A signal to it cancels them; killed, it leaves them running."""
    executor = _executor(folder, resources)
    with _refusing_jobs(f"; then go on with: rollax sweep {folder} --launcher slurm"):
        jobs = executor.map_array(slurm_job, [str(folder)] * number, [hours] * number, [modules] * number)
    show.message(f"jobs {', '.join(job.job_id for job in jobs)}: their output is in {folder}/slurm")
    with stop_on_signals() as request:
        _follow(folder, show, lambda: request.number is not None or all(job.done() for job in jobs))
        if request.number is not None:
            for job in jobs:
                job.cancel()
            return request.number
    for job in jobs:
        if (error := job.exception()) is not None:
            show.message(f"warning: job {job.job_id} failed ({_last_line(job.stderr() or error)}): see {folder}/slurm")
    return None


def _last_line(told: Any) -> str:
    """Of an error that came with the lines of its traceback, or of what a process wrote: what it was."""
    return (str(told).strip() or type(told).__name__).splitlines()[-1]


def _executor(folder: Path, resources: dict[str, Any]) -> Any:
    """What asks for jobs. Raises UsageError where there is no Slurm, or no such resource."""
    import submitit

    cluster = resources.pop("cluster", "slurm")  # submitit's "local" runs the same in processes, to try it out
    with _refusing_jobs():
        executor = submitit.AutoExecutor(folder=str(folder / "slurm"), cluster=cluster)
        executor.update_parameters(**resources)
    return executor


@contextlib.contextmanager
def _refusing_jobs(more: str = "") -> Iterator[None]:
    try:
        yield
    except (RuntimeError, TypeError, ValueError, NameError, AssertionError) as error:
        remedy = f"run this where `sbatch` is, and see --resources.NAME{more}"
        raise UsageError(f"Slurm took no jobs ({error}): {remedy}") from error


def _ray(
    folder: Path, number: int, show: Display, hours: float | None, modules: tuple[str, ...], resources: dict[str, Any]
) -> int | None:
    """Tasks of a Ray cluster: that of RAY_ADDRESS, or one of this machine alone. Ray begins one anew whose worker dies."""
    import ray

    with contextlib.ExitStack() as cluster:
        is_own = not ray.is_initialized() and RAY_ADDRESS not in os.environ
        if not ray.is_initialized():
            _begin_ray(ray, folder)
            cluster.callback(ray.shutdown)
        _check_nodes(ray.nodes(), resources, is_own, folder, show)
        request = cluster.enter_context(stop_on_signals())  # not before: a signal ends the wait for a cluster
        task = _task(ray, resources)
        tasks = [task.remote(str(folder.resolve()), hours, modules) for _ in range(number)]
        _follow(folder, show, lambda: request.number is not None or not ray.wait(tasks, num_returns=number, timeout=0)[1])
        for index, each in enumerate(tasks):
            if request.number is not None:
                ray.cancel(each)
                continue
            try:
                ray.get(each)
            except Exception as error:  # of the worker, or of Ray, whose kinds are many
                show.message(f"warning: worker {index} failed ({_last_line(error)})")
        return request.number


def _check_nodes(nodes: list[Any], resources: dict[str, Any], is_own: bool, folder: Path, show: Display) -> None:
    """What no node has a worker waits for without a word. Raises UsageError for it in a cluster of this machine alone; another
    may be one that grows."""
    named = {"num_cpus": "CPU", "num_gpus": "GPU", "memory": "memory"}
    given = RAY_WORKER | resources
    needs = {name: given[option] for option, name in named.items() if given.get(option)} | dict(given.get("resources") or {})
    if given.get("accelerator_type"):
        needs[f"accelerator_type:{given['accelerator_type']}"] = 0.001  # Ray's own amount
    has = [node["Resources"] for node in nodes if node["Alive"]]
    if any(all(each.get(name, 0) >= amount for name, amount in needs.items()) for each in has):
        return
    most = ", ".join(f"{name} {max((each.get(name, 0) for each in has), default=0):g}" for name in needs)
    told = (
        f"no node of the Ray cluster has {', '.join(f'{name} {amount:g}' for name, amount in needs.items())} (at most {most})"
    )
    if is_own:
        raise UsageError(
            f"{told}: ask for less with --resources.NAME, or set RAY_ADDRESS to another cluster; then go on with: "
            f"rollax sweep {folder} --launcher ray"
        )
    show.message(f"warning: {told}: workers wait until one joins it")


def _task(ray: Any, resources: dict[str, Any]) -> Any:
    """A worker, as Ray runs it. Raises UsageError for resources that Ray does not know."""
    settings = RAY_WORKER | {"max_retries": 2} | resources
    try:
        return ray.remote(**settings)(worker)
    except (TypeError, ValueError) as error:
        raise UsageError(f"Ray has no worker of these --resources ({error}): see the options of `ray.remote`") from error


def _check_ray(resources: dict[str, Any]) -> None:
    """Raises UsageError where nothing answers at RAY_ADDRESS, for which Ray itself would wait a quarter of an hour."""
    import ray

    _task(ray, resources)
    address = os.environ.get(RAY_ADDRESS, "").removeprefix("ray://")
    if ray.is_initialized() or not connecting.is_address(address):
        return
    try:
        connecting.wait_for(address, RAY_SECONDS)
    except OSError as error:
        raise UsageError(
            f"no Ray cluster answers at {address} within {RAY_SECONDS:.0f} s ({error}): set RAY_ADDRESS to one that runs "
            "(`ray start --head`), or unset it for workers of this machine"
        ) from error


@contextlib.contextmanager
def _one_try() -> Iterator[None]:
    """Within this, Ray tries once to join the cluster of RAY_ADDRESS, which takes up to 40 s, and not twenty times."""
    name = "RAY_gcs_server_port_wait_time_s"  # it counts tries, also of a cluster that Ray begins: not for that one
    is_changed = RAY_ADDRESS in os.environ and name not in os.environ
    if is_changed:
        os.environ[name] = "1"
    try:
        yield
    finally:
        if is_changed:
            del os.environ[name]


def _begin_ray(ray: Any, folder: Path) -> None:
    """Joins the cluster of RAY_ADDRESS, or begins one of this machine. Raises UsageError where that cannot be."""
    os.environ.setdefault("RAY_worker_niceness", "0")  # else workers of a cluster of this machine yield to all else
    try:
        with _one_try(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "os.fork", RuntimeWarning)  # Ray's own processes run no JAX
            ray.init(address=os.environ.get(RAY_ADDRESS), log_to_driver=False, include_dashboard=False)
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        raise UsageError(
            f"the Ray cluster cannot be reached ({error}): see RAY_ADDRESS, or `ray start --head`; then go on with: "
            f"rollax sweep {folder} --launcher ray"
        ) from error
