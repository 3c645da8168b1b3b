"""What is passed to `train` and to `Policy.evaluate`, as what is meant by it."""

import dataclasses
import functools
import inspect
import itertools
import multiprocessing
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp

from rollax.algorithms import list_algorithms
from rollax.config import LARGEST_INT
from rollax.environments import list_environments
from rollax.environments.suites.table import SUITES
from rollax.errors import UnknownNameError, UsageError
from rollax.host.options import RunOptions
from rollax.host.settings import settings_of
from rollax.typed import shown, typed

P = ParamSpec("P")
R = TypeVar("R")

_SUITES = {"mujoco_playground": "playground"}  # by the name that is imported, where it is another
_WRAPPED = ("brax", "gymnax", "jumanji", "pgx", "playground")  # there is a `rollax.from_...` for their objects


def checking_keywords(**more: type) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """For a function that begins runs, with keywords for groups of settings: for a keyword that it does not take it raises
    UsageError, which says to which group such a setting belongs, or what it is like. `more`: groups that runs do not have."""

    def decorated(function: Callable[P, R]) -> Callable[P, R]:
        parameters = inspect.signature(function).parameters

        @functools.wraps(function)
        def checked(*arguments: P.args, **keywords: P.kwargs) -> R:
            unknown = [name for name in keywords if name not in parameters]
            if unknown:
                raise _unknown(unknown[0], list(parameters), more)
            return function(*arguments, **keywords)

        return checked

    return decorated


def _unknown(name: str, known: list[str], more: Mapping[str, type]) -> UsageError:
    """The error for a keyword that is not among the known ones."""
    entries = list_algorithms().values()
    kinds = {group: [kind] for group, kind in more.items()} | {
        "options": [RunOptions],
        "config": [entry.config for entry in entries],
        "network": [entry.network_config for entry in entries],
    }
    settings = {group: [field.name for kind in each for field in dataclasses.fields(kind)] for group, each in kinds.items()}
    for group, names in settings.items():
        if name in names:
            return UsageError(f"unknown keyword {name!r}: it is a setting of {group}: pass {group}={{{name!r}: ...}}")
    return UnknownNameError("keyword", name, dict.fromkeys([*known, *itertools.chain(*settings.values())]))


def check_is_no_worker() -> None:
    """Raises UsageError in a process of simulators that is being started: there `multiprocessing` runs the script again."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise UsageError(
            "worker processes (env_workers) import the script that trains, and would train as well: put what it does under "
            '`if __name__ == "__main__":`'
        )


def own_environment(environment: Any) -> Any:
    """The environment that was passed, None where it is an id. Raises UsageError for what can be neither."""
    if isinstance(environment, str):
        return None
    if isinstance(environment, type):
        raise UsageError(f"environment is the class {environment.__name__}: pass one of it, such as {environment.__name__}()")
    raw = environment[0] if isinstance(environment, tuple) and environment else environment
    roots = [kind.__module__.split(".")[0] for kind in type(raw).__mro__]
    suite = next((_SUITES.get(root, root) for root in roots if _is_package(_SUITES.get(root, root))), "")
    if any(root in ("gym", "gymnasium") for root in roots):
        raise UsageError(
            "environment is one of gymnasium, of which as many are needed as run side by side: pass "
            "rollax.from_gymnasium(environment), or a function that makes it"
        )
    if suite:
        raise UsageError(f"environment is one of {suite} itself, without rollax's contract: {_instead(suite, raw)}")
    if not callable(getattr(environment, "reset", None)) or not callable(getattr(environment, "step", None)):
        raise UsageError(
            f"environment ({shown(environment)}) must be an id such as 'gymnax/CartPole-v1', or an environment with the "
            "contract of rollax.Environment"
        )
    check_name(getattr(environment, "name", None))
    return environment


def _is_package(suite: str) -> bool:
    """Whether a suite is another package's: modules of a user's own may be called as those of rollax, such as `memory`."""
    return suite in SUITES and SUITES[suite].extra is not None


def _instead(suite: str, raw: Any) -> str:
    """What to pass in place of a suite's own environment."""
    id = f"{suite}/{getattr(raw, 'name', None)}"
    known = id in list_environments()
    if suite in _WRAPPED:
        own = f"rollax.from_{suite}(environment{', params' if suite == 'gymnax' else ''})"
        return f"pass its id {id!r}, or {own}" if known else f"pass {own}, or an id of rollax.list_environments({suite!r})"
    if known:
        return f"pass its id {id!r}, with arguments={{...}} for its parameters"
    return f"pass an id of rollax.list_environments({suite!r}), or wrap it as in examples/own_environment.py"


def check_name(name: Any) -> None:
    """Raises UsageError for the name of an environment that no folder could have."""
    wanted = 'it must be a text such as "mine/Name"'
    if not isinstance(name, str) or not name.strip() or len(name) > 100 or not name.isprintable():
        raise UsageError(f"the name of the environment is {shown(name)}: {wanted}, printable and of 100 letters at most")
    if name.startswith(("/", "~")) or any(part in ("", ".", "..") for part in name.split("/")) or "\\" in name:
        raise UsageError(f"the name of the environment is {shown(name)}, which names another folder: {wanted}")


def is_network(network: Any) -> bool:
    """Whether it is a function that makes a network. Raises UsageError for a network in its place."""
    if network is None or isinstance(network, Mapping) or dataclasses.is_dataclass(network):
        if dataclasses.is_dataclass(network) and hasattr(network, "unroll"):
            raise UsageError("network is a network: pass the function that makes one from a key, such as lambda key: ...")
        return False
    if not callable(network):
        raise UsageError(
            f"network ({shown(network)}) must be settings, a dictionary of them, or a function from a key to a network"
        )
    return True


def options(given: Any, **over: Any) -> RunOptions:
    """The options of a run with those that are not None over them."""
    if given is not None and not isinstance(given, RunOptions):
        given = settings_of("options", RunOptions, {}, given)
    return dataclasses.replace(given or RunOptions(), **{name: value for name, value in over.items() if value is not None})


def check_functions(**values: Any) -> None:
    """Raises UsageError, with its name, for what is neither a function nor None."""
    for name, value in values.items():
        if value is not None and not callable(value):
            raise UsageError(f"{name} ({shown(value)}) must be a function, or None")


def which(**values: Any) -> str:
    """The names of those that are not None, for what has to be alike in several processes and has no text of its own."""
    return f"given: {[name for name, value in values.items() if value is not None]}\n"


def count(name: str, value: Any) -> int:
    """A whole number of at least 1. Raises UsageError for any other."""
    number = typed(name, value, int)
    if not 1 <= number <= LARGEST_INT:
        raise UsageError(f"{name} ({shown(number)}) must be between 1 and {LARGEST_INT}")
    return number


def random_key(value: Any) -> jax.Array:
    """A key of `jax.random`, old keys as new ones. Raises UsageError for anything else."""
    if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key) and value.shape == ():
        return value
    if isinstance(value, jax.Array) and value.dtype == jnp.uint32 and value.shape == (2,):
        return jax.random.wrap_key_data(value)
    raise UsageError(f"key ({shown(value)}) must be one key: try jax.random.key(0)")
