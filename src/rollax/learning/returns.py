"""Advantages and value targets of one trajectory. Functions take arrays `[T]`; `over_streams` applies them to `[T, S]`."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from rollax import tree
from rollax.acting.streams import Experience
from rollax.networks import windows
from rollax.scopes import scope

Scalar = Float[Array, ""] | float


@scope("credit")
def gae(
    reward: Float[Array, " T"],
    value: Float[Array, " T"],
    next_value: Float[Array, " T"],
    terminated: Bool[Array, " T"],
    truncated: Bool[Array, " T"],
    gamma: Scalar,
    gae_lambda: Scalar,
) -> Float[Array, " T"]:
    """Generalized advantage estimation (Schulman et al. 2016, arXiv:1506.02438, eqs. 11, 12, 16).

    delta_t = r_t + gamma (1 - terminated_t) V(s'_t) - V(s_t)
    A_t     = delta_t + gamma lambda (1 - ended_t) A_{t+1}

    with ended = terminated or truncated, and A_T = 0 after the last step. `next_value[t]` is V of the true observation after
    step t: at a truncation that of the final observation, not of the next episode's first one. A termination stops bootstrap
    and trace, a truncation the trace alone (Pardo et al. 2018, arXiv:1712.00378).

    >>> end = jnp.array([False, True])
    >>> gae(jnp.array([1.0, 2.0]), jnp.full(2, 0.5), jnp.full(2, 0.5), end, jnp.zeros(2, bool), 1.0, 1.0).tolist()
    [2.5, 1.5]
    """
    delta = reward + gamma * jnp.where(terminated, 0.0, next_value) - value
    decay = gamma * gae_lambda * jnp.where(terminated | truncated, 0.0, 1.0)

    def backward(advantage: jax.Array, step: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        advantage = step[0] + step[1] * advantage
        return advantage, advantage

    return jax.lax.scan(backward, jnp.zeros_like(delta[0]), (delta, decay), reverse=True, unroll=8)[1]


def over_streams(function: Callable[..., Any], shared: int) -> Callable[..., Any]:
    """`function` over the stream axis 1 of `[T, S]` arrays; its last `shared` arguments are the same for all streams."""

    def batched(*arguments: Any) -> Any:
        axes = (1,) * (len(arguments) - shared) + (None,) * shared
        return jax.vmap(function, in_axes=axes, out_axes=1)(*arguments)

    return batched


@scope("credit")
def with_values(network: Any, rollout: Experience, num_parts: int = 1) -> Experience:
    """The rollout `[T, S]` with V of its observations among its extras, by the `Network` that acted.

    A network with a memory gave them while it acted. Without one they are computed here, T / `num_parts` steps at once: larger
    products than at every step, and with as many parts as minibatches no more memory than learning takes.
    """
    if rollout.extras.value is not None:
        return rollout
    parts = math.gcd(num_parts, rollout.reward.shape[0])

    def values(network: Any, rollout: Experience) -> jax.Array:
        carry = network.initial_carry()
        cut = jax.tree.map(lambda x: x.reshape(parts, -1, *x.shape[1:]), (rollout.obs, rollout.reset))
        value = jax.lax.map(lambda part: network.unroll(carry, *part)[1].value, cut)
        return value.reshape(rollout.reward.shape)

    value = tree.over_devices(values, in_axes=(None, 1), out_axes=1)(network, rollout)
    return rollout._replace(extras=rollout.extras._replace(value=value))


@scope("credit")
def next_values(network: Any, rollout: Experience, value: jax.Array, carry: Any) -> jax.Array:
    """V of the true observation after every step of a rollout, `[T, S]`.

    `network`: a `Network`, of which only the step is needed; `value`: V of the observations before them, `[T, S]`; `carry`: the
    memory after the last one, `[S, ...]`.

    Within an episode that is the next step's value, which is known. Only the last step and truncated ones need the critic:
    those are few, so they are gathered and evaluated in as many batches of S as it takes, usually one.
    """

    def values(network: Any, rollout: Experience, value: jax.Array, last_carry: Any) -> jax.Array:
        def evaluate(carry: Any, obs: Any) -> jax.Array:
            return jax.vmap(lambda c, o: network(c, o)[1].value)(carry, obs)

        num_steps, size = rollout.reward.shape
        last = evaluate(last_carry, jax.tree.map(lambda x: x[-1], rollout.next_obs))
        following = jnp.concatenate([value[1:], last[None]])
        needed = (rollout.truncated & ~rollout.terminated).at[-1].set(False).reshape(-1)
        rank = jnp.cumsum(needed)
        flat_obs = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), rollout.next_obs)

        def body(loop: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            done, following = loop
            index = jnp.searchsorted(rank, done + 1 + jnp.arange(size))  # beyond the last one: out of range, dropped
            # The memory after step t is the one stored before step t + 1, one row further on.
            carry = windows.at(rollout.carry, index // size + 1, index % size)
            obs = jax.tree.map(lambda x: x.at[index].get(mode="clip"), flat_obs)
            return done + size, following.at[index].set(evaluate(carry, obs), mode="drop")

        start = (jnp.zeros((), rank.dtype), following.reshape(-1))
        _, following = jax.lax.while_loop(lambda loop: tree.any_member(loop[0] < rank[-1]), body, start)
        return following.reshape(num_steps, size)

    run = tree.over_devices(values, in_axes=(None, 1, 1, 0), out_axes=1)
    return run(network, rollout, value, carry)
