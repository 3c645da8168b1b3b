"""Training on probes, and what is asked of the result."""

import dataclasses
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp

from laws.table import BY_NAME, Row
from rollax import environments
from rollax.config import traced_fields
from rollax.environments import Streams

PLAY_ENVS, PLAY_STEPS = 64, 16


@cache
def trained(name: str, probe: str, updates: int, arguments: tuple[tuple[str, Any], ...] = (), **settings: Any) -> Any:
    """The row's state after some updates in a probe, all rates falling to zero at the end."""
    row = BY_NAME[name]
    algorithm = row.make(environments.make(f"probe/{probe}", **dict(arguments)))
    falling = {
        name: 0.0
        for name in ("learning_rate_final_fraction", "entropy_final_fraction")
        if name in traced_fields(type(row.config))
    }
    config = dataclasses.replace(row.config, total_updates=float(updates), **{**falling, **settings})
    state = jax.jit(lambda key: algorithm.init(key, config))(jax.random.key(0))
    step = jax.jit(algorithm.step)
    for _ in range(updates):
        state, _ = step(state)
    return state


def values(row: Row, state: Any, episode: list[Any]) -> list[float]:
    """The critic's values of the observations of one episode, in order."""
    step, found = jax.jit(row.value), []
    carry = row.carry(state)
    for obs in episode:
        carry, value = step(state, carry, jnp.asarray(obs, jnp.float32))
        found.append(float(value))
    return found


def mean_return(row: Row, state: Any, probe: str, greedy: bool = True) -> float:
    """The mean return of an agent's episode when the row's `act` plays; every episode counts whole."""
    environment = environments.make(f"probe/{probe}")
    algorithm = row.make(environment)
    streams = Streams(environment, PLAY_ENVS)

    def play(state: Any, key: jax.Array) -> jax.Array:
        init_key, loop_key = jax.random.split(key)
        fresh = jax.tree.map(lambda x: jnp.broadcast_to(x, (PLAY_ENVS, *x.shape)), algorithm.initial_carry(state))

        def step(loop: Any, key: jax.Array) -> tuple[Any, Any]:
            stream_state, carry = loop
            act_key, env_key = jax.random.split(key)
            reset = stream_state.reset
            pick = jax.vmap(lambda r, new, old: jax.tree.map(lambda a, b: jnp.where(r, a, b), new, old))
            carry = pick(reset, fresh, carry)
            keys = jax.random.split(act_key, PLAY_ENVS)
            act = jax.vmap(algorithm.act, in_axes=(None, 0, 0, 0, None))
            carry, action = act(state, carry, stream_state.obs, keys, greedy)
            stream_state, after = streams.step(jax.random.split(env_key, PLAY_ENVS), stream_state, streams.by_stream(action))
            return (stream_state, carry), (after.reward, streams.spread(stream_state.reset))

        _, (reward, ended) = jax.lax.scan(step, (streams.init(init_key), fresh), jax.random.split(loop_key, PLAY_STEPS))
        # Probes have episodes of one length that divides PLAY_STEPS, so all of them are whole.
        return jnp.sum(reward) / jnp.sum(ended)

    return float(jax.jit(play)(state, jax.random.key(1)))
