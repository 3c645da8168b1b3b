"""Tests of launchers: requirements are checked before the study is made."""

import importlib.util
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rollax.cli.main import main
from rollax.distributed import connection, ray_cluster
from rollax.errors import UsageError
from rollax.runtime.installation import install_command
from rollax.sweeps import launchers
from rollax.sweeps import optuna_study as drawing
from rollax.sweeps.study import Study, create_study
from rollax.sweeps.sweep_spec import StudySpec
from rollax.training.console.progress import NullDisplay, make_display
from rollax.training.console.signals import stop_on_signals

if importlib.util.find_spec("submitit") is not None:
    # Importing it within a test would close the captured streams, because it configures logging.
    importlib.import_module("submitit")
NOBODY = "127.0.0.1:9"  # an address without a server
WORDS = [
    "sweep",
    "ppo",
    "probe/memory",
    "--sweep.gamma",
    "0.5",
    "0.9",
    "--no-tensorboard",
    "--total-steps",
    "2048",
]


@pytest.fixture
def sweep(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Return a function that runs an invalid sweep command and returns the error.

    The study folder does not exist afterwards, so that the command can be repeated.
    """

    def refused(*words: str) -> str:
        assert main([*WORDS, "--study-dir", str(tmp_path / "study"), *words]) == 2
        assert not (tmp_path / "study").exists()
        return capsys.readouterr().err

    return refused


@pytest.mark.parametrize(("launcher", "package"), [("slurm", "submitit"), ("ray", "ray")])
def test_a_missing_package_is_reported(
    sweep: Any, monkeypatch: pytest.MonkeyPatch, launcher: str, package: str
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *more: None if name == package else find(name, *more),
    )
    message = sweep("--launcher", launcher)
    assert f"The package {package} is not installed" in message
    assert install_command(launcher) in message


@pytest.mark.skipif(importlib.util.find_spec("submitit") is None, reason="needs submitit")
def test_errors_of_slurm_are_reported(sweep: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert "Slurm rejected the jobs" in sweep("--launcher", "slurm")
    assert "no_such" in sweep(
        "--launcher", "slurm", "--resources.cluster", "local", "--resources.slurm-no-such", "1"
    )
    assert "nowhere" in sweep("--launcher", "slurm", "--resources.cluster", "nowhere")


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Any:
    pytest.importorskip("ray")
    monkeypatch.setattr(launchers, "RAY_CONNECT_SECONDS", 0.0)
    monkeypatch.setenv("RAY_ADDRESS", NOBODY)


@pytest.mark.parametrize("address", [NOBODY, f"ray://{NOBODY}"])
def test_a_ray_cluster_that_does_not_respond(
    sweep: Any, ray: Any, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", address)
    told = sweep("--launcher", "ray", "--workers", "2")
    assert f"No Ray cluster responds at {NOBODY} within 0 s" in told and "unset it" in told


def test_unknown_resources_of_ray_are_reported(sweep: Any, ray: Any) -> None:
    assert "num_gqus" in sweep("--launcher", "ray", "--resources.num-gqus", "1")


def test_ctrl_c_stops_waiting_for_a_cluster(
    tmp_path: Path, ray: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stops waiting for the address, and for Ray to connect."""
    monkeypatch.setattr(
        connection, "wait_for_address", lambda *_: os.kill(os.getpid(), signal.SIGINT)
    )
    assert main([*WORDS, "--study-dir", str(tmp_path / "study"), "--launcher", "ray"]) == 130
    assert not (tmp_path / "study").exists()
    folder = create_study(
        StudySpec("ppo", "probe/memory", sweep={"gamma": (0.5, 0.9)}), tmp_path / "study"
    )
    monkeypatch.setattr(launchers, "connect_to_ray", lambda *_: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        launchers.launch_workers(folder, "ray", 1, make_display(quiet=True))


@pytest.mark.parametrize(("address", "tries"), [(NOBODY, "1"), (None, None)])
def test_ray_connects_with_one_attempt(
    monkeypatch: pytest.MonkeyPatch, address: str | None, tries: str | None
) -> None:
    """The limit applies to existing clusters only. Twenty attempts take a quarter of an hour."""
    name, seen = "RAY_gcs_server_port_wait_time_s", []
    monkeypatch.setenv("RAY_ADDRESS", address) if address else monkeypatch.delenv(
        "RAY_ADDRESS", raising=False
    )
    monkeypatch.delenv(name, raising=False)

    def init(**_: Any) -> None:
        seen.append(os.environ.get(name))
        raise ConnectionError("no answer")

    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(init=init))
    with pytest.raises(UsageError, match="no answer.* Then continue with: a command"):
        ray_cluster.connect_to_ray("Then continue with: a command")
    assert seen == [tries] and name not in os.environ


def test_too_many_devices_raise_usage_error(sweep: Any, tmp_path: Path) -> None:
    """The number is checked before the study is made, or before a worker draws a trial."""
    assert "devices (64) must be at most the number of devices" in sweep("--devices", "64")
    options = {"devices": 64, "total_steps": 2048}
    folder = create_study(
        StudySpec("ppo", "probe/memory", sweep={"gamma": (0.5, 0.9)}, options=options),
        tmp_path / "study",
    )
    with pytest.raises(UsageError, match=r"devices \(64\) must be at most the number of devices"):
        launchers.launch_workers(folder, "local", 1, make_display(quiet=True))
    assert (
        set(drawing.trial_states(Study(folder).optuna_study).values()) == {"WAITING"}
        and Study(folder).list_batches() == []
    )


class Told(NullDisplay):
    """Display that records messages."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def message(self, text: str) -> None:
        self.lines.append(text)


@pytest.mark.parametrize(
    ("launcher", "resources"),
    [("slurm", {"cluster": "local"}), pytest.param("ray", {}, marks=pytest.mark.slow)],
)
def test_failing_workers_report_the_cause(
    tmp_path: Path, launcher: Any, resources: dict[str, Any]
) -> None:
    """The cause is a module that workers cannot import."""
    pytest.importorskip("submitit" if launcher == "slurm" else "ray")
    spec = StudySpec(
        "ppo", "probe/memory", sweep={"gamma": (0.5, 0.9)}, imports=("no_such_module",)
    )
    folder, show = create_study(spec, tmp_path / "study"), Told()
    imports = ("no_such_module",)  # named by the user, because it may be available elsewhere
    assert (
        launchers.launch_workers(folder, launcher, 1, show, resources=resources, imports=imports)
        is None
    )
    (told,) = [line for line in show.lines if line.startswith("warning: ")]
    assert "imports no_such_module: there is no such module" in told


def test_modules_are_imported_by_every_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """These are the modules of the study, and those of the command that continues it."""
    folder, started = (
        create_study(
            StudySpec("ppo", "probe/memory", sweep={"gamma": (0.5,)}, imports=("json",)),
            tmp_path / "study",
        ),
        [],
    )
    for launcher in ("_run_local_workers", "_run_slurm_jobs", "_run_ray_tasks"):
        monkeypatch.setattr(
            launchers,
            launcher,
            lambda folder, number, show, terms, *_: started.append(terms.modules),
        )
    for launcher, workers in (("local", 2), ("slurm", 1), ("ray", 1)):
        launchers.launch_workers(folder, launcher, workers, Told(), imports=("csv", "json"))  # pyright: ignore[reportArgumentType]
    assert started == [("json", "csv")] * 3
    monkeypatch.setattr(launchers, "work_on_study", lambda *_: started.append("works"))
    (tmp_path / "module_of_a_study.py").write_text("imported = True")
    monkeypatch.syspath_prepend(tmp_path)
    launchers.run_worker(str(folder), None, ("module_of_a_study",))
    assert started[-1] == "works" and sys.modules.pop("module_of_a_study").imported


def test_resources_that_no_node_has(tmp_path: Path) -> None:
    """They raise an error on a single machine, and a warning on a cluster, which may grow."""
    nodes = [
        {"Alive": True, "Resources": {"CPU": 8.0}},
        {"Alive": True, "Resources": {"CPU": 2.0, "GPU": 1.0, "accelerator_type:H100": 1.0}},
        {"Alive": False, "Resources": {"CPU": 64.0, "GPU": 8.0}},
    ]
    for fits in (
        {},
        {"num_cpus": 8},
        {"num_gpus": 0.5},
        {"num_cpus": 0, "accelerator_type": "H100"},
    ):
        launchers._check_ray_nodes(nodes, fits, True, tmp_path, Told())
    with pytest.raises(
        UsageError,
        match=rf"no node .* has CPU 1, GPU 2 \(at most CPU 8, GPU 1\).*rollax sweep {tmp_path}",
    ):
        launchers._check_ray_nodes(nodes, {"num_gpus": 2}, True, tmp_path, Told())
    show = Told()
    for lacks in (
        {"num_cpus": 8, "num_gpus": 1},
        {"resources": {"TPU": 4}},
        {"accelerator_type": "A100"},
    ):
        launchers._check_ray_nodes(nodes, lacks, False, tmp_path, show)
    assert len(show.lines) == 3 and all(
        "Workers wait until one joins." in line for line in show.lines
    )


@pytest.mark.skipif(importlib.util.find_spec("submitit") is None, reason="needs submitit")
def test_the_signal_of_a_time_limit_stops_a_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The signal of Submitit reaches the run of a worker like any stop signal."""
    folder = create_study(
        StudySpec("ppo", "probe/memory", sweep={"gamma": (0.5,)}), tmp_path / "study"
    )

    def work(*_: Any) -> int | None:
        with stop_on_signals() as request:
            signal.raise_signal(signal.SIGUSR2)
            return request.signal_number

    monkeypatch.setattr(launchers, "work_on_study", work)
    before = signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    try:
        assert launchers.run_slurm_job(str(folder), None, ()) == signal.SIGUSR2
    finally:
        signal.signal(signal.SIGUSR2, before)
