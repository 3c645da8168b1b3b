"""Presets: tuned settings for pairs of algorithm and environment."""

import contextlib
import fnmatch
import importlib.resources
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import yaml

from rollax.algorithms.registry import list_algorithms
from rollax.environments import registry
from rollax.errors import UnknownNameError, UsageError
from rollax.types import NetworkFn
from rollax.user_input.coercion import coerce

if TYPE_CHECKING:
    import rollax.training.spec

# Keys of an environment in a preset file, with their types.
PRESET_KEY_TYPES: dict[str, Any] = {
    "total_steps": int,
    "env": dict[str, Any],
    "config": dict[str, Any],
    "network": dict[str, Any],
    "eval_stochastic": bool,
}


class Preset(NamedTuple):
    """Tuned settings for an environment.

    Attributes:
        total_steps: Environment steps to train for, or None if not set.
        arguments: Arguments of the environment, keyed by name.
        config: Settings of the algorithm, keyed by name.
        network: Settings of the network, keyed by name.
        eval_stochastic: Whether evaluations sample actions.
    """

    total_steps: int | None
    arguments: dict[str, Any]
    config: dict[str, Any]
    network: dict[str, Any]
    eval_stochastic: bool = False


def load_preset(algorithm: str, environment: str, file: Path | None = None) -> Preset:
    """Return the tuned settings for an algorithm and an environment.

    An entry for the exact environment id takes precedence over patterns, and longer patterns take
    precedence over shorter ones. Without a matching entry, the built-in preset is empty.

    Args:
        algorithm: Name of the algorithm.
        environment: Id of the environment.
        file: Preset file, or None for the built-in presets of the algorithm.

    Returns:
        The preset.

    Raises:
        UsageError: If the file cannot be read, or has no settings for the environment.
    """
    table = _load_builtin_presets(algorithm) if file is None else _read_preset_file(file)
    matching = [pattern for pattern in table if fnmatch.fnmatchcase(environment, pattern)]
    entry = table[min(matching, key=lambda p: (p != environment, -len(p)))] if matching else {}
    if file is not None and not matching:
        raise UsageError(
            f"{file} has no settings for {environment}. It has settings for "
            f"{', '.join(map(str, table)) or 'no environment'}."
        )
    return Preset(
        total_steps=entry.get("total_steps"),
        arguments=entry.get("env", {}),
        config=entry.get("config", {}),
        network=entry.get("network", {}),
        eval_stochastic=entry.get("eval_stochastic", False),
    )


@contextlib.contextmanager
def explain_preset_arguments(
    spec: "rollax.training.spec.Spec", make_network: NetworkFn | None
) -> Iterator[None]:
    """Return a context manager that names a preset's environment arguments in each UsageError.

    A custom network may be incompatible with the preset because it was written for the
    environment's default arguments.

    Args:
        spec: Specification of the run.
        make_network: Custom network or solution function, or None. None leaves errors unchanged.
    """
    try:
        yield
    except UsageError as error:
        if make_network is None or spec.own_environment:
            raise
        preset_arguments = {
            name: value
            for name, value in load_preset(spec.algorithm, spec.environment).arguments.items()
            if str(spec.arguments.get(name)) == str(value)
        }
        if not preset_arguments:
            raise
        defaults = {
            name: value
            for name, value in registry.default_arguments(spec.environment).items()
            if name in preset_arguments
        }
        listed = ", ".join(f"{name} {value}" for name, value in preset_arguments.items())
        raise UsageError(
            f"{error} The preset of {spec.algorithm} for {spec.environment} sets {listed}, which "
            f"may change observations and actions. Pass arguments={defaults} for the environment's "
            "defaults."
        ) from error


def list_tuned_algorithms(environment: str) -> list[str]:
    """Return the names of the algorithms that have tuned settings for an environment."""
    return [
        name
        for name in list_algorithms()
        if any(fnmatch.fnmatchcase(environment, p) for p in _load_builtin_presets(name))
    ]


def example_environment(algorithm: str) -> str:
    """Return the first environment with tuned settings for an algorithm, or CartPole."""
    return next(iter(_load_builtin_presets(algorithm)), "gymnax/CartPole-v1")


def _read_preset_file(file: Path) -> dict[str, dict[str, Any]]:
    """Read presets, keyed by environment, from a file of `rollax sweep --export-preset`."""
    try:
        table = coerce(
            str(file),
            yaml.safe_load(file.read_text(encoding="utf-8")) or {},
            dict[str, dict[str, Any]],
        )
    except UsageError:
        raise
    except (OSError, yaml.YAMLError, ValueError, RecursionError, OverflowError) as error:
        raise UsageError(f"{file} cannot be read as presets: {error}.") from error
    for environment, parts in table.items():
        for name, part in parts.items():
            if name not in Preset._fields and name not in PRESET_KEY_TYPES:
                raise UnknownNameError("key", name, PRESET_KEY_TYPES)
            coerce(f"{environment}.{name}", part, PRESET_KEY_TYPES.get(name, dict[str, Any]))
    return table


def _load_builtin_presets(algorithm: str) -> dict[str, Any]:
    file = importlib.resources.files("rollax.presets") / f"{algorithm}.yaml"
    return yaml.safe_load(file.read_text(encoding="utf-8")) if file.is_file() else {}
