"""Displays of a run: a live progress bar in a terminal, plain lines otherwise."""

import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, ParamSpec, Protocol, runtime_checkable

from rich.console import Console, RenderableType
from rich.markup import escape
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, TextColumn
from rich.table import Column
from rich.text import Text

from rollax.errors import options_to_keywords
from rollax.runtime import output
from rollax.runtime.printing import (
    escape_control_characters,
    escape_to_one_line,
    mask_secrets,
    print_line,
)
from rollax.runtime.shell import is_command_running

P = ParamSpec("P")

# Prefixes of messages that a quiet run also shows.
ALWAYS_SHOWN_PREFIXES = ("warning:", "error:", "Stopping ")
# Smallest terminal, in characters, with room for an archive map in addition to the other output.
MIN_PICTURE_WIDTH, MIN_PICTURE_HEIGHT = 60, 24


@runtime_checkable
class Display(Protocol):
    """Interface through which a run shows messages and progress.

    `progress` receives the numbers of completed and of all steps, and formatted metrics keyed by
    label. `picture` calls `make`, which draws an archive map, only if the terminal is large enough
    for the map. `close` is called when training ends. Messages about the result follow after
    `close`.
    """

    def message(self, text: str) -> None: ...
    def status(self, text: str) -> None: ...
    def progress(self, num_done: int, num_total: int, metric_texts: dict[str, str]) -> None: ...
    def picture(self, make: Callable[[], Text | None]) -> None: ...
    def close(self) -> None: ...


def make_display(quiet: bool = False, stderr: bool = False) -> Display:
    """Return a live display for a terminal, otherwise a display that prints plain lines.

    Args:
        quiet: Whether to show only warnings and errors.
        stderr: Whether to write to standard error.
    """
    if quiet:
        return LineDisplay(seconds=float("inf"), silent=True)
    console = Console(stderr=stderr)
    return LiveDisplay(console) if console.is_terminal else LineDisplay(stderr=stderr)


def can_display_unicode(console: Console) -> bool:
    """Return whether a console can display characters beyond ASCII."""
    return console.encoding.lower().startswith("utf")


class NullDisplay:
    """Display that shows nothing, for processes other than the first."""

    def message(self, text: str) -> None: ...
    def status(self, text: str) -> None: ...
    def progress(self, num_done: int, num_total: int, metric_texts: dict[str, str]) -> None: ...
    def picture(self, make: Callable[[], Text | None]) -> None: ...
    def close(self) -> None: ...


class LineDisplay:
    """Display that prints a line for each message and a progress line every few seconds.

    Args:
        seconds: Seconds between progress lines.
        silent: Whether to show only warnings and errors, on standard error.
        stderr: Whether to write to standard error.
    """

    def __init__(self, seconds: float = 5.0, silent: bool = False, stderr: bool = False) -> None:
        self._interval_seconds = seconds
        self._is_silent = silent
        self._should_use_stderr = stderr
        self._last_progress_time = 0.0
        self._shown_statuses: set[str] = set()

    def message(self, text: str) -> None:
        if not self._is_silent:
            print_line(text, sys.stderr if self._should_use_stderr else sys.stdout, flush=True)
        elif text.startswith(ALWAYS_SHOWN_PREFIXES):
            print_line(text, sys.stderr, flush=True)

    def status(self, text: str) -> None:
        if text not in self._shown_statuses:  # repeated statuses are not useful in a log
            self._shown_statuses.add(text)
            self.message(text)

    def progress(self, num_done: int, num_total: int, metric_texts: dict[str, str]) -> None:
        now = time.monotonic()
        if num_done < num_total and now - self._last_progress_time < self._interval_seconds:
            return
        self._last_progress_time = now
        # The unit of the speed, such as frames/s, is also the unit of the progress.
        unit = next(
            (name.removesuffix("/s") for name in metric_texts if name.endswith("/s")), "steps"
        )
        self.message(
            "  ".join(
                [
                    f"{num_done:,}/{num_total:,} {unit}",
                    *(f"{name} {value}" for name, value in metric_texts.items()),
                ]
            )
        )

    def picture(self, make: Callable[[], Text | None]) -> None:
        pass

    def close(self) -> None:
        sys.stdout.flush()


class PictureProgress(Progress):
    """Progress bar below an optional archive map."""

    picture_above: Text | None = None

    def get_renderables(self) -> Iterator[RenderableType]:
        if self.picture_above is not None:
            yield self.picture_above
        yield from super().get_renderables()


class LiveDisplay:
    """Display for a terminal: messages, an archive map, and a progress bar with metrics."""

    def __init__(self, console: Console) -> None:
        columns: tuple[ProgressColumn, ...] = (
            SpinnerColumn("dots" if can_display_unicode(console) else "line"),
            TextColumn("{task.description}", style="bold", markup=False),
            BarColumn(bar_width=24),
            TextColumn("{task.percentage:>3.0f}%"),
            # A column, so that the text wraps in a narrow terminal.
            TextColumn("{task.fields[metrics]}", table_column=Column()),
        )
        self._bar = PictureProgress(*columns, console=console, refresh_per_second=8)
        self._task = self._bar.add_task("starting", total=None, metrics="")
        self._bar.start()

    def message(self, text: str) -> None:
        plain = mask_secrets(escape_control_characters(text))
        self._bar.console.print(plain, markup=False, highlight=False, emoji=False, soft_wrap=True)

    def status(self, text: str) -> None:
        self._bar.update(self._task, description=escape_to_one_line(text))

    def progress(self, num_done: int, num_total: int, metric_texts: dict[str, str]) -> None:
        text = "  ".join(
            f"[dim]{_escape_markup(name)}[/] {_escape_markup(value)}"
            for name, value in metric_texts.items()
        )
        self._bar.update(
            self._task, description="training", completed=num_done, total=num_total, metrics=text
        )

    def picture(self, make: Callable[[], Text | None]) -> None:
        width, height = self._bar.console.size
        has_room = (
            can_display_unicode(self._bar.console)
            and width >= MIN_PICTURE_WIDTH
            and height >= MIN_PICTURE_HEIGHT
        )
        above = make() if has_room else None
        if above is not None:
            self._bar.picture_above = above

    def close(self) -> None:
        self._bar.columns = self._bar.columns[1:]  # removes the spinner
        self._bar.stop()


class ResilientDisplay:
    """Display that suppresses write errors (closed pipe, full disk), so that the run continues.

    Text that the output cannot encode is printed with escaped characters. Outside commands, options
    in messages become Python keywords.
    """

    def __init__(self, display: Display) -> None:
        self._display, self._is_output_lost = display, False

    def message(self, text: str) -> None:
        text = text if is_command_running() else options_to_keywords(text)
        self._call_safely(self._display.message, text)

    def status(self, text: str) -> None:
        self._call_safely(self._display.status, text)

    def progress(self, num_done: int, num_total: int, metric_texts: dict[str, str]) -> None:
        self._call_safely(self._display.progress, num_done, num_total, metric_texts)

    def picture(self, make: Callable[[], Text | None]) -> None:
        show = getattr(self._display, "picture", None)  # optional for a user's display
        if show is not None:
            self._call_safely(show, make)

    def close(self) -> None:
        self._call_safely(self._display.close)

    def _call_safely(
        self, show: Callable[P, None], *arguments: P.args, **keywords: P.kwargs
    ) -> None:
        """Call a method of the display, unless a previous write has failed."""
        if self._is_output_lost:
            return
        try:
            try:
                show(*arguments, **keywords)
            except UnicodeEncodeError:
                escaped: tuple[Any, ...] = tuple(map(output.escape_non_ascii, arguments))
                show(*escaped, **keywords)
        except OSError as error:
            self._is_output_lost = True
            output.discard_output(error)
        except ValueError as error:
            if "closed file" not in str(error):
                raise
            self._is_output_lost = True
            output.discard_output(error)


def _escape_markup(text: str) -> str:
    """Return the text escaped for literal display by rich."""
    return escape(escape_to_one_line(text))


def format_duration(seconds: float) -> str:
    """Format a duration as 0:07, 12:34 or 1:02:03."""
    total_seconds = round(seconds)
    hours, minutes = divmod(total_seconds // 60, 60)
    return (
        f"{hours}:{minutes:02}:{total_seconds % 60:02}"
        if hours
        else f"{minutes}:{total_seconds % 60:02}"
    )


def format_bytes(num_bytes: int) -> str:
    """Format a number of bytes with a decimal unit."""
    scaled = float(num_bytes)
    for unit in ("B", "kB", "MB"):
        if scaled < 1000:
            return f"{scaled:.3g} {unit}"
        scaled /= 1000
    return f"{scaled:.3g} GB"
