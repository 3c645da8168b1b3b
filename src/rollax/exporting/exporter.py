"""Export of a run's policy to files that can be used without rollax."""

import dataclasses
import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax

from rollax.environments.capabilities import has_closed_form
from rollax.environments.environment import Environment
from rollax.errors import UnknownNameError, UsageError
from rollax.exporting import model_card as cards
from rollax.exporting.description import describe_program
from rollax.exporting.formats import FORMATS, ExportFormat, name_outputs
from rollax.exporting.jaxpr_program import Arrays
from rollax.exporting.parity import NUM_ENVS, Parity, compare_with_policy, use_cpu
from rollax.exporting.policy_function import erf_inv, make_policy_program, replace_key_with_uniforms
from rollax.loading import load
from rollax.policy import Policy
from rollax.prediction import add_agent_ids
from rollax.runtime.numerics import standard_numerics
from rollax.runtime.shell import format_command_line
from rollax.training import user_imports
from rollax.training.argument_validation import ELITE_ARGUMENT_TYPES
from rollax.training.options import check_path
from rollax.training.result import accept_result
from rollax.training.run_folder import layout
from rollax.training.run_folder.files import check_not_symlink, fsync_path, write_atomically
from rollax.types import NetworkFn, RunPath, SettingValues
from rollax.user_input.arguments import coerce_arguments
from rollax.user_input.coercion import coerce, format_repr, format_value

DESCRIPTION_FILE, CARD_FILE, EXPORTS_FOLDER = "policy.json", "card.md", "exports"
MAX_BATCH = 1 << 20


class Exported(NamedTuple):
    """Result of an export.

    Attributes:
        folder: Folder of the exported files.
        files: Paths of the written files: policy files first, then the description and the card.
        step: Environment step of the exported checkpoint.
        parity: Comparison of the exported files with the policy.
        warnings: Warnings about the policy or the run.
    """

    folder: Path
    files: list[Path]
    step: int
    parity: Parity
    warnings: list[str]

    def __repr__(self) -> str:
        return format_repr("Exported", folder=self.folder, files=len(self.files), step=self.step)


class PolicyFiles(NamedTuple):
    """Exported policy in memory.

    Attributes:
        contents: Contents of the files, keyed by file name. The policy file is first.
        description: Inputs, outputs and batch size as JSON values.
        parity: Comparison of the files with the policy.
    """

    contents: dict[str, bytes]
    description: dict[str, Any]
    parity: Parity


@accept_result
@user_imports.accept_trust_keyword
@standard_numerics()
@coerce_arguments(
    to=str,
    checkpoint=str | int,
    member=int | None,
    batch=int | str | None,
    overwrite=bool,
    **ELITE_ARGUMENT_TYPES,
)
def export(
    run: RunPath,
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
    network: NetworkFn | None = None,
    trust: bool = False,
) -> Exported:
    """Export the policy of a run to files that can be used without rollax.

    The exported policy maps raw observations of the environment to actions in the environment's
    units. Recurrent policies have their recurrent state as an input and an output. The folder
    also contains policy.json, which describes inputs and outputs, and card.md, a model card. Before
    anything is written, the exported program is loaded and compared with the policy on observations
    of the environment.

    Args:
        run: Result of the run, or its folder.
        to: Format: "jax", "stablehlo", "onnx" or "numpy".
        output: Output folder. Defaults to a subfolder of the run's exports/.
        checkpoint: Checkpoint, as in `rollax.load`.
        member: Member of a population, as in `rollax.load`.
        descriptor: Descriptor that selects an elite of an archive, as in `Policy.elite`.
        cell: Cell that selects an elite of an archive, as in `Policy.elite`.
        batch: Number of environments per call, or "any". None selects the default of the format.
        greedy: Whether to take the most likely actions instead of sampling.
        overwrite: Whether to replace existing files.
        card: Path of the model card. Defaults to card.md in the output folder.
        environment: Environment, as in `rollax.load`.
        network: Network, as in `rollax.load`.
        trust: Whether to import the modules that the folder names, as in `rollax.load`.

    Returns:
        Folder and paths of the files, exported step, comparison with the policy, and warnings.

    Raises:
        UnknownNameError: If the format does not exist.
        UsageError: If the run has no checkpoint, the policy cannot be exported, a package is
            missing, or the output folder is not empty and `overwrite` is False.
        RuntimeError: If the exported files return different actions than the policy.
    """
    kind = find_format(to)
    size = resolve_batch(batch, to)
    folder = coerce("run", run, Path)
    greedy = coerce("greedy", greedy, bool)
    options = {
        "checkpoint": checkpoint,
        "member": member,
        "descriptor": descriptor,
        "cell": cell,
        "batch": batch,
    }
    if output is None:
        target = folder / EXPORTS_FOLDER / export_folder_name(to, greedy, options)
    else:
        target = coerce("output", output, Path)
    own_card = target / CARD_FILE if card is None else coerce("card", card, Path)
    check_output_paths(folder, target, own_card, overwrite, is_in_run=output is None)
    policy = load(
        folder, checkpoint=checkpoint, member=member, environment=environment, network=network
    )
    if descriptor is not None or cell is not None:
        policy = policy.elite(descriptor, cell)
    check_exportable(policy, folder)
    warnings = [*policy.warnings, *cards.unfinished_run_warnings(policy, folder)]
    policy = add_agent_ids(policy)
    with use_cpu() as device:
        moved = (
            policy
            if device is None
            else dataclasses.replace(policy, state=jax.device_put(policy.state, device))
        )
        exported = make_files(moved, kind, size, greedy)
    document = {
        "format": to,
        "file": next(iter(exported.contents)),
        **exported.description,
        **cards.policy_metadata(policy, folder, greedy),
    }
    description = (json.dumps(document, indent=2) + "\n").encode()
    files = {**exported.contents, DESCRIPTION_FILE: description}
    text = cards.format_model_card(policy, folder, document, kind, exported.parity).encode()
    return Exported(
        folder=target,
        files=write_files(target, files, own_card, text),
        step=policy.step,
        parity=exported.parity,
        warnings=warnings,
    )


def find_format(format_name: str) -> ExportFormat:
    """Return the export format with a name such as "onnx".

    Raises:
        UnknownNameError: If the format does not exist.
        UsageError: If a package that the format needs is not installed.
    """
    if format_name not in FORMATS:
        raise UnknownNameError("format", str(format_name), FORMATS)
    FORMATS[format_name].check_installed()
    return FORMATS[format_name]


def resolve_batch(batch: int | str | None, format_name: str) -> int | None:
    """Return the number of environments per call, or None for any number.

    Args:
        batch: Number, "any", or None for the default of the format.
        format_name: Name of the format.

    Raises:
        UsageError: If `batch` is neither "any" nor an integer from 1 to `MAX_BATCH`.
    """
    if batch is None:
        return FORMATS[format_name].batch
    if batch == "any":
        return None
    is_number = (
        isinstance(batch, int)
        and not isinstance(batch, bool)
        or isinstance(batch, str)
        and batch.isdecimal()
    )
    if not is_number or len(str(batch)) > 9 or not 1 <= int(batch) <= MAX_BATCH:
        raise UsageError(
            f'batch must be "any" or an integer from 1 to {MAX_BATCH:,}, got {format_value(batch)}.'
        )
    return int(batch)


def export_folder_name(format_name: str, greedy: bool, options: SettingValues) -> str:
    """Return the default name of the output folder, from the format and all non-default options.

    Args:
        format_name: Name of the format.
        greedy: Whether the policy takes the most likely actions.
        options: Other options of the export, keyed by name.
    """
    name_parts = [format_name, *([] if greedy else ["stochastic"])]
    for name, value in options.items():
        if value is None or (name, value) in (("checkpoint", "last"), ("batch", "any")):
            continue
        values = [value] if isinstance(value, str | int) else list(value)
        name_parts.append("-".join([*([] if value == "best" else [name]), *map(str, values)]))
    return "-".join(name_parts)


def check_output_paths(
    run: Path, target: Path, card: Path, overwrite: bool, is_in_run: bool
) -> None:
    """Check that the run exists, and that the export can be written without replacing files.

    Args:
        run: Folder of the run.
        target: Output folder.
        card: Path of the model card.
        overwrite: Whether to replace existing files.
        is_in_run: Whether the output folder is the default in the folder of the run.

    Raises:
        UsageError: If `run` is not a run folder, a path is invalid, or files would be replaced.
    """
    check_path("output", target)
    check_path("card", card)
    layout.read_spec(run)  # report a missing run before an existing output
    if is_in_run:
        check_not_symlink(run / EXPORTS_FOLDER)
        check_not_symlink(target)
    check_not_overwriting(target, card, overwrite)


def check_not_overwriting(target: Path, card: Path, overwrite: bool) -> None:
    """Raise UsageError if the export would replace files and `overwrite` is False.

    Args:
        target: Output folder.
        card: Path of the model card.
        overwrite: Whether files may be replaced.
    """
    if target.exists() and not target.is_dir():
        raise UsageError(
            f"output must be a folder, but {target} is a file. Choose another --output."
        )
    existing = [
        path for path in (target, card) if (any(path.iterdir()) if path.is_dir() else path.exists())
    ]
    if existing and not overwrite:
        raise UsageError(
            f"{existing[0]} already exists. Choose another --output, or replace it with "
            "--overwrite."
        )


def check_exportable(policy: Policy, folder: Path) -> None:
    """Raise UsageError if solutions are vectors that the environment scores, and not policies."""
    if has_closed_form(policy.environment):
        raise UsageError(
            f"{policy.environment.name} is a closed-form task, whose solutions are vectors and not "
            "policies. Read them in Python with "
            "rollax.training.elites.selection.get_elites(rollax.load(RUN)).solutions.solution. To "
            "write a table of fitness and descriptors (figures/archive.csv), run: "
            f"{format_command_line('rollax', 'plot', folder)}"
        )


def make_files(
    policy: Policy, export_format: ExportFormat, batch: int | None, greedy: bool
) -> PolicyFiles:
    """Export a policy to files in memory and compare the files with the policy.

    Args:
        policy: Policy to export.
        export_format: Export format.
        batch: Number of environments per call, or None for any number.
        greedy: Whether to take the most likely actions instead of sampling.

    Returns:
        The files, their description and the result of the comparison.

    Raises:
        UsageError: If the format does not support the policy.
        RuntimeError: If the exported files return different actions than the policy.
    """
    rewrites = {"erf_inv": erf_inv} if export_format.needs_lowering else {}
    exported = make_policy_program(policy, batch, greedy, rewrites)
    source = None
    if export_format.needs_lowering:
        exported = exported._replace(program=replace_key_with_uniforms(exported.program)[0])
        source = replace_key_with_uniforms(make_policy_program(policy, NUM_ENVS, greedy).program)[1]
    files = export_format.write(exported.program)
    act_fn = export_format.open(files)
    outputs = sorted(exported.program.outputs)

    def act(inputs: Arrays) -> Arrays:
        return name_outputs(act_fn(inputs), outputs)

    parity = compare_with_policy(policy, exported, act, batch, source)
    if not parity.is_same:
        raise RuntimeError(
            f"The exported policy does not match the original: {parity}. No files were written."
        )
    description = describe_program(exported.program, policy.environment)
    batch_size = "any" if batch is None else batch
    return PolicyFiles(files, {"batch": batch_size, **description}, parity)


def write_files(target: Path, files: dict[str, bytes], card: Path, text: bytes) -> list[Path]:
    """Write the files and the model card, and return their paths.

    A new folder is written under a temporary name and renamed, so that it appears complete or not
    at all.

    Args:
        target: Output folder.
        files: Contents, keyed by file name.
        card: Path of the model card.
        text: Content of the model card.

    Raises:
        UsageError: If the files cannot be written.
    """
    unfinished = target.with_name(f".{target.name}.{os.getpid()}")
    is_new = not target.exists()
    folder = unfinished if is_new else target
    inside = card.parent == target
    try:
        folder.mkdir(parents=True, exist_ok=not is_new)
        for name, content in {**files, **({card.name: text} if inside else {})}.items():
            write_atomically(folder / name, content)
        if is_new:
            folder.rename(target)
            fsync_path(target.parent)
        if not inside:
            card.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(card, text)
    except OSError as error:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise UsageError(f"Cannot write {target} ({error}). Choose another --output.") from error
    return [*(target / name for name in files), card]
