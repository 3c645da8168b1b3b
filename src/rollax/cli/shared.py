"""Options that every command takes, whatever it does: they are taken out of the words before the command sees them."""

import os
from typing import NamedTuple

from rollax.cli.words import HELP, take_value
from rollax.errors import UsageError
from rollax.host.importing import IMPORT, import_module

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
    from rollax.scale import connecting

    place = Place(coordinator, _number("--num-processes", number), _number("--process-id", own))
    connecting.connect(*place)
    return [word for word in rest if word != DISTRIBUTED], place


def _number(option: str, text: str | None) -> int | None:
    if text is not None and not text.isdecimal():
        raise UsageError(f"{option} takes a whole number, not {text!r}")
    return None if text is None else int(text)
