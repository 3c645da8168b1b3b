"""Communication between the processes of a run, and joint termination after a failure.

A run often has one process per host. Each process has a share of the devices and runs the same host
loop in lockstep. Decisions that depend on a clock or a signal are made collectively. The first
process prints messages and writes the run folder, which all processes must be able to read. Without
`jax.distributed`, there is one process, and the functions of this module have no overhead.
"""

import contextlib
import hashlib
import importlib.metadata
import importlib.util
import os
import platform
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import jax
import jax.numpy as jnp
import jaxlib
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from rollax.distributed import arrivals
from rollax.environments.suites.table import list_compiled_modules
from rollax.errors import UsageError
from rollax.runtime.printing import print_line
from rollax.runtime.shell import format_command_line
from rollax.types import Leaf, PyTree

T = TypeVar("T")

HEARTBEAT_TIMEOUT_SECONDS = 20.0  # a process without a heartbeat for this time counts as ended
HEARTBEAT_FOLDER = ".processes"  # in the run folder
_HEARTBEAT_SECONDS = 1.0
_HEARTBEAT_BYTES, _MESSAGE_BYTES = 1024, 4096
# Child process that prints a message if its parent is killed or aborts. A parent that ends normally
# writes a character to it first.
_WITNESS_PROGRAM = (
    "import sys, signal; signal.signal(2, signal.SIG_IGN); "
    "sys.stdin.read() or sys.exit('\\n' + sys.argv[1])"
)


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, truncated to 200 characters."""
    return str(error).strip().splitlines()[0][:200]


def num_processes() -> int:
    """Return the number of processes of the run."""
    return jax.process_count() if jax.distributed.is_initialized() else 1


def process_index() -> int:
    """Return the index of this process."""
    return jax.process_index() if jax.distributed.is_initialized() else 0


def is_first_process() -> bool:
    """Return whether this is the process that writes the run folder and prints messages."""
    return process_index() == 0


def all_gather_numbers(*numbers: float) -> np.ndarray:
    """Return the numbers that each process passes, float32 `[processes, numbers]`.

    All processes must call this function.
    """
    row = np.asarray(numbers, np.float32)
    return row[None] if num_processes() == 1 else np.asarray(multihost_utils.process_allgather(row))


def all_gather_text(text: str) -> list[str]:
    """Return the texts that all processes pass, truncated to 4 kB each.

    All processes must call this function.

    Raises:
        RuntimeError: If a process does not call it. The message names the missing processes.
    """
    if num_processes() == 1:
        return [text]
    _ExchangeState.has_exchanged, _ExchangeState.num_exchanges = (
        True,
        _ExchangeState.num_exchanges + 1,
    )
    arrivals.announce_arrival(_ExchangeState.num_exchanges)
    encoded = text.encode()[:_MESSAGE_BYTES]
    row = np.frombuffer(encoded.ljust(_MESSAGE_BYTES, b"\0"), np.uint8)
    try:
        rows = np.asarray(multihost_utils.process_allgather(row))
    except (jax.errors.JaxRuntimeError, ValueError) as error:
        absent = (
            " and ".join(arrivals.find_missing_processes(_ExchangeState.num_exchanges)) or "another"
        )
        description = f"got no answer from {absent}, which has ended or cannot be reached"
        raise RuntimeError(
            f"process {process_index()} of {num_processes()} {description} ({first_line(error)}). "
            "Check its output for the reason."
        ) from error
    return [bytes(row).rstrip(b"\0").decode(errors="replace") for row in rows]


class _ExchangeState:
    has_exchanged, num_exchanges = False, 0


def run_on_all(function: Callable[[], T]) -> T:
    """Call `function` in all processes, and return its result in this process.

    All processes must call this function.

    Raises:
        UsageError: If `function` raises a `UsageError` in this or another process.
    """
    if num_processes() == 1:
        return function()
    try:
        value = function()
    except UsageError as error:
        all_gather_text(str(error) or "failed")
        raise
    messages = all_gather_text("")
    for number, message in enumerate(messages):
        if message:
            raise UsageError(f"process {number} of {len(messages)} could not start: {message}")
    return value


def send_error(error: Exception) -> None:
    """Send an error to the other processes if the processes have not exchanged data yet."""
    if num_processes() > 1 and not _ExchangeState.has_exchanged:
        # Another process may have ended as well. The error of this process takes precedence.
        with contextlib.suppress(RuntimeError):
            all_gather_text(str(error) or type(error).__name__)


def broadcast_from_first(make: Callable[[], str]) -> str:
    """Return a text that the first process creates, such as the path of a folder.

    Args:
        make: Function that creates the text. Only the first process calls it.

    Returns:
        The text, in all processes.

    Raises:
        UsageError: In all processes, if `make` raises a `UsageError`.
    """
    values = run_on_all(lambda: make() if is_first_process() else "")
    return all_gather_text(values)[0]


def check_processes_match(settings: str, imports: Iterable[str] = ()) -> None:
    """Check that all processes have started with the same settings, code and versions.

    Args:
        settings: Settings of the run as text.
        imports: Names of user modules whose code is also compared.

    Raises:
        UsageError: In all processes, if a process could not start or differs from the others.
    """
    if num_processes() == 1:
        return
    run_on_all(lambda: None)
    compared = {
        "settings": _hash_bytes(settings.encode()),
        "code of rollax": _hash_modules("rollax"),
        "code of imported modules": _hash_modules(*imports),
        "versions": _format_versions(),
    }
    rows = [
        dict(zip(compared, row.split("\n"), strict=True))
        for row in all_gather_text("\n".join(compared.values()))
    ]
    differing = [name for name in compared if len({row[name] for row in rows}) > 1]
    if differing:
        details = (
            "; ".join(f"process {i}: {row['versions']}" for i, row in enumerate(rows))
            if "versions" in differing
            else ""
        )
        raise UsageError(
            f"All processes must be identical, but they differ in {' and '.join(differing)}"
            f"{f' ({details})' if details else ''}. Start all with the same command and "
            "installation."
        )


def _hash_bytes(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def _hash_modules(*modules: str) -> str:
    files: list[Path] = []
    # Only modules that are already imported, because find_spec may import parent packages.
    for name in (name for name in modules if name in sys.modules):
        spec = importlib.util.find_spec(name)
        roots = list(spec.submodule_search_locations or ()) if spec else []
        files += sorted(path for root in roots for path in Path(root).rglob("*.py"))
        files += (
            [Path(spec.origin)] if spec and spec.has_location and spec.origin and not roots else []
        )
    return _hash_bytes(b"".join(path.read_bytes() for path in files))


def _format_versions() -> str:
    """Return the versions of Python and of the imported packages that affect compiled programs."""
    packages = {name: name for name in ("numpy", "equinox", "optax")} | list_compiled_modules()
    versions = {
        package: version
        for module, package in packages.items()
        if module in sys.modules and (version := _find_version(package))
    }
    versions = {
        "jax": jax.__version__,
        "jaxlib": jaxlib.__version__,
        "Python": platform.python_version(),
    } | versions
    return " ".join(f"{name} {version}" for name, version in versions.items())


def _find_version(name: str) -> str | None:
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(name)
    return None


def replicate(tree: PyTree, mesh: Mesh) -> Any:
    """Replicate a pytree on all devices of a mesh. All processes must have the same values."""
    sharding = NamedSharding(mesh, PartitionSpec())

    def replicate_leaf(leaf: Leaf) -> jax.Array:
        if isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            wrap = jax.jit(
                lambda data: jax.random.wrap_key_data(data, impl=jax.random.key_impl(leaf)),
                out_shardings=sharding,
            )
            return wrap(np.asarray(jax.random.key_data(leaf)))
        return jax.jit(jnp.copy, out_shardings=sharding)(np.asarray(leaf))

    return jax.tree.map(replicate_leaf, tree)


def gather_arrays(tree: PyTree) -> Any:
    """Convert the arrays of a pytree, which may be sharded over processes, to NumPy arrays.

    All processes must call this function.
    """

    def gather_leaf(leaf: jax.Array) -> Any:
        is_local = leaf.is_fully_addressable or leaf.is_fully_replicated
        return (
            np.asarray(leaf)
            if is_local
            else np.asarray(multihost_utils.process_allgather(leaf, tiled=True))
        )

    return tree if num_processes() == 1 else jax.tree.map(gather_leaf, tree)


def start_witness(text: str) -> Callable[[], None]:
    """Start a child process that prints a text if this process is killed or aborts.

    Args:
        text: Text to print.

    Returns:
        Function that ends the child process without printing.
    """
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _WITNESS_PROGRAM, text], stdin=subprocess.PIPE
    )

    def dismiss() -> None:
        with contextlib.suppress(OSError, ValueError):
            process.communicate(b".")

    return dismiss


class ProcessMonitor:
    """Monitor that ends this process when another process of the run has ended.

    Every second, each process overwrites its heartbeat file in the run folder. Overwriting in place
    also works on a full disk. A process counts as alive while its file changes, so the clocks of
    hosts do not have to be synchronized.
    """

    def __init__(self, folder: Path, before_exit_fn: Callable[[], None]) -> None:
        self._folder, self._before_exit_fn = folder, before_exit_fn
        self._num_heartbeats, self._message, self._finished = 0, "", threading.Event()
        self._dismiss_witness_fn = start_witness(self._format_witness_message())
        self._lock = threading.Lock()
        self._path = folder / HEARTBEAT_FOLDER / str(process_index())
        self._path.unlink(missing_ok=True)
        with self._path.open("xb") as file:
            file.write(b" " * _HEARTBEAT_BYTES)
        now = time.monotonic()
        self._heartbeats = {i: ("", now) for i in range(num_processes()) if i != process_index()}
        self._thread = threading.Thread(target=self._monitor, name="watch", daemon=True)
        self._write_heartbeat()
        self._thread.start()

    def close(self, message: str = "done") -> None:
        """Stop monitoring and announce the end of this process.

        Args:
            message: "done" for a normal end, or the message of an error.
        """
        self._message = message
        self._finished.set()
        self._write_heartbeat()
        self._dismiss_witness_fn()

    def _format_witness_message(self) -> str:
        process_label = (
            f"process {process_index()} of {num_processes()} (PID {os.getpid()} on "
            f"{socket.gethostname()})"
        )
        return (
            f"error: {process_label} was killed, or aborted by JAX because the first process has "
            f"ended. All other processes end within a minute. {self._resume_hint()}"
        )

    def _resume_hint(self) -> str:
        return (
            "Continue from the last checkpoint with: "
            f"{format_command_line('rollax', 'resume', self._folder)}"
        )

    def _write_heartbeat(self) -> None:
        with self._lock:
            self._num_heartbeats += 1
            text = (
                f"{self._num_heartbeats}\n{socket.gethostname()}\n{os.getpid()}\n{self._message}\n"
            )
            try:
                with self._path.open("r+b") as file:
                    file.write(text.encode()[:_HEARTBEAT_BYTES].ljust(_HEARTBEAT_BYTES))
            except OSError:
                pass  # other processes report a missing heartbeat

    def _monitor(self) -> None:
        while not self._finished.wait(_HEARTBEAT_SECONDS):
            self._write_heartbeat()
            for process_id in list(self._heartbeats):
                self._check_process(process_id)

    def _check_process(self, process_id: int) -> None:
        old_text, last_change = self._heartbeats[process_id]
        try:
            text = (self._path.parent / str(process_id)).read_text(errors="replace")
        except OSError:
            text = old_text
        now = time.monotonic()
        lines = [*text.split("\n"), "", "", "", ""]
        if lines[3].strip() == "done":
            del self._heartbeats[process_id]
        elif lines[3].strip():
            self._exit_with_error(process_id, lines, f"failed: {lines[3].strip()}")
        elif text != old_text:
            self._heartbeats[process_id] = text, now
        elif now - last_change > HEARTBEAT_TIMEOUT_SECONDS:
            self._exit_with_error(
                process_id,
                lines,
                f"has sent no heartbeat for {HEARTBEAT_TIMEOUT_SECONDS:.0f} s, so it has ended or "
                "cannot be reached",
            )

    def _exit_with_error(self, process_id: int, lines: list[str], reason: str) -> NoReturn:
        origin = f" (PID {lines[2]} on {lines[1]})" if lines[1] else ""
        print_line(
            f"\nerror: process {process_id} of {num_processes()}{origin} {reason}. This process "
            f"ends too. {self._resume_hint()}",
            sys.stderr,
        )
        self._before_exit_fn()
        self._dismiss_witness_fn()
        _exit_now(1)


@contextlib.contextmanager
def share_errors() -> Iterator[None]:
    """Send an error that is raised within the context to the other processes of the run.

    Errors are sent only until the first exchange between the processes.
    """
    try:
        yield
    except Exception as error:
        send_error(error)
        raise


@contextlib.contextmanager
def monitor_processes(folder: Path, before_exit_fn: Callable[[], None]) -> Iterator[None]:
    """Monitor the other processes of the run, and end this process if one of them has ended.

    Args:
        folder: Existing run folder.
        before_exit_fn: Function that is called before this process is ended.
    """
    if num_processes() == 1:
        yield
        return
    run_on_all(lambda: _prepare_heartbeat_folder(folder))
    monitor = ProcessMonitor(folder, before_exit_fn)
    try:
        yield
    except BaseException as error:
        if _is_maybe_remote_failure(error):
            time.sleep(HEARTBEAT_TIMEOUT_SECONDS + 3 * _HEARTBEAT_SECONDS)
        monitor.close(first_line(error) if str(error).strip() else type(error).__name__)
        if is_first_process():
            # JAX aborts the other processes when the first ends. Let them read the reason first.
            time.sleep(3 * _HEARTBEAT_SECONDS)
        raise
    monitor.close()


def _is_maybe_remote_failure(error: BaseException | None) -> bool:
    """Return whether an error may result from the end of another process.

    JAX raises several types of errors if a process ends during a collective operation.
    """
    if error is None or isinstance(error, UsageError):
        return False
    return isinstance(error, jax.errors.JaxRuntimeError | ValueError) or _is_maybe_remote_failure(
        error.__cause__
    )


def _prepare_heartbeat_folder(folder: Path) -> None:
    """Create the heartbeat folder (first process) or check the run folder (other processes).

    Raises:
        UsageError: If this process cannot access the run folder, or the heartbeat folder is a link.
    """
    if is_first_process():
        if (folder / HEARTBEAT_FOLDER).is_symlink():
            raise UsageError(
                f"{folder / HEARTBEAT_FOLDER} must not be a link, because files in it are deleted. "
                "Remove it."
            )
        (folder / HEARTBEAT_FOLDER).mkdir(exist_ok=True)
        for sign in (folder / HEARTBEAT_FOLDER).iterdir():
            if sign.name.isdecimal():
                sign.unlink()
    elif not folder.is_dir():
        raise UsageError(
            f"{socket.gethostname()} cannot access the run folder {folder}. Put it on a disk that "
            "all hosts share."
        )


def exit_process(code: int, is_immediate: bool) -> int:
    """End a process of a distributed run without the exit handlers of JAX.

    The handlers would wait for processes that have already ended, and would abort if the first
    process ended before the other processes.

    Args:
        code: Exit code.
        is_immediate: Whether to end without waiting for the other processes.

    Returns:
        The exit code if there is only one process. Otherwise, the function does not return.
    """
    if num_processes() == 1:
        return code
    if not is_immediate:
        all_gather_text("")
    if is_first_process():
        # JAX aborts the other processes when the first ends. Let them end by themselves.
        time.sleep(2 * _HEARTBEAT_SECONDS)
    _exit_now(code)


def _exit_now(code: int) -> NoReturn:
    """End this process immediately."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
