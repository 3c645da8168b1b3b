"""A run that is stopped in any way and resumed ends with the same bits as an uninterrupted run."""

import contextlib
import dataclasses
import os
import random
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import rollax
from rollax.training.checkpoints.store import Checkpoints
from rollax.training.console.signals import get_interrupt_result, list_stop_signals, stop_on_signals
from rollax.training.run_folder import creation, layout, recorder
from rollax.training.run_folder.files import write_atomically
from rollax.training.spec import make_spec
from support.command import Command, end_with_test
from support.runs import (
    FRAMES,
    NETWORK,
    SMALL,
    SMALL_WORDS,
    Script,
    check_same,
    evaluations,
    metrics,
    newest,
    options,
    over,
)

TOTAL = 1500 * FRAMES
REAL = [
    "train",
    "ppo",
    "probe/memory",
    "--total-steps",
    TOTAL,
    "--checkpoint-steps",
    50 * FRAMES,
    *SMALL_WORDS,
]


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return the run folder of an uninterrupted process, and a folder of compiled programs."""
    base = tmp_path_factory.mktemp("real")
    command = Command(*REAL, "--run-dir", base / "run", cache=base / "cache")
    assert command.finish() == 0, command.err
    return base / "run", base / "cache"


def kill_in_training(command: Command, run: Path, step: float) -> None:
    """Kill a process shortly after its checkpoint of a step."""
    command.wait_for(lambda: newest(run) >= step)
    time.sleep(random.random() / 10)
    assert command.stop(signal.SIGKILL) == -signal.SIGKILL, "it ended before it was killed"


def check_resumed(run: Path, real: tuple[Path, Path]) -> None:
    """Resume a killed run to its end, and compare it with the uninterrupted run."""
    whole, cache = real
    command = Command("resume", run, cache=cache)
    assert command.finish() == 0, command.err
    assert any("Continuing from step" in line for line in command.out)
    check_same(run, whole)


@pytest.mark.quick
def test_killed_in_training_and_resumed(real: tuple[Path, Path], tmp_path: Path) -> None:
    run = tmp_path / "run"
    command = Command(*REAL, "--run-dir", run, cache=real[1])
    kill_in_training(command, run, random.uniform(0, 0.75) * TOTAL)
    check_resumed(run, real)


def test_killed_at_any_time_and_resumed(real: tuple[Path, Path], tmp_path: Path) -> None:
    """Kill a process with SIGKILL while it compiles, and three times while it trains."""
    run = tmp_path / "run"
    command = Command(*REAL, "--run-dir", run)
    command.wait_for("^compiling")
    time.sleep(random.random() / 2)
    assert command.stop(signal.SIGKILL) == -signal.SIGKILL
    assert newest(run) == -1, "it was killed too late to test this"
    for quarter in range(3):
        command = Command("resume", run, cache=real[1])
        kill_in_training(command, run, random.uniform(quarter, quarter + 1) / 4 * TOTAL)
    check_resumed(run, real)


def test_interrupted_and_terminated_and_resumed(real: tuple[Path, Path], tmp_path: Path) -> None:
    """SIGINT while compiling and SIGTERM while training end with 130 and 143.

    The output names the command that continues the run.
    """
    whole, cache = real
    run = tmp_path / "run"
    command = Command(*REAL, "--run-dir", run)
    command.wait_for("^compiling")
    assert command.stop(signal.SIGINT) == 130, command.err
    assert command.err == []
    assert newest(run) == 0
    # The program may have a path instead of a name, because it need not be on the search path.
    assert any(
        line.startswith("  ") and line.endswith(f"rollax resume {run}") for line in command.out
    )
    command = Command("resume", run, cache=cache)
    command.wait_for(lambda: newest(run) >= TOTAL / 4)
    assert command.stop(signal.SIGTERM) == 143, command.err
    assert command.err == []
    assert any(line.startswith("Stopped and saved after ") for line in command.out)
    assert 0 < newest(run) < TOTAL
    assert Command("resume", run, cache=cache).finish() == 0
    check_same(run, whole)


# The command in a session whose terminal is its standard input. Closing it sends SIGHUP.
OWN_TERMINAL = """
import fcntl, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
from rollax.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


def test_a_closed_terminal_stops_a_run(tmp_path: Path) -> None:
    """The state is saved, although nothing can be written to the terminal any more."""
    master, terminal = os.openpty()
    words = over(REAL, "--total-steps", 100 * TOTAL, "--run-dir", tmp_path / "run")
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": str(Path(rollax.__file__).parents[1]),
    }
    ends = dict.fromkeys(("stdin", "stdout", "stderr"), terminal)
    words = [sys.executable, "-c", OWN_TERMINAL, *map(str, words)]
    process = end_with_test(
        subprocess.Popen(words, **ends, env=environment, start_new_session=True)
    )
    os.close(terminal)
    threading.Thread(target=_read_all, args=(master,), daemon=True).start()
    end = time.monotonic() + 300
    while newest(tmp_path / "run") < FRAMES and process.poll() is None and time.monotonic() < end:
        time.sleep(0.01)
    before = newest(tmp_path / "run")
    process.send_signal(signal.SIGSTOP)  # so that no checkpoint is written in between
    os.close(master)
    process.send_signal(signal.SIGHUP)
    process.send_signal(signal.SIGCONT)
    process.wait(120)
    lines = [line["step"] for line in metrics(tmp_path / "run") if "event" not in line]
    assert newest(tmp_path / "run") == max(lines) > before


def _read_all(handle: int) -> None:
    with contextlib.suppress(OSError):
        while os.read(handle, 1 << 16):
            pass


def test_an_interrupt_while_importing_prints_no_traceback() -> None:
    """Python's own import times show that the imports have started."""
    command = Command("train", "ppo", "probe/memory", program=["-X", "importtime", "-m", "rollax"])
    command.wait_for(lambda: any("rollax.runtime.startup" in line for line in command.err))
    assert command.stop(signal.SIGINT) == -signal.SIGINT
    assert not [line for line in command.err if not line.startswith("import time:")]


def _at(event: str, count: int, number: int) -> Callable[[str, str], None]:
    """Return a function that raises the signal at the given event of a kind."""
    seen = []

    def react(kind: str, text: str) -> None:
        seen.append(kind)
        if kind == event and seen.count(event) == count:
            signal.raise_signal(number)

    return react


@pytest.mark.parametrize(
    ("event", "count", "number"),
    [
        ("compiling", 1, signal.SIGINT),
        ("compiling", 1, signal.SIGTERM),
        ("evaluating", 1, signal.SIGINT),  # before training
        ("evaluating", 3, signal.SIGTERM),
        ("evaluating", 5, signal.SIGHUP),  # the last evaluation, after which nothing is left to do
        ("progress", 1, signal.SIGINT),
        ("progress", 3, signal.SIGHUP),  # between an update and its evaluation
        ("last progress", 1, signal.SIGTERM),
        ("saving", 1, signal.SIGTERM),
        ("saving", 4, signal.SIGINT),
    ],
)
def test_a_signal_in_any_phase(
    train: Callable,
    undisturbed: Path,
    monkeypatch: pytest.MonkeyPatch,
    event: str,
    count: int,
    number: int,
) -> None:
    """The run stops after the current operation with the exit code of the signal.

    Resuming leads to the same end.
    """
    react = _at(event, count, number)
    save = Checkpoints.save

    def save_then_signal(self: Checkpoints, *arguments: Any) -> bool:
        saved = save(self, *arguments)  # writing continues in the background
        react("saving", "")
        return saved

    def react_to_last(kind: str, text: str) -> None:
        last = kind == "progress" and int(text) == 12 * FRAMES
        react("last progress" if last and event == "last progress" else kind, text)

    with monkeypatch.context() as patch:
        patch.setattr(Checkpoints, "save", save_then_signal)
        try:
            stopped = train(show=Script(react_to_last))
        except KeyboardInterrupt as interrupt:
            stopped = get_interrupt_result(interrupt)
    if (event, count) == ("evaluating", 5):
        assert stopped[1:4] == ("done", 0, 12 * FRAMES)
    else:
        assert (stopped.status, stopped.exit_code) == ("stopped", 128 + number)
        assert newest(stopped.folder) == stopped.steps
        resumed = rollax.resume(stopped.folder, show=Script())
        assert (resumed.status, resumed.exit_code, resumed.steps) == ("done", 0, 12 * FRAMES)
    check_same(stopped.folder, undisturbed)


def test_a_signal_during_a_long_evaluation(train: Callable) -> None:
    """The evaluation is finished and recorded."""
    timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM))
    took = []

    def react(kind: str, text: str) -> None:
        took.append(time.monotonic())
        if kind == "evaluating":
            timer.start()

    try:
        result = train(
            environment="probe/truncation",
            arguments={"time_limit": 200_000},
            eval_count=0,
            show=Script(react),
        )
    finally:
        timer.cancel()
    assert result.exit_code == 143
    assert max(b - a for a, b in zip(took, took[1:], strict=False)) > 0.2, (
        "the evaluation was too short to test this"
    )
    assert evaluations(result.folder)["returns"].tolist() == [[200_000.0] * 8]


def test_a_second_interrupt_stops_immediately(train: Callable, tmp_path: Path) -> None:
    """Checkpoints that were saved before are not affected."""

    def react(kind: str, text: str) -> None:
        if kind == "progress" and int(text) >= 4 * FRAMES:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train(show=Script(react))
    assert newest(tmp_path / "run") >= 2 * FRAMES


def test_signal_handlers_are_restored_after_a_run(train: Callable) -> None:
    before = [signal.getsignal(number) for number in list_stop_signals()]
    train(updates=1)
    assert [signal.getsignal(number) for number in list_stop_signals()] == before


def test_an_ignored_hangup_does_not_stop_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """nohup ignores SIGHUP."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stop_on_signals() as request:
            signal.raise_signal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert request.signal_number is None


def test_a_run_in_another_thread(train: Callable) -> None:
    """Only the main thread receives signals. In other threads a run works without them."""
    results = []
    thread = threading.Thread(target=lambda: results.append(train(updates=1)))
    thread.start()
    thread.join(120)
    assert [result.status for result in results] == ["done"]


@pytest.mark.quick
def test_an_interrupted_evaluation_is_recorded_once(
    train: Callable, undisturbed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill between the writes of an evaluation leaves no gap and no second line."""
    for when in (1, 3):
        calls = []

        def write_and_die(
            path: Path, content: bytes, calls: list = calls, when: int = when
        ) -> None:
            write_atomically(path, content)
            calls.append(path)
            if len(calls) == when:
                raise SystemExit("as if killed")

        with monkeypatch.context() as patch:
            patch.setattr(recorder, "write_atomically", write_and_die)
            with pytest.raises(SystemExit):
                train(f"run{when}")
        folder = Path(calls[0]).parent
        rollax.resume(folder, show=Script())
        check_same(folder, undisturbed)


@pytest.mark.parametrize("damage", ["cut short", "emptied", "a bit", "no summary"])
def test_a_damaged_checkpoint_is_skipped_with_a_warning(
    train: Callable, undisturbed: Path, damage: str
) -> None:
    """The previous one is used with a warning, and the end is the same."""
    stopped = train(show=Script(_at("progress", 9, signal.SIGTERM)))
    bad = newest(stopped.folder)
    files = [
        path
        for path in (stopped.folder / "checkpoints" / f"step_{bad:012d}").rglob("*")
        if path.is_file()
    ]
    file = max(files, key=lambda path: path.stat().st_size if path.name != "summary.json" else 0)
    content = file.read_bytes()
    if damage == "cut short":
        file.write_bytes(content[: len(content) // 2])
    elif damage == "emptied":
        file.write_bytes(b"")
    elif damage == "a bit":
        file.write_bytes(content[:50] + bytes([content[50] ^ 1]) + content[51:])
    else:
        next(path for path in files if path.name == "summary.json").unlink()
    show = Script()
    resumed = rollax.resume(stopped.folder, show=show)
    assert resumed.status == "done"
    warnings = [line for line in show.lines if line.startswith("warning: ")]
    assert len(warnings) == 1
    assert f"step_{bad:012d} is damaged" in warnings[0] and "skipped" in warnings[0]
    assert any(
        line.startswith("Continuing from step") and f"{bad:,}" not in line for line in show.lines
    )
    check_same(stopped.folder, undisturbed)


def test_if_every_checkpoint_is_damaged_nothing_changes(train: Callable) -> None:
    stopped = train(show=Script(_at("progress", 9, signal.SIGTERM)))
    for summary in (stopped.folder / "checkpoints").glob("step_*/summary.json"):
        summary.write_text("{}")
    before = sorted(path.name for path in (stopped.folder / "checkpoints").iterdir())
    with pytest.raises(rollax.UsageError, match="No checkpoint in .* can be read"):
        rollax.resume(stopped.folder, show=Script())
    assert sorted(path.name for path in (stopped.folder / "checkpoints").iterdir()) == before


@pytest.fixture
def largest_file() -> Iterator[Callable[[int], None]]:
    """Return a function that sets the largest size of a file, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk(tmp_path: Path, largest_file: Callable[[int], None]) -> None:
    """The error names the cause.

    After the limit is removed, the run ends as an uninterrupted run.
    """
    run, whole = tmp_path / "run", tmp_path / "whole"
    given = {"config": SMALL, "network": NETWORK}

    def react(kind: str, text: str) -> None:
        if kind == "progress" and int(text) >= 7 * FRAMES:
            while newest(run) < 6 * FRAMES:
                time.sleep(0.01)
            largest_file(1000)

    with pytest.raises(OSError, match="File too large"):
        rollax.train(
            "ppo",
            "probe/memory",
            **given,
            options=options(run, checkpoint_steps=0),
            show=Script(react),
        )
    largest_file(resource.getrlimit(resource.RLIMIT_FSIZE)[1])
    assert newest(run) == 6 * FRAMES
    assert rollax.load(run).warnings == []
    assert rollax.resume(run, show=Script()).status == "done"
    rollax.train("ppo", "probe/memory", **given, options=options(whole), show=Script())
    check_same(run, whole)


# A program whose disk is full after half of its steps: files above 20 kB cannot be written.
FULL_DISK = """
import resource, sys
from rollax.cli import main
from rollax.training.console import progress

class Lines(progress.LineDisplay):
    def progress(self, num_done, num_total, metric_texts):
        if num_done >= num_total / 2:
            resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))

progress.LineDisplay = Lines
sys.exit(main.main(sys.argv[1:]))
"""


def test_a_disk_too_full_for_a_checkpoint(tmp_path: Path) -> None:
    """The exit code is 1, and an error names the checkpoint.

    Previous checkpoints are intact, and the run can be resumed.
    """
    words = over(
        REAL,
        "--network.hidden",
        64,
        64,
        "--total-steps",
        60 * FRAMES,
        "--run-dir",
        tmp_path / "run",
    )
    words += [
        "--log-lines",
        10,
    ]  # metrics stay small, so that only checkpoints are too large
    command = Command(*words, quick=True, program=["-c", FULL_DISK])
    assert command.finish() == 1
    # Threads of orbax also print errors, so the message may start within a line.
    failed = [line for line in command.err if "rror: The checkpoint of step " in line]
    assert len(failed) == 1
    assert "could not be written to" in failed[0]
    assert 0 <= newest(tmp_path / "run") <= 54 * FRAMES
    policy = rollax.load(tmp_path / "run")
    assert policy.warnings == []
    assert policy.step == newest(tmp_path / "run")
    result = rollax.resume(tmp_path / "run", show=Script())
    assert (result.status, result.steps) == ("done", 60 * FRAMES)
    assert evaluations(tmp_path / "run")["step"].tolist() == [n * 6 * FRAMES for n in range(11)]


def test_a_disk_too_full_for_metrics(tmp_path: Path) -> None:
    """The exit code is 1, an error names the file, and the run can be resumed."""
    words = over(
        REAL, "--total-steps", 60 * FRAMES, "--checkpoint-steps", 0, "--run-dir", tmp_path / "run"
    )
    command = Command(*words, quick=True, program=["-c", FULL_DISK.replace("20_000", "10_000")])
    assert command.finish() == 1
    assert any(
        line.startswith("error: ") and str(tmp_path / "run" / "metrics.jsonl") in line
        for line in command.err
    )
    result = rollax.resume(tmp_path / "run", show=Script())
    assert (result.status, result.steps) == ("done", 60 * FRAMES)


def test_checkpoints_by_time_change_nothing(train: Callable) -> None:
    """The number of checkpoints does not affect anything else, and lines are not split."""
    often = train("often", checkpoint_minutes=1e-9, checkpoint_steps=0, log_lines=4)
    seldom = train("seldom", checkpoint_minutes=0.0, checkpoint_steps=0, log_lines=4)
    lines = [line["step"] for line in metrics(often.folder) if "event" not in line]
    assert lines == [n * 3 * FRAMES for n in range(1, 5)]
    check_same(often.folder, seldom.folder)


def test_custom_objects_have_to_be_passed_again(train: Callable) -> None:
    """An error names a missing environment or network. With both the run continues."""
    environment = rollax.make("probe/action-reward")

    def network(key):
        return rollax.actor_critic(environment, NETWORK, key)

    stopped = train(
        environment=environment, network=network, show=Script(_at("progress", 4, signal.SIGTERM))
    )
    objects = {"environment": environment, "network": network}
    config = (stopped.folder / "config.yaml").read_bytes()
    for missing in objects:
        given = {name: value for name, value in objects.items() if name != missing}
        for function in (rollax.load, rollax.resume):
            with pytest.raises(rollax.UsageError, match=f"Pass it again as {missing}="):
                function(stopped.folder, **given)
    with pytest.raises(
        rollax.UsageError, match="environment must be probe/action-reward, got probe/memory"
    ):
        rollax.resume(stopped.folder, environment=rollax.make("probe/memory"), network=network)
    assert (stopped.folder / "config.yaml").read_bytes() == config
    assert rollax.resume(stopped.folder, show=Script(), **objects).status == "done"
    whole = train("whole", environment=environment, network=network)
    check_same(stopped.folder, whole.folder, **objects)


def test_objects_in_place_of_settings_raise_usage_error(undisturbed: Path) -> None:
    """Otherwise the run would continue with an environment that config.yaml does not name."""
    before, total = (undisturbed / "config.yaml").read_bytes(), 13 * FRAMES
    with pytest.raises(rollax.UsageError, match=r"id \(probe/memory\). Remove environment=..."):
        rollax.resume(undisturbed, total_steps=total, environment=rollax.make("probe/memory"))
    with pytest.raises(rollax.UsageError, match="made from settings. Remove network=..."):
        rollax.load(undisturbed, network=lambda key: None)
    with pytest.raises(rollax.UsageError, match="A network of ppo must return"):
        rollax.resume(undisturbed, total_steps=total, network=lambda key: None)
    assert (undisturbed / "config.yaml").read_bytes() == before


def test_concurrent_runs_have_separate_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads choose from 16 names per second. A given folder can belong to only one run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        creation.secrets, "token_hex", lambda number: random.choice("0123456789abcdef")
    )
    monkeypatch.setattr(layout, "describe_machine", dict)
    spec = make_spec("ppo", "probe/memory", {}, None, None, rollax.RunOptions(), {})
    with ThreadPoolExecutor(8) as threads:
        folders = list(threads.map(lambda _: creation.create_run_folder(spec), range(12)))
    assert len(set(folders)) == 12 and all((folder / "config.yaml").is_file() for folder in folders)
    given = dataclasses.replace(spec, options=rollax.RunOptions(run_dir=tmp_path / "one"))

    def begin(_: int) -> bool:
        try:
            return bool(creation.create_run_folder(given))
        except rollax.UsageError:
            return False

    with ThreadPoolExecutor(8) as threads:
        assert sum(threads.map(begin, range(8))) == 1
