"""How the environments of JaxMARL are read, family by family: which ends are the task's, what is legal, what there is to tell.

An end that `terminated` does not claim is a time limit.
"""

import importlib
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rollax.environments.suites.later import later, without_their_own
from rollax.environments.suites.silence import silenced

# The whole suite takes seconds to import, most of it for the tables of other environments than the one that is asked for.
without_their_own("jaxmarl", "jaxmarl.environments", "jaxmarl.environments.storm")


def suite(module: str) -> Any:
    """A module of the suite's environments, imported silently, with arrays that any trace may use."""
    with silenced(), later("matplotlib.pyplot", "matplotlib.animation"), jax.ensure_compile_time_eval():
        return importlib.import_module(f"jaxmarl.environments.{module}")


suite_spaces = suite("spaces")  # before the others, which ask the package for it

Parts = dict[str, list[jax.Array]]  # the parts of an observation, one array an agent, of the agent's own size


def each(dynamics: Any, values: Any) -> list[Any]:
    """What the suite gives as a dictionary by name, a tuple or an array, agent by agent."""
    return [values[agent] for agent in dynamics.agents] if isinstance(values, dict) else list(values)


def as_float(array: Any) -> jax.Array:
    return jnp.asarray(array).astype(jnp.float32)


def _boxes(dynamics: Any, raw: Any) -> Parts:
    return {"observation": [as_float(x) for x in each(dynamics, raw)]}


def _never(dynamics: Any, state: Any, over: jax.Array) -> jax.Array:
    return jnp.zeros_like(over)


def _always(dynamics: Any, state: Any, over: jax.Array) -> jax.Array:
    return over


# What is told of a step happened in it, or is a part of its reward.
INFO_REDUCTIONS: dict[str, str] = dict.fromkeys(
    ("won", "team_return", "shaped_reward", "score", "goal_reached", "map_collision", "agent_collision"), "sum"
)


class Family(NamedTuple):
    """How environments of one family are read. `dynamics` is the suite's environment, `over` `[A]` its `done["__all__"]`."""

    time_limit: Callable[[Any], int]  # the most steps of an episode
    terminated: Callable[[Any, Any, jax.Array], jax.Array] = _never  # (dynamics, state, over) -> [A]: whose task has ended
    agent_done: Callable[[Any, Any], Any] = lambda dynamics, state: False  # whose episode had ended in that state already
    parts: Callable[[Any, Any], Parts] = _boxes  # of the suite's observation
    legal: Callable[[Any, Any], Any] = lambda dynamics, state: None  # a mask for each agent
    world: Callable[[Any, Any, Any], Any] = lambda dynamics, state, raw: None  # the suite's global state [A, n]
    info: Callable[[Any, Any, jax.Array, Any], dict[str, jax.Array]] = lambda dynamics, state, over, extras: {}
    bounds: tuple[float, float] | None = None  # of observations, where the stated ones do not hold
    shaped: bool = False  # the suite tells of a shaped reward
    team: bool = False  # the first agent's reward is its team's, dead or alive


def _battle(state: Any) -> Any:
    """SMAX's own state, also beneath that of an enemy's policy."""
    return state if hasattr(state, "unit_alive") else state.state


def _alive(dynamics: Any, state: Any) -> jax.Array:
    return _battle(state).unit_alive[: len(dynamics.agents)]


def _decided(dynamics: Any, state: Any, over: jax.Array) -> jax.Array:
    """The battle is over because one side has none left; one that the clock ended is cut off."""
    units, allies = _battle(state).unit_alive, dynamics.num_allies
    return over & (~jnp.any(units[:allies]) | ~jnp.any(units[allies:]))


def _fallen(dynamics: Any, state: Any, over: jax.Array) -> jax.Array:
    """A unit's episode ends with its life or with the battle."""
    return ~_alive(dynamics, state) | _decided(dynamics, state, over)


def _victory(dynamics: Any, state: Any, over: jax.Array, extras: Any) -> dict[str, jax.Array]:
    units, allies = _battle(state).unit_alive, dynamics.num_allies
    return {"won": (over & jnp.any(units[:allies]) & ~jnp.any(units[allies:])).astype(jnp.float32)}


def _by_agent(function: str) -> Callable[[Any, Any], list[jax.Array]]:
    """Masks by the suite's function of that name."""
    return lambda dynamics, state: [mask.astype(bool) for mask in each(dynamics, getattr(dynamics, function)(state))]


def _in_room(dynamics: Any, state: Any) -> list[jax.Array]:
    """Only who is in the room may switch the light or tell."""
    acts = jnp.arange(dynamics.num_agents) == state.agent_in_room
    return [jnp.stack([jnp.ones((), bool), is_in, is_in]) for is_in in acts]


def _bits(dynamics: Any, raw: Any) -> Parts:
    return {"observation": [x.astype(jnp.int32) for x in each(dynamics, raw)]}


def _storm(dynamics: Any, raw: Any) -> Parts:
    """STORM gives all agents' inventories to all; here each sees what `storm_2p` shows: its own and what others let see."""
    own, others = jnp.split(as_float(raw["inventory"]).T, [3], axis=1)  # coins of each kind, enough to interact; shown coins
    shown = jnp.concatenate([own[:, 2:], others], axis=1)
    rest = [jnp.delete(shown, i, axis=0).ravel() for i in range(len(dynamics.agents))]
    inventory = [jnp.concatenate([own[i], rest[i]]) for i in range(len(dynamics.agents))]
    return {"observation": [as_float(x) for x in raw["observations"]], "inventory": inventory}


def _storm_2p(dynamics: Any, raw: Any) -> Parts:
    return {part: [as_float(each[part]) for each in raw] for part in ("observation", "inventory")}


def _arrived(dynamics: Any, state: Any, over: jax.Array) -> jax.Array:
    """The task of a robot ends at its goal or in a collision; the clock cuts off those that are still under way."""
    return state.done & (state.goal_reached | state.move_term)


def _journey(dynamics: Any, state: Any, over: jax.Array, extras: Any) -> dict[str, jax.Array]:
    names = {"goal_reached": "GoalR", "map_collision": "MapC", "agent_collision": "AgentC"}
    return {name: as_float(extras[key]) for name, key in names.items()}


def _turns(dynamics: Any) -> int:
    """The most turns of a game of Hanabi: every play or discard draws a card and gains a hint at most; then a last round."""
    cards = int(dynamics.deck_size) - dynamics.num_agents * dynamics.hand_size
    return 2 * cards + dynamics.max_info_tokens + dynamics.num_agents + 1


MPE = Family(lambda dynamics: dynamics.max_steps + 1)
SMAX = Family(
    lambda dynamics: dynamics.max_steps + 1,
    terminated=_fallen,
    agent_done=lambda dynamics, state: ~_alive(dynamics, state),
    legal=_by_agent("get_avail_actions"),
    world=lambda dynamics, state, raw: jnp.tile(as_float(raw["world_state"])[None], (len(dynamics.agents), 1)),
    info=_victory,
    team=True,
)
# The reward is the team's. Who leaves with their life has no part in what their fall was good for, and learns to flee.
SMAX_TOGETHER = SMAX._replace(terminated=_decided, agent_done=Family._field_defaults["agent_done"])
_OVERCOOKED = Family(
    lambda dynamics: dynamics.max_steps,
    info=lambda dynamics, state, over, extras: {"shaped_reward": as_float(jnp.stack(each(dynamics, extras["shaped_reward"])))},
    shaped=True,
)
# Matrix games that are repeated until the clock stops them, with nothing that could end before. Where a game ends the suite
# shows the start of the next one and pays nothing for that step: the last observation is of the game that would have followed.
_REPEATED = Family(lambda dynamics: dynamics.num_inner_steps * dynamics.num_outer_steps)
# The deadline is part of the riddle: who has not told by then gets nothing (Foerster et al. 2016). So every end is the task's.
_RIDDLE = Family(lambda dynamics: dynamics.max_steps, terminated=_always, parts=_bits, legal=_in_room)
_HANABI = Family(
    _turns,
    terminated=_always,
    legal=_by_agent("get_legal_moves"),
    info=lambda dynamics, state, over, extras: {"score": jnp.where(over, state.score, 0).astype(jnp.float32)},
)
_JAXNAV = Family(
    lambda dynamics: dynamics.max_steps,
    terminated=_arrived,
    agent_done=lambda dynamics, state: state.done,
    world=lambda dynamics, state, raw: as_float(dynamics.get_world_state(state)),
    info=_journey,
)
MABRAX = Family(
    lambda dynamics: -(-dynamics.episode_length // dynamics.action_repeat),
    terminated=lambda dynamics, state, over: over & (state.info["truncation"] == 0),
)

# The module and the name of its class in the suite, and how it is read.
FAMILIES: dict[str, tuple[str, Family]] = {
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
    "storm": ("storm.storm_env:InTheGrid", _REPEATED._replace(parts=_storm)),
    "storm_2p": ("storm.storm_2p:InTheGrid_2p", _REPEATED._replace(parts=_storm_2p)),
    "storm_np": ("storm.storm:InTheMatrix", _REPEATED._replace(bounds=(0.0, 1.0))),
    "hanabi": ("hanabi:Hanabi", _HANABI),
    "overcooked": ("overcooked:Overcooked", _OVERCOOKED),
    "overcooked_v2": ("overcooked_v2:OvercookedV2", _OVERCOOKED),
    "coin_game": ("coin_game:CoinGame", _REPEATED),
    "jaxnav": ("jaxnav:JaxNav", _JAXNAV),
}
