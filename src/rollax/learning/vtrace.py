"""V-trace targets and advantages for off-policy data.

Functions take arrays `[T]` of one trajectory. `returns.vmap_over_streams` applies them to `[T, S]`.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from rollax.learning.returns import Scalar
from rollax.scopes import profile_scope


@profile_scope("credit")
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
    """Compute V-trace value targets and advantages, which correct for a different acting policy.

    rho_t   = min(rho_clip, ratio_t), c_t = lambda min(c_clip, ratio_t)
    delta_t = rho_t (r_t + gamma (1 - terminated_t) V(s'_t) - V(s_t))
    v_t     = V(s_t) + delta_t + gamma c_t (1 - ended_t) (v_{t+1} - V(s_{t+1}))
    A_t     = r_t + gamma (1 - terminated_t) ((1 - lambda) V(s'_t) + lambda v'_t) - V(s_t)

    The equations are from section 4.1 (rho, c), Eq. 1 and remark 1 (v), and section 4.2 (A).
    ended_t is terminated_t or truncated_t. v'_t is v_{t+1}, or V(s'_t) after the last step and at
    truncations. The policy gradient is weighted by rho_t. The mixture with lambda in A_t follows
    rlax. It makes A_t equal to the advantage of `gae` if both policies are equal and clipping is
    inactive. With lambda = 1, A_t is as in the paper.

    Args:
        reward: Rewards `[T]`.
        value: Values V(s_t) `[T]`.
        next_value: Values V(s'_t) after each step `[T]`, as in `gae`.
        log_ratio: Logarithm of the probability ratio of the learning policy pi and the acting
            policy mu, log pi(a) - log mu(a), `[T]`.
        terminated: Whether each step terminated the episode, bool `[T]`.
        truncated: Whether each step truncated the episode, bool `[T]`.
        gamma: Discount factor.
        vtrace_lambda: Decay of the trace.
        rho_clip: Clipping threshold of rho.
        c_clip: Clipping threshold of c.

    Returns:
        Value targets and advantages, `[T]` each.

    References:
        Espeholt et al. 2018, arXiv:1802.01561.
    """
    ratio = jnp.exp(log_ratio)
    rho, c = jnp.minimum(rho_clip, ratio), vtrace_lambda * jnp.minimum(c_clip, ratio)
    bootstrap = jnp.where(terminated, 0.0, next_value)
    going_on = jnp.where(terminated | truncated, 0.0, 1.0)
    delta = rho * (reward + gamma * bootstrap - value)

    def backward(
        error: jax.Array, step: tuple[jax.Array, jax.Array]
    ) -> tuple[jax.Array, jax.Array]:
        error = step[0] + step[1] * error
        return error, error

    start = jnp.zeros_like(delta[0])
    error = jax.lax.scan(backward, start, (delta, gamma * c * going_on), reverse=True, unroll=8)[1]
    later = going_on * jnp.concatenate([error[1:], start[None]])
    return value + error, reward + gamma * (bootstrap + vtrace_lambda * later) - value
