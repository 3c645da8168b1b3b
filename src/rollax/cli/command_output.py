"""Output of commands: the JSON summary on standard output."""

import contextlib
import json
import math
import sys

from rollax.runtime.printing import print_line
from rollax.types import Record


def print_summary(summary: Record, is_requested: bool) -> None:
    """Print a summary as a line of JSON.

    Nothing is printed if standard output is a terminal and `is_requested` (`--json`) is False.
    """
    if is_requested or not sys.stdout.isatty():
        print_line(
            json.dumps({name: _to_json_value(value) for name, value in summary.items()}), flush=True
        )


def print_run_summary(summary: Record, is_requested: bool) -> None:
    """Print the summary of a command that writes a folder, and ignore errors of standard output."""
    with contextlib.suppress(OSError):  # `rollax.runtime.output.finish_output` reports lost output
        print_summary(summary, is_requested)


def _to_json_value(value: object) -> object:
    """Replace non-finite floats, also inside lists, by None."""
    if isinstance(value, list):
        return [_to_json_value(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
