"""Games with cards of the suite `memory`: decks are dealt card by card, and what was dealt has to be remembered.

After Morad et al. 2023, "POPGym: Benchmarking Partially Observable Reinforcement Learning" (arXiv:2303.01859), whose easy,
medium and hard tasks differ in the number of decks. As there, an episode ends (*terminates*) when all cards are dealt. No
action changes what comes: each decides about its own reward alone.
"""

from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from rollax.environments.core import Transition
from rollax.errors import UsageError
from rollax.spaces import Discrete, MultiDiscrete

DECK = 52
DECK_TYPES = {"colors": 2, "suits": 4, "ranks": 13}


class Deal(NamedTuple):
    cards: jax.Array  # int32 [52 decks]: what is on the cards, in the order in which they are dealt
    time: jax.Array  # int32 []: steps so far


class Queries(NamedTuple):
    cards: jax.Array
    time: jax.Array
    asked: jax.Array  # int32 [52 decks]: what is asked for beside each card


def shuffled(key: jax.Array, decks: int, symbols: int) -> jax.Array:
    """`decks` decks of 52 cards of which each symbol is on as many: int32 `[52 decks]`."""
    return jax.random.permutation(key, jnp.arange(DECK * decks, dtype=jnp.int32) % symbols)


class CardGame(eqx.Module):
    """What the games have in common. Raises: UsageError for less than one deck."""

    decks: int = eqx.field(static=True, default=1)

    num_agents = None
    name = "memory/cards"
    symbols = DECK_TYPES["suits"]  # that cards are told apart by

    def __check_init__(self) -> None:
        if self.decks < 1:
            raise UsageError(f"{self.name}: decks ({self.decks}) must be at least 1.")

    @property
    def num_cards(self) -> int:
        return DECK * self.decks

    @property
    def time_limit(self) -> int:
        return self.num_cards - 1

    def reset(self, key: jax.Array) -> tuple[Any, Any]:
        """A shuffled deck and what is on its first card, int32 []."""
        cards = shuffled(key, self.decks, self.symbols)
        return Deal(cards, jnp.zeros((), jnp.int32)), cards[0]

    def after(self, state: Any, obs: jax.Array, reward: jax.Array) -> Transition:
        """The transition to the next card with its observation."""
        return Transition(
            state=state._replace(time=state.time + 1),
            obs=obs,
            reward=reward.astype(jnp.float32),
            terminated=state.time + 1 >= self.time_limit,
            truncated=jnp.zeros((), bool),
            info={},
        )


def _score(is_right: jax.Array, number: int) -> jax.Array:
    return jnp.where(is_right, 1 / number, -1 / number)


class RepeatFirst(CardGame):
    """Cards are dealt, and the right action is always the suit of the first (POPGym's RepeatFirst; 1, 8 and 16 decks).

    Each of the 52 decks - 1 steps gives 1 / (52 decks - 1) if the action is right, or else the negative of it. The return of
    a perfect memory is 1, of uniform actions -0.5 in the mean; without memory any suit but the one on show is best, with -0.49
    for one deck: of the other 51 cards 13 are of each other suit.
    """

    name = "memory/repeat-first"
    observation_space = Discrete(4)
    action_space = Discrete(4)

    def step(self, key: jax.Array, state: Any, action: Any) -> Transition:
        return self.after(state, state.cards[state.time + 1], _score(action == state.cards[0], self.time_limit))


class Autoencode(CardGame):
    """Cards are shown, and then the right actions are their suits, the last card's first (POPGym's Autoencode; 1 to 3 decks).

    The observation is [is it asked, suit]; while answers are asked the suit is 0, but for the first, which is asked while the
    last card is on show. Each of the 52 decks answers gives 1 / (52 decks) if it is right, or else the negative of it; the
    steps before give 0. The return of a perfect memory is 1, of uniform actions -0.5 in the mean, and of the best policy
    without memory -0.46 with one deck: it knows the last card, and that 13 of the others are of each other suit.
    """

    name = "memory/autoencode"
    observation_space = MultiDiscrete((2, 4))
    action_space = Discrete(4)

    @property
    def time_limit(self) -> int:
        return 2 * self.num_cards - 1

    def reset(self, key: jax.Array) -> tuple[Any, Any]:
        """A shuffled deck and the suit of its first card, int32 [2]."""
        state, suit = super().reset(key)
        return state, jnp.stack([jnp.zeros((), jnp.int32), suit])

    def step(self, key: jax.Array, state: Any, action: Any) -> Transition:
        last = self.num_cards - 1
        answer = state.cards[2 * last - state.time]  # from the last card back; without effect before
        reward = jnp.where(state.time >= last, _score(action == answer, self.num_cards), 0.0)
        following = state.time + 1
        suit = jnp.where(following <= last, state.cards[jnp.minimum(following, last)], 0)
        return self.after(state, jnp.stack([(following >= last).astype(jnp.int32), suit]), reward)


class CountRecall(CardGame):
    """A card is dealt and a symbol asked for: how many of it were dealt until now? (POPGym's CountRecall.)

    The observation is [dealt, asked for], both from shuffled decks of their own. Cards are told apart by `deck_type`: colors
    (2), suits (4) or ranks (13). POPGym's easy task has one deck of colors, the medium one two of suits, the hard one four of
    ranks. Each of the 52 decks - 1 steps gives 1 / (52 decks - 1) if the action is the right number, or else the negative of
    it; a perfect memory has the return 1.
    """

    deck_type: Literal["colors", "suits", "ranks"] = eqx.field(static=True, default="colors")

    name = "memory/count-recall"

    def __check_init__(self) -> None:
        if self.deck_type not in DECK_TYPES:
            raise UsageError(f"{self.name}: deck_type ({self.deck_type}) must be one of {', '.join(DECK_TYPES)}.")

    @property
    def observation_space(self) -> MultiDiscrete:
        return MultiDiscrete((DECK_TYPES[self.deck_type], DECK_TYPES[self.deck_type]))

    @property
    def action_space(self) -> Discrete:
        return Discrete(self.num_cards // DECK_TYPES[self.deck_type] + 1)

    def reset(self, key: jax.Array) -> tuple[Any, Any]:
        """Two shuffled decks and the first card of each, int32 [2]."""
        cards, asked = (shuffled(key, self.decks, DECK_TYPES[self.deck_type]) for key in jax.random.split(key))
        return Queries(cards, jnp.zeros((), jnp.int32), asked), jnp.stack([cards[0], asked[0]])

    def step(self, key: jax.Array, state: Any, action: Any) -> Transition:
        is_dealt = jnp.arange(self.num_cards) <= state.time
        number = jnp.sum(is_dealt & (state.cards == state.asked[state.time]))
        following = state.time + 1
        obs = jnp.stack([state.cards[following], state.asked[following]])
        return self.after(state, obs, _score(action == number, self.time_limit))


class HigherLower(CardGame):
    """Is the next card higher (action 0) or lower (1) than the one on show? (POPGym's HigherLower; 1 to 3 decks.)

    The observation is the rank on show, 0 to 12. Each of the 52 decks - 1 steps gives 1 / (52 decks) for a right guess, the
    negative of it for a wrong one, and 0 where both ranks are the same. Uniform actions have the return 0 in the mean. With
    one deck the better guess has .497 by the card on show alone (higher below the seventh rank, lower above it), and .53 by
    the cards that are left.
    """

    name = "memory/higher-lower"
    symbols = DECK_TYPES["ranks"]
    observation_space = Discrete(13)
    action_space = Discrete(2)

    def step(self, key: jax.Array, state: Any, action: Any) -> Transition:
        shown, following = state.cards[state.time], state.cards[state.time + 1]
        sign = jnp.sign(following - shown) * jnp.where(action == 0, 1, -1)
        return self.after(state, following, sign / self.num_cards)


GAMES: dict[str, type] = {
    "repeat-first": RepeatFirst,
    "autoencode": Autoencode,
    "count-recall": CountRecall,
    "higher-lower": HigherLower,
}
