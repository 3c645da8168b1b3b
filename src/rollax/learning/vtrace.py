"""V-trace: credit for a policy other than the one that acted. Arrays are `[T]`; `returns.over_streams` takes `[T, S]`."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from rollax.learning.returns import Scalar
from rollax.scopes import scope


@scope("credit")
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
    """Targets and advantages of V-trace, for a policy other than the one that acted (Espeholt et al. 2018, arXiv:1802.01561).

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
