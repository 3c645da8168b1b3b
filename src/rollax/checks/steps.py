"""What the programs of a reset and a step show, before they run: structure, shapes, types, and side effects in Python."""

import inspect
import pickle
import random
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np

from rollax.checks import play
from rollax.checks.faults import attempt, failure, short, type_of, unlike
from rollax.checks.members import leaf_faults
from rollax.environments.core import Environment, Transition, descriptor_space
from rollax.environments.once import once
from rollax.spaces import Dict, Space

_PLAIN = (bool, int, float, complex, str, bytes, list, tuple, dict, set, np.ndarray, np.random.Generator, random.Random)
_FROM_THE_KEY = "draw randomness from the key only (not from numpy.random or random), and keep nothing on the environment"
_TRACED = "To trace it, use jnp.where, lax.cond or lax.while_loop instead of if and while on arrays, and jnp instead of numpy."


class _Programs(NamedTuple):
    """What a reset and a step trace to."""

    reset: Any
    step: Any
    faults: list[str]


def step_faults(env: Environment, is_tested: bool = False) -> list[str]:
    """Faults in a reset and a step, each traced twice, and in many together. Nothing is compiled or run.

    `is_tested`: it is known to have no side effects and to work in many together; it is traced once, for all programs.
    """
    if is_tested:
        return _traced(env, once).faults
    first = _traced(env)
    if first.faults:
        return first.faults
    before = _python_state(env)
    second = _traced(env)
    after = _python_state(env)
    changed = [name for name in before if before[name] != after.get(name, before[name])]
    faults = second.faults + [
        f"reset or step changes {name}: a compiled program has such a side effect once, when it is traced; keep in the state "
        "what changes, and draw randomness from the key."
        for name in changed
    ]
    for what, given, one, other in (
        ("reset", "its key", first.reset, second.reset),
        ("step", "its arguments", first.step, second.step),
    ):
        if not faults and _is_other(one, other):
            faults.append(f"{what} is not a function of {given}: traced twice, it gives two programs; {_FROM_THE_KEY}.")
    return faults or _vmapped_faults(env)


def _traced(env: Environment, method: Callable[[Any, str], Callable[..., Any]] = getattr) -> _Programs:
    """The programs of one reset and one step, with the faults that are seen in their values while they are traced."""
    key = jax.eval_shape(lambda: jax.random.key(0))
    faults: list[str] = []

    def reset(key: jax.Array) -> Any:
        start = method(env, "reset")(key)
        faults.extend(_start_faults(env, start, "reset"))
        are_numbers = all(isinstance(leaf, jax.Array | np.ndarray | np.generic | float) for leaf in jax.tree.leaves(start))
        return start if isinstance(start, tuple) and len(start) == 2 and are_numbers else ()

    def step(keys: Any, state: Any, obs: Any) -> Any:
        after = method(env, "step")(keys[1], state, play.random_action(env, keys[0], obs))
        faults.extend(_transition_faults(env, state, after))
        return () if faults else after

    reset_program, start = _attempt_trace(faults, "reset(key)", jax.make_jaxpr(reset, return_shape=True), key) or (None, ())
    if start == ():
        return _Programs(None, None, faults)
    raised: list[str] = []
    step_program = _attempt_trace(raised, "step(key, state, action)", jax.make_jaxpr(step), (key, key), *start)
    if not (faults or raised):
        attempt(faults, "sample_task and reset_task", lambda: faults.extend(_task_faults(env, key, start)))
    # What raises may follow from a fault that is known.
    return _Programs(reset_program, step_program, faults or raised)


def _attempt_trace(faults: list[str], what: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """As `attempt`, with a remedy for what cannot be traced."""
    try:
        return function(*arguments)
    except Exception as error:  # a user's code may raise anything
        is_of_jax = isinstance(error, jax.errors.JAXTypeError | jax.errors.JAXIndexError)
        faults.append(failure(f"tracing {what}" if is_of_jax else what, error, _TRACED if is_of_jax else ""))
        return None


def _start_faults(env: Environment, start: Any, what: str) -> list[str]:
    if not (isinstance(start, tuple) and len(start) == 2):
        return [f"{what} returns {type(start).__name__}: it must return the tuple (state, obs)."]
    return _value_faults(env, *start, f"after {what}")


def _transition_faults(env: Environment, state: Any, after: Any) -> list[str]:
    if not isinstance(after, Transition):
        return [f"step returns {type(after).__name__}: it must return rollax.environments.Transition."]
    faults = _value_faults(env, after.state, after.obs, "after step")
    # States with leaves that are no arrays have no types to compare.
    faults = faults or _same_types(state, after.state, "state")
    faults += _signal_faults(after, env.num_agents)
    if not faults:
        attempt(faults, "descriptor(state)", lambda: faults.extend(_descriptor_faults(env, after.state)))
    return faults


def _value_faults(env: Environment, state: Any, obs: Any, when: str) -> list[str]:
    """Faults in a state and an observation: leaves that are no arrays, and other shapes or types than the space has."""
    faults: list[str] = []
    attempt(faults, f"reading the state {when}", lambda: faults.extend(leaf_faults(state, f"{when}, state")))
    attempt(faults, f"reading obs {when}", lambda: faults.extend(leaf_faults(obs, f"{when}, obs")))
    return faults + fit_faults(obs, env.observation_space, env.num_agents, f"{when}, obs")


def _is_other(one: Any, other: Any) -> bool:
    """Whether two closed jaxprs differ, in their operations or in their constants."""
    texts = [re.sub("0x[0-9a-f]+", "", str(program)) for program in (one, other)]
    return texts[0] != texts[1] or bool(unlike(one.consts, other.consts, 0.0))


def fit_faults(value: Any, space: Space, num_agents: int | None, what: str) -> list[str]:
    """Faults in the structure, shapes and types of a value of `space`."""
    if isinstance(space, Dict):
        if not isinstance(value, dict) or set(value) != set(space.spaces):
            found = list(value) if isinstance(value, dict) else type(value).__name__
            return [f"{what} is {found}: the space wants a dictionary of {sorted(space.spaces)}."]
        return [f for name, part in space.items for f in fit_faults(value[name], part, num_agents, f"{what}['{name}']")]
    shape = space.shape if num_agents is None else (num_agents, *space.shape)
    agents = "" if num_agents is None else f" for each of {num_agents} agents"
    wanted = f"the space says {space.dtype}{list(space.shape)}{agents}; change either to match."
    if not isinstance(value, jax.Array | np.ndarray | np.generic):
        is_told = jax.tree.structure(value) == jax.tree.structure(0)  # by leaf_faults
        return [] if is_told else [f"{what} is {type(value).__name__}: {wanted}"]
    if value.shape == shape and value.dtype.name == space.dtype:
        return []
    return [f"{what} is {type_of(value)}: {wanted}"]


def _same_types(before: Any, after: Any, what: str) -> list[str]:
    """Faults where a scan could not carry `after` in the place of `before`."""
    old = {jax.tree_util.keystr(p): x for p, x in jax.tree_util.tree_leaves_with_path(before)}
    new = {jax.tree_util.keystr(p): x for p, x in jax.tree_util.tree_leaves_with_path(after)}
    if jax.tree.structure(before) != jax.tree.structure(after):
        changed = sorted(set(old) ^ set(new)) or ["the types of its nodes"]
        return [
            f"{what} changes its structure between reset and step ({', '.join(changed)}): a scan cannot carry it; give it the "
            "same entries in both."
        ]
    return [
        f"{what}{path} is {type_of(old[path])} after reset and {type_of(new[path])} after step: a scan cannot carry it; "
        f"give it one shape and type in both, for example with .astype."
        for path in old
        if type_of(old[path]) != type_of(new[path])
    ]


def _signal_faults(after: Transition, num_agents: int | None) -> list[str]:
    """Faults in reward, ends and info."""
    faults = []
    shape = () if num_agents is None else (num_agents,)
    for name, dtype in (("reward", "float32"), ("terminated", "bool"), ("truncated", "bool")):
        value = after._asdict()[name]
        if isinstance(value, jax.Array) and value.shape == shape and value.dtype.name == dtype:
            continue
        found = type_of(value) if isinstance(value, jax.Array) else short(value)
        faults.append(f"{name} is {found}: it must be an array {dtype}{list(shape)}, as jnp.asarray(..., jnp.{dtype}) makes.")
    if not isinstance(after.info, dict):
        return [*faults, f"info is {type(after.info).__name__}: it must be a dictionary of arrays, {{}} if there is none."]
    if not all(isinstance(name, str) and name for name in after.info):
        return [
            *faults,
            f"info has the keys {list(after.info)}: they must be texts, as evaluations name numbers by them.",
        ]
    for path, leaf in jax.tree_util.tree_leaves_with_path(after.info):
        if not isinstance(leaf, jax.Array | np.ndarray) or leaf.dtype.kind not in "biuf":
            shown = f"info{jax.tree_util.keystr(path)} is {short(leaf)}"
            faults.append(f"{shown}: it must be an array of numbers; leave out what is not a number.")
    return faults


def _descriptor_faults(env: Any, state: Any) -> list[str]:
    """Faults in the descriptor of a state, where the environment describes any."""
    space = descriptor_space(env)
    return [] if space is None else fit_faults(env.descriptor(state), space, None, "descriptor(state)")


def _task_faults(env: Any, key: Any, start: Any) -> list[str]:
    """Faults in the start of an episode of a given task, where every copy keeps its own. `start`: of what reset gives."""
    if not getattr(env, "keeps_task", False):
        return []
    faults: list[str] = []

    def begin(task_key: jax.Array, start_key: jax.Array) -> Any:
        found = env.reset_task(start_key, env.sample_task(task_key))
        faults.extend(_start_faults(env, found, "reset_task"))
        return () if faults else found

    found = jax.eval_shape(begin, key, key)
    other = [] if faults else _same_types(start, found, "(state, obs)")
    return faults + [fault.replace("after step", "after reset_task").replace("and step", "and reset_task") for fault in other]


def _python_state(env: Any) -> dict[str, Any]:
    """What Python code may change, by name: random numbers, attributes of the environment, variables that its methods use."""
    found: dict[str, Any] = {"numpy.random's state": pickle.dumps(np.random.get_state()), "random's state": random.getstate()}
    parts, place = [("the environment", env)], 0
    while place < len(parts):
        label, part = parts[place]
        place += 1
        values = {**vars(type(part)), **getattr(part, "__dict__", {})}
        parts += [(f"{label}.{name}", value) for name, value in values.items() if isinstance(value, eqx.Module)]
        found |= {f"{label}.{name}": _snapshot(value) for name, value in values.items() if not name.startswith("__")}
    for function in (env.reset, env.step):
        try:
            used = inspect.getclosurevars(getattr(function, "__func__", function))
        except (TypeError, ValueError):  # no Python function
            continue
        found |= {f"the variable {name}": _snapshot(value) for name, value in {**used.nonlocals, **used.globals}.items()}
    return found


def _snapshot(value: Any) -> Any:
    """Something that is equal for plain values that are, and for the same object otherwise."""
    if not isinstance(value, _PLAIN):
        return id(value)
    try:
        return pickle.dumps(value)
    except Exception:  # it holds something that cannot be pickled, such as what is being traced
        return id(value), repr(value)


def _vmapped_faults(env: Environment) -> list[str]:
    """Faults that appear when many copies are traced together."""
    faults: list[str] = []

    def before_and_after(key: jax.Array) -> tuple[Any, Any]:
        reset_key, step_key, action_key = jax.random.split(key, 3)
        state, obs = env.reset(reset_key)
        return state, env.step(step_key, state, play.random_action(env, action_key, obs)).state

    keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), 2))
    traced = attempt(faults, "vmapping reset and step", lambda: jax.eval_shape(jax.vmap(before_and_after), keys), _TRACED)
    return faults if traced is None else _same_types(traced[0], traced[1], "state of two copies")
