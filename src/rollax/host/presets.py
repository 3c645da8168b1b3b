"""Tuned settings by algorithm and environment: the library's, and those in a file of a user's own."""

import fnmatch
import importlib.resources
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from rollax.algorithms import list_algorithms
from rollax.errors import UnknownNameError, UsageError
from rollax.typed import typed


class Preset(NamedTuple):
    """Tuned settings for an environment."""

    total_steps: int | None
    arguments: dict[str, Any]  # of the environment
    config: dict[str, Any]
    network: dict[str, Any]


def preset(algorithm: str, environment: str, file: Path | None = None) -> Preset:
    """The settings for this pair: an exact id comes before a pattern, no entry gives the defaults.

    `file`: a table of a user's own in place of the library's. Raises UsageError where it is none, or has nothing for this pair.
    """
    table = _presets(algorithm) if file is None else _table_of(file)
    matching = [pattern for pattern in table if fnmatch.fnmatchcase(environment, pattern)]
    found = table[min(matching, key=lambda p: (p != environment, -len(p)))] if matching else {}
    if file is not None and not matching:
        raise UsageError(f"{file} has no settings for {environment}: it has some for {', '.join(map(str, table)) or 'nothing'}")
    return Preset(found.get("total_steps"), found.get("env", {}), found.get("config", {}), found.get("network", {}))


def tuned_for(environment: str) -> list[str]:
    """The algorithms that have tuned settings for an environment."""
    return [name for name in list_algorithms() if any(fnmatch.fnmatchcase(environment, p) for p in _presets(name))]


def example(algorithm: str) -> str:
    """An environment for the algorithm: the first that it has tuned settings for."""
    return next(iter(_presets(algorithm)), "gymnax/CartPole-v1")


def _table_of(file: Path) -> dict[str, dict[str, Any]]:
    """Presets by environment, in a file as `rollax sweep --export-preset` writes it."""
    try:
        table = typed(str(file), yaml.safe_load(file.read_text(encoding="utf-8")) or {}, dict[str, dict[str, Any]])
    except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError(f"{file} cannot be read as presets: {error}") from error
    for environment, parts in table.items():
        for name, part in parts.items():
            if name not in Preset._fields and name != "env":
                raise UnknownNameError("key", name, ["total_steps", "env", "config", "network"])
            typed(f"{environment}.{name}", part, int if name == "total_steps" else dict[str, Any])
    return table


def _presets(algorithm: str) -> dict[str, Any]:
    file = importlib.resources.files("rollax.presets") / f"{algorithm}.yaml"
    return yaml.safe_load(file.read_text()) if file.is_file() else {}
