"""Whole episodes in simulators on the host: every episode counts, long or short, and has a start of its own by its number."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rollax.acting.evaluate import Episodes, policy_of
from rollax.acting.info import checked_reductions
from rollax.algorithm import Algorithm
from rollax.host.simulators import Simulators

AT_ONCE = 32  # simulators that play side by side, at most

# (state, obs, carry, reset, keys, time) -> (carry, action), each `[S, ...]`; of members `[P, S, ...]`
Player = Callable[..., tuple[Any, Any]]


def player(algorithm: Algorithm, greedy: bool, has_members: bool) -> Player:
    """How the policies of a state play: step by step with the key of the episode and its time, as compiled ones do."""

    def one(state: Any, obs: Any, carry: Any, reset: jax.Array, keys: jax.Array, time: jax.Array) -> tuple[Any, Any]:
        policy = policy_of(algorithm, state, greedy)

        def act(carry: Any, obs: Any, reset: jax.Array, key: jax.Array, time: jax.Array) -> tuple[Any, Any]:
            act_key, _ = jax.random.split(jax.random.fold_in(jax.random.wrap_key_data(key), time))
            carry, action, _ = policy(carry, obs, reset, act_key)
            return carry, action

        return jax.vmap(act)(carry, obs, reset, keys, time)

    return jax.jit(jax.vmap(one) if has_members else one)


def slots(num_episodes: int, num_members: int = 1) -> int:
    """How many episodes of each member are played side by side."""
    return max(1, min(num_episodes, AT_ONCE // num_members))


class Plan(NamedTuple):
    """Which episodes there are, by member and number `[P, N]`."""

    seeds: np.ndarray  # int64: of their starts
    keys: np.ndarray  # uint32 [P, N, ...]: data of the keys of their actions


def plan(keys: Sequence[jax.Array], num_episodes: int) -> Plan:
    """The same for the same keys, one of each member."""
    seeds, data = [], []
    for key in keys:
        reset_key, run_key = jax.random.split(key)
        seeds.append(np.asarray(jax.random.bits(reset_key, (num_episodes,), jnp.uint32)).astype(np.int64) >> 1)
        data.append(np.asarray(jax.random.key_data(jax.random.split(run_key, num_episodes))))
    return Plan(np.stack(seeds), np.stack(data))


class Playing:
    """Episodes under way, in P x S simulators: the s-th of each member plays the episodes s, s + S, s + 2 S, ... in turn."""

    def __init__(self, episodes: Plan, side_by_side: int, names: tuple[str, ...]) -> None:
        members, self.number = episodes.seeds.shape
        self.episodes, self.side_by_side = episodes, side_by_side
        self.member = np.repeat(np.arange(members), side_by_side)
        self.index = np.tile(np.arange(side_by_side), members)  # of the episode that each plays
        self.time = np.zeros(self.index.shape, np.int32)
        self.reset = np.ones(self.index.shape, bool)
        self.total, self.told = np.zeros(self.index.shape), np.zeros((*self.index.shape, len(names), 3))
        shape = members, self.number
        self.returns, self.length = np.zeros(shape, np.float32), np.zeros(shape, np.int32)
        self.terminated, self.truncated = np.zeros(shape, bool), np.zeros(shape, bool)
        self.info = np.full((*shape, len(names), 3), np.nan)  # mean, sum, last

    @property
    def alive(self) -> np.ndarray:
        return self.index < self.number

    def at(self, values: np.ndarray, index: np.ndarray) -> np.ndarray:
        """The values of those episodes, of the last where there is no such."""
        return values[self.member, np.minimum(index, self.number - 1)]

    def add(self, after: Any, max_steps: int) -> np.ndarray:
        """Counts a step. Which simulators' episodes were given up, bool [P x S]: those have to be begun anew."""
        alive = self.alive
        self.total += np.where(alive, after.reward, 0.0)
        self.time += alive
        known = np.isfinite(after.info)
        self.told[..., 0] += known
        self.told[..., 1] += np.where(known, after.info, 0.0)
        self.told[..., 2] = np.where(known, after.info, self.told[..., 2])
        over = after.terminated | after.truncated
        given_up = alive & ~over & (self.time >= max_steps)
        done = np.flatnonzero(alive & (over | given_up))
        where = self.member[done], self.index[done]
        self.returns[where], self.length[where] = self.total[done], self.time[done]
        self.terminated[where], self.truncated[where] = after.terminated[done], after.truncated[done]
        count, total, last = np.moveaxis(self.told[done], -1, 0)
        with np.errstate(invalid="ignore", divide="ignore"):
            self.info[where] = np.stack([total / count, total, last], axis=-1)
        self.index[done] += self.side_by_side
        self.time[done], self.total[done], self.told[done] = 0, 0.0, 0.0
        self.reset = over | given_up
        return given_up


def play(
    act: Player,
    state: Any,
    carry: Any,
    simulators: Simulators,
    playing: Playing,
    max_steps: int,
    seen: Callable[[np.ndarray], np.ndarray],
) -> None:
    """Plays all episodes. `carry`: memories `[P x S, ...]`; `seen`: arrays `[P x S, ...]` as `act` takes them."""
    episodes, width = playing.episodes, playing.side_by_side
    seeds = lambda index: playing.at(episodes.seeds, index)  # noqa: E731
    shaped = lambda tree: jax.tree.map(seen, tree)  # noqa: E731
    flat = lambda leaf: np.asarray(leaf).reshape(playing.index.size, *leaf.shape[seen(playing.index).ndim :])  # noqa: E731
    obs, carry = simulators.reset(list(seeds(playing.index)), playing.alive), shaped(carry)
    while np.any(playing.alive):
        keys, begins = playing.at(episodes.keys, playing.index), shaped((playing.reset, playing.time))
        carry, action = act(state, shaped(obs), carry, begins[0], seen(keys), begins[1])
        following = list(seeds(playing.index + width))
        after = simulators.step(flat(action), following, playing.alive)
        given_up = playing.add(after, max_steps)
        obs = after.obs
        if np.any(given_up):
            obs = _replaced(obs, simulators.reset(following, given_up), given_up)


def _replaced(old: Any, new: Any, where: np.ndarray) -> Any:
    return jax.tree.map(lambda a, b: np.where(where.reshape(-1, *(1,) * (a.ndim - 1)), b, a), old, new)


def results(
    environment: Any, playing: Playing, choices: Mapping[str, str] | None, has_members: bool, state_metrics: Any
) -> Episodes:
    """What the episodes gave, as an evaluation of compiled ones has it."""
    how = checked_reductions(environment, choices)
    places = {"mean": 0, "sum": 1, "last": 2}
    info: Any = {name: playing.info[..., i, places[how[name]]].astype(np.float32) for i, name in enumerate(how)}
    ends = playing.terminated, playing.truncated
    fields: Any = (playing.returns, playing.length, *ends, info)
    fields = fields if has_members else jax.tree.map(lambda x: x[0], fields)
    return Episodes(*fields, state_metrics=state_metrics)
