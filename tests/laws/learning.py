"""Training on probes, and values and returns of the result."""

import dataclasses
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp

from laws.rows import Row
from laws.table import BY_NAME
from rollax import environments
from rollax.acting.evaluation import make_policy
from rollax.acting.streams import init_actor, unroll
from rollax.config import traced_field_names

PLAY_ENVS, PLAY_STEPS = 64, 16


@cache
def trained(
    name: str,
    probe: str,
    updates: int,
    arguments: tuple[tuple[str, Any], ...] = (),
    **settings: Any,
) -> Any:
    """Return the row's state after a number of updates in a probe. Schedules end at zero."""
    row = BY_NAME[name]
    algorithm = row.make(environments.make(f"probe/{probe}", **dict(arguments)))
    falling = {
        name: 0.0
        for name in ("learning_rate_final_fraction", "entropy_final_fraction")
        if name in traced_field_names(type(row.config))
    }
    config = dataclasses.replace(
        row.config, total_updates=float(updates), **{**falling, **settings}
    )
    state = jax.jit(lambda key: algorithm.init(key, config))(jax.random.key(0))
    step = jax.jit(algorithm.step)
    for _ in range(updates):
        state, _ = step(state)
    return state


def values(row: Row, state: Any, episode: list[Any]) -> list[float]:
    """Return the critic's values of the observations of one episode, in order."""
    step, found = jax.jit(row.value), []
    carry = row.carry(state)
    for obs in episode:
        carry, value = step(state, carry, jnp.asarray(obs, jnp.float32))
        found.append(float(value))
    return found


def mean_return(row: Row, state: Any, probe: str, greedy: bool = True) -> float:
    """Return the mean return of an agent over complete episodes of the row's policy."""
    environment = environments.make(f"probe/{probe}")
    algorithm = row.make(environment)

    def play(state: Any, key: jax.Array) -> jax.Array:
        begin_key, play_key = jax.random.split(key)
        actor = init_actor(environment, begin_key, PLAY_ENVS, algorithm.initial_carry(state))
        # All episodes of a probe have the same length, which divides PLAY_STEPS, so all are
        # complete.
        _, experience, episodes = unroll(
            environment, make_policy(algorithm, state, greedy), actor, play_key, PLAY_STEPS
        )
        return jnp.sum(experience.reward) / episodes.number

    return float(jax.jit(play)(state, jax.random.key(1)))
