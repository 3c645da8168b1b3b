"""Tests of runs of several processes on this machine.

The results equal those of one process, and all processes end together.
"""

import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from rollax.cli.main import main
from rollax.distributed import arrivals, processes
from rollax.training.checkpoints.shards import LARGE_LEAF_BYTES
from rollax.training.checkpoints.store import Checkpoints
from rollax.training.run_folder.layout import CHECKPOINTS_FOLDER, METRICS_FILE
from support.command import PATIENCE
from support.parameters import mark_quick

LITTLE = ["--no-tensorboard", "--eval-count", "1", "--eval-episodes", "4"]
SMALL = ["--hidden", "8", *LITTLE]
PPO = [
    "train",
    "ppo",
    "probe/memory",
    "--num-envs",
    "4",
    "--num-steps",
    "8",
    "--num-minibatches",
    "2",
    *SMALL,
]
UPDATE = 32  # steps
SECONDS = 60.0  # limit for all processes to end after one has ended

# Program of a process with a short heartbeat timeout. Small leaves may count as large, and a limit
# on the size of files can imitate a full disk.
PROGRAM = """
import resource, sys
from rollax.cli.main import main
from rollax.training.checkpoints import shards
from rollax.distributed import processes
processes.HEARTBEAT_TIMEOUT_SECONDS = 8.0
shards.LARGE_LEAF_BYTES = {large}
resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))
{before}
sys.exit(main(sys.argv[1:]))
"""


class Group:
    """Processes of one run, with their output in files."""

    def __init__(
        self,
        folder: Path,
        number: int,
        *words: str,
        devices: int = 1,
        large: int = LARGE_LEAF_BYTES,
        **of_one: Any,
    ) -> None:
        with socket.socket() as free:
            free.bind(("localhost", 0))
            port = free.getsockname()[1]
        flags = (
            f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
        )
        place = ["--distributed", "--coordinator", f"localhost:{port}"]
        self.logs = [folder / f"process-{number}-{i}.log" for i in range(number)]
        self.all = []
        for i, log in enumerate(self.logs):
            more, limit = of_one.get(f"words_of_{i}", []), of_one.get(f"largest_file_of_{i}", -1)
            program = [
                "-c",
                PROGRAM.format(large=large, limit=limit, before=of_one.get(f"before_{i}", "")),
            ]
            which = [
                "--num-processes",
                str(of_one.get(f"number_of_{i}", number)),
                "--process-id",
                str(i),
            ]
            command, environment = (
                [sys.executable, *program, *words, *place, *which, *more],
                os.environ | {"XLA_FLAGS": flags},
            )
            with log.open("w") as out:
                self.all.append(
                    subprocess.Popen(command, env=environment, stdout=out, stderr=subprocess.STDOUT)
                )

    def wait(self, seconds: float = PATIENCE) -> list[int]:
        """Return the exit codes."""
        limit = time.monotonic() + seconds
        return [each.wait(max(0.1, limit - time.monotonic())) for each in self.all]

    def said(self, index: int) -> str:
        return self.logs[index].read_text()


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Callable[..., Group]]:
    made: list[Group] = []

    def make(*arguments: Any, **more: Any) -> Group:
        made.append(Group(tmp_path, *arguments, **more))
        return made[-1]

    yield make
    for each in made:
        for process in each.all:
            process.kill()


def until(condition: Callable[[], bool], seconds: float = 300.0) -> None:
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, "what was waited for did not happen"
        time.sleep(0.02)


def alone(*words: str) -> None:
    assert main(list(words)) == 0


def leaves(run: Path) -> dict[str, np.ndarray]:
    """Return the arrays of a run's last checkpoint by path."""
    checkpoints = Checkpoints(run / CHECKPOINTS_FOLDER)
    summary = checkpoints.newest_intact_summary()
    arrays = checkpoints._read_arrays(summary)
    checkpoints.close()
    return {
        leaf.path: np.asarray(array)
        for leaf, array in zip(summary.leaves, arrays, strict=True)
        if array is not None
    }


def differ_by(one: Path, other: Path) -> float:
    ours, theirs = leaves(one), leaves(other)
    assert list(ours) == list(theirs)
    pairs = [(ours[path].astype(np.float64), theirs[path].astype(np.float64)) for path in ours]
    pairs = [(np.where(x == y, 0.0, x), np.where(x == y, 0.0, y)) for x, y in pairs if x.size]
    return max(float(np.max(np.abs(x - y) / np.maximum(1.0, np.abs(x)))) for x, y in pairs)


ROWS = {
    "ppo": PPO,
    "members": [*PPO, "--seeds", "4"],
    "td3": [
        "train",
        "td3",
        "gymnax/Pendulum-v1",
        "--num-envs",
        "4",
        "--num-steps",
        "8",
        "--warmup",
        "16",
        "--batch-size",
        "8",
        *SMALL,
    ],
    "map_elites": [
        "train",
        "map_elites",
        "task/arm",
        "--batch-size",
        "64",
        "--grid",
        "8",
        "8",
        *LITTLE,
    ],
}


@pytest.mark.parametrize(
    ("row", "number", "devices", "large"),
    mark_quick([("ppo", 2, 2, 0), ("members", 4, 1, LARGE_LEAF_BYTES)], ("ppo", 2, 2, 0)),
)
def test_several_processes_equal_one(
    tmp_path: Path, group: Callable[..., Group], row: str, number: int, devices: int, large: int
) -> None:
    """Checkpoints are compared, whether each process writes its part or the first writes all."""
    words = [*ROWS[row], "--total-steps", str(2 * UPDATE)]
    ran = group(number, *words, "--run-dir", str(tmp_path / "many"), devices=devices, large=large)
    alone(*words, "--run-dir", str(tmp_path / "one"))
    assert ran.wait() == [0] * number, ran.said(0)
    assert differ_by(tmp_path / "one", tmp_path / "many") < 1e-5
    assert "Finished 64 steps" in ran.said(0) and "Finished" not in ran.said(1), (
        "the first alone speaks"
    )
    one, many = (
        (tmp_path / run / METRICS_FILE).read_text().splitlines() for run in ("one", "many")
    )
    assert [json.loads(line)["step"] for line in one] == [json.loads(line)["step"] for line in many]


@pytest.mark.slow
@pytest.mark.parametrize("number", [2, 4])
@pytest.mark.parametrize("row", ["td3", "map_elites"])
def test_several_processes_equal_one_with_split_state(
    tmp_path: Path, group: Callable[..., Group], row: str, number: int
) -> None:
    """The replay or the archive is split.

    The run is short because gradient steps amplify rounding.
    """
    words = [*ROWS[row], "--total-steps", "128"]
    ran = group(number, *words, "--run-dir", str(tmp_path / "many"), large=0)
    alone(*words, "--run-dir", str(tmp_path / "one"))
    assert ran.wait() == [0] * number, ran.said(0)
    assert differ_by(tmp_path / "one", tmp_path / "many") < 1e-5


def in_an_update(run: Path, log: Path) -> bool:
    return (run / METRICS_FILE).exists() and '"loss"' in (run / METRICS_FILE).read_text()


def while_it_compiles(run: Path, log: Path) -> bool:
    return "compiling" in log.read_text()


def in_a_checkpoint(run: Path, log: Path) -> bool:
    return in_an_update(run, log) and any((run / CHECKPOINTS_FOLDER).glob("*.writing"))


@pytest.mark.parametrize(
    ("moment", "killed", "number"),
    [
        (in_an_update, 2, 4),
        pytest.param(in_an_update, 1, 2, marks=pytest.mark.slow),
        pytest.param(in_an_update, 0, 2, marks=pytest.mark.slow),
        (while_it_compiles, 1, 2),
        (in_a_checkpoint, 0, 2),
    ],
)
def test_a_killed_process_ends_all(
    tmp_path: Path,
    group: Callable[..., Group],
    moment: Callable[[Path, Path], bool],
    killed: int,
    number: int,
) -> None:
    """All end within a minute with a message. Fewer processes continue from the last checkpoint."""
    run = tmp_path / "run"
    often = ["--checkpoint-steps", str(UPDATE)] if moment is in_a_checkpoint else []
    ran = group(number, *PPO, "--total-steps", "1e8", "--run-dir", str(run), *often)
    until(lambda: moment(run, ran.logs[0]))
    ran.all[killed].send_signal(signal.SIGKILL)
    codes = ran.wait(SECONDS)
    assert codes[killed] == -signal.SIGKILL
    until(lambda: "was killed, or aborted by JAX" in ran.said(killed), 10)
    for other in set(range(number)) - {killed}:
        assert codes[other] not in (0, None)
        until(lambda log=other: f"rollax resume {run}" in ran.said(log), 10)
        assert "has sent no heartbeat" in ran.said(
            other
        ) or "because the first process has ended" in ran.said(other)
    steps = Checkpoints(run / CHECKPOINTS_FOLDER).steps()
    done = (steps or [0])[-1] + 2 * UPDATE
    alone("resume", str(run), "--devices", "1", "--total-steps", str(done))
    assert Checkpoints(run / CHECKPOINTS_FOLDER).steps()[-1] == done


def test_a_stop_signal_to_one_process_stops_all(
    tmp_path: Path, group: Callable[..., Group]
) -> None:
    """All stop at the same update and can continue with more devices.

    These read other parts of a checkpoint than were written. A learning rate that differs between
    processes is refused.
    """
    run = tmp_path / "run"
    ran = group(2, *PPO, "--total-steps", "1e8", "--run-dir", str(run), large=0)
    until(lambda: in_an_update(run, ran.logs[0]))
    ran.all[1].send_signal(signal.SIGTERM)
    assert ran.wait(SECONDS) == [143, 143], ran.said(0)
    assert "Stopped and saved after" in ran.said(0)
    (before,) = Checkpoints(run / CHECKPOINTS_FOLDER).steps()[-1:]
    resume = ["resume", str(run), "--total-steps", str(before + UPDATE)]
    unlike = group(2, *resume, words_of_1=["--learning-rate", "0.5"])
    assert unlike.wait(SECONDS) == [2, 2] and "they differ in settings" in unlike.said(0), (
        unlike.said(0)
    )
    more = group(2, *resume, devices=2)
    assert more.wait() == [0, 0], more.said(0)
    assert Checkpoints(run / CHECKPOINTS_FOLDER).steps()[-1] == before + UPDATE


@pytest.mark.parametrize(("full", "words"), [(0, []), (1, ["--seeds", "2"])])
def test_a_full_disk_of_one_process_ends_all(
    tmp_path: Path, group: Callable[..., Group], full: int, words: list[str]
) -> None:
    """It is the first process, or one that writes its own part of a checkpoint."""
    words = [
        *PPO,
        *words,
        "--head-hidden",
        "256",
        "256",
        "--total-steps",
        "1e8",
        "--run-dir",
        str(tmp_path / "run"),
    ]
    ran = group(2, *words, large=100_000, **{f"largest_file_of_{full}": 100_000})
    assert ran.wait() == [1, 1]
    assert all("could not be written" in ran.said(index) for index in (0, 1))
    assert f"process {full} of 2" in ran.said(1 - full)


OTHER_CODE = """
code = processes._hash_modules
processes._hash_modules = lambda *modules: "changed" if modules == ("rollax",) else code(*modules)
"""
STOPS = """
from rollax import api
train = api.train
api.train = lambda *names, **words: train(*names, **words, stop_when=lambda evaluated: False)
"""  # the first process has no stop condition, so it would not exchange a decision


@pytest.mark.parametrize(
    ("other", "told"),
    [
        ({"words_of_1": ["--learning-rate", "0.1"]}, "they differ in settings"),
        ({"words_of_1": ["--num-evns", "4"]}, "process 1 of 2 could not start: "),
        (
            {"number_of_1": 3},
            "--num-processes (3) of process 1 must equal that of the first process (2)",
        ),
        ({"before_1": STOPS}, "they differ in settings"),
        ({"before_1": OTHER_CODE}, "they differ in code of rollax"),
        ({"before_1": "processes._find_version = {'optax': '0.0.2'}.get"}, "optax 0.0.2"),
        ({"before_1": "import jax; jax.__version__ = '0.0.1'"}, "process 1: jax 0.0.1"),
    ],
)
def test_processes_must_have_the_same_settings_and_code(
    tmp_path: Path, group: Callable[..., Group], other: dict[str, Any], told: str
) -> None:
    ran = group(2, *PPO, "--run-dir", str(tmp_path / "run"), **other)
    assert ran.wait(SECONDS) == [2, 2], ran.said(0) + ran.said(1)
    assert told in ran.said(0) and not (tmp_path / "run").exists()


def test_a_mistake_leaves_the_compilation_cache(
    tmp_path: Path, group: Callable[..., Group], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not count as a crash of a process that used the cache."""
    monkeypatch.setenv("ROLLAX_COMPILATION_CACHE", str(tmp_path / "programs"))
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    ran = group(2, *PPO, "--run-dir", str(tmp_path / "run"), words_of_1=["--learning-rate", "0.1"])
    assert ran.wait(SECONDS) == [2, 2], ran.said(0)
    assert "compilation cache" not in ran.said(0) + ran.said(1)
    assert list((tmp_path / "programs").glob("*")) and not list(
        (tmp_path / "programs").glob("*/starting-*")
    )


FAILS = (
    "from rollax.training.compile import run_check\n"
    "def fail(*_): {how}\n"
    "run_check.check_run_environment = fail"
)


def test_the_hash_of_a_modules_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The module is a file, or a package with all of its files."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "mine_in_a_file.py").write_text("x = 1")
    (tmp_path / "mine_in_a_package").mkdir()
    part = tmp_path / "mine_in_a_package" / "part.py"
    part.write_text("x = 1")
    (part.parent / "__init__.py").touch()
    for name in ("mine_in_a_file", "mine_in_a_package"):  # code counts once it is imported
        importlib.import_module(name)
        monkeypatch.setitem(sys.modules, name, sys.modules.pop(name))  # removes it after the test
    before = [
        processes._hash_modules(name) for name in ("mine_in_a_file", "mine_in_a_package", "rollax")
    ]
    (tmp_path / "mine_in_a_file.py").write_text("x = 2")
    part.write_text("x = 2")
    after = [
        processes._hash_modules(name) for name in ("mine_in_a_file", "mine_in_a_package", "rollax")
    ]
    assert [x == y for x, y in zip(before, after, strict=True)] == [False, False, True]


def test_an_error_before_training_is_reported_by_all(
    tmp_path: Path, group: Callable[..., Group]
) -> None:
    """An unexpected error of one process is reported like a mistake by the others."""
    ran = group(
        2,
        *PPO,
        "--run-dir",
        str(tmp_path / "run"),
        before_1=FAILS.format(how="raise OSError('no memory')"),
    )
    assert ran.wait(SECONDS) == [2, 1], ran.said(0) + ran.said(1)
    assert "process 1 of 2 could not start: no memory" in ran.said(
        0
    ) and "error: no memory" in ran.said(1)


@pytest.mark.slow
def test_a_process_killed_before_training_is_reported(
    tmp_path: Path, group: Callable[..., Group]
) -> None:
    ran = group(
        2,
        *PPO,
        "--run-dir",
        str(tmp_path / "run"),
        before_1=FAILS.format(how="import os; os.kill(os.getpid(), 9)"),
    )
    assert ran.wait(2 * SECONDS) == [1, -signal.SIGKILL], ran.said(0)
    who = f"process 1 (PID {ran.all[1].pid} on {socket.gethostname()})"
    assert (
        f"process 0 of 2 got no answer from {who}, which has ended or cannot be reached"
        in ran.said(0)
    )


def test_errors_of_an_exchange_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message names the process that ended. It does not hide an error of this process."""

    def gather(_: Any) -> Any:
        raise jax.errors.JaxRuntimeError("DEADLINE_EXCEEDED: cpu:gloo/0,2048/1")

    monkeypatch.setattr(processes.multihost_utils, "process_allgather", gather)
    monkeypatch.setattr(processes, "num_processes", lambda: 2)
    monkeypatch.setattr(processes._ExchangeState, "has_exchanged", False)
    with pytest.raises(
        RuntimeError, match="process 0 of 2 got no answer from another.*DEADLINE_EXCEEDED"
    ):
        processes.all_gather_text("")
    monkeypatch.setattr(processes._ExchangeState, "has_exchanged", False)
    with pytest.raises(OSError, match="no memory"), processes.share_errors():
        raise OSError("no memory")


class Service:
    """Stand-in for the key-value store of JAX's coordination service."""

    def __init__(self) -> None:
        self.kept: dict[str, str] = {}

    def key_value_set(self, key: str, value: str, allow_overwrite: bool) -> None:
        self.kept[key] = value

    def key_value_dir_get(self, folder: str) -> list[tuple[str, str]]:
        return [(key, value) for key, value in self.kept.items() if key.startswith(folder)]


def test_missing_processes_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    service, number = Service(), [0]
    monkeypatch.setattr(arrivals, "_find_coordination_client", lambda: service)
    monkeypatch.setattr(arrivals, "_WAIT_SECONDS", 0.0)
    monkeypatch.setattr(arrivals.jax, "process_count", lambda: 3)
    monkeypatch.setattr(arrivals.jax, "process_index", lambda: number[0])
    arrivals.announce_arrival(1)
    number[0] = 1
    arrivals.announce_arrival(0)
    assert arrivals.find_missing_processes(1) == [
        f"process 1 (PID {os.getpid()} on {socket.gethostname()})",
        "process 2",
    ]
    arrivals.announce_arrival(1)
    assert arrivals.find_missing_processes(1) == ["process 2"] and arrivals.find_missing_processes(
        0
    ) == ["process 2"]
    monkeypatch.setattr(
        arrivals, "_find_coordination_client", lambda: None
    )  # as if JAX stored the client elsewhere
    arrivals.announce_arrival(2)
    assert arrivals.find_missing_processes(2) == []
