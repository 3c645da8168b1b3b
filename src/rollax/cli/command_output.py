"""Output of commands: the JSON summary on standard output."""

import contextlib
import json
import math
import sys

from rollax.runtime.printing import print_line
from rollax.types import Record


def print_summary(summary: Record, wanted: bool) -> None:
    """Print the summary as a line of JSON if `wanted`, or if standard output is not a terminal.

    Otherwise print nothing.
    """
    if wanted or not sys.stdout.isatty():
        print_line(
            json.dumps({name: _to_json_value(value) for name, value in summary.items()}), flush=True
        )


def print_run_summary(summary: Record, wanted: bool) -> None:
    """Call `print_summary` for a command that writes to a folder, and ignore write errors."""
    with contextlib.suppress(OSError):  # `rollax.runtime.output.finish_output` reports lost output
        print_summary(summary, wanted)


def _to_json_value(value: object) -> object:
    """Replace non-finite floats, also inside lists, by None."""
    if isinstance(value, list):
        return [_to_json_value(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
