"""Task of repeating symbols from earlier observations."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from rollax.environments.environment import Transition
from rollax.environments.environment_text import format_environment_html
from rollax.errors import UsageError
from rollax.spaces import Discrete
from rollax.types import Action, Observation, State


class RepeatPreviousState(NamedTuple):
    """State of `RepeatPrevious`.

    Attributes:
        recent: Last symbols, the oldest first, int32 [delay + 1]. Entries are 0 before the first
            symbols are shown.
        time: Number of steps so far, int32 [].
    """

    recent: jax.Array
    time: jax.Array


class RepeatPrevious(eqx.Module):
    """Task of repeating the symbol shown `delay` steps before (Morad et al. 2023, POPGym).

    The observation o_t is an independent uniform sample from `symbols` symbols, and the correct
    action is o_(t - delay). With `delay` 0 the correct action is the visible symbol. The first
    `delay` steps have nothing to repeat and give 0. Each of the following `length` steps gives 1 /
    length for a correct action and -1 / length otherwise. The state keeps the last delay + 1
    symbols.

    Return of one episode:

    - With perfect memory it is 1.
    - Uniform actions have the mean 2 / symbols - 1 and the standard deviation 2 sqrt((symbols - 1)
      / length) / symbols.
    - Policies that remember fewer than `delay` previous observations also have the mean 2 / symbols
      - 1, because the observations that they remember are independent of the correct action. With
      `delay` 0 no memory is needed, and the best return is 1.

    An episode has delay + length steps and *terminates* with the last one. No reward follows, so
    the value after it is 0. This end is not a time limit that interrupts a continuing task.

    Deviations from POPGym: Symbols are drawn independently and not from a deck of cards, so
    counting cards does not help. The end terminates, whereas POPGym truncates. POPGym's k counts
    the visible symbol, so k is delay + 1, and its easy task (k = 4, 48 scored steps) is `delay=3`.

    Args:
        delay: (static) Number of steps between a symbol and its repetition, at least 0.
        symbols: (static) Number of symbols, at least 2.
        length: (static) Number of scored steps, at least 1.

    Raises:
        UsageError: If a number is too small.
    """

    delay: int = eqx.field(static=True, default=4)
    symbols: int = eqx.field(static=True, default=4)
    length: int = eqx.field(static=True, default=48)

    name = "memory/repeat-previous"
    num_agents = None
    _repr_html_ = format_environment_html

    def __check_init__(self) -> None:
        for argument, least in (("delay", 0), ("symbols", 2), ("length", 1)):
            value = getattr(self, argument)
            if value < least:
                raise UsageError(f"{self.name}: {argument} ({value}) must be at least {least}.")

    @property
    def observation_space(self) -> Discrete:
        return Discrete(self.symbols)

    @property
    def action_space(self) -> Discrete:
        return Discrete(self.symbols)

    @property
    def time_limit(self) -> int:
        return self.delay + self.length

    def reset(self, key: jax.Array) -> tuple[State, Observation]:
        """Return the initial state and the first symbol, int32 []."""
        symbol = self._draw(key)
        recent_symbols = jnp.zeros(self.delay + 1, jnp.int32).at[-1].set(symbol)
        return RepeatPreviousState(recent_symbols, jnp.zeros((), jnp.int32)), symbol

    def step(self, key: jax.Array, state: RepeatPreviousState, action: Action) -> Transition:
        """Score the action, int [], and show the next symbol."""
        score = jnp.where(action == state.recent[0], 1 / self.length, -1 / self.length)
        symbol = self._draw(key)
        after = RepeatPreviousState(jnp.append(state.recent[1:], symbol), state.time + 1)
        return Transition(
            state=after,
            obs=symbol,
            reward=jnp.where(state.time >= self.delay, score, 0.0).astype(jnp.float32),
            terminated=after.time >= self.time_limit,
            truncated=jnp.zeros((), bool),
            info={},
        )

    def _draw(self, key: jax.Array) -> jax.Array:
        return jax.random.randint(key, (), 0, self.symbols, jnp.int32)
