"""The environments of JaxMARL (0.2 or newer), by their raw dynamics: no auto-reset, and ends told apart.

JaxMARL speaks of agents in dictionaries; here everything leads with an axis `[A]` in the order of its `agents`. Kinds of agents
are their names without numbers: "adversary_1" is an "adversary". JaxMARL knows no truncation: `FAMILIES` says for each family
which ends are the task's, and all others are time limits. What is put right on the way:

- rewards are float32, ends bool, states of definite types, and observations that are boxes float32: Overcooked gives whole
  numbers as uint8, which networks take for pixels; shapes are those that observations have, not those that are stated;
- a unit of SMAX that has fallen stays, as in the suite: it gets its team's reward and can do nothing. With `fallen="leave"`
  its episode ends with its life, and so do its rewards; `info["team_return"]` is the suite's sum in both cases;
- legal actions are the part "action_mask" (SMAX, Hanabi, kinds with fewer actions, or shorter ones). In the switch riddle it
  leaves prisoners outside of the room nothing to do, as in Foerster et al. 2016 (arXiv:1605.06676); their actions have no
  effect in any case;
- MPE and SMAX compare their clock before it ticks: episodes have one step more than `max_steps`, 26 and 101 by default. That
  is kept, so that returns compare with those that others report, and `time_limit` says it.
"""

import functools
import json
import re
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from rollax.environments.convert import convert_all, leaf_types, signature_defaults, with_types
from rollax.environments.core import Transition
from rollax.environments.suites.jaxmarl.families import (
    FAMILIES,
    INFO_REDUCTIONS,
    MABRAX,
    MPE,
    SMAX,
    SMAX_TOGETHER,
    Family,
    Parts,
    as_float,
    each,
    suite,
    suite_spaces,
)
from rollax.environments.suites.silence import silenced
from rollax.errors import UnknownNameError, UsageError
from rollax.spaces import Box, Dict, Discrete, MultiDiscrete, Space


class JaxMARL(eqx.Module):
    """One environment of the suite. `shaping`: the share of the suite's shaped reward in the reward, `()` where it has none."""

    shaping: Any  # float32 [] or ()
    dynamics: Any = eqx.field(static=True)
    family: Family = eqx.field(static=True)
    name: str = eqx.field(static=True)
    observation_space: Space = eqx.field(static=True)
    action_space: Box | Discrete = eqx.field(static=True)
    agent_types: tuple[str, ...] = eqx.field(static=True)
    action_sizes: tuple[int, ...] = eqx.field(static=True)  # of each agent: how many actions, or numbers in one
    state_types: tuple[str, ...] = eqx.field(static=True)
    time_limit: int = eqx.field(static=True)

    @property
    def info_reductions(self) -> dict[str, str]:
        return INFO_REDUCTIONS

    @property
    def num_agents(self) -> int:
        return len(self.agent_types)

    def reset(self, key: jax.Array) -> tuple[Any, Any]:
        """`(state, obs)` at the start of an episode."""
        raw, state = self.dynamics.reset(key)
        state = with_types(state, self.state_types)
        return state, self._observation(raw, state)

    def step(self, key: jax.Array, state: Any, action: jax.Array) -> Transition:
        """One step, without the suite's reset. `truncated` is the time limit for agents whose task did not end."""
        raw, after, reward, done, extras = self.dynamics.step_env(key, state, self._by_name(action))
        after = with_types(after, self.state_types)
        every = jnp.zeros(self.num_agents, bool)
        over = every | done["__all__"]
        agent_done = every | self.family.agent_done(self.dynamics, state)
        terminated = agent_done | self.family.terminated(self.dynamics, after, over)
        reward = jnp.stack(each(self.dynamics, reward)).astype(jnp.float32)
        info = self.family.info(self.dynamics, after, over[0], extras)
        if self.family.shaped:
            reward += self.shaping * info["shaped_reward"]
        if self.family.team:
            info["team_return"] = reward[0]
        return Transition(
            state=after,
            obs=self._observation(raw, after),
            reward=jnp.where(agent_done, 0.0, reward),
            terminated=terminated,
            truncated=over & ~terminated,
            info=info,
        )

    def _by_name(self, action: jax.Array) -> dict[Any, jax.Array]:
        """`[A, ...]` as the suite's dictionary, each agent's of its own size."""
        if isinstance(self.action_space, Discrete):
            return {agent: action[i].astype(jnp.int32) for i, agent in enumerate(self.dynamics.agents)}
        return {agent: action[i, : self.action_sizes[i]] for i, agent in enumerate(self.dynamics.agents)}

    def _observation(self, raw: Any, state: Any) -> Any:
        """The observation `[A, ...]`, shorter ones ending in zeros; a dictionary where it has several parts."""
        names = self.observation_space.spaces if isinstance(self.observation_space, Dict) else {}
        parts = _parts(self.family, self.dynamics, raw, state, self.action_sizes, "action_mask" in names)
        whole = {name: _padded(arrays) for name, arrays in parts.items()}
        if "global_state" in names:
            whole["global_state"] = _global_state(self.family, self.dynamics, raw, state)
        return whole if names else whole["observation"]


def _padded(arrays: list[jax.Array]) -> jax.Array:
    """Vectors of several lengths as one array `[A, longest]`, or arrays of one shape as `[A, ...]`."""
    longest = max(array.shape[-1] for array in arrays)
    return jnp.stack([jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, longest - x.shape[-1])]) for x in arrays])


def _parts(family: Family, dynamics: Any, raw: Any, state: Any, sizes: tuple[int, ...], is_masked: bool) -> Parts:
    """The parts of an observation, with the mask of legal actions where there is one."""
    parts = family.parts(dynamics, raw)
    if is_masked:
        legal = family.legal(dynamics, state)
        parts["action_mask"] = [jnp.ones(n, bool) for n in sizes] if legal is None else legal
    return parts


def _global_state(family: Family, dynamics: Any, raw: Any, state: Any) -> jax.Array:
    """`[A, ...]`: the suite's own state of the world, or what all agents see: pictures by channels, all else in a row."""
    own = family.world(dynamics, state, raw)
    if own is not None:
        return own
    parts = family.parts(dynamics, raw)
    observed = [array for arrays in parts.values() for array in arrays]
    is_picture = len(parts) == 1 and observed[0].ndim == 3
    whole = jnp.concatenate(observed, axis=-1) if is_picture else jnp.concatenate([as_float(x).ravel() for x in observed])
    return jnp.broadcast_to(whole, (len(dynamics.agents), *whole.shape))


# Arguments that are objects, that contradict what an environment is, or that the suite does not support itself.
_LEFT_OUT = (
    *("agents", "landmarks", "action_spaces", "observation_spaces", "colour", "color_map", "dim_c", "dim_p", "num_moves"),
    *("unit_type_names", "unit_type_shorthands", "initial_state_buffer", "force_path_planning", "do_sep_reward"),
    *("info_by_agent", "kwargs", "env_kwargs"),
)
_PHYSICS = {"max_steps": 25, "dt": 0.1, "damping": 0.25, "contact_force": 100.0, "contact_margin": 0.001}
_BRAX = {"episode_length": 1000, "action_repeat": 1, "homogenisation_method": "", "backend": "positional"}
_FALLEN = {"stay": SMAX_TOGETHER, "leave": SMAX}


def choices(name: str) -> dict[str, tuple[str, ...]]:
    """The words that arguments take which take one of a few."""
    if FAMILIES[name][1] is not SMAX:
        return {}
    return {"scenario": tuple(name for name in _choices(name)["scenario"] if name), "fallen": tuple(_FALLEN)}


CHOICES = choices


def _choices(name: str) -> dict[str, dict[str, Any]]:
    """What the suite has for arguments that are chosen by name."""
    if FAMILIES[name][1] is SMAX:
        return {"scenario": {"": None, **suite("smax.smax_env").MAP_NAME_TO_SCENARIO}}
    if name == "overcooked":
        return {"layout": suite("overcooked").overcooked_layouts}
    if name == "overcooked_v2":
        kinds = suite("overcooked_v2.overcooked").ObservationType
        layouts = suite("overcooked_v2").overcooked_v2_layouts
        return {"layout": layouts, "observation_type": {kind.value: kind for kind in kinds}}
    return {}


def make(name: str, arguments: dict[str, Any]) -> JaxMARL:
    """The environment of that name. Raises UsageError and UnknownNameError for arguments that do not fit."""
    id, defaults = f"jaxmarl/{name}", _defaults(name)
    given = defaults | convert_all(id, arguments, defaults)
    global_state, shaping = given.pop("global_state"), given.pop("shaping", None)
    family = FAMILIES[name][1]
    if family is SMAX:
        family = _choice("fallen", id, given.pop("fallen"), _FALLEN)
    changed = {key: given[key] for key in arguments if key in given}
    if any(isinstance(value, Tracer) for value in changed.values()):
        raise UsageError(f"{id}: its arguments shape the program, so they must be plain values, not traced ones.")
    # Concrete even inside a traced function, so that the constants may be kept and used again.
    with jax.ensure_compile_time_eval():
        dynamics = _dynamics(name, json.dumps(changed, default=lambda x: np.asarray(x).tolist(), sort_keys=True))
    return _assembled(id, dynamics, family, global_state, shaping)


def arguments(name: str) -> dict[str, Any]:
    """The arguments of the suite's constructor and those of rollax, with their defaults."""
    return _defaults(name)


def _defaults(name: str) -> dict[str, Any]:
    found = signature_defaults(_class(name))
    family = FAMILIES[name][1]
    if name == "HeuristicEnemySMAX":
        found |= signature_defaults(suite("smax").SMAX)
    if family is SMAX:
        found |= {"scenario": "", "fallen": "stay"}
    if family is MPE and found:  # facmac's larger ones have no arguments
        found |= _PHYSICS
    if family is MABRAX:
        found = dict(_BRAX)
    if family.shaped:
        found |= {"layout": "cramped_room", "shaping": 0.0}
    if name == "overcooked_v2":
        found["observation_type"] = suite("overcooked_v2.overcooked").ObservationType.DEFAULT.value
    if name == "storm_2p":  # written for two
        del found["num_agents"]
    return {key: value for key, value in found.items() if key not in _LEFT_OUT} | {"global_state": False}


def _class(name: str) -> Callable[..., Any]:
    module, _, own = FAMILIES[name][0].partition(":")
    try:
        found = suite(module)
    except ImportError as error:
        if FAMILIES[name][1] is not MABRAX:
            raise
        raise UsageError(f"jaxmarl/{name} needs the package brax, which is not installed: pip install brax") from error
    if module == "jaxnav":  # it prints every discrete action that it traces
        suite("jaxnav.jaxnav_env").print = lambda *values: None
    return getattr(found, own)


@functools.cache
def _dynamics(name: str, changed: str) -> Any:
    """One object for the same arguments (as JSON), so that making an environment twice does not compile it twice."""
    id, defaults, given = f"jaxmarl/{name}", _defaults(name), json.loads(changed)
    arrays = {key for key, default in defaults.items() if isinstance(default, jax.Array | np.ndarray)}
    values: dict[str, Any] = {key: jnp.asarray(x) if key in arrays else x for key, x in given.items()}
    known = _choices(name) if values else {}
    for key in known.keys() & values.keys():
        values[key] = _choice(key, id, values[key], known[key])
    if FAMILIES[name][1] is MABRAX:
        values = values | {"auto_reset": False, "homogenisation_method": values.get("homogenisation_method") or None}
    try:
        with silenced():  # it warns of what it replaces, and of its own defaults
            return _class(name)(**values)
    except (ValueError, TypeError, AssertionError, KeyError, IndexError, NotImplementedError) as error:
        shown = ", ".join(f"{key}={value!r}" for key, value in given.items())
        raise UsageError(f"JaxMARL refuses to make {name} with {shown}: {error or 'it states no reason'}.") from error


def _choice(key: str, id: str, value: Any, choices: dict[str, Any]) -> Any:
    if value not in choices:
        raise UnknownNameError(f"{key} of {id}", value, filter(None, choices))
    return choices[value]


def _assembled(id: str, dynamics: Any, family: Family, global_state: bool, shaping: float | None) -> JaxMARL:
    """The environment with its spaces, from what the suite states and what it gives."""
    limit = family.time_limit(dynamics)
    if limit < 1:
        raise UsageError(f"{id}: with these arguments an episode would have {limit} steps: it must have at least 1.")
    action_space, sizes = _action_space(dynamics)

    def example(key: jax.Array) -> tuple[Any, Any, Parts, Any]:
        raw, state = dynamics.reset(key)
        state = jax.tree.map(jnp.asarray, state)
        actions = {agent: dynamics.action_space(agent).sample(jax.random.key(1)) for agent in dynamics.agents}
        after = dynamics.step_env(key, state, actions)[1]
        has_rules = isinstance(action_space, Discrete) and family.legal(dynamics, state) is not None
        is_masked = len(set(sizes)) > 1 or has_rules
        parts = _parts(family, dynamics, raw, state, sizes, is_masked)
        shared = _global_state(family, dynamics, raw, state) if global_state else None
        return after, raw, parts, shared

    with jax.debug_key_reuse(False):
        after, _, parts, shared = jax.eval_shape(example, jax.eval_shape(lambda: jax.random.key(0)))
    spaces: dict[str, Space] = {part: _space(part, dynamics, family, arrays) for part, arrays in parts.items()}
    if shared is not None:
        spaces["global_state"] = Box(-np.inf, np.inf, shared.shape[1:])
    return JaxMARL(
        shaping=() if shaping is None else jnp.asarray(np.float32(shaping)),
        dynamics=dynamics,
        family=family,
        name=id,
        observation_space=Dict(spaces) if len(spaces) > 1 else spaces["observation"],
        action_space=action_space,
        agent_types=tuple(_kind(agent) for agent in dynamics.agents),
        action_sizes=sizes,
        state_types=leaf_types(after),
        time_limit=int(limit),
    )


def _kind(agent: Any) -> str:
    """The name of an agent without its number; "agent" where it is only a number."""
    return re.sub(r"_?\d+$", "", str(agent)) or "agent"


def _action_space(dynamics: Any) -> tuple[Box | Discrete, tuple[int, ...]]:
    """The largest space of actions, and the size of each agent's."""
    spaces = [dynamics.action_space(agent) for agent in dynamics.agents]
    if isinstance(spaces[0], suite_spaces.Discrete):
        sizes = tuple(int(space.n) for space in spaces)
        return Discrete(max(sizes)), sizes
    sizes = tuple(int(space.shape[0]) for space in spaces)
    largest = spaces[int(np.argmax(sizes))]
    low, high = np.asarray(largest.low).tolist(), np.asarray(largest.high).tolist()
    return Box(low, high, (max(sizes),)), sizes


def _space(name: str, dynamics: Any, family: Family, arrays: list[Any]) -> Space:
    """The space of one part of the observation: the bounds that the suite states, the shapes that it gives."""
    shape = max((array.shape for array in arrays), key=lambda shape: shape[-1])
    if name == "action_mask":
        return Box(0, 1, shape, "bool")
    stated = [dynamics.observation_space(agent) for agent in dynamics.agents]
    stated = [space[name] if isinstance(space, dict) else space for space in stated]
    if isinstance(stated[0], suite_spaces.MultiDiscrete):
        return MultiDiscrete(tuple(np.asarray(stated[0].num_categories).tolist()))
    low, high = family.bounds or (min(np.min(x.low) for x in stated), max(np.max(x.high) for x in stated))
    return Box(float(low), float(high), shape)
