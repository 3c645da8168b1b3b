"""Checks that an environment keeps the contract, and says for every fault what is wrong and how to mend it."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rollax import tree
from rollax.environments.core import EXTRACTIONS, Environment, Transition, descriptor_space
from rollax.errors import UsageError
from rollax.spaces import Box, Dict, Discrete, MultiDiscrete, Space

_COPIES = 4  # environments acted in side by side
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


class Visit(NamedTuple):
    """One random step and what it came from; in a rollout every leaf leads with `[E, T]`."""

    key: jax.Array
    state: Any
    obs: Any
    action: Any
    transition: Transition
    ended: jax.Array


def check_environment(env: Environment, steps: int = 200, key: jax.Array | None = None) -> Report:
    """Acts at random, `steps` steps in each of 4 copies, and compares everything with the contract.

    Raises: FaultyEnvironmentError, one error that lists every fault found.
    """
    name = str(getattr(env, "name", type(env).__name__))
    # Drawing twice from one key, to see whether the draws agree, is meant here.
    with jax.debug_key_reuse(False):
        return _check(env, name, steps, jax.random.key(0) if key is None else key)


def _check(env: Environment, name: str, steps: int, key: jax.Array) -> Report:
    shape_key, eager_key, rollout_key, starts_key = jax.random.split(key, 4)
    faults = _members(env)
    _stop_at(name, faults)
    faults += _leaves(env, "the environment")
    faults += _action_mask_space(env)
    faults += _shapes(env, shape_key)
    # A program that does not trace, or whose state changes its type, cannot be run further.
    _stop_at(name, faults)
    faults += _same_twice(env, eager_key)
    visits = _attempt(faults, "acting in a vmapped scan", lambda: _rollout(env, rollout_key, steps))
    if visits is None:
        raise FaultyEnvironmentError(name, faults)
    starts = jax.jit(jax.vmap(env.reset))(jax.random.split(starts_key, 8))
    faults += _compiled_as_alone(env, visits)
    faults += _values(env, visits, starts)
    faults += _ends(env, visits, starts)
    _stop_at(name, faults)
    return Report(name, steps * _COPIES, int(jnp.sum(visits.ended)), _notes(visits, starts, steps))


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
    return faults


def _is_count_or_none(value: Any) -> bool:
    return value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= 1)


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
    else:
        return [f'observations have an "action_mask" but {actions} is not discrete: rename that part or change the actions.']
    if isinstance(mask, Box) and mask.shape == wanted and mask.dtype == "bool":
        return []
    return [f'the space of "action_mask" is {mask}: for {actions} it must be Box(0, 1, {wanted}, "bool").']


# --- One reset and one step ------------------------------------------------------------------------------------------


def _shapes(env: Environment, key: jax.Array) -> list[str]:
    """Faults in what one reset and one step give."""
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
    action = _attempt(faults, "sampling an action", lambda: _random_action(env, action_key, obs))
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
        return state, env.step(step_key, state, _random_action(env, action_key, obs)).state

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


# --- Many steps ------------------------------------------------------------------------------------------------------


def _random_action(env: Environment, key: jax.Array, obs: Any) -> Any:
    """A uniform action, among the legal ones where there is a mask."""

    def one(key: jax.Array, obs: Any) -> Any:
        if isinstance(obs, dict) and "action_mask" in obs:
            logits = jnp.where(obs["action_mask"], 0.0, -jnp.inf)
            return jax.random.categorical(key, logits).astype(jnp.int32)
        return env.action_space.sample(key)

    return one(key, obs) if env.num_agents is None else jax.vmap(one)(jax.random.split(key, env.num_agents), obs)


def _rollout(env: Environment, key: jax.Array, steps: int) -> Visit:
    """Random steps in a few copies, with a reset after each end. Every leaf leads with `[E, T]`."""

    def act(carry: tuple[Any, Any], key: jax.Array) -> tuple[Any, Visit]:
        state, obs = carry
        action_key, step_key, reset_key = jax.random.split(key, 3)
        action = _random_action(env, action_key, obs)
        transition = env.step(step_key, state, action)
        ended = jnp.all(transition.terminated | transition.truncated)
        carry = tree.where(ended, env.reset(reset_key), (transition.state, transition.obs))
        return carry, Visit(step_key, state, obs, action, transition, ended)

    def one(key: jax.Array) -> Visit:
        reset_key, loop_key = jax.random.split(key)
        return jax.lax.scan(act, env.reset(reset_key), jax.random.split(loop_key, steps))[1]

    return jax.jit(jax.vmap(one))(jax.random.split(key, _COPIES))


def _same_twice(env: Environment, key: jax.Array) -> list[str]:
    """Faults where the same key gives different results."""
    reset_key, step_key, action_key = jax.random.split(key, 3)
    remedy = "draw randomness from the key only (not from numpy.random or random), and keep nothing on the environment"
    first = env.reset(reset_key)
    faults = [f"reset is not a function of its key: {x}; {remedy}." for x in _unlike(first, env.reset(reset_key), 0.0)]
    action = _random_action(env, action_key, first[1])
    once, again = (env.step(step_key, first[0], action) for _ in range(2))
    return faults + [f"step is not a function of its arguments: {x}; {remedy}." for x in _unlike(once, again, 0.0)]


def _compiled_as_alone(env: Environment, visits: Visit) -> list[str]:
    """Faults where a step compiled and vmapped differs from the same step run alone, operation by operation."""
    faults = []
    for step in (0, min(2, visits.ended.shape[1] - 1)):
        visit = jax.tree.map(lambda x, step=step: x[0, step], visits)
        alone = env.step(visit.key, visit.state, visit.action)
        unlike = _unlike(visit.transition, alone, 1e-3)
        faults += [f"step differs when compiled with jit and vmap: {x}; look for side effects or numpy in it." for x in unlike]
    return list(dict.fromkeys(faults))


def _unlike(a: Any, b: Any, tolerance: float) -> list[str]:
    """Which leaves of two trees of one structure differ, and their values."""
    differences = []
    for (path, x), y in zip(jax.tree_util.tree_leaves_with_path(a), jax.tree.leaves(b), strict=True):
        x, y = _plain(x), _plain(y)
        same = np.array_equal(x, y) if x.dtype.kind != "f" else np.allclose(x, y, tolerance, tolerance, equal_nan=True)
        if not same:
            differences.append(f"{jax.tree_util.keystr(path)} is {_shown(x)} and {_shown(y)}")
    return differences


def _plain(leaf: Any) -> np.ndarray:
    """A leaf as a numpy array, typed keys included."""
    is_key = isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(leaf) if is_key else leaf)


def _shown(array: np.ndarray) -> str:
    return np.array2string(array, precision=5, threshold=8, edgeitems=2).replace("\n", "")


# --- What the steps gave ---------------------------------------------------------------------------------------------


def _values(env: Environment, visits: Visit, starts: tuple[Any, Any]) -> list[str]:
    """Faults in values: out of bounds, not finite, no legal action."""
    after = visits.transition
    flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), after.obs)
    axes = 1 if env.num_agents is None else 2
    faults = _outside(starts[1], env.observation_space, axes, "after reset, obs")
    faults += _outside(flat, env.observation_space, axes, "after step, obs")
    watched = {"obs": after.obs, "reward": after.reward, "state": after.state, "info": after.info}
    for path, leaf in jax.tree_util.tree_leaves_with_path(watched):
        name = jax.tree_util.keystr(path[1:])
        array = _plain(leaf)
        if array.dtype.kind == "f" and np.isnan(array).any():
            step = int(np.argwhere(np.isnan(array))[:, 1].min())
            faults.append(f"{path[0].key}{name} is NaN, first at step {step}: look for 0/0, sqrt or log of what is below 0.")
    reward = np.asarray(after.reward)
    if np.isinf(reward).any():
        faults.append(f"reward is {reward[np.isinf(reward)][0]}: rewards must be finite.")
    if isinstance(flat, dict) and "action_mask" in flat and not np.asarray(flat["action_mask"]).any(axis=-1).all():
        faults.append("action_mask is all False at some step: leave at least one action legal, also at the end.")
    return faults


def _outside(values: Any, space: Space, axes: int, what: str) -> list[str]:
    """Faults where values, with `axes` leading axes, lie outside the space."""
    if isinstance(space, Dict):
        return [f for name, part in space.items for f in _outside(values[name], part, axes, f"{what}['{name}']")]
    contains: Callable[[jax.Array], jax.Array] = space.contains
    for _ in range(axes):
        contains = jax.vmap(contains)
    inside = np.asarray(contains(values))
    if inside.all():
        return []
    worst = _plain(values)[~inside][0]
    return [f"{what} leaves its space: {_shown(worst)} is not in {space}; widen the bounds or clip the observation."]


def _ends(env: Environment, visits: Visit, starts: tuple[Any, Any]) -> list[str]:
    """Faults around the ends of episodes: resets of its own, and episodes beyond the time limit."""
    faults = []
    if _resets_itself(visits, starts[0]):
        faults.append(
            "step resets by itself: where an episode ended, the state is one that reset gives. Return the true last state "
            "and observation; rollax restarts episodes."
        )
    limit = env.time_limit
    lengths = _longest(np.asarray(visits.ended))
    if limit is not None and lengths > limit:
        faults.append(f"an episode lasted {lengths} steps without an end but time_limit is {limit}: end it or raise the limit.")
    return faults


def _resets_itself(visits: Visit, start_states: Any) -> bool:
    """True when, at every end, all that a reset sets to a constant is back at it although it had moved before.

    A clock is such a constant: it begins at 0, and where it is 0 again after the last step, that step has reset.
    """
    ended = np.asarray(visits.ended)
    moved = np.zeros(ended.sum(), bool)
    back = np.ones(ended.sum(), bool)
    leaves = (jax.tree.leaves(x) for x in (start_states, visits.state, visits.transition.state))
    for start, before, after in zip(*leaves, strict=True):
        start, before, after = _plain(start), _plain(before)[ended], _plain(after)[ended]
        if (start == start[0]).all():
            rest = tuple(range(1, before.ndim))
            moved |= (before != start[0]).any(axis=rest)
            back &= (after == start[0]).all(axis=rest)
    return bool(moved.any() and back[moved].all())


def _longest(ended: np.ndarray) -> int:
    """The longest run of steps without an end inside, the ending step included: `ended` is `[E, T]`."""
    longest = 0
    for row in ended:
        marks = np.concatenate([[-1], np.flatnonzero(row), [len(row) - 1]])
        longest = max(longest, int(np.diff(marks).max()))
    return longest


def _notes(visits: Visit, starts: tuple[Any, Any], steps: int) -> tuple[str, ...]:
    """What is allowed but perhaps not meant."""
    notes = []
    leaves = [_plain(x) for x in jax.tree.leaves(starts)]
    if all((x == x[0]).all() for x in leaves):
        notes.append("reset gives the same start for every key.")
    if not np.asarray(visits.ended).any():
        notes.append(f"no episode ended within {steps} random steps; the check of ends saw nothing.")
    if np.asarray(visits.transition.terminated & visits.transition.truncated).any():
        notes.append("some steps are both terminated and truncated; they count as terminated.")
    return tuple(notes)
