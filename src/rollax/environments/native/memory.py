"""The suite `memory`: tasks for which one observation is not enough. Symbols, cards, and control without velocities.

After Morad et al. 2023, "POPGym: Benchmarking Partially Observable Reinforcement Learning" (arXiv:2303.01859).
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from rollax.environments import registry
from rollax.environments.convert import convert_all, signature_defaults
from rollax.environments.core import Environment, Transition
from rollax.environments.native import cards
from rollax.environments.view_base import View, shown_state
from rollax.errors import UsageError
from rollax.spaces import Bound, Box, Discrete


class RepeatPreviousState(NamedTuple):
    recent: jax.Array  # int32 [delay + 1]: the symbols shown last, the oldest first; 0 where none has been shown yet
    time: jax.Array  # int32 []


class RepeatPrevious(eqx.Module):
    """A symbol is shown at every step, and the right action is the one shown `delay` steps before (Morad et al. 2023, POPGym).

    The observation o_t is an independent uniform draw of `symbols` symbols, and the action on it should be o_(t - delay);
    `delay` 0 asks for the symbol that is on show. The first `delay` steps have nothing to repeat and give 0. Each of the
    `length` steps after them gives 1 / length if the action is right, or else -1 / length. The state keeps the last
    delay + 1 symbols.

    Return of one episode:

    - perfect memory: 1;
    - uniform actions: 2 / symbols - 1 in the mean, with standard deviation 2 sqrt((symbols - 1) / length) / symbols;
    - the best policy without memory, and the best that remembers fewer than `delay` observations before the one on show:
      2 / symbols - 1 in the mean as well, since the symbol asked for is independent of all that it knows. With `delay` 0 no
      memory is needed, and the best is 1.

    An episode has delay + length steps and *terminates* with the last: when all has been asked there is no reward left to
    bootstrap, the value after it is 0. It is no time limit that cuts short a task which goes on.

    Deviations from POPGym: symbols are drawn independently, not from a deck of cards that runs out, so counting cards does not
    help; the end terminates where POPGym truncates; and POPGym's k counts the symbol on show, so that its k is delay + 1 and
    its easy task (k = 4, 48 scored steps) is `delay=3`.

    Raises: UsageError for a delay below 0, fewer than 2 symbols or a length below 1.
    """

    delay: int = eqx.field(static=True, default=4)
    symbols: int = eqx.field(static=True, default=4)
    length: int = eqx.field(static=True, default=48)

    name = "memory/repeat-previous"
    num_agents = None

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

    def reset(self, key: jax.Array) -> tuple[Any, Any]:
        """The state and the first symbol, int32 []."""
        symbol = self._draw(key)
        recent = jnp.zeros(self.delay + 1, jnp.int32).at[-1].set(symbol)
        return RepeatPreviousState(recent, jnp.zeros((), jnp.int32)), symbol

    def step(self, key: jax.Array, state: Any, action: Any) -> Transition:
        """Scores the action, int [], and shows the next symbol."""
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


class PartialObservation(View):
    """Selects some entries of an observation that is a vector: o' = (o_k for k in `kept`), such as `kept=(0, 2)`.

    The observations of `env` are a `Box` of shape `[n]`; they become `[len(kept)]`, in the order of `kept`, with their bounds.
    All else is that of `env`. The name is that of `env` unless another is given.

    Raises: UsageError for observations that are no vector, and for entries that are missing, repeated or none at all.
    """

    kept: tuple[int, ...] = eqx.field(static=True)
    shown_name: str = eqx.field(static=True)

    def __init__(self, env: Environment, kept: tuple[int, ...], name: str | None = None) -> None:
        self.env = env
        self.kept = tuple(int(entry) for entry in kept)
        self.shown_name = env.name if name is None else name

    def __check_init__(self) -> None:
        space = self.env.observation_space
        if not isinstance(space, Box) or len(space.shape) != 1:
            raise UsageError(
                f"{self.name}: only entries of a Box of shape [n] can be selected, and its observations are {space}."
            )
        size = space.shape[0]
        if not self.kept or len(set(self.kept)) < len(self.kept) or not all(0 <= entry < size for entry in self.kept):
            raise UsageError(f"{self.name}: kept {self.kept} must be different entries from 0 to {size - 1}, at least one.")

    @property
    def name(self) -> str:
        return self.shown_name

    @property
    def observation_space(self) -> Box:
        space = self.env.observation_space
        return Box(self._bound(space.low), self._bound(space.high), (len(self.kept),), space.dtype)

    def after_reset(self, state: Any, obs: Any) -> tuple[Any, Any]:
        return state, self._selected(obs)

    def step(self, key: jax.Array, state: Any, action: Any) -> Transition:
        """One step of `env`, with the entries `kept` of its observation."""
        after = self.env.step(key, state, action)
        return after._replace(obs=self._selected(after.obs))

    def shown_state(self, key: jax.Array, before: Any, action: Any, after: Any) -> Any:
        return shown_state(self.env, key, before, action, after)

    def _bound(self, bound: Bound) -> Bound:
        if isinstance(bound, float):
            return bound
        whole = np.broadcast_to(bound, self.env.observation_space.shape)
        return tuple(whole[list(self.kept)].tolist())

    def _selected(self, obs: jax.Array) -> jax.Array:
        return obs[..., np.asarray(self.kept)]


GAMES: dict[str, type] = {"repeat-previous": RepeatPrevious, **cards.GAMES}

# What tells positions from velocities: the entries of the gymnax environment's observation that are kept.
_POSITIONS: dict[str, tuple[int, ...]] = {
    "CartPole-v1": (0, 2),  # of the cart, its velocity, angle of the pole, its velocity
    "Pendulum-v1": (0, 1),  # cosine and sine of the angle, its velocity
    "MountainCarContinuous-v0": (0,),  # position, velocity
}


def make(name: str, arguments: dict[str, Any]) -> Environment:
    """The memory task of that name.

    Raises: UsageError for values that do not fit or where gymnax is needed and not installed; UnknownNameError for an unknown
    argument.
    """
    id = f"memory/{name}"
    if name in _POSITIONS:
        return PartialObservation(registry.make(f"gymnax/{name}", **arguments), _POSITIONS[name], id)
    return GAMES[name](**convert_all(id, arguments, signature_defaults(GAMES[name])))


def arguments(name: str) -> dict[str, Any]:
    """What the task accepts, with defaults: those of the gymnax environment for one that is made from it."""
    if name in _POSITIONS:
        return registry.arguments(f"gymnax/{name}")
    return signature_defaults(GAMES[name])
