"""Advantages and value targets of one trajectory. Functions take arrays `[T]`; `over_streams` applies them to `[T, S]`."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

Scalar = Float[Array, ""] | float


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


def vtrace(
    reward: Float[Array, " T"],
    value: Float[Array, " T"],
    next_value: Float[Array, " T"],
    log_ratio: Float[Array, " T"],
    terminated: Bool[Array, " T"],
    truncated: Bool[Array, " T"],
    gamma: Scalar,
    vtrace_lambda: Scalar,
    rho_clip: Scalar,
    c_clip: Scalar,
) -> tuple[Float[Array, " T"], Float[Array, " T"]]:
    """V-trace targets and advantages, off-policy (Espeholt et al. 2018, arXiv:1802.01561).

    rho_t   = min(rho_clip, ratio_t), c_t = lambda min(c_clip, ratio_t)                                        (section 4.1)
    delta_t = rho_t (r_t + gamma (1 - terminated_t) V(s'_t) - V(s_t))
    v_t     = V(s_t) + delta_t + gamma c_t (1 - ended_t) (v_{t+1} - V(s_{t+1}))                                (eq. 1, remark 1)
    A_t     = r_t + gamma (1 - terminated_t) ((1 - lambda) V(s'_t) + lambda v'_t) - V(s_t)                     (section 4.2)

    `log_ratio`: log pi(a) - log mu(a) of the learning and the acting policy; `next_value` as for `gae`, and v'_t is v_{t+1}, or
    V(s'_t) after the last step and where the episode was cut off. The policy gradient weighs A_t by rho_t. Deviation: the
    mixture with lambda in A_t, as in rlax, with which it is that of `gae` when both policies are one and nothing is clipped;
    for lambda = 1 it is the paper's.

    Returns: `(target, advantage)`.
    """
    ratio = jnp.exp(log_ratio)
    rho, c = jnp.minimum(rho_clip, ratio), vtrace_lambda * jnp.minimum(c_clip, ratio)
    bootstrap = jnp.where(terminated, 0.0, next_value)
    going_on = jnp.where(terminated | truncated, 0.0, 1.0)
    delta = rho * (reward + gamma * bootstrap - value)

    def backward(error: jax.Array, step: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        error = step[0] + step[1] * error
        return error, error

    start = jnp.zeros_like(delta[0])
    error = jax.lax.scan(backward, start, (delta, gamma * c * going_on), reverse=True, unroll=8)[1]
    later = going_on * jnp.concatenate([error[1:], start[None]])
    return value + error, reward + gamma * (bootstrap + vtrace_lambda * later) - value


def discounted_returns(
    reward: Float[Array, " T"], ended: Bool[Array, " T"], initial: Float[Array, ""], gamma: Scalar
) -> tuple[Float[Array, ""], Float[Array, " T"]]:
    """g_t = gamma g_{t-1} + r_t from the start of each episode; reward normalization divides by its standard deviation.

    `initial`: g before the first step, from the rollout before. Returns: g after the last step (0 where an episode ended), and
    g `[T]`.
    """

    def forward(running: jax.Array, step: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        running = gamma * running + step[0]
        return jnp.where(step[1], 0.0, running), running

    return jax.lax.scan(forward, initial, (reward, ended), unroll=8)


def over_streams(function: Callable[..., Any], shared: int) -> Callable[..., Any]:
    """`function` over the stream axis 1 of `[T, S]` arrays; its last `shared` arguments are the same for all streams."""

    def batched(*arguments: Any) -> Any:
        axes = (1,) * (len(arguments) - shared) + (None,) * shared
        return jax.vmap(function, in_axes=axes, out_axes=1)(*arguments)

    return batched
