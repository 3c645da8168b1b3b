"""`rollax.export`: the policy of a run as files that need no rollax."""

import dataclasses
import json
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax

from rollax.environments.core import Environment
from rollax.errors import UnknownNameError, UsageError
from rollax.exporting import card as cards
from rollax.exporting.description import describe
from rollax.exporting.formats import FORMATS, Format, named
from rollax.exporting.parity import NUM_ENVS, Parity, compare, on_processor
from rollax.exporting.policy import erf_inv, exportable, with_uniform_numbers
from rollax.host import run_folder
from rollax.host.api import Policy, load
from rollax.host.files import sync, write_atomically
from rollax.host.options import check_path
from rollax.host.predicting import identifying
from rollax.networks.solutions import has_closed_form
from rollax.typed import shown, typed

DESCRIPTION, CARD, EXPORTS = "policy.json", "card.md", "exports"
LARGEST_BATCH = 1 << 20


class Exported(NamedTuple):
    """What an export has left."""

    folder: Path
    files: list[Path]  # the policy's own first, then the description and the card
    step: int  # of the checkpoint
    parity: Parity
    warnings: list[str]


def export(
    run: str | Path,
    to: str,
    output: str | Path | None = None,
    *,
    checkpoint: str | int = "last",
    member: int | None = None,
    descriptor: Sequence[float] | None = None,
    cell: Sequence[int] | None = None,
    batch: int | str | None = None,
    greedy: bool = True,
    overwrite: bool = False,
    card: str | Path | None = None,
    environment: Environment | None = None,
    network: Callable[[jax.Array], Any] | None = None,
) -> Exported:
    """Writes the policy of a run as a folder of files that are opened without rollax: "jax", "stablehlo", "onnx" or "numpy".

    `output`: the folder; by default one in the run's exports/. The policy takes raw observations of the environment and gives
    actions in its units; its memory goes in and out. policy.json says what goes in and comes out, card.md what the policy is
    (`card`: another file). `batch`: of how many environments at once, or "any". `greedy`: the likeliest actions, else sampled
    ones. `checkpoint`, `member`, `environment` and `network` are those of `rollax.load`; `descriptor` or `cell` choose an
    elite of an archive, as `Policy.elite`.

    Before anything is written the files are opened again and act on observations of the environment; raises RuntimeError when
    they do not as the policy does. Raises UsageError for a run without a checkpoint, what cannot be exported, a package that is
    missing, and files that are there already (`overwrite` replaces them).
    """
    kind, size = format_of(to), batch_of(batch, to)
    folder, greedy = typed("run", run, Path), typed("greedy", greedy, bool)
    options = {"checkpoint": checkpoint, "member": member, "descriptor": descriptor, "cell": cell, "batch": batch}
    target = folder / EXPORTS / name_of(to, greedy, options) if output is None else typed("output", output, Path)
    own_card = target / CARD if card is None else typed("card", card, Path)
    for name, path in (("output", target), ("card", own_card)):
        check_path(name, path)
    run_folder.read_spec(folder)  # that there is a run is said first
    check_free(target, own_card, overwrite)
    policy = load(folder, checkpoint=checkpoint, member=member, environment=environment, network=network)
    if descriptor is not None or cell is not None:
        policy = policy.elite(descriptor, cell)
    check_exportable(policy, folder)
    warnings = [*policy.warnings, *cards.of_progress(policy, folder)]
    policy = identifying(policy)
    with on_processor() as device:
        moved = policy if device is None else dataclasses.replace(policy, state=jax.device_put(policy.state, device))
        files, described, parity = made(moved, kind, size, greedy)
    document = {"format": to, "file": next(iter(files)), **described, **cards.facts(policy, folder, greedy)}
    files[DESCRIPTION] = (json.dumps(document, indent=2) + "\n").encode()
    text = cards.write(policy, folder, document, kind, parity).encode()
    written = write(target, files, own_card, text)
    return Exported(target, written, policy.step, parity, warnings)


def format_of(to: str) -> Format:
    """Raises UnknownNameError for a format that there is not, UsageError for one whose package is missing."""
    if to not in FORMATS:
        raise UnknownNameError("format", str(to), FORMATS)
    FORMATS[to].check_installed()
    return FORMATS[to]


def batch_of(batch: int | str | None, to: str) -> int | None:
    """How many environments; None for any number. Raises UsageError for what is no such number."""
    if batch is None:
        return FORMATS[to].batch
    if batch == "any":
        return None
    is_number = isinstance(batch, int) and not isinstance(batch, bool) or isinstance(batch, str) and batch.isdecimal()
    if not is_number or len(str(batch)) > 9 or not 1 <= int(batch) <= LARGEST_BATCH:
        raise UsageError(f"batch ({shown(batch)}) must be any, or a number of environments from 1 to {LARGEST_BATCH:,}")
    return int(batch)


def name_of(to: str, greedy: bool, options: dict[str, Any]) -> str:
    """The name of a folder that says in what an export is not the usual one."""
    parts = [to, *([] if greedy else ["stochastic"])]
    for name, value in options.items():
        if value is None or (name, value) in (("checkpoint", "last"), ("batch", "any")):
            continue
        values = [value] if isinstance(value, str | int) else list(value)
        parts.append("-".join([*([] if value == "best" else [name]), *map(str, values)]))
    return "-".join(parts)


def check_free(target: Path, card: Path, overwrite: bool) -> None:
    """Raises UsageError where files would be replaced that nobody said may be."""
    if target.exists() and not target.is_dir():
        raise UsageError(f"output ({target}) is a file: an export is a folder of several; name another")
    taken = [path for path in (target, card) if (any(path.iterdir()) if path.is_dir() else path.exists())]
    if taken and not overwrite:
        raise UsageError(f"{taken[0]} is there already: choose another --output, or replace what it has by --overwrite")


def check_exportable(policy: Policy, folder: Path) -> None:
    """Raises UsageError for what is no policy."""
    if has_closed_form(policy.environment):
        raise UsageError(
            f"{policy.environment.name} is a closed form, whose solutions are numbers and no policy. In Python "
            "rollax.host.elites.of_policy(rollax.load(RUN)).scored.solution has the numbers; fitness and descriptors of all, "
            f"as a table (figures/archive.csv), are written by: rollax plot {folder}"
        )


def made(policy: Policy, kind: Format, batch: int | None, greedy: bool) -> tuple[dict[str, bytes], dict[str, Any], Parity]:
    """The files of a policy, their description, and how near what they hold is to the policy. Raises as `export`."""
    rewrites = {"erf_inv": erf_inv} if kind.is_plain else {}
    exported, source = exportable(policy, batch, greedy, rewrites), None
    if kind.is_plain:
        exported = exported._replace(program=with_uniform_numbers(exported.program)[0])
        source = with_uniform_numbers(exportable(policy, NUM_ENVS, greedy).program)[1]
    files = kind.write(exported.program)
    act, outputs = kind.open(files), sorted(exported.program.outputs)
    parity = compare(policy, exported, lambda inputs: named(act(inputs), outputs), batch, source)
    if not parity.is_same:
        raise RuntimeError(f"what was exported does not act as the policy does: {parity}; nothing was written")
    return files, {"batch": "any" if batch is None else batch, **describe(exported.program, policy.environment)}, parity


def write(target: Path, files: dict[str, bytes], card: Path, text: bytes) -> list[Path]:
    """Writes the files, in a new folder all of them or none. Raises UsageError when they cannot be written."""
    unfinished = target.with_name(f".{target.name}.{os.getpid()}")
    is_new = not target.exists()
    place = unfinished if is_new else target
    inside = card.parent == target
    try:
        place.mkdir(parents=True, exist_ok=True)
        for name, content in {**files, **({card.name: text} if inside else {})}.items():
            write_atomically(place / name, content)
        if is_new:
            place.rename(target)
            sync(target.parent)
        if not inside:
            card.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(card, text)
    except OSError as error:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise UsageError(f"{target} cannot be written ({error}): choose another --output") from error
    return [*(target / name for name in files), card]
