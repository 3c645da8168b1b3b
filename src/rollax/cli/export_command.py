"""Command `rollax export`."""

import dataclasses
from pathlib import Path

import tyro

from rollax.cli.command_output import print_summary
from rollax.cli.parsing.dynamic_options import (
    check_checkpoint_name,
    parse_options,
    split_number_lists,
)
from rollax.cli.parsing.shared_options import SharedOptions
from rollax.exporting.exporter import export as write
from rollax.runtime.printing import print_line, print_warning
from rollax.training.compile import cache


@dataclasses.dataclass(frozen=True)
class ExportOptions:
    """Export the policy of a run to files that can be used without rollax.

    jax: a serialized jax.export function, for JAX. stablehlo: text, for compilers. onnx: for ONNX
    Runtime and other runtimes. numpy: arrays and a reader, for NumPy only. The exported policy
    includes normalization, memory, action masks and action scaling: it maps observations of the
    environment to actions. policy.json describes the inputs and outputs, and card.md is a model
    card. All files are compared with the policy before they are written.
    """

    run: tyro.conf.Positional[Path]
    """Folder of the run."""
    to: str
    """Format: jax, stablehlo, onnx or numpy."""
    output: Path | None = None
    """Folder to write. Defaults to a folder in the run's exports/."""
    batch: str | None = None
    """Batch size, or any. Defaults to any, and 1 for stablehlo."""
    stochastic: bool = False
    """Sample actions instead of taking the most likely ones."""
    checkpoint: str = "last"
    """Checkpoint: last, best, or a step."""
    member: int | None = None
    """Member of a population. Defaults to the best one."""
    descriptor: tuple[float, ...] | None = None
    """Export the elite of the archive whose descriptor is nearest to this one."""
    cell: tuple[int, ...] | None = None
    """Export the elite in this cell of a grid archive. Indices start at 0."""
    card: Path | None = None
    """File of the model card. Defaults to card.md next to the policy."""
    overwrite: bool = False
    """Replace the files of an earlier export."""
    json: bool = False
    """Print only one JSON object."""


def export(arguments: list[str], shared: SharedOptions) -> int:
    """Run `rollax export` and return its exit code."""
    options = parse_options(ExportOptions, split_number_lists(arguments), "rollax export")
    cache.enable()
    check_checkpoint_name(options.checkpoint)
    words = {field.name: getattr(options, field.name) for field in dataclasses.fields(options)}
    is_quiet, greedy = words.pop("json"), not words.pop("stochastic")
    exported = write(**words, greedy=greedy)
    for warning in exported.warnings:
        print_warning(warning)
    if not is_quiet:
        for path in exported.files:
            print_line(path)
        print_line(f"Compared with the policy at step {exported.step:,}: {exported.parity}")
    summary = {
        "run": str(options.run),
        "to": options.to,
        "steps": exported.step,
        "files": [str(path) for path in exported.files],
        "difference": exported.parity.difference,
        "different_actions": exported.parity.mismatch_rate,
    }
    print_summary(summary, is_quiet)
    return 0
