"""Options that every command accepts, parsed before the options of the command."""

import os
from typing import NamedTuple

from rollax.cli.parsing.dynamic_options import HELP_FLAGS, take_option_value, take_option_values
from rollax.distributed import connection
from rollax.errors import UsageError
from rollax.runtime.user_modules import IMPORT_OPTION, import_user_module
from rollax.training.user_imports import TRUST_OPTION

NO_CACHE_FLAG = "--no-compilation-cache"
DISTRIBUTED_FLAG = "--distributed"


class ProcessPlace(NamedTuple):
    """Position of this process in a distributed run.

    If all values are None, they are detected from Slurm, Open MPI, Kubernetes or the TPU runtime.

    Attributes:
        coordinator: Address `HOST:PORT` of the first process.
        num_processes: Number of processes.
        process_id: Index of this process.
    """

    coordinator: str | None = None
    num_processes: int | None = None
    process_id: int | None = None


class SharedOptions(NamedTuple):
    """Options shared by all commands.

    Attributes:
        imports: Modules that were imported to register environments or algorithms.
        trust: Whether run folders may name modules to import and databases to open.
        place: Position of this process in a distributed run, or None.
    """

    imports: tuple[str, ...] = ()
    trust: bool = False
    place: ProcessPlace | None = None


def take_shared_options(words: list[str]) -> tuple[list[str], SharedOptions]:
    """Split off the options that every command accepts, and apply them.

    The function imports the modules of `--import MODULE`, disables the compilation cache for
    `--no-compilation-cache`, and connects to the other processes for `--distributed`.

    Args:
        words: Command-line arguments.

    Returns:
        The remaining arguments, and the shared options.

    Raises:
        UsageError: If a module does not exist or cannot be imported, or if an option is invalid.
    """
    words, place = _take_process_place(words)
    needs = f"the name of a module, for example {IMPORT_OPTION} my_module"
    rest, modules = take_option_values(words, IMPORT_OPTION, needs)
    if NO_CACHE_FLAG in rest:
        # The environment variable also reaches worker processes.
        os.environ["ROLLAX_COMPILATION_CACHE"] = "off"
    modules = tuple(dict.fromkeys(modules))
    for module in modules:
        import_user_module(module)
    own = (TRUST_OPTION, NO_CACHE_FLAG)
    shared = SharedOptions(imports=modules, trust=TRUST_OPTION in rest, place=place)
    return [word for word in rest if word not in own], shared


def _take_process_place(words: list[str]) -> tuple[list[str], ProcessPlace | None]:
    """Split off the options of a distributed run and connect to the other processes.

    Call this function before JAX initializes its devices. If help is requested, the function does
    not connect.
    """
    rest, coordinator = take_option_value(words, "--coordinator")
    rest, number = take_option_value(rest, "--num-processes")
    rest, own = take_option_value(rest, "--process-id")
    if any(word in rest for word in HELP_FLAGS):
        return [word for word in rest if word != DISTRIBUTED_FLAG], None
    if DISTRIBUTED_FLAG not in rest:
        if (coordinator, number, own) != (None, None, None):
            raise UsageError(
                "--coordinator, --num-processes and --process-id require several processes. "
                f"Add {DISTRIBUTED_FLAG}."
            )
        return rest, None
    if rest[:1] not in (["train"], ["resume"]):
        raise UsageError(f"{DISTRIBUTED_FLAG} is only available for train and resume.")
    place = ProcessPlace(
        coordinator, _parse_integer("--num-processes", number), _parse_integer("--process-id", own)
    )
    connection.connect(*place)
    return [word for word in rest if word != DISTRIBUTED_FLAG], place


def _parse_integer(option: str, text: str | None) -> int | None:
    if text is not None and not text.isdecimal():
        raise UsageError(f"{option} must be an integer of at least 0, got {text!r}.")
    return None if text is None else int(text)
