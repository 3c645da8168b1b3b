"""The command that takes a policy out of its run: export."""

import dataclasses
from pathlib import Path

import tyro

from rollax.cli.runs import LONGEST_STEP, commas_apart, warn
from rollax.cli.shared import Shared
from rollax.cli.words import close, parse
from rollax.errors import UsageError
from rollax.typed import shown


@dataclasses.dataclass(frozen=True)
class Export:
    """Writes the policy of a run as files that are opened without rollax.

    jax: a serialized jax.export, for JAX alone. stablehlo: text, for compilers. onnx: for ONNX Runtime and others.
    numpy: arrays and a reader, for NumPy alone. Normalization, memory, action masks and the scaling of actions are in the
    file: it takes observations of the environment and gives its actions. Beside it policy.json says what goes in and comes
    out, and card.md is a model card. Before anything is written, the files are opened and compared with the policy.
    """

    run: tyro.conf.Positional[Path]
    """Folder of the run."""
    to: str
    """jax, stablehlo, onnx or numpy."""
    output: Path | None = None
    """Folder to write; default: in the run's exports/."""
    batch: str | None = None
    """How many environments at once, or any; default: any, of stablehlo 1."""
    stochastic: bool = False
    """Sample actions instead of taking the likeliest."""
    checkpoint: str = "last"
    """last, best, or the step of a checkpoint."""
    member: int | None = None
    """Which member of a population; the best when not given."""
    descriptor: tuple[float, ...] | None = None
    """Of an archive: the elite whose descriptor is nearest to this."""
    cell: tuple[int, ...] | None = None
    """Of an archive with a grid: the elite of this cell, indices from 0."""
    card: Path | None = None
    """Where to write the model card; default: card.md beside the policy."""
    overwrite: bool = False
    """Replace files of an earlier export."""
    json: bool = False
    """Print one JSON object and nothing else."""


def export(arguments: list[str], shared: Shared) -> int:
    from rollax.exporting.api import export as write
    from rollax.host import compilation_cache

    given = parse(Export, commas_apart(arguments), "rollax export")
    compilation_cache.use()
    if given.checkpoint.isdecimal() and len(given.checkpoint) > LONGEST_STEP:
        raise UsageError(f"checkpoint ({shown(given.checkpoint)}) must be last, best or the number of a step")
    words = {field.name: getattr(given, field.name) for field in dataclasses.fields(given)}
    is_quiet, greedy = words.pop("json"), not words.pop("stochastic")
    exported = write(**words, greedy=greedy)
    for warning in exported.warnings:
        warn(warning)
    if not is_quiet:
        for path in exported.files:
            print(path)
        print(f"compared with the policy at step {exported.step:,}: {exported.parity}")
    summary = {
        "run": str(given.run),
        "to": given.to,
        "steps": exported.step,
        "files": [str(path) for path in exported.files],
        "difference": exported.parity.difference,
        "different_actions": exported.parity.different,
    }
    close(summary, is_quiet)
    return 0
