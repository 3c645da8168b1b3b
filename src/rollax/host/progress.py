"""What a person sees: a live bar on a terminal, plain lines in a pipe."""

import contextlib
import errno
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from rich.console import Console, RenderableType
from rich.markup import escape
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, TextColumn
from rich.table import Column
from rich.text import Text

PICTURE_WIDTH, PICTURE_HEIGHT = 60, 24  # characters that a terminal must have for a picture beside all else


class Display(Protocol):
    """How a run shows itself."""

    def message(self, text: str) -> None: ...
    def status(self, text: str) -> None: ...
    def progress(self, done: int, total: int, figures: dict[str, str]) -> None: ...
    def picture(self, make: Callable[[], Text | None]) -> None: ...  # where there is room for one, `make` is called
    def close(self) -> None: ...  # nothing runs any more; the closing messages come after it


def display(quiet: bool = False, stderr: bool = False) -> Display:
    """The live display on a terminal, else lines; nothing but warnings when quiet. `stderr`: on standard error."""
    if quiet:
        return Lines(seconds=float("inf"), silent=True)
    console = Console(stderr=stderr)
    return Live(console) if console.is_terminal else Lines(stderr=stderr)


class Unseen:
    """Of a process that is not the one that speaks."""

    def message(self, text: str) -> None: ...
    def status(self, text: str) -> None: ...
    def progress(self, done: int, total: int, figures: dict[str, str]) -> None: ...
    def picture(self, make: Callable[[], Text | None]) -> None: ...
    def close(self) -> None: ...


class Lines:
    """A plain line for each message, and one of progress every few seconds."""

    def __init__(self, seconds: float = 5.0, silent: bool = False, stderr: bool = False) -> None:
        self._seconds, self._silent, self._last, self._stderr = seconds, silent, 0.0, stderr
        self._said: set[str] = set()

    def message(self, text: str) -> None:
        if not self._silent:
            print(text, file=sys.stderr if self._stderr else sys.stdout, flush=True)
        elif text.startswith(("warning:", "error:")):
            print(text, file=sys.stderr, flush=True)

    def status(self, text: str) -> None:
        if text not in self._said:  # what comes again and again is no news in a log
            self._said.add(text)
            self.message(text)

    def progress(self, done: int, total: int, figures: dict[str, str]) -> None:
        now = time.monotonic()
        if done < total and now - self._last < self._seconds:
            return
        self._last = now
        unit = next((name.removesuffix("/s") for name in figures if name.endswith("/s")), "steps")  # the one of the speed
        self.message("  ".join([f"{done:,}/{total:,} {unit}", *(f"{name} {value}" for name, value in figures.items())]))

    def picture(self, make: Callable[[], Text | None]) -> None:
        pass

    def close(self) -> None:
        sys.stdout.flush()


class Bar(Progress):
    """A bar below a picture, if there is one."""

    above: Text | None = None

    def get_renderables(self) -> Iterator[RenderableType]:
        if self.above is not None:
            yield self.above
        yield from super().get_renderables()


class Live:
    """A bar with return, speed and time left, below the messages and a picture."""

    def __init__(self, console: Console) -> None:
        columns: tuple[ProgressColumn, ...] = (
            SpinnerColumn(),
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.percentage:>3.0f}%"),
            TextColumn("{task.fields[figures]}", table_column=Column()),  # which takes more lines where there is no room
        )
        self._bar = Bar(*columns, console=console, refresh_per_second=8)
        self._task: Any = self._bar.add_task("starting", total=None, figures="")
        self._bar.start()

    def message(self, text: str) -> None:
        self._bar.console.print(escape(text), highlight=False, soft_wrap=True)

    def status(self, text: str) -> None:
        self._bar.update(self._task, description=escape(text))

    def progress(self, done: int, total: int, figures: dict[str, str]) -> None:
        text = "  ".join(f"[dim]{name}[/] {value}" for name, value in figures.items())
        self._bar.update(self._task, description="training", completed=done, total=total, figures=text)

    def picture(self, make: Callable[[], Text | None]) -> None:
        width, height = self._bar.console.size
        above = make() if width >= PICTURE_WIDTH and height >= PICTURE_HEIGHT else None
        if above is not None:
            self._bar.above = above

    def close(self) -> None:
        self._bar.columns = self._bar.columns[1:]  # no spinner stays on the screen beside what has ended
        self._bar.stop()


class Enduring:
    """A display that a terminal may be taken from: a run that is told to stop by that still has its state to save."""

    def __init__(self, show: Display) -> None:
        self._show = show

    def message(self, text: str) -> None:
        with _without_terminal():
            self._show.message(text)

    def status(self, text: str) -> None:
        with _without_terminal():
            self._show.status(text)

    def progress(self, done: int, total: int, figures: dict[str, str]) -> None:
        with _without_terminal():
            self._show.progress(done, total, figures)

    def picture(self, make: Callable[[], Text | None]) -> None:
        show = getattr(self._show, "picture", None)  # which a display of a user's own need not have
        if show is not None:
            with _without_terminal():
                show(make)

    def close(self) -> None:
        with _without_terminal():
            self._show.close()


@contextlib.contextmanager
def _without_terminal() -> Iterator[None]:
    """Passes over what a terminal that is gone says to everything that is written to it."""
    try:
        yield
    except OSError as error:
        if error.errno != errno.EIO:
            raise


def duration(seconds: float) -> str:
    """Seconds as 0:07, 12:34 or 1:02:03."""
    whole = round(seconds)
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"


def size(number: int) -> str:
    """Bytes as a person reads them."""
    amount = float(number)
    for unit in ("B", "kB", "MB"):
        if amount < 1000:
            return f"{amount:.3g} {unit}"
        amount /= 1000
    return f"{amount:.3g} GB"
