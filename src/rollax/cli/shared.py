"""Options that every command takes, whatever it does: they are taken out of the words before the command sees them."""

import contextlib
import importlib
import os
import sys
from typing import NamedTuple

from rollax.cli.words import HELP, take_value
from rollax.errors import UsageError

IMPORT = "--import"
NO_CACHE = "--no-compilation-cache"
DISTRIBUTED = "--distributed"


class Place(NamedTuple):
    """Which of several processes this is; None: as Slurm, Open MPI, Kubernetes or a TPU say."""

    coordinator: str | None = None  # HOST:PORT of the first
    num_processes: int | None = None
    process_id: int | None = None


class Shared(NamedTuple):
    """What was given besides a command's own options."""

    imports: tuple[str, ...] = ()  # modules, already imported, that registered what the command may name
    place: Place | None = None  # which of several processes this is


def take_shared(words: list[str]) -> tuple[list[str], Shared]:
    """The words without the shared options, and those. Imports the modules of `--import MODULE`; for `--no-compilation-cache`
    switches the cache of compiled programs off.

    Raises UsageError when there is no such module, or when importing it fails.
    """
    words, place = _place(words)
    rest: list[str] = []
    modules: list[str] = []
    position = 0
    while position < len(words):
        word = words[position]
        position += 1
        if word == NO_CACHE:
            os.environ["ROLLAX_COMPILATION_CACHE"] = "off"  # also for the processes that this one starts
            continue
        if word != IMPORT and not word.startswith(f"{IMPORT}="):
            rest.append(word)
            continue
        if word == IMPORT and (position == len(words) or words[position].startswith("--")):
            raise UsageError(f"{IMPORT} needs the name of a module: {IMPORT} my_module")
        modules.append(word.partition("=")[2] if word != IMPORT else words[position])
        position += word == IMPORT
    modules = list(dict.fromkeys(modules))
    for module in modules:
        import_module(module)
    return rest, Shared(tuple(modules), place)


def _place(words: list[str]) -> tuple[list[str], Place | None]:
    """Splits off which of several processes this is, and waits for the others, unless help is asked for: nothing else may ask
    JAX for devices before."""
    rest, coordinator = take_value(words, "--coordinator")
    rest, number = take_value(rest, "--num-processes")
    rest, own = take_value(rest, "--process-id")
    if any(word in rest for word in HELP):
        return [word for word in rest if word != DISTRIBUTED], None
    if DISTRIBUTED not in rest:
        if (coordinator, number, own) != (None, None, None):
            raise UsageError(f"--coordinator, --num-processes and --process-id are for several processes: add {DISTRIBUTED}")
        return rest, None
    if rest[:1] not in (["train"], ["resume"]):
        raise UsageError(f"{DISTRIBUTED} is for train and resume")
    from rollax.scale import processes

    place = Place(coordinator, _number("--num-processes", number), _number("--process-id", own))
    processes.connect(*place)
    return [word for word in rest if word != DISTRIBUTED], place


def _number(option: str, text: str | None) -> int | None:
    if text is not None and not text.isdecimal():
        raise UsageError(f"{option} takes a whole number, not {text!r}")
    return None if text is None else int(text)


def import_module(name: str) -> None:
    """Imports a module from the current folder or from what is installed. What it prints goes to standard error."""
    if not all(part.isidentifier() for part in name.split(".")):
        meant = os.path.basename(name).removesuffix(".py")
        remedy = f": try {meant}, from its folder" if meant.isidentifier() else ""
        raise UsageError(f"{IMPORT} takes the name of a module, as Python's import does, not {name!r}{remedy}")
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            importlib.import_module(name)
    except ModuleNotFoundError as error:
        if not f"{name}.".startswith(f"{error.name}."):  # another module, which this one needs
            raise UsageError(f"{IMPORT} {name}: it needs the module {error.name}, which is not there") from error
        raise UsageError(f"{IMPORT} {name}: there is no such module in {here} or among what is installed") from error
    except (Exception, SystemExit) as error:  # a user's module may raise anything
        raise UsageError(f"{IMPORT} {name}: importing it fails with {type(error).__name__}: {error}") from error
