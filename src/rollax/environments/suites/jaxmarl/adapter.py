"""Adapter of JaxMARL environments (0.2 or newer), without automatic resets.

JaxMARL uses one dictionary entry per agent. Here, arrays have a leading axis `[A]` in the order of
`agents` in JaxMARL. The type of an agent is its name without the number, for example "adversary"
for "adversary_1". JaxMARL does not distinguish truncation from termination. `FAMILIES` defines
which episode ends are terminations. All other ends are time limits. Differences from JaxMARL:

- Rewards are float32, `terminated` and `truncated` are bool, and states have fixed dtypes.
- Box observations are float32. Overcooked of JaxMARL returns integers as uint8, which networks
  would treat as pixels. Spaces have the actual shapes of the observations instead of the declared
  ones.
- With `fallen="leave"`, the episode and the rewards of a defeated SMAX unit end with its defeat.
  The default keeps it in the episode as in JaxMARL, where it receives the reward of its team and
  cannot act. In both cases `info["team_return"]` is the team reward of JaxMARL.
- Observations have an "action_mask" in SMAX, in Hanabi, and if agents have different numbers of
  actions. In the switch riddle, waiting is the only legal action of prisoners outside of the room,
  as in Foerster et al. 2016 (arXiv:1605.06676).

MPE and SMAX compare their step counter with the limit before they increment it, so episodes have
one step more than `max_steps`, 26 and 101 by default. The adapter keeps this step, because it makes
returns comparable with published ones. `time_limit` includes this step.
"""

import functools
import json
import re
from collections.abc import Callable, Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from rollax.environments.conversion import (
    cast_leaves,
    check_no_tracers,
    convert_arguments,
    leaf_dtypes,
    signature_defaults,
)
from rollax.environments.environment import Transition
from rollax.environments.environment_text import format_environment, format_environment_html
from rollax.environments.suites.argument_checks import creation_error
from rollax.environments.suites.jaxmarl.families import (
    FAMILIES,
    INFO_REDUCTIONS,
    MABRAX,
    MPE,
    SMAX,
    SMAX_BATTLE_END,
    FamilySpec,
    ObservationParts,
    import_suite_module,
    list_by_agent,
    suite_spaces,
    to_float32,
)
from rollax.environments.suites.output_capture import suppress_output
from rollax.environments.suites.suite import SuiteEnvironment
from rollax.errors import UnknownNameError, UsageError
from rollax.runtime.installation import install_command
from rollax.spaces import Box, Dict, Discrete, MultiDiscrete, Space
from rollax.types import Observation, Setting, State


class JaxMARL(eqx.Module):
    """JaxMARL environment.

    Attributes:
        shaping: Weight of the shaped reward, float32 `[]`, or () without a shaped reward.
        dynamics: JaxMARL environment.
        family: Rules of the family of environments.
        name: Id of the environment.
        observation_space: Space of observations of one agent.
        action_space: Space of actions of one agent.
        agent_types: Type of each agent.
        action_sizes: Number of actions of each agent, or number of components of an action.
        state_dtypes: Dtypes of the leaves of a state.
        time_limit: Time limit in steps.
    """

    shaping: Any
    dynamics: Any = eqx.field(static=True)
    family: FamilySpec = eqx.field(static=True)
    name: str = eqx.field(static=True)
    observation_space: Space = eqx.field(static=True)
    action_space: Box | Discrete = eqx.field(static=True)
    agent_types: tuple[str, ...] = eqx.field(static=True)
    action_sizes: tuple[int, ...] = eqx.field(static=True)
    state_dtypes: tuple[str, ...] = eqx.field(static=True)
    time_limit: int = eqx.field(static=True)

    def __repr__(self) -> str:
        return format_environment(self)

    def _repr_html_(self) -> str:
        return format_environment_html(self)

    @property
    def info_reductions(self) -> dict[str, str]:
        return INFO_REDUCTIONS

    @property
    def num_agents(self) -> int:
        return len(self.agent_types)

    def reset(self, key: jax.Array) -> tuple[State, Observation]:
        """Return the state and the observations at the start of an episode."""
        suite_obs, state = self.dynamics.reset(key)
        state = cast_leaves(state, self.state_dtypes)
        return state, self._observe(suite_obs, state)

    def step(self, key: jax.Array, state: State, action: jax.Array) -> Transition:
        """Return the transition of one step.

        At the time limit, agents that have not terminated are truncated.
        """
        suite_obs, next_state, reward, done, extras = self.dynamics.step_env(
            key, state, self._to_action_dict(action)
        )
        next_state = cast_leaves(next_state, self.state_dtypes)
        no_agents = jnp.zeros(self.num_agents, bool)
        is_done = no_agents | done["__all__"]
        agent_done = no_agents | self.family.agent_done(self.dynamics, state)
        terminated = agent_done | self.family.terminated(self.dynamics, next_state, is_done)
        reward = jnp.stack(list_by_agent(self.dynamics, reward)).astype(jnp.float32)
        info = self.family.info(self.dynamics, next_state, is_done[0], extras)
        if self.family.has_shaped_reward:
            reward += self.shaping * info["shaped_reward"]
        if self.family.has_team_reward:
            info["team_return"] = reward[0]
        return Transition(
            state=next_state,
            obs=self._observe(suite_obs, next_state),
            reward=jnp.where(agent_done, 0.0, reward),
            terminated=terminated,
            truncated=is_done & ~terminated,
            info=info,
        )

    def _to_action_dict(self, action: jax.Array) -> dict[Any, jax.Array]:
        """Convert actions `[A, ...]` to a dictionary keyed by agent, and remove their padding."""
        if isinstance(self.action_space, Discrete):
            return {
                agent: action[i].astype(jnp.int32) for i, agent in enumerate(self.dynamics.agents)
            }
        return {
            agent: action[i, : self.action_sizes[i]] for i, agent in enumerate(self.dynamics.agents)
        }

    def _observe(self, suite_obs: Observation, state: State) -> Any:
        """Return observations `[A, ...]`, padded with zeros to the largest size."""
        names = self.observation_space.spaces if isinstance(self.observation_space, Dict) else {}
        parts = _observation_parts(
            self.family, self.dynamics, suite_obs, state, self.action_sizes, "action_mask" in names
        )
        stacked = {name: _pad_and_stack(arrays) for name, arrays in parts.items()}
        if "global_state" in names:
            stacked["global_state"] = _global_state(self.family, self.dynamics, suite_obs, state)
        return stacked if names else stacked["observation"]


def _pad_and_stack(arrays: list[jax.Array]) -> jax.Array:
    """Pad the last axis of the arrays of all agents with zeros and stack them to `[A, ...]`."""
    longest = max(array.shape[-1] for array in arrays)
    return jnp.stack(
        [jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, longest - x.shape[-1])]) for x in arrays]
    )


def _observation_parts(
    family: FamilySpec,
    dynamics: SuiteEnvironment,
    suite_obs: Observation,
    state: State,
    sizes: tuple[int, ...],
    is_masked: bool,
) -> ObservationParts:
    """Return the arrays of all agents for each key of the observation.

    If `is_masked` is True, the key "action_mask" is included.
    """
    parts = family.observation_parts(dynamics, suite_obs)
    if is_masked:
        legal = family.legal_actions(dynamics, state)
        parts["action_mask"] = [jnp.ones(n, bool) for n in sizes] if legal is None else legal
    return parts


def _global_state(
    family: FamilySpec, dynamics: SuiteEnvironment, suite_obs: Observation, state: State
) -> jax.Array:
    """Return the global state `[A, ...]`.

    If JaxMARL does not define a global state, the observations of all agents are concatenated:
    images along the channel axis, and other observations to one vector.
    """
    suite_state = family.global_state(dynamics, state, suite_obs)
    if suite_state is not None:
        return suite_state
    parts = family.observation_parts(dynamics, suite_obs)
    observed = [array for arrays in parts.values() for array in arrays]
    is_picture = len(parts) == 1 and observed[0].ndim == 3
    joined = (
        jnp.concatenate(observed, axis=-1)
        if is_picture
        else jnp.concatenate([to_float32(x).ravel() for x in observed])
    )
    return jnp.broadcast_to(joined, (len(dynamics.agents), *joined.shape))


# Arguments that are objects, contradict the environment, or are not supported by JaxMARL itself.
_EXCLUDED_ARGUMENTS = (
    *(
        "agents",
        "landmarks",
        "action_spaces",
        "observation_spaces",
        "colour",
        "color_map",
        "dim_c",
        "dim_p",
        "num_moves",
    ),
    *(
        "unit_type_names",
        "unit_type_shorthands",
        "initial_state_buffer",
        "force_path_planning",
        "do_sep_reward",
    ),
    *("info_by_agent", "kwargs", "env_kwargs"),
)
_MPE_ARGUMENTS = {
    "max_steps": 25,
    "dt": 0.1,
    "damping": 0.25,
    "contact_force": 100.0,
    "contact_margin": 0.001,
}
_MABRAX_ARGUMENTS = {
    "episode_length": 1000,
    "action_repeat": 1,
    "homogenisation_method": "",
    "backend": "positional",
}
_FALLEN_FAMILIES = {"stay": SMAX_BATTLE_END, "leave": SMAX}


def argument_choices(name: str) -> dict[str, tuple[str, ...]]:
    """Return the accepted strings of arguments with a fixed list of values, keyed by argument."""
    if FAMILIES[name][1] is not SMAX:
        return {}
    return {
        "scenario": tuple(name for name in _suite_choices(name)["scenario"] if name),
        "fallen": tuple(_FALLEN_FAMILIES),
    }


CHOICES = argument_choices


def _suite_choices(name: str) -> dict[str, dict[str, Any]]:
    """Return the JaxMARL objects that strings select, as `{argument: {string: object}}`."""
    if FAMILIES[name][1] is SMAX:
        return {"scenario": {"": None, **import_suite_module("smax.smax_env").MAP_NAME_TO_SCENARIO}}
    if name == "overcooked":
        return {"layout": import_suite_module("overcooked").overcooked_layouts}
    if name == "overcooked_v2":
        kinds = import_suite_module("overcooked_v2.overcooked").ObservationType
        layouts = import_suite_module("overcooked_v2").overcooked_v2_layouts
        return {"layout": layouts, "observation_type": {kind.value: kind for kind in kinds}}
    return {}


def make(name: str, arguments: dict[str, Setting]) -> JaxMARL:
    """Build a JaxMARL environment.

    Args:
        name: Name of the environment in JaxMARL.
        arguments: Environment arguments (see `default_arguments`).

    Returns:
        The environment.

    Raises:
        UsageError: If JaxMARL rejects the arguments, a value is invalid or brax is missing.
        UnknownNameError: If an argument or a choice does not exist.
    """
    id, defaults = f"jaxmarl/{name}", default_arguments(name)
    values = defaults | convert_arguments(id, arguments, defaults)
    global_state, shaping = values.pop("global_state"), values.pop("shaping", None)
    family = FAMILIES[name][1]
    if family is SMAX:
        family = _look_up_choice("fallen", id, values.pop("fallen"), _FALLEN_FAMILIES)
    suite_values = {key: values[key] for key in arguments if key in values}
    check_no_tracers(id, suite_values)
    # Concrete values even inside a traced function, so that cached constants can be reused.
    with jax.ensure_compile_time_eval():
        dynamics = _make_dynamics(
            name, json.dumps(suite_values, default=lambda x: np.asarray(x).tolist(), sort_keys=True)
        )
    return _build_environment(id, dynamics, family, global_state, shaping)


def default_arguments(name: str) -> dict[str, Any]:
    """Return the defaults of all arguments (of JaxMARL and of rollax), keyed by name."""
    defaults = signature_defaults(_load_class(name))
    family = FAMILIES[name][1]
    if name == "HeuristicEnemySMAX":
        defaults |= signature_defaults(import_suite_module("smax").SMAX)
    if family is SMAX:
        defaults |= {"scenario": "", "fallen": "stay"}
    if family is MPE and defaults:  # the larger facmac environments have no arguments
        defaults |= _MPE_ARGUMENTS
    if family is MABRAX:
        defaults = dict(_MABRAX_ARGUMENTS)
    if family.has_shaped_reward:
        defaults |= {"layout": "cramped_room", "shaping": 0.0}
    if name == "overcooked_v2":
        defaults["observation_type"] = import_suite_module(
            "overcooked_v2.overcooked"
        ).ObservationType.DEFAULT.value
    if name == "storm_2p":  # it supports only two agents
        del defaults["num_agents"]
    return {key: value for key, value in defaults.items() if key not in _EXCLUDED_ARGUMENTS} | {
        "global_state": False
    }


def _load_class(name: str) -> Callable[..., Any]:
    module, _, class_name = FAMILIES[name][0].partition(":")
    try:
        suite_module = import_suite_module(module)
    except ImportError as error:
        if FAMILIES[name][1] is not MABRAX:
            raise
        raise UsageError(
            f"The package brax is not installed, and jaxmarl/{name} needs it. Run: "
            f"{install_command('brax')}"
        ) from error
    if module == "jaxnav":  # it prints every discrete action that it traces
        import_suite_module("jaxnav.jaxnav_env").print = lambda *values: None
    return getattr(suite_module, class_name)


@functools.cache
def _make_dynamics(name: str, arguments: str) -> Any:
    """Create a JaxMARL environment from arguments in JSON, cached to share compilations."""
    id, defaults, changes = f"jaxmarl/{name}", default_arguments(name), json.loads(arguments)
    arrays = {
        key for key, default in defaults.items() if isinstance(default, jax.Array | np.ndarray)
    }
    values: dict[str, Any] = {
        key: jnp.asarray(x) if key in arrays else x for key, x in changes.items()
    }
    choices = _suite_choices(name) if values else {}
    for key in choices.keys() & values.keys():
        values[key] = _look_up_choice(key, id, values[key], choices[key])
    if FAMILIES[name][1] is MABRAX:
        values = values | {
            "auto_reset": False,
            "homogenisation_method": values.get("homogenisation_method") or None,
        }
    try:
        with suppress_output():  # it warns about replaced arguments and about its own defaults
            return _load_class(name)(**values)
    except (
        ValueError,
        TypeError,
        AssertionError,
        KeyError,
        IndexError,
        NotImplementedError,
    ) as error:
        raise creation_error("JaxMARL", name, changes, error) from error


def _look_up_choice(key: str, id: str, value: Setting, choices: Mapping[str, object]) -> Any:
    if value not in choices:
        raise UnknownNameError(f"{key} of {id}", value, filter(None, choices))
    return choices[value]


def _build_environment(
    id: str,
    dynamics: SuiteEnvironment,
    family: FamilySpec,
    global_state: bool,
    shaping: float | None,
) -> JaxMARL:
    """Build the environment. Raise UsageError if the time limit is below 1."""
    limit = family.time_limit(dynamics)
    if limit < 1:
        raise UsageError(
            f"{id}: episodes must have at least 1 step, got {limit} with these arguments."
        )
    action_space, sizes = _action_space(dynamics)

    def take_example_step(key: jax.Array) -> tuple[Any, Any, ObservationParts, Any]:
        suite_obs, state = dynamics.reset(key)
        state = jax.tree.map(jnp.asarray, state)
        actions = {
            agent: dynamics.action_space(agent).sample(jax.random.key(1))
            for agent in dynamics.agents
        }
        next_state = dynamics.step_env(key, state, actions)[1]
        has_rules = (
            isinstance(action_space, Discrete) and family.legal_actions(dynamics, state) is not None
        )
        is_masked = len(set(sizes)) > 1 or has_rules
        parts = _observation_parts(family, dynamics, suite_obs, state, sizes, is_masked)
        global_state_shape = (
            _global_state(family, dynamics, suite_obs, state) if global_state else None
        )
        return next_state, suite_obs, parts, global_state_shape

    with jax.debug_key_reuse(False):
        next_state, _, parts, global_state_shape = jax.eval_shape(
            take_example_step, jax.eval_shape(lambda: jax.random.key(0))
        )
    spaces: dict[str, Space] = {
        part: _part_space(part, dynamics, family, arrays) for part, arrays in parts.items()
    }
    if global_state_shape is not None:
        spaces["global_state"] = Box(-np.inf, np.inf, global_state_shape.shape[1:])
    return JaxMARL(
        shaping=() if shaping is None else jnp.asarray(np.float32(shaping)),
        dynamics=dynamics,
        family=family,
        name=id,
        observation_space=Dict(spaces) if len(spaces) > 1 else spaces["observation"],
        action_space=action_space,
        agent_types=tuple(_agent_type(agent) for agent in dynamics.agents),
        action_sizes=sizes,
        state_dtypes=leaf_dtypes(next_state),
        time_limit=int(limit),
    )


def _agent_type(agent: str | int) -> str:
    """Return the name of an agent without its number, or "agent" if it is only a number."""
    return re.sub(r"_?\d+$", "", str(agent)) or "agent"


def _action_space(dynamics: SuiteEnvironment) -> tuple[Box | Discrete, tuple[int, ...]]:
    """Return the action space of all agents, which is the largest, and each agent's action size."""
    spaces = [dynamics.action_space(agent) for agent in dynamics.agents]
    if isinstance(spaces[0], suite_spaces.Discrete):
        sizes = tuple(int(space.n) for space in spaces)
        return Discrete(max(sizes)), sizes
    sizes = tuple(int(space.shape[0]) for space in spaces)
    largest = spaces[int(np.argmax(sizes))]
    low, high = np.asarray(largest.low).tolist(), np.asarray(largest.high).tolist()
    return Box(low, high, (max(sizes),)), sizes


def _part_space(
    name: str, dynamics: SuiteEnvironment, family: FamilySpec, arrays: list[jax.ShapeDtypeStruct]
) -> Space:
    """Return the space of the observation key `name`, with the actual shape of its arrays."""
    shape = max((array.shape for array in arrays), key=lambda shape: shape[-1])
    if name == "action_mask":
        return Box(0, 1, shape, "bool")
    declared = [dynamics.observation_space(agent) for agent in dynamics.agents]
    declared = [space[name] if isinstance(space, dict) else space for space in declared]
    if isinstance(declared[0], suite_spaces.MultiDiscrete):
        return MultiDiscrete(tuple(np.asarray(declared[0].num_categories).tolist()))
    low, high = family.bounds or (
        min(np.min(x.low) for x in declared),
        max(np.max(x.high) for x in declared),
    )
    return Box(float(low), float(high), shape)
