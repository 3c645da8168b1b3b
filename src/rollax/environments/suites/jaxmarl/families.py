"""Families of JaxMARL environments: terminations, legal actions, observations and info.

Episode ends that are not terminations (`FamilySpec.terminated`) are time limits.
"""

import importlib
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from rollax.environments.suites.lazy_imports import defer_imports, defer_package_init
from rollax.environments.suites.output_capture import suppress_output
from rollax.environments.suites.suite import SuiteEnvironment
from rollax.types import Observation, PyTree, State

# Importing all of JaxMARL takes seconds, most of it for tables of environments that are not used.
defer_package_init("jaxmarl", "jaxmarl.environments", "jaxmarl.environments.storm")


def import_suite_module(module: str) -> Any:
    """Import a JaxMARL module without its output, even while JAX traces a function."""
    with (
        suppress_output(),
        defer_imports("matplotlib.pyplot", "matplotlib.animation"),
        jax.ensure_compile_time_eval(),
    ):
        return importlib.import_module(f"jaxmarl.environments.{module}")


suite_spaces = import_suite_module("spaces")  # first, as other modules import it from the package

# Parts of an observation, each with one array per agent. Sizes may differ between agents.
ObservationParts = dict[str, list[jax.Array]]


def list_by_agent(dynamics: SuiteEnvironment, values: PyTree) -> list[Any]:
    """Convert a dictionary, tuple or array of values of all agents to a list."""
    return (
        [values[agent] for agent in dynamics.agents] if isinstance(values, dict) else list(values)
    )


def to_float32(array: ArrayLike) -> jax.Array:
    """Convert an array to float32."""
    return jnp.asarray(array).astype(jnp.float32)


def _float_observation(dynamics: SuiteEnvironment, suite_obs: Observation) -> ObservationParts:
    return {"observation": [to_float32(x) for x in list_by_agent(dynamics, suite_obs)]}


def _never_terminated(dynamics: SuiteEnvironment, state: State, is_done: jax.Array) -> jax.Array:
    return jnp.zeros_like(is_done)


def _always_terminated(dynamics: SuiteEnvironment, state: State, is_done: jax.Array) -> jax.Array:
    return is_done


def _never_done(dynamics: SuiteEnvironment, state: State) -> bool:
    return False


def _no_mask(dynamics: SuiteEnvironment, state: State) -> None:
    return None


def _no_global_state(dynamics: SuiteEnvironment, state: State, suite_obs: Observation) -> None:
    return None


def _no_info(
    dynamics: SuiteEnvironment, state: State, is_done: jax.Array, extras: dict[str, PyTree]
) -> dict[str, jax.Array]:
    return {}


# These values are events or reward terms of one step, so they are summed over an episode.
INFO_REDUCTIONS: dict[str, str] = dict.fromkeys(
    (
        "won",
        "team_return",
        "shaped_reward",
        "score",
        "goal_reached",
        "map_collision",
        "agent_collision",
    ),
    "sum",
)


class FamilySpec(NamedTuple):
    """Rules of one family of environments.

    Arguments of the functions: `dynamics` is the JaxMARL environment, `suite_obs` are its
    observations, and `is_done` is true for agents whose episode has ended. `is_done` is bool `[A]`,
    except for `info`, which receives one bool `[]` for all agents.

    Attributes:
        time_limit: `(dynamics)`. Returns the maximum number of steps of an episode.
        terminated: `(dynamics, state, is_done)`. Returns a mask of the agents whose task has ended,
            bool `[A]`.
        agent_done: `(dynamics, state)`. Returns a mask of the agents whose episode ended in an
            earlier step, bool `[A]`.
        observation_parts: `(dynamics, suite_obs)`. Returns the arrays of all agents for each key of
            an observation.
        legal_actions: `(dynamics, state)`. Returns a mask of legal actions for each agent, or None.
        global_state: `(dynamics, state, suite_obs)`. Returns the global state `[A, n]`, or None.
        info: `(dynamics, state, is_done, extras)`. Returns the dictionary `info`. `extras` is the
            `info` of JaxMARL.
        bounds: Bounds of observations, or None to use the bounds that JaxMARL declares.
        has_shaped_reward: Whether JaxMARL returns a shaped reward.
        has_team_reward: Whether the reward of the first agent is the team reward, even after the
            defeat of its unit.
    """

    time_limit: Callable[[Any], int]
    terminated: Callable[[Any, Any, jax.Array], jax.Array] = _never_terminated
    agent_done: Callable[[Any, Any], Any] = _never_done
    observation_parts: Callable[[Any, Any], ObservationParts] = _float_observation
    legal_actions: Callable[[Any, Any], Any] = _no_mask
    global_state: Callable[[Any, Any, Any], Any] = _no_global_state
    info: Callable[[Any, Any, jax.Array, Any], dict[str, jax.Array]] = _no_info
    bounds: tuple[float, float] | None = None
    has_shaped_reward: bool = False
    has_team_reward: bool = False


def _battle_state(state: State) -> Any:
    """Return the SMAX state, which environments with an enemy policy wrap in another state."""
    return state if hasattr(state, "unit_alive") else state.state


def _alive_units(dynamics: SuiteEnvironment, state: State) -> jax.Array:
    return _battle_state(state).unit_alive[: len(dynamics.agents)]


def _is_battle_decided(dynamics: SuiteEnvironment, state: State, is_done: jax.Array) -> jax.Array:
    """Return whether the episode ended because one side has no units left."""
    units, allies = _battle_state(state).unit_alive, dynamics.num_allies
    return is_done & (~jnp.any(units[:allies]) | ~jnp.any(units[allies:]))


def _is_unit_done(dynamics: SuiteEnvironment, state: State, is_done: jax.Array) -> jax.Array:
    """Return a mask of the units that are defeated or whose battle is decided."""
    return ~_alive_units(dynamics, state) | _is_battle_decided(dynamics, state, is_done)


def _victory_info(
    dynamics: SuiteEnvironment, state: State, is_done: jax.Array, extras: dict[str, PyTree]
) -> dict[str, jax.Array]:
    units, allies = _battle_state(state).unit_alive, dynamics.num_allies
    return {
        "won": (is_done & jnp.any(units[:allies]) & ~jnp.any(units[allies:])).astype(jnp.float32)
    }


def _make_mask_fn(function: str) -> Callable[[Any, Any], list[jax.Array]]:
    """Build a function that computes the action masks of all agents with a JaxMARL method."""
    return lambda dynamics, state: [
        mask.astype(bool) for mask in list_by_agent(dynamics, getattr(dynamics, function)(state))
    ]


def _room_masks(dynamics: SuiteEnvironment, state: State) -> list[jax.Array]:
    """Return the action masks of the prisoners. Only the prisoner in the room has a choice."""
    is_in_room = jnp.arange(dynamics.num_agents) == state.agent_in_room
    return [jnp.stack([jnp.ones((), bool), is_here, is_here]) for is_here in is_in_room]


def _integer_observation(dynamics: SuiteEnvironment, suite_obs: Observation) -> ObservationParts:
    return {"observation": [x.astype(jnp.int32) for x in list_by_agent(dynamics, suite_obs)]}


def _storm_observation(dynamics: SuiteEnvironment, suite_obs: Observation) -> ObservationParts:
    """Return observations of STORM with the same inventories as `storm_2p`.

    In STORM every agent observes the inventories of all agents. Here, an agent observes only its
    own inventory and the visible coins of other agents.
    """
    # Own inventory: coins of each kind, and whether they suffice to interact. Others: shown coins.
    own_inventory, other_inventories = jnp.split(to_float32(suite_obs["inventory"]).T, [3], axis=1)
    coins = jnp.concatenate([own_inventory[:, 2:], other_inventories], axis=1)
    other_coins = [jnp.delete(coins, i, axis=0).ravel() for i in range(len(dynamics.agents))]
    inventory = [
        jnp.concatenate([own_inventory[i], other_coins[i]]) for i in range(len(dynamics.agents))
    ]
    return {
        "observation": [to_float32(x) for x in suite_obs["observations"]],
        "inventory": inventory,
    }


def _storm_2p_observation(dynamics: SuiteEnvironment, suite_obs: Observation) -> ObservationParts:
    return {
        part: [to_float32(agent_obs[part]) for agent_obs in suite_obs]
        for part in ("observation", "inventory")
    }


def _is_robot_done(dynamics: SuiteEnvironment, state: State, is_done: jax.Array) -> jax.Array:
    """Return a mask of the robots that have reached their goal or collided."""
    return state.done & (state.goal_reached | state.move_term)


def _navigation_info(
    dynamics: SuiteEnvironment, state: State, is_done: jax.Array, extras: dict[str, PyTree]
) -> dict[str, jax.Array]:
    names = {"goal_reached": "GoalR", "map_collision": "MapC", "agent_collision": "AgentC"}
    return {name: to_float32(extras[key]) for name, key in names.items()}


def _max_hanabi_turns(dynamics: SuiteEnvironment) -> int:
    """Return an upper bound on the number of turns in a game of Hanabi.

    Every play or discard draws a card and gains at most one hint. One last round follows.
    """
    cards = int(dynamics.deck_size) - dynamics.num_agents * dynamics.hand_size
    return 2 * cards + dynamics.max_info_tokens + dynamics.num_agents + 1


MPE = FamilySpec(lambda dynamics: dynamics.max_steps + 1)
SMAX = FamilySpec(
    lambda dynamics: dynamics.max_steps + 1,
    terminated=_is_unit_done,
    agent_done=lambda dynamics, state: ~_alive_units(dynamics, state),
    legal_actions=_make_mask_fn("get_avail_actions"),
    global_state=lambda dynamics, state, raw: jnp.tile(
        to_float32(raw["world_state"])[None], (len(dynamics.agents), 1)
    ),
    info=_victory_info,
    has_team_reward=True,
)
# The reward is that of the team. If a defeated unit left the episode, it would not receive the
# later reward for its sacrifice, and would learn to flee.
SMAX_BATTLE_END = SMAX._replace(terminated=_is_battle_decided, agent_done=_never_done)
_OVERCOOKED = FamilySpec(
    lambda dynamics: dynamics.max_steps,
    info=lambda dynamics, state, over, extras: {
        "shaped_reward": to_float32(jnp.stack(list_by_agent(dynamics, extras["shaped_reward"])))
    },
    has_shaped_reward=True,
)
# Matrix games that are repeated until the time limit, which is their only end. When a game ends,
# JaxMARL returns the start of the next one and no reward for that step, so the last observation
# belongs to a game that is not played.
_REPEATED_GAME = FamilySpec(lambda dynamics: dynamics.num_inner_steps * dynamics.num_outer_steps)
# The deadline is part of the riddle, because prisoners who have not announced by then receive
# nothing (Foerster et al. 2016). All ends are therefore terminations.
_RIDDLE = FamilySpec(
    lambda dynamics: dynamics.max_steps,
    terminated=_always_terminated,
    observation_parts=_integer_observation,
    legal_actions=_room_masks,
)
_HANABI = FamilySpec(
    _max_hanabi_turns,
    terminated=_always_terminated,
    legal_actions=_make_mask_fn("get_legal_moves"),
    info=lambda dynamics, state, over, extras: {
        "score": jnp.where(over, state.score, 0).astype(jnp.float32)
    },
)
_JAXNAV = FamilySpec(
    lambda dynamics: dynamics.max_steps,
    terminated=_is_robot_done,
    agent_done=lambda dynamics, state: state.done,
    global_state=lambda dynamics, state, raw: to_float32(dynamics.get_world_state(state)),
    info=_navigation_info,
)
MABRAX = FamilySpec(
    lambda dynamics: -(-dynamics.episode_length // dynamics.action_repeat),
    terminated=lambda dynamics, state, over: over & (state.info["truncation"] == 0),
)

# Module and class in JaxMARL, and the rules of the family.
FAMILIES: dict[str, tuple[str, FamilySpec]] = {
    "MPE_simple_v3": ("mpe:SimpleMPE", MPE),
    "MPE_simple_tag_v3": ("mpe:SimpleTagMPE", MPE),
    "MPE_simple_world_comm_v3": ("mpe:SimpleWorldCommMPE", MPE),
    "MPE_simple_spread_v3": ("mpe:SimpleSpreadMPE", MPE),
    "MPE_simple_crypto_v3": ("mpe:SimpleCryptoMPE", MPE),
    "MPE_simple_speaker_listener_v4": ("mpe:SimpleSpeakerListenerMPE", MPE),
    "MPE_simple_push_v3": ("mpe:SimplePushMPE", MPE),
    "MPE_simple_adversary_v3": ("mpe:SimpleAdversaryMPE", MPE),
    "MPE_simple_reference_v3": ("mpe:SimpleReferenceMPE", MPE),
    "MPE_simple_facmac_v1": ("mpe:SimpleFacmacMPE", MPE),
    "MPE_simple_facmac_3a_v1": ("mpe:SimpleFacmacMPE3a", MPE),
    "MPE_simple_facmac_6a_v1": ("mpe:SimpleFacmacMPE6a", MPE),
    "MPE_simple_facmac_9a_v1": ("mpe:SimpleFacmacMPE9a", MPE),
    "switch_riddle": ("switch_riddle:SwitchRiddle", _RIDDLE),
    "SMAX": ("smax:SMAX", SMAX),
    "HeuristicEnemySMAX": ("smax:HeuristicEnemySMAX", SMAX),
    "ant_4x2": ("mabrax:Ant", MABRAX),
    "halfcheetah_6x1": ("mabrax:HalfCheetah", MABRAX),
    "hopper_3x1": ("mabrax:Hopper", MABRAX),
    "humanoid_9|8": ("mabrax:Humanoid", MABRAX),
    "walker2d_2x3": ("mabrax:Walker2d", MABRAX),
    "storm": (
        "storm.storm_env:InTheGrid",
        _REPEATED_GAME._replace(observation_parts=_storm_observation),
    ),
    "storm_2p": (
        "storm.storm_2p:InTheGrid_2p",
        _REPEATED_GAME._replace(observation_parts=_storm_2p_observation),
    ),
    "storm_np": ("storm.storm:InTheMatrix", _REPEATED_GAME._replace(bounds=(0.0, 1.0))),
    "hanabi": ("hanabi:Hanabi", _HANABI),
    "overcooked": ("overcooked:Overcooked", _OVERCOOKED),
    "overcooked_v2": ("overcooked_v2:OvercookedV2", _OVERCOOKED),
    "coin_game": ("coin_game:CoinGame", _REPEATED_GAME),
    "jaxnav": ("jaxnav:JaxNav", _JAXNAV),
}
