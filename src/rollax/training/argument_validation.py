"""Validation of arguments that users pass to `train`, `Policy.evaluate` and similar functions."""

import dataclasses
import functools
import inspect
import itertools
import multiprocessing
import sys
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeGuard, TypeVar, cast

import jax
import jax.numpy as jnp

from rollax.algorithms.registry import list_algorithms
from rollax.config import MAX_INT32, DataclassInstance
from rollax.environments import list_environments
from rollax.environments.environment import Environment
from rollax.environments.registry import default_arguments, import_package
from rollax.environments.suites.pettingzoo_detection import PETTINGZOO_MESSAGE, is_pettingzoo
from rollax.environments.suites.table import SUITES, find_suite_of_module
from rollax.errors import UsageError
from rollax.networks.interop.adapted_networks import ADAPTED_ALGORITHMS
from rollax.runtime.numerics import to_single_precision
from rollax.synonyms.lookup import UnknownSettingError, find_synonym
from rollax.training.options import RunOptions
from rollax.types import NetworkFn, SettingValues
from rollax.user_input.coercion import coerce, coerce_dict, format_value
from rollax.user_input.settings_validation import resolve_settings

P = ParamSpec("P")
R = TypeVar("R")

# Types of arguments shared by several public functions, for `coerce_arguments`.
POLICY_ARGUMENT_TYPES: dict[str, Any] = {
    "member": int | None,
    "eval_arguments": dict[str, Any] | None,
}
ELITE_ARGUMENT_TYPES: dict[str, Any] = {
    "descriptor": tuple[float, ...] | None,
    "cell": tuple[int, ...] | None,
}
EPISODE_ARGUMENT_TYPES: dict[str, Any] = {"seed": int, "greedy": bool}

ARGUMENTS_NEED_ID_MESSAGE = (
    "arguments and eval_arguments are for environments made from their id, not for an environment "
    "that was passed"
)


def check_keywords(**groups: type) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator that raises an explanatory error for unknown or missing keywords.

    The decorated function raises UsageError for a keyword that is not one of its parameters. The
    message names the settings group that contains the keyword, the rollax name of another
    library's keyword, or similar keywords. If the argument `algorithm` is valid, only the settings
    of this algorithm are searched. Otherwise, the settings of all algorithms are searched. A call
    without a required argument also raises UsageError.

    Args:
        **groups: Further settings classes, keyed by group name. The groups `options`, `config` and
            `network` are always included.

    Returns:
        The decorator.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        parameters = inspect.signature(function).parameters
        required = [
            name
            for name, parameter in parameters.items()
            if parameter.default is parameter.empty
            and parameter.kind is parameter.POSITIONAL_OR_KEYWORD
        ]

        @functools.wraps(function)
        def call_with_known_keywords(*arguments: P.args, **keywords: P.kwargs) -> R:
            unknown = [name for name in keywords if name not in parameters]
            if unknown:
                passed = dict(zip(parameters, arguments, strict=False)) | keywords
                errors = [
                    _unknown_keyword_error(name, list(parameters), groups, passed)
                    for name in unknown
                ]
                raise errors[0] if len(errors) == 1 else UsageError("\n".join(map(str, errors)))
            passed = {*list(parameters)[: len(arguments)], *keywords}
            missing = [name for name in required if name not in passed]
            if missing:
                raise UsageError(
                    f"{function.__name__} must be called with {' and '.join(required)}, got no "
                    f"{' and no '.join(missing)}."
                )
            return function(*arguments, **keywords)

        return call_with_known_keywords

    return decorate


def _unknown_keyword_error(
    name: str, known: list[str], groups: Mapping[str, type], passed: Mapping[str, object]
) -> UsageError:
    """Return the error for an unknown keyword.

    Args:
        name: The unknown keyword.
        known: Names of the parameters of the function.
        groups: Settings classes, keyed by group name.
        passed: Arguments of the call, keyed by parameter name.

    Returns:
        The error.
    """
    algorithm, all_entries = passed.get("algorithm"), list_algorithms()
    entries = (
        [all_entries[algorithm]]
        if isinstance(algorithm, str) and algorithm in all_entries
        else list(all_entries.values())
    )
    classes_by_group = {group: [settings_class] for group, settings_class in groups.items()} | {
        "options": [RunOptions],
        "config": [entry.config for entry in entries],
        "network": [entry.network_config for entry in entries],
    }
    settings = {
        group: [
            field.name for settings_class in classes for field in dataclasses.fields(settings_class)
        ]
        for group, classes in classes_by_group.items()
    }
    for group, names in settings.items():
        if name in names:
            return UsageError(
                f"unknown keyword {name!r}: it is a setting of {group}. Pass "
                f"{group}={{{name!r}: ...}}."
            )
    environment = passed.get("environment")
    if isinstance(environment, str) and name in _environment_arguments(environment):
        return UsageError(
            f"unknown keyword {name!r}: it is an argument of {environment}. Pass "
            f"arguments={{{name!r}: ...}}."
        )
    for group, names in settings.items():
        synonym = None if find_synonym(name, known) else find_synonym(name, names)
        if synonym is not None:
            return UsageError(
                f"unknown keyword {name!r}: rollax calls it {synonym.describe()}, a setting of "
                f"{group}. Pass {group}={{{synonym.names[0]!r}: ...}}."
            )
    return UnknownSettingError(
        "keyword", name, dict.fromkeys([*known, *itertools.chain(*settings.values())])
    )


def _environment_arguments(id: str) -> list[str]:
    """Return the names of the arguments of an environment, or an empty list if it is unknown."""
    try:
        return list(default_arguments(id))
    except UsageError:
        return []


def check_not_worker_process() -> None:
    """Check that this process is not a worker process that is importing the user's script.

    `multiprocessing` imports the user's script again in worker processes. A script without an
    `if __name__ == "__main__":` guard would train there as well.

    Raises:
        UsageError: If this process is such a worker process.
    """
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise UsageError(
            "Worker processes (env_workers) import the script that trains, and would train as "
            "well. Put "
            'the training code under `if __name__ == "__main__":`.'
        )


def validate_environment(environment: object) -> Environment | None:
    """Validate an environment argument and convert an environment object to single precision.

    Args:
        environment: Environment id or environment object.

    Returns:
        The environment in single precision, or None for an id.

    Raises:
        UsageError: If the value is neither an id nor a rollax environment.
    """
    if isinstance(environment, str):
        return None
    if isinstance(environment, type) and is_pettingzoo(environment):
        raise UsageError(PETTINGZOO_MESSAGE)
    if isinstance(environment, type):
        raise UsageError(
            f"environment must be an instance, got the class {environment.__name__}. Pass an "
            f"instance, such as {environment.__name__}()."
        )
    raw = environment[0] if isinstance(environment, tuple) and environment else environment
    roots = [kind.__module__.split(".")[0] for kind in type(raw).__mro__]
    suite = next(filter(None, map(find_suite_of_module, roots)), None)
    if "gymnasium" in roots:
        raise UsageError(
            "environment must be one of rollax, got one of gymnasium, which cannot be copied. Pass "
            "rollax.from_gymnasium(make), where make is a function that makes it, or an "
            "environment made by gymnasium.make."
        )
    if "gym" in roots:
        raise UsageError(
            f"environment must be one of rollax or of gymnasium, got a {type(raw).__name__} of the "
            "older package gym. Change its class to a gymnasium.Env (reset returns (obs, info), "
            "step returns five values), and pass rollax.from_gymnasium(...)."
        )
    if is_pettingzoo(raw):
        raise UsageError(PETTINGZOO_MESSAGE)
    if suite:
        raise UsageError(
            f"environment must be one of rollax, got an object of {suite}. "
            f"{_suggest_environment(suite, raw)}."
        )
    if not callable(getattr(environment, "reset", None)) or not callable(
        getattr(environment, "step", None)
    ):
        raise UsageError(
            f"environment ({format_value(environment)}) must be an id such as "
            "'gymnax/CartPole-v1', or an object with the methods of rollax.Environment."
        )
    check_environment_name(getattr(environment, "name", None))
    return cast(Environment, to_single_precision(environment))


def check_arguments_fit(
    environment: Environment | None, arguments: object, eval_arguments: object
) -> None:
    """Check that no environment arguments were passed together with an environment object.

    Args:
        environment: Environment object, or None if the environment is made from its id.
        arguments: Arguments of the environment.
        eval_arguments: Arguments of the environment in evaluations.

    Raises:
        UsageError: If there is an object, and `arguments` or `eval_arguments` is not empty.
    """
    if environment is None:
        return
    if coerce_dict("arguments", arguments) or coerce_dict("eval_arguments", eval_arguments):
        raise UsageError(ARGUMENTS_NEED_ID_MESSAGE)


def environment_name_and_imports(environment: str | Environment) -> tuple[str, tuple[str, ...]]:
    """Return the id or name of an environment, and the names of packages imported for it.

    If an id names a package, this function imports the package. The second value then contains
    the package name. Otherwise, the second value is empty.
    """
    return (
        (environment, import_package(environment))
        if isinstance(environment, str)
        else (environment.name, ())
    )


def validate_environment_object(environment: object) -> Environment | None:
    """Validate the `environment` argument for an existing run.

    Args:
        environment: Environment object or None.

    Returns:
        The environment in single precision, or None if `environment` is None.

    Raises:
        UsageError: If the value is an id, or is not a rollax environment.
    """
    if isinstance(environment, str):
        raise UsageError(
            f"environment must be an environment object, got the id {format_value(environment)}. "
            f"Pass rollax.make({format_value(environment)})."
        )
    return None if environment is None else validate_environment(environment)


def check_network_function(network: object) -> None:
    """Check the network argument of an existing run.

    Raises:
        UsageError: If `network` is neither a function nor None.
    """
    if network is not None and not callable(network):
        raise UsageError(
            "network must be a function from a key to a network or None, got "
            f"{format_value(network)}."
        )


def _suggest_environment(suite: str, raw: object) -> str:
    """Return a sentence that suggests a replacement for a suite's environment object."""
    id = f"{suite}/{getattr(raw, 'name', None)}"
    known = id in list_environments()
    converter = SUITES[suite].converter
    if converter is not None:
        return (
            f"Pass its id {id!r}, or rollax.{converter}"
            if known
            else f"Pass rollax.{converter}, or an id of rollax.list_environments({suite!r})"
        )
    if known:
        return f"Pass its id {id!r}, with arguments={{...}} for its parameters"
    return (
        f"Pass an id of rollax.list_environments({suite!r}), or wrap it as in "
        "examples/own_environment.py"
    )


def check_environment_name(name: object) -> None:
    """Check that the name of an environment is valid as a folder name.

    Args:
        name: Name of the environment.

    Raises:
        UsageError: If the name is not a printable string of 1 to 100 characters, starts with "/" or
            "~", or contains a backslash or an empty, "." or ".." path component.
    """
    wanted = 'Choose a name such as "mine/Name".'
    if not isinstance(name, str) or not name.strip() or len(name) > 100 or not name.isprintable():
        raise UsageError(
            "The name of an environment must be a printable string of 1 to 100 characters, got "
            f"{format_value(name)}. {wanted}"
        )
    if (
        name.startswith(("/", "~"))
        or any(part in ("", ".", "..") for part in name.split("/"))
        or "\\" in name
    ):
        raise UsageError(
            "The name of an environment must not lead to another folder, got "
            f"{format_value(name)}. {wanted}"
        )


def split_network_argument(
    network: NetworkFn | DataclassInstance | SettingValues | None, algorithm: str
) -> tuple[NetworkFn | None, DataclassInstance | SettingValues | None]:
    """Return `(network function, network settings)` for the argument `network`.

    At least one of the two values is None.

    Args:
        network: Argument of the user.
        algorithm: Name of the algorithm, for error messages.

    Raises:
        UsageError: If `network` is neither a function nor settings.
    """
    if is_network_function(network, algorithm):
        return network, None
    return None, cast("DataclassInstance | Mapping[str, Any] | None", network)


def is_network_function(network: object, algorithm: str) -> TypeGuard[NetworkFn]:
    """Return whether `network` is a function that makes a network, rather than settings.

    Args:
        network: Argument of the user.
        algorithm: Name of the algorithm, for error messages.

    Raises:
        UsageError: If `network` is neither a function nor settings, for example a network object or
            a module of another library.
    """
    if network is None or isinstance(network, Mapping):
        return False
    adapter = _network_adapter_message(network, algorithm)
    if adapter is not None:
        raise UsageError(adapter)
    if dataclasses.is_dataclass(network) and not isinstance(network, type):
        if hasattr(network, "unroll"):
            raise UsageError(
                "network must be a function from a key to a network, got a network. Pass a "
                "function, such as lambda key: ..."
            )
        return False
    if not callable(network):
        raise UsageError(
            "network must be settings, a dictionary of settings, or a function from a key to a "
            f"network, got {format_value(network)}."
        )
    return True


_NETWORK_ADAPTERS = {  # base class of modules -> library, and the call that adapts its modules
    "equinox.Module": ("equinox", "from_equinox(lambda key: {name}(..., key=key), {more})"),
    "flax.linen.Module": ("flax.linen", "from_linen({name}(...), {more})"),
    "flax.nnx.Module": ("flax.nnx", "from_nnx(lambda rngs: {name}(..., rngs=rngs), {more})"),
}


def _network_adapter_message(network: object, algorithm: str) -> str | None:
    """Return an error message for a module of Equinox or Flax, else None.

    Args:
        network: Argument of the user.
        algorithm: Name of the algorithm that would train the module.
    """
    kind = network if isinstance(network, type) else type(network)
    if hasattr(kind, "unroll"):
        return None
    for base, (library, call) in _NETWORK_ADAPTERS.items():
        package, _, name = base.rpartition(".")
        module = sys.modules.get(package)
        if module is not None and issubclass(kind, getattr(module, name)):
            what = "the class" if isinstance(network, type) else "a module of the class"
            problem = (
                f"network must be a function from a key to a network, got {what} {kind.__name__} "
                f"of {library}."
            )
            if algorithm not in ADAPTED_ALGORITHMS:
                return (
                    f"{problem} {algorithm} takes a function from a random key to a callable "
                    f"pytree, such as an equinox module: lambda key: {kind.__name__}(..., key=key)."
                )
            more = "environment" if algorithm == "ppo" else f'environment, algorithm="{algorithm}"'
            return (
                f"{problem} Pass rollax.{call.format(name=kind.__name__, more=more)}. "
                "docs/own/network.md describes the outputs that the module must return."
            )
    return None


def resolve_options(options: object, **overrides: object) -> RunOptions:
    """Return run options with overrides applied.

    Args:
        options: Options, a dictionary of options, or None for the defaults.
        **overrides: New values, keyed by option name. None leaves an option unchanged.

    Raises:
        UsageError: If a name is unknown or a value cannot be converted.
    """
    resolved = (
        options
        if isinstance(options, RunOptions)
        else resolve_settings("options", RunOptions, {}, options)
    )
    changes: dict[str, Any] = {
        name: value for name, value in overrides.items() if value is not None
    }
    return dataclasses.replace(resolved, **changes)


def check_display(display: object) -> None:
    """Check that the argument `show` is None or has the methods of a display.

    Raises:
        UsageError: If a method is missing.
    """
    methods = ("message", "status", "progress", "close")
    missing = (
        []
        if display is None
        else [name for name in methods if not callable(getattr(display, name, None))]
    )
    if missing:
        raise UsageError(
            f"show must be a display or None, got {format_value(display)}. Add the method "
            f"{missing[0]}."
        )


def describe_passed_arguments(**values: object) -> str:
    """Return a line of text with the names of the arguments that are not None.

    Distributed processes compare these lines to check that all of them received the same
    arguments. Only names are compared, because functions and objects have no text form.
    """
    return f"given: {[name for name, value in values.items() if value is not None]}\n"


def validate_count(name: str, value: object) -> int:
    """Convert a value to an int between 1 and 2^31 - 1.

    Args:
        name: Name of the value in error messages.
        value: Value to convert.

    Raises:
        UsageError: If the value is not an integer from 1 to 2^31 - 1.
    """
    number = coerce(name, value, int)
    if not 1 <= number <= MAX_INT32:
        raise UsageError(f"{name} must be between 1 and {MAX_INT32}, got {format_value(number)}.")
    return number


def validate_random_key(value: object) -> jax.Array:
    """Return a random key as a new-style typed key.

    Args:
        value: Typed key, or old-style key (uint32, [2]).

    Returns:
        Typed key of shape [].

    Raises:
        UsageError: If the value is not a single key.
    """
    if (
        isinstance(value, jax.Array)
        and jnp.issubdtype(value.dtype, jax.dtypes.prng_key)
        and value.shape == ()
    ):
        return value
    if isinstance(value, jax.Array) and value.dtype == jnp.uint32 and value.shape == (2,):
        return jax.random.wrap_key_data(value)
    raise UsageError(
        f"key must be one key, got {format_value(value)}. Pass jax.random.key(0), for example."
    )
