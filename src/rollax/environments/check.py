"""Checks that an environment keeps the contract, and says for every fault what is wrong and how to mend it."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rollax.environments import check_play
from rollax.environments.core import EXTRACTIONS, Environment, Transition, agent_types, descriptor_space
from rollax.errors import UsageError
from rollax.spaces import Box, Dict, Discrete, MultiDiscrete, Space, zeros

_ABSENT = object()


class FaultyEnvironmentError(UsageError):
    """An environment breaks its contract. `faults` lists how; the message numbers them."""

    def __init__(self, name: str, faults: list[str]) -> None:
        lines = [f"{i}. {fault}" for i, fault in enumerate(faults, start=1)]
        ways = "1 way" if len(faults) == 1 else f"{len(faults)} ways"
        ValueError.__init__(self, "\n".join([f"{name} breaks the contract of environments in {ways}:", *lines]))
        self.faults = faults


class Report(NamedTuple):
    """What a passed check saw."""

    name: str
    steps: int  # taken in all
    episodes: int  # ended
    notes: tuple[str, ...]  # allowed, but perhaps not meant

    def __str__(self) -> str:
        head = f"{self.name} keeps the contract ({self.steps} random steps, {self.episodes} episodes ended)."
        return "\n".join([head, *(f"- {note}" for note in self.notes)])


def check_environment(env: Environment, steps: int = 200, key: jax.Array | None = None) -> Report:
    """Acts at random, `steps` steps in each of 4 copies, and compares everything with the contract.

    Raises: FaultyEnvironmentError, one error that lists every fault found.
    """
    name = str(getattr(env, "name", type(env).__name__))
    # Drawing twice from one key, to see whether the draws agree, is meant here.
    with jax.debug_key_reuse(False):
        return _check(env, name, steps, jax.random.key(0) if key is None else key)


def check_in_short(env: Environment) -> None:
    """What can be seen without running anything, in well under a second: members, and the shapes of a reset and a step.

    Of rollax's own environments only the members are looked at. Values, ends and parameters are for `check_environment`.

    Raises: FaultyEnvironmentError, one error that lists every fault found.
    """
    name = str(getattr(env, "name", type(env).__name__))
    _stop_at(name, _members(env))
    if type(env).__module__.startswith("rollax."):
        return
    faults = _action_mask_space(env)
    _stop_at(name, faults)
    with jax.debug_key_reuse(False):
        key = jax.random.key(0)
        for what, look in (
            ("a reset and a step", lambda: _shapes(_traced(env), key, _no_action(env))),
            ("vmapping", lambda: _traced_faults(env, key)),
            ("tracing twice", lambda: _side_effects(env, key)),
        ):
            faults += _attempt(faults, what, look) or []
            _stop_at(name, faults)


def _traced(env: Any) -> Any:
    """The environment with a reset and a step that are followed by shapes alone and give zeros."""
    described = ("descriptor_space", "descriptor_extraction", "descriptor") if descriptor_space(env) is not None else ()
    members = {name: getattr(env, name) for name in ("name", "observation_space", "action_space", "num_agents", *described)}

    def traced(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *arguments: jax.tree.map(_zeros, jax.eval_shape(function, *arguments))

    return SimpleNamespace(**members, reset=traced(env.reset), step=traced(env.step))


def _zeros(leaf: Any) -> jax.Array:
    """An array of that shape and type, weakly typed where that is."""
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return jnp.broadcast_to(jax.random.key(0), leaf.shape)
    return jnp.broadcast_to(jnp.asarray(leaf.dtype.type(0).item()), leaf.shape) if leaf.weak_type else jnp.zeros_like(leaf)


def _no_action(env: Environment) -> Any:
    """An action of zeros, of all agents."""
    action, agents = zeros(env.action_space), () if env.num_agents is None else (env.num_agents,)
    return jax.tree.map(lambda x: jnp.broadcast_to(x, (*agents, *x.shape)), action)


def _side_effects(env: Environment, key: jax.Array) -> list[str]:
    """Faults where tracing a function twice gives two programs."""
    start, faults = jax.eval_shape(env.reset, key), []
    remedy = "draw randomness from the key only (not from numpy.random or random), and keep nothing on the environment"
    for name, function, given in (("reset", env.reset, (key,)), ("step", env.step, (key, start[0], _no_action(env)))):
        once, again = (jax.make_jaxpr(lambda *x, f=function: f(*x))(*given) for _ in range(2))
        same = str(once.jaxpr) == str(again.jaxpr)
        if not same or any(not np.array_equal(_data(x), _data(y)) for x, y in zip(once.consts, again.consts, strict=True)):
            faults.append(f"{name} is another program each time it is traced: {remedy}.")
    return faults


def _data(x: Any) -> np.ndarray:
    return np.asarray(jax.random.key_data(x) if jnp.issubdtype(jnp.result_type(x), jax.dtypes.prng_key) else x)


def _check(env: Environment, name: str, steps: int, key: jax.Array) -> Report:
    shape_key, eager_key, rollout_key, starts_key = jax.random.split(key, 4)
    faults = _members(env)
    _stop_at(name, faults)
    faults += _leaves(env, "the environment")
    faults += _action_mask_space(env)
    faults += _shapes(env, shape_key)
    # A program that does not trace, or whose state changes its type, cannot be run further.
    _stop_at(name, faults)
    faults += check_play.same_twice(env, eager_key)
    visits = _attempt(faults, "acting in a vmapped scan", lambda: check_play.rollout(env, rollout_key, steps))
    if visits is None:
        raise FaultyEnvironmentError(name, faults)
    starts = jax.jit(jax.vmap(env.reset))(jax.random.split(starts_key, 8))
    faults += check_play.compiled_as_alone(env, visits)
    faults += check_play.values(env, visits, starts)
    faults += check_play.ends(env, visits, starts)
    _stop_at(name, faults)
    return Report(name, steps * check_play.COPIES, int(jnp.sum(visits.ended)), check_play.notes(visits, starts, steps))


def _stop_at(name: str, faults: list[str]) -> None:
    if faults:
        raise FaultyEnvironmentError(name, faults)


def _attempt(faults: list[str], what: str, function: Callable[[], Any]) -> Any:
    """The function's result, or None and one fault more."""
    try:
        return function()
    except Exception as error:  # a user's code may raise anything
        text = str(error).strip().split("\n")[0]
        faults.append(f"{what} fails with {type(error).__name__}: {text}")
        return None


# --- What can be seen without running --------------------------------------------------------------------------------


def _members(env: Any) -> list[str]:
    """Faults in the members themselves."""
    wanted = {
        "name": (lambda x: isinstance(x, str), 'a text such as "mine/Name"'),
        "observation_space": (
            lambda x: isinstance(x, Space),
            "a space of rollax.spaces: Box, Discrete, Grid, Dict, ...",
        ),
        "action_space": (lambda x: isinstance(x, Space), "a rollax.spaces Ball, Box, Discrete or MultiDiscrete"),
        "num_agents": (_is_count_or_none, "None (no axis of agents) or a whole number of agents"),
        "time_limit": (_is_count_or_none, "the most steps an episode can have, or None when that is not known"),
        "reset": (callable, "a method reset(key) -> (state, obs)"),
        "step": (callable, "a method step(key, state, action) -> Transition"),
    }
    faults = []
    for name, (is_right, meant) in wanted.items():
        value = getattr(env, name, _ABSENT)
        if value is _ABSENT:
            faults.append(f"{name} is missing: add {meant}.")
        elif not is_right(value):
            faults.append(f"{name} is {value!r} ({type(value).__module__}.{type(value).__name__}): it must be {meant}.")
    return faults or _agent_types(env)


def _agent_types(env: Environment) -> list[str]:
    """Faults in the kinds of agents."""
    kinds = agent_types(env)
    if isinstance(kinds, tuple) and len(kinds) == (env.num_agents or 0) and all(isinstance(kind, str) for kind in kinds):
        return []
    return [f"agent_types is {kinds!r}: it must be a tuple of {env.num_agents} names, or left out where all are of one kind."]


def _is_count_or_none(value: Any) -> bool:
    return value is None or (isinstance(value, int) and not isinstance(value, bool) and 1 <= value < 2**31)


def _leaves(value: Any, what: str) -> list[str]:
    """Faults in the leaves of a tree: what is no array, and arrays whose type is not definite."""
    faults = []
    for path, leaf in jax.tree_util.tree_leaves_with_path(value):
        name = what + jax.tree_util.keystr(path)
        if isinstance(leaf, bool | int | float):
            typed = {bool: "jnp.bool_", int: "jnp.int32", float: "jnp.float32"}[type(leaf)]
            static = ", or mark it static" if what == "the environment" else ""
            faults.append(f"{name} is the Python number {leaf}: make it jnp.asarray({leaf}, {typed}){static}.")
        elif isinstance(leaf, jax.Array) and not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) and leaf.weak_type:
            remedy = f"name its type where it is made, for example jnp.asarray(..., jnp.{leaf.dtype.name})"
            faults.append(f"{name} is weakly typed, so its type may change and the program compile again: {remedy}.")
        elif not isinstance(leaf, jax.Array | np.ndarray | np.generic):
            faults.append(f"{name} is {leaf!r} ({type(leaf).__name__}): leaves must be arrays; mark what is not as static.")
    return faults


def _action_mask_space(env: Environment) -> list[str]:
    """Faults in the space of "action_mask"."""
    space, actions = env.observation_space, env.action_space
    if not isinstance(space, Dict) or "action_mask" not in space.spaces:
        return []
    mask = space.spaces["action_mask"]
    if isinstance(actions, Discrete):
        wanted = (actions.n,)
    elif isinstance(actions, MultiDiscrete):
        wanted = (len(actions.sizes), max(actions.sizes))
    elif isinstance(actions, Box):
        wanted = actions.shape
    else:
        return [f'observations have an "action_mask" but {actions} cannot be masked: rename that part or change the actions.']
    if isinstance(mask, Box) and mask.shape == wanted and mask.dtype == "bool":
        return []
    return [f'the space of "action_mask" is {mask}: for {actions} it must be Box(0, 1, {wanted}, "bool").']


# --- One reset and one step ------------------------------------------------------------------------------------------


def _shapes(env: Environment, key: jax.Array, action: Any = None) -> list[str]:
    """Faults in what one reset and one step give, with that action, by default one at random."""
    reset_key, step_key, action_key = jax.random.split(key, 3)
    faults: list[str] = []
    start = _attempt(faults, "reset(key)", lambda: env.reset(reset_key))
    if start is None:
        return faults or ["reset returns None: it must return (state, obs)."]
    if not (isinstance(start, tuple) and len(start) == 2):
        return [f"reset returns {type(start).__name__}: it must return the tuple (state, obs)."]
    state, obs = start
    faults += _leaves(state, "after reset, state") + _leaves(obs, "after reset, obs")
    faults += _fits(obs, env.observation_space, env.num_agents, "after reset, obs")
    if action is None:
        action = _attempt(faults, "sampling an action", lambda: check_play.random_action(env, action_key, obs))
    if action is None:
        return faults
    after = _attempt(faults, "step(key, state, action)", lambda: env.step(step_key, state, action))
    if not isinstance(after, Transition):
        wrong = f"step returns {type(after).__name__}: it must return rollax.environments.Transition."
        return faults if after is None and faults else [*faults, wrong]
    faults += _leaves(after.state, "after step, state") + _leaves(after.obs, "after step, obs")
    faults += _fits(after.obs, env.observation_space, env.num_agents, "after step, obs")
    faults += _same_types(state, after.state, "state")
    faults += _signals(after, env.num_agents) + _described(env, after.state)
    for name, call in (("reset", lambda: env.reset(reset_key)), ("step", lambda: env.step(step_key, state, action))):
        remedy = f"tracing {name} (use jnp.where, lax.cond or lax.while_loop instead of if and while on arrays)"
        _attempt(faults, remedy, lambda call=call: jax.eval_shape(call))
    return faults or _traced_faults(env, step_key)


def _described(env: Any, state: Any) -> list[str]:
    """Faults in the descriptor of a state, where the environment describes any."""
    space, faults = descriptor_space(env), []
    if space is None:
        return faults
    if env.descriptor_extraction not in EXTRACTIONS:
        faults.append(f"descriptor_extraction is {env.descriptor_extraction!r}: it must be one of {', '.join(EXTRACTIONS)}.")
    descriptor = _attempt(faults, "descriptor(state)", lambda: jax.jit(lambda state: env.descriptor(state))(state))
    return faults if descriptor is None else faults + _fits(descriptor, space, None, "descriptor(state)")


def _traced_faults(env: Environment, key: jax.Array) -> list[str]:
    """Faults that appear when many copies are traced together: shapes and types are followed without running anything."""
    faults: list[str] = []

    def before_and_after(key: jax.Array) -> tuple[Any, Any]:
        reset_key, step_key, action_key = jax.random.split(key, 3)
        state, obs = env.reset(reset_key)
        return state, env.step(step_key, state, check_play.random_action(env, action_key, obs)).state

    keys = jax.random.split(key, 2)
    traced = _attempt(faults, "vmapping reset and step", lambda: jax.eval_shape(jax.vmap(before_and_after), keys))
    if traced is not None:
        faults += _same_types(traced[0], traced[1], "state of two copies")
    return faults


def _fits(value: Any, space: Space, num_agents: int | None, what: str) -> list[str]:
    """Faults in the structure, shapes and types of a value of `space`."""
    if isinstance(space, Dict):
        if not isinstance(value, dict) or set(value) != set(space.spaces):
            found = sorted(value) if isinstance(value, dict) else type(value).__name__
            return [f"{what} is {found}: the space wants a dictionary of {sorted(space.spaces)}."]
        return [f for name, part in space.items for f in _fits(value[name], part, num_agents, f"{what}['{name}']")]
    if value is None or isinstance(value, dict | list | tuple):
        return [f"{what} is {type(value).__name__}: the space says one array {space.dtype}{list(space.shape)}."]
    if not isinstance(value, jax.Array | np.ndarray | np.generic):
        return []  # said by _leaves
    shape = space.shape if num_agents is None else (num_agents, *space.shape)
    if value.shape == shape and value.dtype.name == space.dtype:
        return []
    agents = "" if num_agents is None else f" for each of {num_agents} agents"
    found = f"{value.dtype.name}{list(value.shape)}"
    return [f"{what} is {found}: the space says {space.dtype}{list(space.shape)}{agents}; change either to match."]


def _same_types(before: Any, after: Any, what: str) -> list[str]:
    """Faults where a scan could not carry `after` in the place of `before`."""
    old = {jax.tree_util.keystr(p): x for p, x in jax.tree_util.tree_leaves_with_path(before)}
    new = {jax.tree_util.keystr(p): x for p, x in jax.tree_util.tree_leaves_with_path(after)}
    if jax.tree.structure(before) != jax.tree.structure(after):
        changed = sorted(set(old) ^ set(new)) or ["the types of its nodes"]
        return [f"{what} changes its structure between reset and step ({', '.join(changed)}): a scan cannot carry it."]
    return [
        f"{what}{path} is {_type_of(old[path])} after reset and {_type_of(new[path])} after step: a scan cannot carry it; "
        f"give it one shape and type in both, for example with .astype."
        for path in old
        if _type_of(old[path]) != _type_of(new[path])
    ]


def _type_of(leaf: Any) -> str:
    return f"{jnp.result_type(leaf)}{list(jnp.shape(leaf))}"


def _signals(after: Transition, num_agents: int | None) -> list[str]:
    """Faults in reward, ends and info."""
    faults = []
    shape = () if num_agents is None else (num_agents,)
    for name, dtype in (("reward", "float32"), ("terminated", "bool"), ("truncated", "bool")):
        value = after._asdict()[name]
        if isinstance(value, jax.Array) and value.shape == shape and value.dtype.name == dtype:
            continue
        found = _type_of(value) if isinstance(value, jax.Array) else f"{value!r} ({type(value).__name__})"
        faults.append(f"{name} is {found}: it must be an array {dtype}{list(shape)}, as jnp.asarray(..., jnp.{dtype}) makes.")
    if not isinstance(after.info, dict):
        return [*faults, f"info is {type(after.info).__name__}: it must be a dictionary of arrays, {{}} if there is none."]
    for path, leaf in jax.tree_util.tree_leaves_with_path(after.info):
        if not isinstance(leaf, jax.Array | np.ndarray):
            shown = f"info{jax.tree_util.keystr(path)} is {leaf!r} ({type(leaf).__name__})"
            faults.append(f"{shown}: it must be an array; leave out what is not a number.")
    return faults
