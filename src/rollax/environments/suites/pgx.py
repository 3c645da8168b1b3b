"""The games of Pgx (2.6 or newer; Koyama et al. 2023, arXiv:2303.17503), by their raw dynamics: players are agents.

Agents are Pgx's players, whatever their turn; who begins is drawn. Every step is the move of one player. What is put right on
the way:

- there is one action more than the game has, the last: to pass while it is another player's turn. "action_mask" has it alone
  legal then, so that the actions of who waits have no effect;
- every player has an observation, also who waits: the game as that player sees it;
- rewards are float32 and states of definite types. Every end is the game's own, also the draw that Pgx calls after many moves;
- states hold no observation: the suite's is that of one player, and a copy of what each player has here.

With `opponent="random"` the moves of all players but the first are random legal ones, whatever their actions: the returns of
two players add up to 0, and say nothing of how well policies play that play each other. With `opponent="greedy"` they look two
moves ahead, in the games that have few moves and hide nothing.
"""

import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from rollax.environments.convert import convert_all, leaf_types, with_types
from rollax.environments.core import Transition
from rollax.environments.suites import version
from rollax.environments.suites.silence import silenced
from rollax.errors import UsageError
from rollax.spaces import Box, Dict, Discrete

with silenced(), jax.ensure_compile_time_eval():
    import pgx as suite

OPPONENTS = ("agents", "random", "greedy")
OPEN = ("connect_four", "go_9x9", "othello", "tic_tac_toe")  # less than a hundred moves, and all players see all
CHOICES = {"opponent": OPPONENTS}
_ARGUMENTS = {"opponent": "agents"}
# The most moves of a game, where there is a bound that is always the same.
MOVES = {
    "animal_shogi": 256,
    "chess": 512,
    "connect_four": 42,
    "gardner_chess": 256,
    "hex": 122,
    "kuhn_poker": 3,
    "leduc_holdem": 8,
    "othello": 128,
    "shogi": 512,
    "tic_tac_toe": 9,
}


class Pgx(eqx.Module):
    """One game of the suite."""

    dynamics: Any = eqx.field(static=True)
    name: str = eqx.field(static=True)
    observation_space: Dict = eqx.field(static=True)
    action_space: Discrete = eqx.field(static=True)
    num_agents: int = eqx.field(static=True)
    opponent: str = eqx.field(static=True)
    state_types: tuple[str, ...] = eqx.field(static=True)
    time_limit: int | None = eqx.field(static=True)

    @property
    def agent_types(self) -> tuple[str, ...]:
        return tuple(f"player_{i}" for i in range(self.num_agents))

    def reset(self, key: jax.Array) -> tuple[Any, Any]:
        """`(state, obs)` at the start of a game."""
        state = with_types(_init(self.dynamics, key), self.state_types)
        return state, self._observation(state)

    def step(self, key: jax.Array, state: Any, action: Any) -> Transition:
        """One move. Of all actions that of the player counts whose turn it is."""
        move_key, chance_key = jax.random.split(key)
        turn, number = state.current_player, state.legal_action_mask.shape[0]
        move = jnp.minimum(jnp.asarray(action, jnp.int32)[turn], number - 1)
        if self.opponent != "agents":
            values = self._move_values(state, chance_key) if self.opponent == "greedy" else jnp.zeros(number)
            values = jnp.where(state.legal_action_mask, values, -jnp.inf)
            drawn = jax.random.categorical(move_key, jnp.where(values == jnp.max(values), 0.0, -jnp.inf))
            move = jnp.where(turn == 0, move, drawn)
        after = with_types(_step(self.dynamics, state, move, chance_key), self.state_types)
        return Transition(
            state=after,
            obs=self._observation(after),
            reward=after.rewards.astype(jnp.float32),
            terminated=jnp.broadcast_to(after.terminated, (self.num_agents,)),
            truncated=jnp.zeros(self.num_agents, bool),
            info={},
        )

    def _move_values(self, state: Any, key: jax.Array) -> jax.Array:
        """Of each move `[N]`: 1 if it wins at once, -1 if a reply to it does, 0 otherwise."""
        player, moves = state.current_player, jnp.arange(state.legal_action_mask.shape[0])

        def following(state: Any) -> Any:
            return jax.vmap(lambda move: self.dynamics.step(state, move, key))(moves)

        after = following(state)
        replies = jax.vmap(following)(after)
        is_lost = after.legal_action_mask & (replies.rewards[..., player] < 0) & ~after.terminated[:, None]
        return jnp.where(after.rewards[:, player] > 0, 1.0, -1.0 * jnp.any(is_lost, axis=1))

    def _observation(self, state: Any) -> dict[str, jax.Array]:
        players = jnp.arange(self.num_agents)
        seen = jax.vmap(lambda player: self.dynamics._observe(state, player))(players)
        seen = seen if seen.dtype == bool else seen.astype(jnp.float32)
        acts = players == state.current_player
        if self.opponent != "agents":  # what the others' policies would do is not played, and so not learnt from
            acts &= players == 0
        return {"observation": seen, "action_mask": masks(state.legal_action_mask, acts)}


def masks(legal: jax.Array, turn: jax.Array) -> jax.Array:
    """Legal actions of all players `[A, N + 1]`: those of the game `[N]` for whose turn it is, for others the pass."""
    return jnp.concatenate([turn[:, None] & legal[None], ~turn[:, None]], axis=1)


# Compiled also where a user steps by hand: operation by operation, one step takes seconds.
@functools.partial(jax.jit, static_argnums=0)
def _init(dynamics: Any, key: jax.Array) -> Any:
    return _without_observation(dynamics.init(key))


@functools.partial(jax.jit, static_argnums=0)
def _step(dynamics: Any, state: Any, move: jax.Array, key: jax.Array) -> Any:
    return _without_observation(dynamics.step(state, move, key))


def _without_observation(state: Any) -> Any:
    """So that nothing computes it, moves it from step to step and keeps it for starts to come."""
    return state.replace(observation=jnp.zeros(0, bool))


def make(name: str, arguments: dict[str, Any]) -> Pgx:
    """The game of that name. Raises UsageError and UnknownNameError for arguments that do not fit."""
    version.require("pgx", "2.6")
    id, given = f"pgx/{name}", _ARGUMENTS | convert_all(f"pgx/{name}", arguments, _ARGUMENTS)
    # Concrete even inside a traced function, so that the constants may be kept and used again.
    with jax.ensure_compile_time_eval():
        return _assembled(id, _dynamics(name), given["opponent"])


def arguments(name: str) -> dict[str, Any]:
    """Who plays the others."""
    return dict(_ARGUMENTS)


def wrapped(id: str, dynamics: Any, opponent: str) -> Pgx:
    """The environment around a game of Pgx. Raises UsageError for what is none, or a game of one player."""
    version.require("pgx", "2.6")
    if not isinstance(dynamics, suite.Env) or dynamics.num_players < 2:
        raise UsageError(f"from_pgx takes a game of Pgx for two players or more, not a {type(dynamics).__name__}.")
    with jax.ensure_compile_time_eval():
        return _assembled(id, dynamics, opponent)


def _assembled(id: str, dynamics: Any, opponent: str) -> Pgx:
    """The environment around a game of the suite's. Raises UsageError for an opponent that this game does not have."""
    if opponent not in OPPONENTS:
        raise UsageError(f"{id}: opponent ({opponent!r}) must be one of {', '.join(OPPONENTS)}.")
    if opponent == "greedy" and dynamics.id not in OPEN:
        raise UsageError(
            f"{id}: opponent greedy is there for {', '.join(OPEN)} alone: other games hide something or take long."
        )
    with jax.debug_key_reuse(False):
        after, seen = _example(dynamics)
    actions = after.legal_action_mask.shape[0] + 1
    spaces = {"observation": _space(seen), "action_mask": Box(0, 1, (actions,), "bool")}
    return Pgx(
        dynamics=dynamics,
        name=id,
        observation_space=Dict(spaces),
        action_space=Discrete(actions),
        num_agents=dynamics.num_players,
        opponent=opponent,
        state_types=leaf_types(after),
        time_limit=_most_moves(dynamics),
    )


def _most_moves(dynamics: Any) -> int | None:
    """Of a game of this object; None where there is no bound."""
    return dynamics._game.max_termination_steps if dynamics.id.startswith("go_") else MOVES.get(dynamics.id)


@functools.cache
def _dynamics(name: str) -> Any:
    """One object a name, so that making an environment twice does not compile it twice."""
    with silenced():
        return suite.make(name)  # pyright: ignore[reportArgumentType]


@functools.cache
def _example(dynamics: Any) -> tuple[Any, Any]:
    """Shapes of a state that a step has made, and of an observation."""

    def step(key: jax.Array) -> Any:
        after = _step(dynamics, _init(dynamics, key), jnp.zeros((), jnp.int32), key)
        return after, dynamics._observe(after, after.current_player)

    return jax.eval_shape(step, jax.eval_shape(lambda: jax.random.key(0)))


def _space(seen: Any) -> Box:
    """Boolean boards stay boolean; all other numbers are float32."""
    return Box(0, 1, seen.shape, "bool") if seen.dtype == np.bool_ else Box(-np.inf, np.inf, seen.shape)
