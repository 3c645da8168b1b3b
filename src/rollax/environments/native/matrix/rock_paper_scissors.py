"""Rock-paper-scissors, whose equilibrium and exploitability are known in closed form."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from rollax.environments.environment import Transition
from rollax.environments.environment_text import format_environment_html
from rollax.errors import UsageError
from rollax.spaces import Box, Discrete
from rollax.types import Action, Observation, State

ROCK, PAPER, SCISSORS = range(3)


class RockPaperScissorsState(NamedTuple):
    """State of `RockPaperScissors`.

    Attributes:
        choices: Choices of both players in the last round as one-hot vectors, float32 [2, 3]. They
            are zero before the first round.
        round: Number of rounds so far, int32 [].
    """

    choices: jax.Array
    round: jax.Array


class RockPaperScissors(eqx.Module):
    """Game of two players who choose rock (0), paper (1) or scissors (2) at the same time.

    Paper beats rock, scissors beat paper, and rock beats scissors. The winner of a round receives
    the entry of `payoffs` for the winning choice, and the loser pays it. Equal choices give 0. An
    episode terminates after `rounds` rounds.

    The observation of a player is float32 [7]: 1 in the first round and 0 afterwards, the player's
    own last choice, and the last choice of the other player, both as one-hot vectors.

    The game has no pure equilibrium. A policy that learns against the newest version of itself
    therefore moves in a cycle, from rock to paper to scissors.

    Args:
        payoffs: Payoff of a win with rock, with paper and with scissors, each above 0.
        rounds: (static) Number of rounds of an episode, at least 1.

    Raises:
        UsageError: If `payoffs` is not three positive numbers, or `rounds` is below 1.
    """

    payoffs: jax.Array  # float32 [3]
    rounds: int = eqx.field(static=True)

    name = "matrix/rock-paper-scissors"
    observation_space = Box(0.0, 1.0, (7,))
    action_space = Discrete(3)
    num_agents = 2
    agent_types = ("player", "player")
    _repr_html_ = format_environment_html

    def __init__(
        self, payoffs: tuple[float, ...] | jax.Array = (1.0, 1.0, 1.0), rounds: int = 1
    ) -> None:
        if not isinstance(payoffs, Tracer) and not (
            np.shape(payoffs) == (3,)
            and np.all(np.isfinite(np.asarray(payoffs)) & (np.asarray(payoffs) > 0))
        ):
            raise UsageError(
                f"{self.name}: payoffs ({payoffs}) must be three positive numbers, the payoff of a "
                "win with rock, with paper and with scissors."
            )
        if rounds < 1:
            raise UsageError(f"{self.name}: rounds ({rounds}) must be at least 1.")
        self.payoffs = jnp.asarray(payoffs, jnp.float32)
        self.rounds = rounds

    @property
    def time_limit(self) -> int:
        return self.rounds

    @property
    def payoff_matrix(self) -> jax.Array:
        """Reward of the first player, by the choices of both players, float32 [3, 3]."""
        wins = jnp.zeros((3, 3)).at[jnp.arange(3), (jnp.arange(3) + 2) % 3].set(self.payoffs)
        return wins - wins.T

    @property
    def equilibrium(self) -> jax.Array:
        """Probabilities of rock, paper and scissors in the Nash equilibrium, float32 [3].

        No choice wins against these probabilities, so their exploitability is 0.
        """
        return jnp.roll(self.payoffs, 1) / jnp.sum(self.payoffs)

    def exploitability(self, probabilities: jax.Array) -> jax.Array:
        """Return the expected reward of a best response to a policy, per round.

        Args:
            probabilities: Probabilities of rock, paper and scissors, float [..., 3].

        Returns:
            The exploitability, float [...]. It is 0 in the equilibrium.
        """
        return jnp.max(probabilities @ self.payoff_matrix.T, axis=-1)

    def reset(self, key: jax.Array) -> tuple[State, Observation]:
        state = RockPaperScissorsState(jnp.zeros((2, 3)), jnp.zeros((), jnp.int32))
        return state, self._observe(state)

    def step(self, key: jax.Array, state: RockPaperScissorsState, action: Action) -> Transition:
        """Play one round with the choices of both players, int [2]."""
        reward = self.payoff_matrix[action[0], action[1]]
        after = RockPaperScissorsState(jax.nn.one_hot(action, 3), state.round + 1)
        return Transition(
            state=after,
            obs=self._observe(after),
            reward=jnp.stack([reward, -reward]),
            terminated=jnp.broadcast_to(after.round >= self.rounds, 2),
            truncated=jnp.zeros(2, bool),
            info={},
        )

    def _observe(self, state: RockPaperScissorsState) -> jax.Array:
        """Return the observation of each player, [2, 7]."""
        is_first = jnp.full((2, 1), state.round == 0, jnp.float32)
        return jnp.concatenate([is_first, state.choices, state.choices[::-1]], axis=1)
