"""Adapter of Pgx games (2.6 or newer; Koyama et al. 2023, arXiv:2303.17503).

Agents are the players of Pgx in a fixed order, and the starting player is random. In every step,
one player moves. Differences from Pgx:

- An additional last action is the pass of a waiting player. While another player moves, it is the
  only legal action in "action_mask", and actions of waiting players have no effect.
- Every player observes the game from its own view at every step, including while it waits.
- Rewards are float32, and states have fixed dtypes. All ends terminate, including the draw that Pgx
  declares after many moves.
- States do not contain an observation. In Pgx they contain the observation of one player.

With `opponent="random"`, all players except the first make random legal moves and their actions are
ignored. The return then measures the strength of a policy. If all players use the same policy, the
returns of two players add up to 0. With `opponent="greedy"`, the other players look two moves
ahead. This opponent is available for games with few moves and perfect information.
"""

import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from rollax.environments.conversion import cast_leaves, convert_arguments, leaf_dtypes
from rollax.environments.environment import Transition
from rollax.environments.environment_text import format_environment, format_environment_html
from rollax.environments.suites import package_versions
from rollax.environments.suites.output_capture import suppress_output
from rollax.environments.suites.suite import SuiteEnvironment
from rollax.errors import UsageError
from rollax.spaces import Box, Dict, Discrete
from rollax.types import Action, Observation, Setting, State

with suppress_output(), jax.ensure_compile_time_eval():
    import pgx as suite

OPPONENTS = ("agents", "random", "greedy")
# Games with less than a hundred moves and perfect information.
GREEDY_OPPONENT_GAMES = (
    "connect_four",
    "go_9x9",
    "othello",
    "tic_tac_toe",
)
CHOICES = {"opponent": OPPONENTS}
_DEFAULT_ARGUMENTS = {"opponent": "agents"}
# Largest number of moves in a game, for games with a fixed bound.
MAX_MOVES = {
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
    """Pgx game.

    Attributes:
        dynamics: Pgx game.
        name: Id of the environment.
        observation_space: `Dict` with the keys "observation" and "action_mask".
        action_space: Moves of the game, and the pass of a waiting player as the last action.
        num_agents: Number of players.
        opponent: Opponent of the first player: "agents", "random" or "greedy".
        state_dtypes: Dtypes of the leaves of a state.
        time_limit: Maximum number of moves of a game, or None without a fixed bound.
    """

    dynamics: Any = eqx.field(static=True)
    name: str = eqx.field(static=True)
    observation_space: Dict = eqx.field(static=True)
    action_space: Discrete = eqx.field(static=True)
    num_agents: int = eqx.field(static=True)
    opponent: str = eqx.field(static=True)
    state_dtypes: tuple[str, ...] = eqx.field(static=True)
    time_limit: int | None = eqx.field(static=True)

    def __repr__(self) -> str:
        return format_environment(self)

    def _repr_html_(self) -> str:
        return format_environment_html(self)

    @property
    def agent_types(self) -> tuple[str, ...]:
        return tuple(f"player_{i}" for i in range(self.num_agents))

    @property
    def waiting_action(self) -> int:
        """Index of the last action, with which waiting players pass."""
        return self.action_space.n - 1

    def reset(self, key: jax.Array) -> tuple[State, Observation]:
        """Return the state and the observations at the start of a game."""
        state = cast_leaves(_init(self.dynamics, key), self.state_dtypes)
        return state, self._observe(state)

    def step(self, key: jax.Array, state: State, action: Action) -> Transition:
        """Make one move. Only the action of the player to move has an effect."""
        move_key, chance_key = jax.random.split(key)
        player, num_moves = state.current_player, state.legal_action_mask.shape[0]
        move = jnp.minimum(jnp.asarray(action, jnp.int32)[player], num_moves - 1)
        if self.opponent != "agents":
            values = (
                self._move_values(state, chance_key)
                if self.opponent == "greedy"
                else jnp.zeros(num_moves)
            )
            values = jnp.where(state.legal_action_mask, values, -jnp.inf)
            opponent_move = jax.random.categorical(
                move_key, jnp.where(values == jnp.max(values), 0.0, -jnp.inf)
            )
            move = jnp.where(player == 0, move, opponent_move)
        next_state = cast_leaves(_step(self.dynamics, state, move, chance_key), self.state_dtypes)
        return Transition(
            state=next_state,
            obs=self._observe(next_state),
            reward=next_state.rewards.astype(jnp.float32),
            terminated=jnp.broadcast_to(next_state.terminated, (self.num_agents,)),
            truncated=jnp.zeros(self.num_agents, bool),
            info={},
        )

    def _move_values(self, state: State, key: jax.Array) -> jax.Array:
        """Return the value of each of N moves, `[N]`.

        The value is 1 if the move wins the game, -1 if a reply to the move wins, and 0 otherwise.
        """
        player, moves = state.current_player, jnp.arange(state.legal_action_mask.shape[0])

        def try_moves(state: State) -> Any:
            return jax.vmap(lambda move: self.dynamics.step(state, move, key))(moves)

        next_states = try_moves(state)
        reply_states = jax.vmap(try_moves)(next_states)
        is_lost = (
            next_states.legal_action_mask
            & (reply_states.rewards[..., player] < 0)
            & ~next_states.terminated[:, None]
        )
        return jnp.where(next_states.rewards[:, player] > 0, 1.0, -1.0 * jnp.any(is_lost, axis=1))

    def _observe(self, state: State) -> dict[str, jax.Array]:
        players = jnp.arange(self.num_agents)
        board = jax.vmap(lambda player: self.dynamics._observe(state, player))(players)
        board = board if board.dtype == bool else board.astype(jnp.float32)
        is_player_to_move = players == state.current_player
        # The environment ignores the actions of the other players. They are not used for learning.
        if self.opponent != "agents":
            is_player_to_move &= players == 0
        return {
            "observation": board,
            "action_mask": make_action_masks(state.legal_action_mask, is_player_to_move),
        }


def make_action_masks(legal: jax.Array, is_player_to_move: jax.Array) -> jax.Array:
    """Return the action masks of all players.

    Args:
        legal: Mask of the legal moves of the player to move, bool `[N]`.
        is_player_to_move: Mask of the player to move, bool `[A]`.

    Returns:
        Action masks, bool `[A, N + 1]`. For waiting players, only the last action is legal.
    """
    return jnp.concatenate(
        [is_player_to_move[:, None] & legal[None], ~is_player_to_move[:, None]], axis=1
    )


# Compiled because a step outside of jit would take seconds.
@functools.partial(jax.jit, static_argnums=0)
def _init(dynamics: SuiteEnvironment, key: jax.Array) -> Any:
    return _drop_observation(dynamics.init(key))


@functools.partial(jax.jit, static_argnums=0)
def _step(dynamics: SuiteEnvironment, state: State, move: jax.Array, key: jax.Array) -> Any:
    return _drop_observation(dynamics.step(state, move, key))


def _drop_observation(state: State) -> Any:
    """Remove the observation from a state, so that jit does not compute or store it."""
    return state.replace(observation=jnp.zeros(0, bool))


def make(name: str, arguments: dict[str, Setting]) -> Pgx:
    """Build a Pgx game.

    Args:
        name: Name of the game in Pgx.
        arguments: Environment arguments (see `default_arguments`).

    Returns:
        The environment.

    Raises:
        ModuleNotFoundError: If Pgx is not installed.
        UsageError: If Pgx is too old, or the game does not support the opponent.
        UnknownNameError: If an argument does not exist.
    """
    package_versions.require_version("pgx", "2.6")
    id, values = (
        f"pgx/{name}",
        _DEFAULT_ARGUMENTS | convert_arguments(f"pgx/{name}", arguments, _DEFAULT_ARGUMENTS),
    )
    # Concrete values even inside a traced function, so that cached constants can be reused.
    with jax.ensure_compile_time_eval():
        return _build_environment(id, _make_dynamics(name), values["opponent"])


def default_arguments(name: str) -> dict[str, Any]:
    """Return the default of the only argument, `opponent`, as a dictionary."""
    return dict(_DEFAULT_ARGUMENTS)


def wrap_environment(id: str, dynamics: SuiteEnvironment, opponent: str) -> Pgx:
    """Build an environment from a Pgx game object.

    Args:
        id: Id of the environment.
        dynamics: Pgx game.
        opponent: Opponent of the first player: "agents", "random" or "greedy".

    Returns:
        The environment.

    Raises:
        UsageError: If `dynamics` is not a Pgx game for two or more players, or the game does not
            support the opponent.
    """
    package_versions.require_version("pgx", "2.6")
    if not isinstance(dynamics, suite.Env) or dynamics.num_players < 2:
        raise UsageError(
            "environment must be a game of Pgx for two or more players, got an object of "
            f"{type(dynamics).__name__}."
        )
    with jax.ensure_compile_time_eval():
        return _build_environment(id, dynamics, opponent)


def _build_environment(id: str, dynamics: SuiteEnvironment, opponent: str) -> Pgx:
    """Build the environment. Raise UsageError if the game does not support the opponent."""
    if opponent not in OPPONENTS:
        raise UsageError(f"{id}: opponent ({opponent!r}) must be one of {', '.join(OPPONENTS)}.")
    if opponent == "greedy" and dynamics.id not in GREEDY_OPPONENT_GAMES:
        raise UsageError(
            f"{id}: opponent greedy is available only for {', '.join(GREEDY_OPPONENT_GAMES)}, "
            "because other games have hidden information or too many moves. Use opponent random."
        )
    with jax.debug_key_reuse(False):
        state, observation = _infer_shapes(dynamics)
    actions = state.legal_action_mask.shape[0] + 1
    spaces = {
        "observation": _observation_space(observation),
        "action_mask": Box(0, 1, (actions,), "bool"),
    }
    return Pgx(
        dynamics=dynamics,
        name=id,
        observation_space=Dict(spaces),
        action_space=Discrete(actions),
        num_agents=dynamics.num_players,
        opponent=opponent,
        state_dtypes=leaf_dtypes(state),
        time_limit=_max_moves(dynamics),
    )


def _max_moves(dynamics: SuiteEnvironment) -> int | None:
    """Return the maximum number of moves of a game, or None without a fixed bound."""
    return (
        dynamics._game.max_termination_steps
        if dynamics.id.startswith("go_")
        else MAX_MOVES.get(dynamics.id)
    )


@functools.cache
def _make_dynamics(name: str) -> Any:
    """Create a Pgx game, cached so that equal environments share a compilation."""
    with suppress_output():
        return suite.make(name)  # pyright: ignore[reportArgumentType]


@functools.cache
def _infer_shapes(dynamics: SuiteEnvironment) -> tuple[Any, Any]:
    """Return the shapes and dtypes of a state after a step and of an observation."""

    def step(key: jax.Array) -> Any:
        state = _step(dynamics, _init(dynamics, key), jnp.zeros((), jnp.int32), key)
        return state, dynamics._observe(state, state.current_player)

    return jax.eval_shape(step, jax.eval_shape(lambda: jax.random.key(0)))


def _observation_space(observation: jax.ShapeDtypeStruct) -> Box:
    """Return a bool space for boolean boards and an unbounded float32 space otherwise."""
    return (
        Box(0, 1, observation.shape, "bool")
        if observation.dtype == np.bool_
        else Box(-np.inf, np.inf, observation.shape)
    )
