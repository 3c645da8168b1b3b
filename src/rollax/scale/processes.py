"""One run by several processes, often one a host: what they tell each other, and what ends them all.

Each holds its share of the devices, runs the same host's loop, and does the same at the same time: what depends on a clock or a
signal is agreed on. The first writes the run folder, which all must see, and speaks to the person. Where `jax.distributed` is
not initialized there is one process, and nothing here costs anything.
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

from rollax.errors import UsageError
from rollax.scale import arrivals

T = TypeVar("T")

SILENT_SECONDS = 20.0  # after which a process that gives no sign counts as ended
SIGNS = ".processes"  # of a run folder
# What programs are made with, by the name that it is imported and installed by.
_MAKERS = (
    "numpy",
    "equinox",
    "optax",
    "gymnax",
    "xminigrid",
    "jaxmarl",
    "brax",
    "craftax",
    "jumanji",
    "navix",
    "pgx",
    "jax_md",
)
_SIGN_SECONDS = 1.0
_SIGN_BYTES, _WORDS_BYTES = 1024, 4096
# Outlives a process that is killed or aborts, and says so: it reads a full stop from one that ends as it should.
_WITNESS = "import sys, signal; signal.signal(2, signal.SIG_IGN); sys.stdin.read() or sys.exit('\\n' + sys.argv[1])"


def line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0][:200]


def count() -> int:
    return jax.process_count() if jax.distributed.is_initialized() else 1


def index() -> int:
    return jax.process_index() if jax.distributed.is_initialized() else 0


def is_first() -> bool:
    return index() == 0


def gathered(*numbers: float) -> np.ndarray:
    """These numbers of every process, `[processes, numbers]` of float32. All processes must call it."""
    own = np.asarray(numbers, np.float32)
    return own[None] if count() == 1 else np.asarray(multihost_utils.process_allgather(own))


def exchanged(words: str) -> list[str]:
    """What every process says, at most 4 kB each. All processes must call it. Raises RuntimeError where one does not."""
    if count() == 1:
        return [words]
    _State.has_exchanged, _State.exchanges = True, _State.exchanges + 1
    arrivals.announce(_State.exchanges)
    told = words.encode()[:_WORDS_BYTES]
    row = np.frombuffer(told.ljust(_WORDS_BYTES, b"\0"), np.uint8)
    try:
        rows = np.asarray(multihost_utils.process_allgather(row))
    except (jax.errors.JaxRuntimeError, ValueError) as error:
        absent = " and ".join(arrivals.missing(_State.exchanges)) or "another"
        what = f"heard nothing of {absent}, which has ended or cannot be reached: its output may say why"
        raise RuntimeError(f"process {index()} of {count()} {what} ({line(error)})") from error
    return [bytes(row).rstrip(b"\0").decode(errors="replace") for row in rows]


class _State:
    has_exchanged, exchanges = False, 0


def together(do: Callable[[], T]) -> T:
    """What `do` gives. Raises the UsageError that it raised here, or says which one it raised in another process.

    All processes must call it.
    """
    if count() == 1:
        return do()
    try:
        value = do()
    except UsageError as error:
        exchanged(str(error) or "failed")
        raise
    told = exchanged("")
    for number, words in enumerate(told):
        if words:
            raise UsageError(f"process {number} of {len(told)} could not begin: {words}")
    return value


def refuse(error: Exception) -> None:
    """Tells the others, who wait at their first exchange, that this process cannot begin."""
    if count() > 1 and not _State.has_exchanged:
        with contextlib.suppress(RuntimeError):  # of one that has ended, too: this error is the one to be seen
            exchanged(str(error) or type(error).__name__)


def of_first(make: Callable[[], str]) -> str:
    """A text that the first makes, such as the path of a folder. Raises its UsageError everywhere."""
    made = together(lambda: make() if is_first() else "")
    return exchanged(made)[0]


def check_alike(settings: str, imports: Iterable[str] = ()) -> None:
    """Raises UsageError, in every process, where another cannot begin, or has other settings, other code or other versions.

    `imports`: modules of the user's, whose code counts as well.
    """
    if count() == 1:
        return
    together(lambda: None)
    own = {
        "settings": _digest(settings.encode()),
        "code of rollax": _code("rollax"),
        "code of imported modules": _code(*imports),
        "versions": _versions(),
    }
    rows = [dict(zip(own, row.split("\n"), strict=True)) for row in exchanged("\n".join(own.values()))]
    differing = [name for name in own if len({row[name] for row in rows}) > 1]
    if differing:
        shown = "; ".join(f"process {i}: {row['versions']}" for i, row in enumerate(rows)) if "versions" in differing else ""
        raise UsageError(
            f"the processes do not run the same: other {' and other '.join(differing)} on some of them"
            f"{f' ({shown})' if shown else ''}: start all with the same command and the same installation"
        )


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def _code(*modules: str) -> str:
    files: list[Path] = []
    for name in modules:
        spec = importlib.util.find_spec(name)
        roots = list(spec.submodule_search_locations or ()) if spec else []
        files += sorted(path for root in roots for path in Path(root).rglob("*.py"))
        files += [Path(spec.origin)] if spec and spec.has_location and spec.origin and not roots else []
    return _digest(b"".join(path.read_bytes() for path in files))


def _versions() -> str:
    """Of what a run's programs are made with, as far as this process has imported it."""
    known = {name: version for name in _MAKERS if name in sys.modules and (version := _installed(name))}
    known = {"jax": jax.__version__, "jaxlib": jaxlib.__version__, "Python": platform.python_version()} | known
    return " ".join(f"{name} {version}" for name, version in known.items())


def _installed(name: str) -> str | None:
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(name)
    return None


def everywhere(tree: Any, over: Mesh) -> Any:
    """Values that every process has, as arrays that are whole on all devices of all processes."""
    where = NamedSharding(over, PartitionSpec())

    def place(leaf: Any) -> jax.Array:
        if isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            wrap = jax.jit(lambda data: jax.random.wrap_key_data(data, impl=jax.random.key_impl(leaf)), out_shardings=where)
            return wrap(np.asarray(jax.random.key_data(leaf)))
        return jax.jit(jnp.copy, out_shardings=where)(np.asarray(leaf))

    return jax.tree.map(place, tree)


def whole(tree: Any) -> Any:
    """Arrays of which this process may hold a part only, as NumPy's. All processes must call it."""

    def gather(leaf: jax.Array) -> Any:
        at_hand = leaf.is_fully_addressable or leaf.is_fully_replicated
        return np.asarray(leaf) if at_hand else np.asarray(multihost_utils.process_allgather(leaf, tiled=True))

    return tree if count() == 1 else jax.tree.map(gather, tree)


def witness(words: str) -> Callable[[], None]:
    """Has these words said when this process is killed or aborts, which it cannot do itself, until the result is called."""
    process = subprocess.Popen([sys.executable, "-S", "-c", _WITNESS, words], stdin=subprocess.PIPE)

    def dismiss() -> None:
        with contextlib.suppress(OSError, ValueError):
            process.communicate(b".")

    return dismiss


class Watch:
    """Watches the other processes of a run by the signs that each leaves in its folder, and ends this one when one has ended.

    A sign is a small file that its process writes in place every second, so that also a full disk holds it. Which clock a host
    has does not matter: a sign counts as long as it changes.
    """

    def __init__(self, folder: Path, before_end: Callable[[], None]) -> None:
        self._folder, self._before_end = folder, before_end
        self._number, self._words, self._finished = 0, "", threading.Event()
        self._dismiss_witness = witness(self._last_words())
        self._lock = threading.Lock()
        self._path = folder / SIGNS / str(index())
        self._path.write_bytes(b" " * _SIGN_BYTES)
        now = time.monotonic()
        self._seen = {i: ("", now) for i in range(count()) if i != index()}
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self._give_sign()
        self._thread.start()

    def close(self, words: str = "done") -> None:
        """This process ends as it should, or by what `words` says."""
        self._words = words
        self._finished.set()
        self._give_sign()
        self._dismiss_witness()

    def _last_words(self) -> str:
        who = f"process {index()} of {count()} ({socket.gethostname()}, process {os.getpid()} there)"
        return (
            f"error: {who} was ended from outside, or by JAX as the first process has ended. All others end within a minute; "
            f"{self._go_on()}"
        )

    def _go_on(self) -> str:
        return f"the last checkpoint is kept, go on with: rollax resume {self._folder}"

    def _give_sign(self) -> None:
        with self._lock:
            self._number += 1
            text = f"{self._number}\n{socket.gethostname()}\n{os.getpid()}\n{self._words}\n"
            try:
                with self._path.open("r+b") as file:
                    file.write(text.encode()[:_SIGN_BYTES].ljust(_SIGN_BYTES))
            except OSError:
                pass  # whoever misses it says so

    def _run(self) -> None:
        while not self._finished.wait(_SIGN_SECONDS):
            self._give_sign()
            for number in list(self._seen):
                self._look_at(number)

    def _look_at(self, number: int) -> None:
        before, since = self._seen[number]
        try:
            text = (self._path.parent / str(number)).read_text(errors="replace")
        except OSError:
            text = before
        now = time.monotonic()
        lines = [*text.split("\n"), "", "", "", ""]
        if lines[3].strip() == "done":
            del self._seen[number]
        elif lines[3].strip():
            self._end(number, lines, f"failed: {lines[3].strip()}")
        elif text != before:
            self._seen[number] = text, now
        elif now - since > SILENT_SECONDS:
            self._end(number, lines, f"has given no sign for {SILENT_SECONDS:.0f} s, so it has ended or cannot be reached")

    def _end(self, number: int, lines: list[str], what: str) -> NoReturn:
        who = f" ({lines[1]}, process {lines[2]} there)" if lines[1] else ""
        print(f"\nerror: process {number} of {count()}{who} {what}. This one ends, too; {self._go_on()}", file=sys.stderr)
        self._before_end()
        self._dismiss_witness()
        _exit(1)


@contextlib.contextmanager
def telling() -> Iterator[None]:
    """Around what a process does before it begins: the others are told of an error that is raised here alone."""
    try:
        yield
    except Exception as error:
        refuse(error)
        raise


@contextlib.contextmanager
def watching(folder: Path, before_end: Callable[[], None]) -> Iterator[None]:
    """Around a run in this folder, which the first has made: ends this process when another has ended, after `before_end`."""
    if count() == 1:
        yield
        return
    together(lambda: _prepare(folder))
    watch = Watch(folder, before_end)
    try:
        yield
    except BaseException as error:
        if _may_be_of_another(error):
            time.sleep(SILENT_SECONDS + 3 * _SIGN_SECONDS)
        watch.close(line(error) if str(error).strip() else type(error).__name__)
        if is_first():
            time.sleep(3 * _SIGN_SECONDS)  # JAX aborts the others when this one is gone: they read why before
        raise
    watch.close()


def _may_be_of_another(error: BaseException | None) -> bool:
    """Whether this may be what the end of another process does to a collective, of which JAX makes several kinds of errors."""
    if error is None or isinstance(error, UsageError):
        return False
    return isinstance(error, jax.errors.JaxRuntimeError | ValueError) or _may_be_of_another(error.__cause__)


def _prepare(folder: Path) -> None:
    """Raises UsageError where this process does not see the folder that the first has made."""
    if is_first():
        (folder / SIGNS).mkdir(exist_ok=True)
        for sign in (folder / SIGNS).iterdir():
            sign.unlink()
    elif not folder.is_dir():
        raise UsageError(f"{socket.gethostname()} does not see the run folder {folder}: put it on a disk that all hosts share")


def leave(code: int, alone: bool) -> int:
    """Ends one of several processes: `alone`, or when all are there. Where there is one, its exit code.

    What JAX does when Python ends is left out: it waits for processes that are gone, and aborts where the first was faster.
    """
    if count() == 1:
        return code
    if not alone:
        exchanged("")
    if is_first():
        time.sleep(2 * _SIGN_SECONDS)  # JAX aborts the others when this one is gone, and they are about to end as well
    _exit(code)


def _exit(code: int) -> NoReturn:
    """Ends this process at once, whatever it waits for."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
