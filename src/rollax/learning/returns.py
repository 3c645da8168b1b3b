"""Advantages and values of rollouts.

`gae` takes arrays `[T]` of one trajectory. `vmap_over_streams` applies it to rollouts `[T, S]`.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from rollax import tree
from rollax.acting.streams import Experience
from rollax.networks import memory_windows
from rollax.networks.network import Network, StepNetwork
from rollax.scopes import profile_scope
from rollax.types import Carry, Observation, PyTree

Scalar = Float[Array, ""] | float


@profile_scope("credit")
def gae(
    reward: Float[Array, " T"],
    value: Float[Array, " T"],
    next_value: Float[Array, " T"],
    terminated: Bool[Array, " T"],
    truncated: Bool[Array, " T"],
    gamma: Scalar,
    gae_lambda: Scalar,
) -> Float[Array, " T"]:
    """Compute advantages with generalized advantage estimation.

    delta_t = r_t + gamma (1 - terminated_t) V(s'_t) - V(s_t)
    A_t     = delta_t + gamma lambda (1 - ended_t) A_{t+1}

    where ended_t is terminated_t or truncated_t, and A is 0 after the last step. A termination
    stops both the bootstrap and the trace. A truncation stops only the trace (Pardo et al. 2018,
    arXiv:1712.00378).

    >>> end = jnp.array([False, True])
    >>> ones, never = jnp.ones(2), jnp.zeros(2, bool)
    >>> gae(jnp.array([1.0, 2.0]), 0.5 * ones, 0.5 * ones, end, never, 1.0, 1.0).tolist()
    [2.5, 1.5]

    Args:
        reward: Rewards `[T]`.
        value: Values V(s_t) `[T]`.
        next_value: Values V(s'_t) of the observations after each step `[T]`. At a truncation, this
            is the value of the final observation of the episode.
        terminated: Whether each step terminated the episode, bool `[T]`.
        truncated: Whether each step truncated the episode, bool `[T]`.
        gamma: Discount factor.
        gae_lambda: Lambda of generalized advantage estimation, the decay of the trace.

    Returns:
        Advantages `[T]`.

    References:
        Schulman et al. 2016, arXiv:1506.02438, Eqs. 11, 12 and 16.
    """
    delta = reward + gamma * jnp.where(terminated, 0.0, next_value) - value
    decay = gamma * gae_lambda * jnp.where(terminated | truncated, 0.0, 1.0)

    def backward(
        advantage: jax.Array, step: tuple[jax.Array, jax.Array]
    ) -> tuple[jax.Array, jax.Array]:
        advantage = step[0] + step[1] * advantage
        return advantage, advantage

    return jax.lax.scan(backward, jnp.zeros_like(delta[0]), (delta, decay), reverse=True, unroll=8)[
        1
    ]


def vmap_over_streams(function: Callable[..., PyTree], shared: int) -> Callable[..., Any]:
    """Vectorize a function of one trajectory `[T]` over streams.

    Args:
        function: Function of arrays `[T]`, followed by `shared` arguments that are equal for all
            streams.
        shared: Number of trailing arguments that all streams share, such as `gamma`.

    Returns:
        Function of arrays `[T, S]`, followed by the shared arguments. Its results are `[T, S]`.
    """

    def batched(*arguments: PyTree) -> Any:
        axes = (1,) * (len(arguments) - shared) + (None,) * shared
        return jax.vmap(function, in_axes=axes, out_axes=1)(*arguments)

    return batched


@profile_scope("credit")
def add_values(network: Network, rollout: Experience, num_parts: int = 1) -> Experience:
    """Return the rollout with the value of each observation in its extras.

    Networks with memory compute values while acting, and their rollout is returned unchanged. For
    networks without memory, values are computed here in batches of several steps, because larger
    matrix products are faster. With as many batches as minibatches, this needs no more memory than
    learning.

    Args:
        network: `Network` that acted.
        rollout: Rollout `[T, S]`.
        num_parts: Number of batches. If it does not divide T, the greatest common divisor of
            `num_parts` and T is used.
    """
    if rollout.extras.value is not None:
        return rollout
    parts = math.gcd(num_parts, rollout.reward.shape[0])

    def values(network: Network, rollout: Experience) -> jax.Array:
        carry = network.initial_carry()
        batches = jax.tree.map(
            lambda x: x.reshape(parts, -1, *x.shape[1:]), (rollout.obs, rollout.reset)
        )
        value = jax.lax.map(lambda part: network.unroll(carry, *part)[1].value, batches)
        return value.reshape(rollout.reward.shape)

    value = tree.shard_map_over_devices(values, in_axes=(None, 1), out_axes=1)(network, rollout)
    return rollout._replace(extras=rollout.extras._replace(value=value))


@profile_scope("credit")
def compute_next_values(
    network: StepNetwork, rollout: Experience, value: jax.Array, carry: Carry
) -> jax.Array:
    """Compute the value of the observation after each step of a rollout, `[T, S]`.

    Within an episode, this is the value of the observation before the next step. Only the
    observations after the last step and after truncated steps are evaluated with the network. There
    are few truncated steps, so they are gathered and evaluated in batches of size S, usually in a
    single batch.

    Args:
        network: Network whose output has the field `value`.
        rollout: Rollout `[T, S]`.
        value: Values of the observations before each step, `[T, S]`.
        carry: Memory of the network after the last step, `[S, ...]`.

    Returns:
        The values. Values after a termination are arbitrary, because targets do not use them.
    """

    def values(
        network: StepNetwork, rollout: Experience, value: jax.Array, last_carry: Carry
    ) -> jax.Array:
        def evaluate_values(carry: Carry, obs: Observation) -> jax.Array:
            return jax.vmap(lambda c, o: network(c, o)[1].value)(carry, obs)

        num_steps, size = rollout.reward.shape
        last = evaluate_values(last_carry, jax.tree.map(lambda x: x[-1], rollout.next_obs))
        following = jnp.concatenate([value[1:], last[None]])
        needed = (rollout.truncated & ~rollout.terminated).at[-1].set(False).reshape(-1)
        rank = jnp.cumsum(needed)
        flat_obs = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), rollout.next_obs)

        def body(loop: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            done, following = loop
            index = jnp.searchsorted(
                rank, done + 1 + jnp.arange(size)
            )  # indices after the last one are out of range and dropped
            # The memory after step t is stored as the memory before step t + 1.
            carry = memory_windows.gather_carries(rollout.carry, index // size + 1, index % size)
            obs = jax.tree.map(lambda x: x.at[index].get(mode="clip"), flat_obs)
            return done + size, following.at[index].set(evaluate_values(carry, obs), mode="drop")

        start = (jnp.zeros((), rank.dtype), following.reshape(-1))
        _, following = jax.lax.while_loop(
            lambda loop: tree.any_member(loop[0] < rank[-1]), body, start
        )
        return following.reshape(num_steps, size)

    run = tree.shard_map_over_devices(values, in_axes=(None, 1, 1, 0), out_axes=1)
    return run(network, rollout, value, carry)


class AdvantageEstimates(NamedTuple):
    """Advantages and value targets of a rollout, float `[T, S]` each."""

    advantage: jax.Array
    target: jax.Array


def estimate_advantages(
    network: Any,
    rollout: Experience,
    reward: jax.Array,
    carry: Any,
    gamma: jax.Array | float,
    trace_decay: jax.Array | float,
) -> AdvantageEstimates:
    """Estimate advantages and value targets of a rollout with generalized advantage estimation.

    Args:
        network: `Network` that acted, with values in units of return.
        rollout: Rollout `[T, S]` with the value of each observation in its extras.
        reward: Rewards to learn from, `[T, S]`.
        carry: Memory of the network after the last step, `[S, ...]`.
        gamma: Discount factor.
        trace_decay: Lambda of generalized advantage estimation.

    Returns:
        The advantages and value targets.
    """
    value = rollout.extras.value
    next_value = compute_next_values(network, rollout, value, carry)
    advantage = vmap_over_streams(gae, 2)(
        reward,
        value,
        next_value,
        rollout.terminated,
        rollout.truncated,
        gamma,
        trace_decay,
    )
    return AdvantageEstimates(advantage, target=advantage + value)
