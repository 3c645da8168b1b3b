"""Distributions over actions: categorical, Gaussian, squashed Gaussian, and products of these.

A sample u, the raw action, is the action before squashing or clipping. `action(u)` is the action
for the environment, and `log_prob(u)` is the log-density of `action(u)`, or of u for a clipped
Gaussian. On-policy learning therefore never inverts the squashing, and the importance ratio of an
unchanged policy is exactly 1 even for saturated actions. Behavior cloning learns from actions of
others, whose raw action is `raw_action(a)`.

Categorical and Gaussian densities are implemented here because distreqx 0.0.3 samples categories as
8-bit integers (wrong beyond 127 actions) and has neither masks nor the entropy of a squashed
Gaussian.
"""

from typing import Any, Protocol, TypeAlias, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from rollax.spaces import Ball, Box, MultiDiscrete
from rollax.types import Action, Leaf, PyTree

# Largest |tanh(u)| that is inverted. Actions at a bound would have an infinite raw action.
MAX_TANH = 1.0 - 1e-6
# Far below any logit of a network, but finite, so 0 * log 0 and its gradient are 0 instead of NaN.
ILLEGAL_LOGIT = -1e9


@runtime_checkable
class Distribution(Protocol):
    """Distribution over the actions for one observation, a pytree that `vmap` can batch.

    `sample` and `mode` return the raw action u. `log_prob(u)` `[]` and `entropy()` `[]` are in
    nats. `action(u)` returns the action for the environment, and `raw_action(a)` a raw action with
    the action a. Raw actions and actions are arrays, or pytrees of arrays for a
    `JointDistribution`.
    """

    def sample(self, key: jax.Array) -> Action: ...
    def mode(self) -> Action: ...
    def log_prob(self, raw_action: Action) -> jax.Array: ...
    def entropy(self) -> jax.Array: ...
    def action(self, raw_action: Action) -> Action: ...
    def raw_action(self, action: Action) -> Action: ...


class Categorical(eqx.Module):
    """One categorical variable (`logits` `[n]`) or k independent categorical variables (`[k, n]`).

    The logits of variables with fewer than n choices are padded with `ILLEGAL_LOGIT`.
    """

    logits: Float[Array, "*k n"]

    @property
    def log_probabilities(self) -> Float[Array, "*k n"]:
        return jax.nn.log_softmax(self.logits)

    def sample(self, key: PRNGKeyArray) -> jax.Array:
        return jax.random.categorical(key, self.logits).astype(jnp.int32)

    def mode(self) -> jax.Array:
        return jnp.argmax(self.logits, axis=-1).astype(jnp.int32)

    def log_prob(self, raw_action: jax.Array) -> jax.Array:
        # A comparison avoids the gradient of an index, a scatter, which is slow on all devices.
        chosen = jax.nn.one_hot(raw_action, self.logits.shape[-1], dtype=bool)
        return jnp.sum(jnp.where(chosen, self.log_probabilities, 0.0))

    def entropy(self) -> jax.Array:
        log_probabilities = self.log_probabilities
        return -jnp.sum(jnp.exp(log_probabilities) * log_probabilities)

    def action(self, raw_action: jax.Array) -> jax.Array:
        return raw_action

    def raw_action(self, action: jax.Array) -> jax.Array:
        return action


def masked_categorical(logits: Float[Array, "*k n"], legal: Bool[Array, "*k n"]) -> Categorical:
    """Return a categorical distribution with probability 0 where `legal` is false."""
    return Categorical(jnp.where(legal, logits, ILLEGAL_LOGIT))


def valid_choices_mask(space: MultiDiscrete) -> np.ndarray:
    """Return a mask of the valid choices of a multi-discrete space, bool `[k, max(sizes)]`."""
    return np.arange(max(space.sizes)) < np.asarray(space.sizes)[:, None]


class Gaussian(eqx.Module):
    """Independent normal variables u ~ N(mean, std^2) with the action clip(u, low, high).

    Log-density and entropy are those of u. They exclude dimensions where `legal` is false, and the
    action is 0 in these dimensions.

    With `noise_scale`, a sample is a linear function of features, with random weights that depend
    only on the key (gSDE, Raffin et al. 2021, arXiv:2005.05719): u_j = mean_j + sum_i
    noise_scale_ij W_ij with W ~ N(0, 1). Samples with one key have the same weights in all states.
    `log_std` is that of the sum.
    """

    mean: Float[Array, "*shape"]
    log_std: Float[Array, "*shape"]
    space: Box = eqx.field(static=True)
    legal: Bool[Array, "*shape"] | None = None
    noise_scale: Float[Array, " n *shape"] | None = None

    def sample(self, key: PRNGKeyArray) -> jax.Array:
        if self.noise_scale is not None:
            weights = jax.random.normal(key, self.noise_scale.shape, self.mean.dtype)
            return self.mean + jnp.sum(self.noise_scale * weights, axis=0)
        return self.transform_noise(jax.random.normal(key, self.mean.shape, self.mean.dtype))

    def transform_noise(self, noise: jax.Array) -> jax.Array:
        """Return the raw action mean + std * noise, a sample if `noise` is standard normal."""
        return self.mean + jnp.exp(self.log_std) * noise

    def mode(self) -> jax.Array:
        return self.mean

    def log_prob(self, raw_action: jax.Array) -> jax.Array:
        z = (raw_action - self.mean) * jnp.exp(-self.log_std)
        return self.sum_legal(-0.5 * z**2 - self.log_std - 0.5 * np.log(2 * np.pi))

    def entropy(self) -> jax.Array:
        return self.sum_legal(self.log_std + 0.5 * np.log(2 * np.pi * np.e))

    def action(self, raw_action: jax.Array) -> jax.Array:
        low, high = (
            jnp.asarray(self.space.low, raw_action.dtype),
            jnp.asarray(self.space.high, raw_action.dtype),
        )
        return self.zero_illegal_dimensions(jnp.clip(raw_action, low, high))

    def raw_action(self, action: jax.Array) -> jax.Array:
        return action.astype(self.mean.dtype)

    def sum_legal(self, x: Leaf) -> Any:
        """Return the sum of `x` over the legal dimensions."""
        return self.zero_illegal_dimensions(x).sum()

    def zero_illegal_dimensions(self, x: Leaf) -> Any:
        """Set the illegal dimensions of `x` to 0."""
        return x if self.legal is None else jnp.where(self.legal, x, jnp.zeros_like(x))


# Nodes and weights for E[f(x)], x ~ N(0, 1), exact for polynomials of degree 63. For log(1 -
# tanh^2), the error is below 1e-4 up to a standard deviation of 1.6, 2e-3 at 2.7, and 0.1 at 7.4,
# the largest standard deviation that `critics.TanhGaussianHead` can output.
_HERMITE_NODES, _HERMITE_WEIGHTS = np.polynomial.hermite_e.hermegauss(32)
_HERMITE_WEIGHTS = _HERMITE_WEIGHTS / _HERMITE_WEIGHTS.sum()


def _log_tanh_derivative(x: jax.Array) -> jax.Array:
    """Return log(1 - tanh(x)^2), stable for large |x|."""
    return 2.0 * (np.log(2.0) - x - jax.nn.softplus(-2.0 * x))


def _expected_log_tanh_derivative(mean: jax.Array, log_std: jax.Array) -> jax.Array:
    """Return E[log(1 - tanh(x)^2)] for x ~ N(mean, std^2), with scalar arguments."""
    draws = mean + jnp.exp(log_std) * jnp.asarray(_HERMITE_NODES, jnp.float32)
    return jnp.sum(_log_tanh_derivative(draws) * jnp.asarray(_HERMITE_WEIGHTS, jnp.float32))


class SquashedGaussian(eqx.Module):
    """Independent normal variables u squashed by tanh: a = center + half_width tanh(u).

    Log-density and entropy are those of the action a:

        log pi(a) = log N(u) - sum_i log (half_width_i (1 - tanh(u_i)^2))
        H(a)      = H(u) + sum_i E[log (half_width_i (1 - tanh(u_i)^2))]

    The expectation is computed by Gauss-Hermite quadrature in each dimension, which is
    deterministic and differentiable.
    """

    base: Gaussian

    @property
    def num_dimensions(self) -> jax.Array:
        """Number of legal dimensions, float `[]`."""
        return self.base.sum_legal(jnp.ones_like(self.base.mean))

    @property
    def half_width(self) -> Any:
        space = self.base.space
        return np.broadcast_to((np.asarray(space.high) - np.asarray(space.low)) / 2, space.shape)

    def sample(self, key: PRNGKeyArray) -> jax.Array:
        return self.base.sample(key)

    def transform_noise(self, noise: jax.Array) -> jax.Array:
        """Return the raw action mean + std * noise, a sample if `noise` is standard normal."""
        return self.base.transform_noise(noise)

    def mode(self) -> jax.Array:
        return self.base.mean

    def log_prob(self, raw_action: jax.Array) -> jax.Array:
        return (
            self.base.log_prob(raw_action)
            - self.base.sum_legal(_log_tanh_derivative(raw_action))
            - self.base.sum_legal(np.log(self.half_width))
        )

    def entropy(self) -> jax.Array:
        log_slope = jnp.vectorize(_expected_log_tanh_derivative)(self.base.mean, self.base.log_std)
        return (
            self.base.entropy()
            + self.base.sum_legal(log_slope)
            + self.base.sum_legal(np.log(self.half_width))
        )

    def action(self, raw_action: jax.Array) -> jax.Array:
        center = (np.asarray(self.base.space.high) + np.asarray(self.base.space.low)) / 2
        action = jnp.asarray(center, raw_action.dtype) + jnp.asarray(
            self.half_width, raw_action.dtype
        ) * jnp.tanh(raw_action)
        return self.base.zero_illegal_dimensions(action)

    def raw_action(self, action: jax.Array) -> jax.Array:
        center = (np.asarray(self.base.space.high) + np.asarray(self.base.space.low)) / 2
        mean = self.base.mean
        unit = (action - jnp.asarray(center, mean.dtype)) / jnp.asarray(self.half_width, mean.dtype)
        return jnp.arctanh(jnp.clip(unit, -MAX_TANH, MAX_TANH))


# Numbers of nodes along the mean and for the squared distance from its axis, for E[f(|x|)], x ~
# N(mean, std^2 I). The error of the entropy is below 1e-3 up to a standard deviation of 1.6 and
# 2e-2 at 2.7.
_NUM_AXIAL_NODES, _NUM_RADIAL_NODES = 14, 6


def _chi_square_quadrature(num_dimensions: int) -> tuple[np.ndarray, np.ndarray]:
    """Return quadrature nodes and weights of the chi-square distribution.

    The distribution has `num_dimensions - 1` degrees of freedom.

    Both have the shape `[_NUM_RADIAL_NODES]`, or `[1]` with the node 0 if `num_dimensions` is 1.
    """
    if num_dimensions == 1:
        return np.zeros(1), np.ones(1)
    from scipy.special import roots_genlaguerre  # imported late, because only balls need it

    nodes, weights = roots_genlaguerre(_NUM_RADIAL_NODES, (num_dimensions - 1) / 2 - 1)
    return 2 * nodes, weights / weights.sum()


class RadiallySquashedGaussian(eqx.Module):
    """Isotropic normal variable u ~ N(mean, std^2 I) squashed into a ball: a = R tanh(|u|) u / |u|.

    Unlike squashing each coordinate, the map preserves directions. Log-density and entropy are
    those of a. With r = |u| in d dimensions, the determinant of the map is |da / du| = R sech(r)^2
    (R tanh(r) / r)^(d - 1), the product over the radial and d - 1 tangential directions. The
    expectation in the entropy is computed by quadrature over the component of u along the mean and
    the squared distance of u from this axis, which is deterministic and differentiable.
    """

    mean: Float[Array, " d"]
    log_std: Float[Array, ""]
    space: Ball = eqx.field(static=True)

    @property
    def num_dimensions(self) -> jax.Array:
        """Number of dimensions, float `[]`."""
        return jnp.asarray(self.space.size, jnp.float32)

    def sample(self, key: PRNGKeyArray) -> jax.Array:
        return self.transform_noise(jax.random.normal(key, self.mean.shape, self.mean.dtype))

    def transform_noise(self, noise: jax.Array) -> jax.Array:
        """Return the raw action mean + std * noise, a sample if `noise` is standard normal."""
        return self.mean + jnp.exp(self.log_std) * noise

    def mode(self) -> jax.Array:
        return self.mean

    def log_prob(self, raw_action: jax.Array) -> jax.Array:
        z = (raw_action - self.mean) * jnp.exp(-self.log_std)
        normal = jnp.sum(-0.5 * z**2 - self.log_std - 0.5 * np.log(2 * np.pi))
        return normal - self._log_det_jacobian(jnp.sum(raw_action**2))

    def entropy(self) -> jax.Array:
        size = self.space.size
        std = jnp.exp(self.log_std)
        axial, axial_weights = np.polynomial.hermite_e.hermegauss(_NUM_AXIAL_NODES)
        across, across_weights = _chi_square_quadrature(size)
        along = (_safe_sqrt(jnp.sum(self.mean**2)) + std * jnp.asarray(axial, jnp.float32)) ** 2
        square = along[:, None] + std**2 * jnp.asarray(across, jnp.float32)[None, :]
        weights = np.outer(axial_weights / axial_weights.sum(), across_weights)
        slope = jnp.sum(self._log_det_jacobian(square) * jnp.asarray(weights, jnp.float32))
        return size * (self.log_std + 0.5 * np.log(2 * np.pi * np.e)) + slope

    def action(self, raw_action: jax.Array) -> jax.Array:
        return (
            self.space.radius
            * raw_action
            * jnp.exp(_log_tanh_ratio(_safe_sqrt(jnp.sum(raw_action**2))))
        )

    def raw_action(self, action: jax.Array) -> jax.Array:
        unit = action / self.space.radius
        norm = jnp.arctanh(jnp.minimum(_safe_sqrt(jnp.sum(unit**2)), MAX_TANH))
        return unit * jnp.exp(-_log_tanh_ratio(norm))

    def _log_det_jacobian(self, square: jax.Array) -> jax.Array:
        """Return log |da / du| at squared norms |u|^2 of any shape."""
        size, radius = self.space.size, self.space.radius
        norm = _safe_sqrt(square)
        return (
            size * np.log(radius) + _log_tanh_derivative(norm) + (size - 1) * _log_tanh_ratio(norm)
        )


SquashedPolicy: TypeAlias = SquashedGaussian | RadiallySquashedGaussian
"""Policy over bounded actions, whose samples are functions of standard normal noise."""


def _safe_sqrt(square: jax.Array) -> jax.Array:
    """Return the square root with a finite gradient at 0."""
    return jnp.sqrt(square + 1e-12)


def _log_tanh_ratio(norm: jax.Array) -> jax.Array:
    """Return log(tanh(r) / r) for a norm r, computed by a series near 0."""
    is_small = norm < 1e-2
    safe_norm = jnp.where(is_small, 1.0, norm)
    return jnp.where(is_small, -(norm**2) / 3, jnp.log(jnp.tanh(safe_norm) / safe_norm))


class JointDistribution(eqx.Module):
    """Independent distributions of the entries of a `Dict` or `Tuple` action space.

    The density is the product of the densities of the entries, so log-densities and entropies are
    sums. Raw actions and actions are dictionaries or tuples, like `parts`.
    """

    parts: dict[str, Any] | tuple[Any, ...]

    def sample(self, key: PRNGKeyArray) -> Action:
        keys = jax.random.split(key, len(self.parts))
        return self._rebuild(
            [part.sample(k) for part, k in zip(self._values(self.parts), keys, strict=True)]
        )

    def mode(self) -> Action:
        return self._rebuild([part.mode() for part in self._values(self.parts)])

    def transform_noise(self, noise: PyTree, key: PRNGKeyArray) -> Action:
        """Return a raw action, as `rollax.networks.distributions.transform_noise` does."""
        keys = jax.random.split(key, len(self.parts))
        pairs = zip(self._pairs(noise), keys, strict=True)
        return self._rebuild([transform_noise(part, z, k) for (part, z), k in pairs])

    def log_prob(self, raw_action: Action) -> jax.Array:
        return sum((part.log_prob(u) for part, u in self._pairs(raw_action)), start=jnp.zeros(()))

    def entropy(self) -> jax.Array:
        return sum((part.entropy() for part in self._values(self.parts)), start=jnp.zeros(()))

    def action(self, raw_action: Action) -> Action:
        return self._rebuild([part.action(u) for part, u in self._pairs(raw_action)])

    def raw_action(self, action: Action) -> Action:
        return self._rebuild([part.raw_action(a) for part, a in self._pairs(action)])

    def _values(self, entries: dict[str, Any] | tuple[Any, ...]) -> list[Any]:
        """Return the entries of a dictionary or a tuple in the order of the keys of `parts`."""
        return [entries[key] for key in self._keys()]

    def _pairs(self, raw_action: Action) -> list[tuple[Any, Any]]:
        return list(zip(self._values(self.parts), self._values(raw_action), strict=True))

    def _keys(self) -> list[Any]:
        return sorted(self.parts) if isinstance(self.parts, dict) else list(range(len(self.parts)))

    def _rebuild(self, values: list[Any]) -> Action:
        if isinstance(self.parts, dict):
            return dict(zip(self._keys(), values, strict=True))
        return tuple(values)


def transform_noise(
    policy: Categorical | SquashedPolicy | JointDistribution, noise: PyTree, key: jax.Array
) -> Action:
    """Return a raw action whose continuous parts are functions of noise.

    Args:
        policy: Policy.
        noise: Standard normal noise with the structure and shapes of the action, and None for
            discrete parts.
        key: Random key of the discrete parts, and of policies with a `noise_scale`, which do not
            use `noise`.

    Returns:
        The raw action, a sample of the policy.
    """
    if isinstance(policy, Categorical):
        return policy.sample(key)
    if isinstance(policy, JointDistribution):
        return policy.transform_noise(noise, key)
    if isinstance(policy, SquashedGaussian) and policy.base.noise_scale is not None:
        return policy.sample(key)
    return policy.transform_noise(noise)
