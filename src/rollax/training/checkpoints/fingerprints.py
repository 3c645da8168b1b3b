"""Fingerprints of environments, recorded by a run and compared when it is resumed.

An environment object cannot be rebuilt from the run folder. Its fingerprint contains its name,
spaces and limits, and its settings, keyed by attribute path (`gravity`, `env.params.length`).
Settings are numbers, strings and arrays. Large arrays are recorded as digests.
"""

import dataclasses
import functools
import hashlib
import inspect
import itertools
from collections.abc import Iterable, Iterator, Mapping
from types import FunctionType, ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rollax.environments.capabilities import capabilities
from rollax.environments.environment import Environment
from rollax.errors import UsageError
from rollax.spaces import describe_space
from rollax.types import Record

# Maximum depth of nested objects, not counting containers, dataclasses and functions.
MAX_DEPTH = 6
MAX_NESTING = 24  # maximum depth, counting all objects
MAX_SETTINGS = 1000
MAX_TEXT_LENGTH = 200  # characters; longer values are recorded as digests
MAX_ARRAY_SIZE = 8  # size limit of arrays that are recorded as numbers
MAX_DIFFERENCES = 3  # number of differences named in a message
SETTINGS_KEY, FORM_SUFFIX = "settings", " form"
_FACT_ATTRIBUTES = (
    "name",
    "observation_space",
    "action_space",
    "num_agents",
    "agent_types",
    "time_limit",
)
_PLAIN_TYPES = str | bool | int | float | None | np.generic | np.ndarray | jax.Array


def fingerprint(environment: Environment, is_object: bool) -> dict[str, Any]:
    """Return the fingerprint of an environment as plain values.

    Args:
        environment: The environment, without the wrappers that a run adds.
        is_object: Whether the user passed the environment as an object. The settings of an
            environment made from an id are in config.yaml instead.

    Returns:
        Properties (name, spaces, number of agents, agent types, time limit), keyed by name. For an
        object, also its settings under the key "settings".
    """
    facts: dict[str, Any] = {
        "name": environment.name,
        "observation space": _format_value(environment.observation_space),
        "action space": _format_value(environment.action_space),
        "observation form": describe_space(environment.observation_space),
        "action form": describe_space(environment.action_space),
        "number of agents": _format_value(environment.num_agents),
        "agent types": _format_value(capabilities(environment).agent_types),
        "time limit": _format_value(environment.time_limit),
    }
    if is_object:
        iterated = itertools.islice(_iterate_settings(environment, "", MAX_DEPTH, ()), MAX_SETTINGS)
        facts[SETTINGS_KEY] = dict(sorted(iterated))
    return facts


def check_same_environment(recorded: Record, environment: Environment) -> None:
    """Check that an environment matches a recorded fingerprint.

    Entries that only one of the two fingerprints has are ignored. Older run folders have fewer
    entries, and objects may cache values on first use.

    Args:
        recorded: Fingerprint in the run folder.
        environment: The environment to compare.

    Raises:
        UsageError: If an entry differs. The message names up to three differences.
    """
    current = fingerprint(environment, is_object=True)
    settings = current.pop(SETTINGS_KEY)
    recorded_settings = recorded.get(SETTINGS_KEY)
    pairs = [
        (name, recorded.get(name), current[name])
        for name in current
        if not name.endswith(FORM_SUFFIX)
    ]
    pairs += (
        [(name, recorded_settings.get(name), settings[name]) for name in settings]
        if isinstance(recorded_settings, dict)
        else []
    )
    differences = []
    for name, expected, received in pairs:
        if isinstance(expected, str) and expected != received:
            # The form has no bounds. It is shown unless only the bounds differ.
            form_name = name.replace(" space", FORM_SUFFIX)
            forms = recorded.get(form_name), current.get(form_name)
            expected, received = (
                forms if name != form_name and forms[0] != forms[1] else (expected, received)
            )
            differences.append(f"{name} (expected {expected}, got {received})")
    if differences:
        num_omitted = len(differences) - MAX_DIFFERENCES
        omitted_text = f" and {num_omitted} more" if num_omitted > 0 else ""
        raise UsageError(
            "The environment does not match the run: "
            f"{', '.join(differences[:MAX_DIFFERENCES])}{omitted_text}. Pass the environment that "
            "the run was trained in, or train a new run in this one."
        )


def check_fingerprint_fits(recorded: Record, environment: Environment) -> None:
    """Check that the policy of a run can act in another environment.

    Args:
        recorded: Fingerprint in the run folder.
        environment: The other environment.

    Raises:
        UsageError: If the spaces differ in more than their bounds, or the number of agents differs.
    """
    current = fingerprint(environment, is_object=False)
    for name, description in (
        ("observation form", "observation space"),
        ("action form", "action space"),
        ("number of agents", "number of agents"),
    ):
        expected = recorded.get(name)
        if isinstance(expected, str) and expected != current[name]:
            raise UsageError(
                f"The environment's {description} does not match the checkpoint: expected "
                f"{expected}, got {current[name]}. Pass an environment with the same spaces and "
                "agents."
            )


def _iterate_settings(
    value: object, path: str, depth: int, enclosing_ids: tuple[int, ...]
) -> Iterator[tuple[str, str]]:
    """Yield `(path, text)` for each setting inside `value`, recursively.

    `depth` is the remaining depth. `enclosing_ids` holds `id()` of each enclosing object.
    """
    if isinstance(value, _PLAIN_TYPES):
        yield path, _format_value(value)
        return
    if (
        depth == 0
        or len(enclosing_ids) == MAX_NESTING
        or id(value) in enclosing_ids
        or isinstance(value, ModuleType)
    ):
        return
    depth -= not _is_container(value)
    for name, part in _components(value):
        if not path and name in _FACT_ATTRIBUTES:
            continue
        inner = f"{path}.{name}" if path else name
        yield from _iterate_settings(part, inner, depth, (*enclosing_ids, id(value)))


def _is_container(value: object) -> bool:
    """Return whether a value is a container, a function, a partial or a dataclass.

    These do not count toward the depth, because function arguments may be deeply nested in the
    objects that make an environment.
    """
    is_container = isinstance(
        value, functools.partial | Mapping | list | tuple
    ) or inspect.isfunction(value)
    return is_container or dataclasses.is_dataclass(value)


def _components(value: object) -> Iterable[tuple[str, Any]]:
    """Return `(name, value)` for each part of an object.

    The parts are the attributes, the items of a collection, or the captured variables of a
    function.
    """
    if isinstance(value, functools.partial):
        return [("func", value.func), ("args", value.args), *sorted(value.keywords.items())]
    if isinstance(value, type):
        return []
    if inspect.isfunction(value):
        return _captured_variables(value)
    if isinstance(value, Mapping):
        return [(str(name), part) for name, part in value.items()]
    if isinstance(value, list | tuple):
        return [(str(index), part) for index, part in enumerate(value)]
    if dataclasses.is_dataclass(value):
        return [
            (field.name, getattr(value, field.name, None)) for field in dataclasses.fields(value)
        ]
    return list(getattr(value, "__dict__", {}).items())


def _captured_variables(function: FunctionType) -> list[tuple[str, Any]]:
    try:
        return sorted(inspect.getclosurevars(function).nonlocals.items())
    except ValueError:  # a captured variable has no value yet
        return []


def _format_value(value: object) -> str:
    """Return the value as text. Equal numbers of different types have the same text."""
    if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        value = jax.random.key_data(value)
    if isinstance(value, bool | int | float | np.generic | np.ndarray | jax.Array):
        array = np.asarray(value)
        if array.dtype.kind == "f":
            array = array.astype(np.float32)
        if array.ndim == 0:
            return f"{array.item():.7g}" if array.dtype.kind in "iuf" else str(array)
        if array.dtype.kind == "O":  # the bytes of objects are addresses
            return f"an array {array.shape} of objects"
        if array.size <= MAX_ARRAY_SIZE and array.ndim == 1:
            return str(array.tolist())
        digest = hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()[:12]
        return f"an array {array.shape} with digest {digest}"
    text = str(value)
    if len(text) <= MAX_TEXT_LENGTH:
        return text
    return f"{text[:40]}... with digest {hashlib.sha256(text.encode()).hexdigest()[:12]}"
