"""Card games of the suite `memory`.

Cards are dealt one by one, and a policy has to remember them. The games follow Morad et al. 2023,
"POPGym: Benchmarking Partially Observable Reinforcement Learning" (arXiv:2303.01859), whose easy,
medium and hard tasks differ in the number of decks. An episode *terminates* when all cards are
dealt, as in POPGym. Actions do not affect the cards. Each action only determines its own reward.
"""

from typing import Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from rollax.environments.environment import Transition
from rollax.environments.environment_text import format_environment_html
from rollax.errors import UsageError
from rollax.spaces import Discrete, MultiDiscrete
from rollax.types import Action, Observation, State

DECK_SIZE = 52
DECK_TYPES = {"colors": 2, "suits": 4, "ranks": 13}


class DealState(NamedTuple):
    """State of a game with one sequence of cards.

    Attributes:
        cards: Symbols of the cards in dealing order, int32 `[52 * decks]`.
        time: Number of steps so far, int32 [].
    """

    cards: jax.Array
    time: jax.Array


class QueryState(NamedTuple):
    """State of a game with a sequence of cards and a sequence of queries.

    Attributes:
        cards: Symbols of the cards in dealing order, int32 `[52 * decks]`.
        time: Number of steps so far, int32 [].
        queried_cards: Symbol to count at each step, int32 `[52 * decks]`.
    """

    cards: jax.Array
    time: jax.Array
    queried_cards: jax.Array


def shuffle_decks(key: jax.Array, decks: int, symbols: int) -> jax.Array:
    """Return shuffled decks of 52 cards that contain each symbol equally often.

    Args:
        key: Random key.
        decks: Number of decks.
        symbols: Number of symbols.

    Returns:
        Symbols of the cards, int32 `[52 * decks]`.
    """
    return jax.random.permutation(key, jnp.arange(DECK_SIZE * decks, dtype=jnp.int32) % symbols)


class CardGame(eqx.Module):
    """Base class of the card games.

    Args:
        decks: (static) Number of decks of 52 cards.

    Raises:
        UsageError: If `decks` is below 1.
    """

    decks: int = eqx.field(static=True, default=1)

    num_agents = None
    name = "memory/cards"
    symbols = DECK_TYPES["suits"]  # number of different symbols
    _repr_html_ = format_environment_html

    def __check_init__(self) -> None:
        if self.decks < 1:
            raise UsageError(f"{self.name}: decks ({self.decks}) must be at least 1.")

    @property
    def num_cards(self) -> int:
        return DECK_SIZE * self.decks

    @property
    def time_limit(self) -> int:
        return self.num_cards - 1

    def reset(self, key: jax.Array) -> tuple[State, Observation]:
        """Return the state of a new game and the symbol of its first card, int32 []."""
        cards = shuffle_decks(key, self.decks, self.symbols)
        return DealState(cards, jnp.zeros((), jnp.int32)), cards[0]

    def make_transition(
        self, state: DealState | QueryState, obs: jax.Array, reward: jax.Array
    ) -> Transition:
        """Return the transition to the next card.

        Args:
            state: State before the step.
            obs: Observation of the next card.
            reward: Reward of the step, [].

        Returns:
            Transition that terminates at the time limit.
        """
        return Transition(
            state=state._replace(time=state.time + 1),
            obs=obs,
            reward=reward.astype(jnp.float32),
            terminated=state.time + 1 >= self.time_limit,
            truncated=jnp.zeros((), bool),
            info={},
        )


def _answer_reward(is_correct: jax.Array, num_answers: int) -> jax.Array:
    """Return 1 / `num_answers` for a correct answer and -1 / `num_answers` for a wrong answer."""
    return jnp.where(is_correct, 1 / num_answers, -1 / num_answers)


class RepeatFirst(CardGame):
    """Game whose correct action is always the suit of the first card.

    This is RepeatFirst of POPGym, which uses 1, 8 and 16 decks. An episode has n = 52 * `decks` - 1
    steps. Each step gives 1 / n for a correct action and -1 / n otherwise.

    The return with perfect memory is 1, and the mean return of uniform actions is -0.5. Without
    memory, the best action is any suit other than the visible suit. Its mean return is -0.49 for
    one deck, because each of these suits has 13 of the remaining 51 cards.
    """

    name = "memory/repeat-first"
    observation_space = Discrete(4)
    action_space = Discrete(4)

    def step(self, key: jax.Array, state: State, action: Action) -> Transition:
        return self.make_transition(
            state,
            state.cards[state.time + 1],
            _answer_reward(action == state.cards[0], self.time_limit),
        )


class Autoencode(CardGame):
    """Game that shows cards and then asks for their suits in reverse order.

    This is Autoencode of POPGym, which uses 1 to 3 decks. The observation is [whether a suit is
    queried, suit]. During the queries the suit is 0, except for the first query, which occurs while
    the last card is visible. Each of the n = 52 * `decks` answers gives 1 / n if it is correct and
    -1 / n otherwise. Earlier steps give 0.

    The return with perfect memory is 1, and the mean return of uniform actions is -0.5. The best
    policy without memory reaches -0.46 with one deck: it observes the last card, and each of the
    other suits has 13 of the other cards.
    """

    name = "memory/autoencode"
    observation_space = MultiDiscrete((2, 4))
    action_space = Discrete(4)

    @property
    def time_limit(self) -> int:
        return 2 * self.num_cards - 1

    def reset(self, key: jax.Array) -> tuple[State, Observation]:
        """Return the state of a new game and its first observation, int32 [2]."""
        state, suit = super().reset(key)
        return state, jnp.stack([jnp.zeros((), jnp.int32), suit])

    def step(self, key: jax.Array, state: State, action: Action) -> Transition:
        last = self.num_cards - 1
        answer = state.cards[2 * last - state.time]  # unused before the first query
        reward = jnp.where(
            state.time >= last, _answer_reward(action == answer, self.num_cards), 0.0
        )
        next_time = state.time + 1
        suit = jnp.where(next_time <= last, state.cards[jnp.minimum(next_time, last)], 0)
        return self.make_transition(
            state, jnp.stack([(next_time >= last).astype(jnp.int32), suit]), reward
        )


class CountRecall(CardGame):
    """Game that deals a card and asks how often a symbol has been dealt so far.

    This is CountRecall of POPGym. The observation is [dealt symbol, queried symbol]. Dealt and
    queried symbols come from separately shuffled decks. The easy task of POPGym has one deck of
    colors, the medium task two decks of suits, and the hard task four decks of ranks.

    An episode has n = 52 * `decks` - 1 steps. Each step gives 1 / n if the action is the correct
    count and -1 / n otherwise. The return with perfect memory is 1.

    Args:
        decks: (static) Number of decks of 52 cards.
        deck_type: (static) Symbols that distinguish cards: "colors" (2), "suits" (4) or "ranks"
            (13).

    Raises:
        UsageError: If `deck_type` is unknown.
    """

    deck_type: Literal["colors", "suits", "ranks"] = eqx.field(static=True, default="colors")

    name = "memory/count-recall"

    def __check_init__(self) -> None:
        if self.deck_type not in DECK_TYPES:
            raise UsageError(
                f"{self.name}: deck_type ({self.deck_type}) must be one of {', '.join(DECK_TYPES)}."
            )

    @property
    def observation_space(self) -> MultiDiscrete:
        return MultiDiscrete((DECK_TYPES[self.deck_type], DECK_TYPES[self.deck_type]))

    @property
    def action_space(self) -> Discrete:
        return Discrete(self.num_cards // DECK_TYPES[self.deck_type] + 1)

    def reset(self, key: jax.Array) -> tuple[State, Observation]:
        """Return the state of a new game and its first observation, int32 [2]."""
        cards, queried_cards = (
            shuffle_decks(key, self.decks, DECK_TYPES[self.deck_type])
            for key in jax.random.split(key)
        )
        return QueryState(cards, jnp.zeros((), jnp.int32), queried_cards), jnp.stack(
            [cards[0], queried_cards[0]]
        )

    def step(self, key: jax.Array, state: State, action: Action) -> Transition:
        is_dealt = jnp.arange(self.num_cards) <= state.time
        count = jnp.sum(is_dealt & (state.cards == state.queried_cards[state.time]))
        next_time = state.time + 1
        obs = jnp.stack([state.cards[next_time], state.queried_cards[next_time]])
        return self.make_transition(state, obs, _answer_reward(action == count, self.time_limit))


class HigherLower(CardGame):
    """Game of guessing whether the next card is higher (action 0) or lower (action 1).

    This is HigherLower of POPGym, which uses 1 to 3 decks. The observation is the rank of the
    visible card, 0 to 12. An episode with n = 52 * `decks` cards has n - 1 steps. A step gives
    1 / n for a correct guess, -1 / n for a wrong guess, and 0 if both ranks are equal.

    The mean return of uniform actions is 0. With one deck, the best guess from the visible card
    alone (higher below the seventh rank, lower above it) returns 0.497. The best guess from the
    remaining cards, which requires memory, returns 0.53.
    """

    name = "memory/higher-lower"
    symbols = DECK_TYPES["ranks"]
    observation_space = Discrete(13)
    action_space = Discrete(2)

    def step(self, key: jax.Array, state: State, action: Action) -> Transition:
        card, next_card = state.cards[state.time], state.cards[state.time + 1]
        sign = jnp.sign(next_card - card) * jnp.where(action == 0, 1, -1)
        return self.make_transition(state, next_card, sign / self.num_cards)


GAMES: dict[str, type] = {
    "repeat-first": RepeatFirst,
    "autoencode": Autoencode,
    "count-recall": CountRecall,
    "higher-lower": HigherLower,
}
