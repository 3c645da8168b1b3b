"""Distributions over actions: categorical, Gaussian, tanh-squashed Gaussian, and a Gaussian squashed into a ball.

A sample u is the action before any squash or clip; `action(u)` is what the environment gets, and `log_prob(u)` the log-density
of that action (of a clipped Gaussian: of u). So no squash is ever inverted, and the importance ratio of an unchanged policy is
exactly 1 even where the action has saturated.

Categorical and Gaussian densities are a few lines here because distreqx 0.0.3 draws categories as 8-bit integers (wrong beyond
127 actions) and has neither masks nor the entropy of a squashed Gaussian.
"""

from typing import Any, Protocol

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from rollax.spaces import Ball, Box, MultiDiscrete

# Finite, so that 0 * log 0 and its gradient are 0 and not NaN; far below any logit that a network gives.
ILLEGAL = -1e9


class Distribution(Protocol):
    """A policy's output for one observation: a pytree; `vmap` for more.

    `sample` and `mode` return u; `log_prob(u)` [] and `entropy()` [] are in nats; `action(u)` is the environment's action.
    """

    def sample(self, key: jax.Array) -> jax.Array: ...
    def mode(self) -> jax.Array: ...
    def log_prob(self, raw_action: jax.Array) -> jax.Array: ...
    def entropy(self) -> jax.Array: ...
    def action(self, raw_action: jax.Array) -> jax.Array: ...


class Categorical(eqx.Module):
    """One categorical choice (`logits` `[n]`) or several independent ones (`[k, n]`, shorter ones padded with `ILLEGAL`)."""

    logits: Float[Array, "*k n"]

    @property
    def log_probabilities(self) -> Float[Array, "*k n"]:
        return jax.nn.log_softmax(self.logits)

    def sample(self, key: PRNGKeyArray) -> jax.Array:
        return jax.random.categorical(key, self.logits).astype(jnp.int32)

    def mode(self) -> jax.Array:
        return jnp.argmax(self.logits, axis=-1).astype(jnp.int32)

    def log_prob(self, raw_action: jax.Array) -> jax.Array:
        # A comparison instead of an index: the gradient of an index is a scatter, which is slow everywhere.
        chosen = jax.nn.one_hot(raw_action, self.logits.shape[-1], dtype=bool)
        return jnp.sum(jnp.where(chosen, self.log_probabilities, 0.0))

    def entropy(self) -> jax.Array:
        log_probabilities = self.log_probabilities
        return -jnp.sum(jnp.exp(log_probabilities) * log_probabilities)

    def action(self, raw_action: jax.Array) -> jax.Array:
        return raw_action


def masked(logits: Float[Array, "*k n"], legal: Bool[Array, "*k n"]) -> Categorical:
    """A categorical of probability 0 where `legal` is False."""
    return Categorical(jnp.where(legal, logits, ILLEGAL))


def padding(space: MultiDiscrete) -> np.ndarray:
    """Which entries `[k, max n]` are real choices of a multi-discrete space."""
    return np.arange(max(space.sizes)) < np.asarray(space.sizes)[:, None]


class Gaussian(eqx.Module):
    """Independent normals u ~ N(mean, std^2); the action is clip(u, low, high), log-density and entropy are those of u.

    With `legal`, dimensions where it is False are left out of both sums, and their action is 0.
    """

    mean: Float[Array, "*shape"]
    log_std: Float[Array, "*shape"]
    space: Box = eqx.field(static=True)
    legal: Bool[Array, "*shape"] | None = None

    def sample(self, key: PRNGKeyArray) -> jax.Array:
        return self.mean + jnp.exp(self.log_std) * jax.random.normal(key, self.mean.shape, self.mean.dtype)

    def mode(self) -> jax.Array:
        return self.mean

    def log_prob(self, raw_action: jax.Array) -> jax.Array:
        z = (raw_action - self.mean) * jnp.exp(-self.log_std)
        return self.total(-0.5 * z**2 - self.log_std - 0.5 * np.log(2 * np.pi))

    def entropy(self) -> jax.Array:
        return self.total(self.log_std + 0.5 * np.log(2 * np.pi * np.e))

    def action(self, raw_action: jax.Array) -> jax.Array:
        low, high = jnp.asarray(self.space.low, raw_action.dtype), jnp.asarray(self.space.high, raw_action.dtype)
        return self.only_legal(jnp.clip(raw_action, low, high))

    def total(self, x: Any) -> Any:
        """The sum over the dimensions that are legal."""
        return self.only_legal(x).sum()

    def only_legal(self, x: Any) -> Any:
        """`x`, one number a dimension, with 0 where the dimension is not legal."""
        return x if self.legal is None else jnp.where(self.legal, x, jnp.zeros_like(x))


# Nodes and weights for E[f(x)], x ~ N(0, 1): exact for polynomials of degree 63. For log(1 - tanh^2) the error is below 1e-4 up
# to a standard deviation of 1.6, 2e-3 at 2.7, and 0.1 at 7.4, the largest that a head gives.
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(32)
_WEIGHTS = _WEIGHTS / _WEIGHTS.sum()


def _log_slope_of_tanh(x: jax.Array) -> jax.Array:
    """log(1 - tanh(x)^2), stable for large |x|."""
    return 2.0 * (np.log(2.0) - x - jax.nn.softplus(-2.0 * x))


def _expected_log_slope(mean: jax.Array, log_std: jax.Array) -> jax.Array:
    """E[log(1 - tanh(x)^2)] for x ~ N(mean, std^2), all of them scalars."""
    draws = mean + jnp.exp(log_std) * jnp.asarray(_NODES, jnp.float32)
    return jnp.sum(_log_slope_of_tanh(draws) * jnp.asarray(_WEIGHTS, jnp.float32))


class SquashedGaussian(eqx.Module):
    """Independent normals u through tanh, a = center + half_width tanh(u): log-density and entropy are those of the action a.

    log pi(a) = log N(u) - sum_i log (half_width_i (1 - tanh(u_i)^2))
    H(a)      = H(u) + sum_i E[log (half_width_i (1 - tanh(u_i)^2))]

    The expectation is a Gauss-Hermite quadrature for each dimension, deterministic and differentiable.
    """

    base: Gaussian

    @property
    def half_width(self) -> Any:
        space = self.base.space
        return np.broadcast_to((np.asarray(space.high) - np.asarray(space.low)) / 2, space.shape)

    def sample(self, key: PRNGKeyArray) -> jax.Array:
        return self.base.sample(key)

    def mode(self) -> jax.Array:
        return self.base.mean

    def log_prob(self, raw_action: jax.Array) -> jax.Array:
        return (
            self.base.log_prob(raw_action)
            - self.base.total(_log_slope_of_tanh(raw_action))
            - self.base.total(np.log(self.half_width))
        )

    def entropy(self) -> jax.Array:
        log_slope = jnp.vectorize(_expected_log_slope)(self.base.mean, self.base.log_std)
        return self.base.entropy() + self.base.total(log_slope) + self.base.total(np.log(self.half_width))

    def action(self, raw_action: jax.Array) -> jax.Array:
        center = (np.asarray(self.base.space.high) + np.asarray(self.base.space.low)) / 2
        action = jnp.asarray(center, raw_action.dtype) + jnp.asarray(self.half_width, raw_action.dtype) * jnp.tanh(raw_action)
        return self.base.only_legal(action)


# Nodes in the direction of the mean, and of the square of the distance from its axis: for E[f(|x|)], x ~ N(mean, std^2 I). The
# error of the entropy is below 1e-3 up to a standard deviation of 1.6 and 2e-2 at 2.7.
_AXIAL, _RADIAL = 14, 6


def _radial_nodes(size: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights `[_RADIAL]` for a chi-square variable of `size - 1` degrees of freedom; none for a line."""
    if size == 1:
        return np.zeros(1), np.ones(1)
    from scipy.special import roots_genlaguerre  # late: only balls need it

    nodes, weights = roots_genlaguerre(_RADIAL, (size - 1) / 2 - 1)
    return 2 * nodes, weights / weights.sum()


class RadialSquash(eqx.Module):
    """An isotropic normal u ~ N(mean, std^2 I) squashed into a ball of radius R: the action is a = R tanh(|u|) u / |u|.

    The map keeps directions, unlike a squash of each coordinate. Density and entropy are those of a, with r = |u|:
    |da / du| = R sech(r)^2 (R tanh(r) / r)^(d - 1), of the radial and the d - 1 tangential directions. The expectation in the
    entropy is a quadrature over the radial and one tangential coordinate, deterministic and differentiable.
    """

    mean: Float[Array, " d"]
    log_std: Float[Array, ""]
    space: Ball = eqx.field(static=True)

    def sample(self, key: PRNGKeyArray) -> jax.Array:
        return self.mean + jnp.exp(self.log_std) * jax.random.normal(key, self.mean.shape, self.mean.dtype)

    def mode(self) -> jax.Array:
        return self.mean

    def log_prob(self, raw_action: jax.Array) -> jax.Array:
        z = (raw_action - self.mean) * jnp.exp(-self.log_std)
        normal = jnp.sum(-0.5 * z**2 - self.log_std - 0.5 * np.log(2 * np.pi))
        return normal - self._log_slope(jnp.sum(raw_action**2))

    def entropy(self) -> jax.Array:
        size = self.space.size
        std = jnp.exp(self.log_std)
        axial, axial_weights = np.polynomial.hermite_e.hermegauss(_AXIAL)
        across, across_weights = _radial_nodes(size)
        along = (_norm(jnp.sum(self.mean**2)) + std * jnp.asarray(axial, jnp.float32)) ** 2
        square = along[:, None] + std**2 * jnp.asarray(across, jnp.float32)[None, :]
        weights = np.outer(axial_weights / axial_weights.sum(), across_weights)
        slope = jnp.sum(self._log_slope(square) * jnp.asarray(weights, jnp.float32))
        return size * (self.log_std + 0.5 * np.log(2 * np.pi * np.e)) + slope

    def action(self, raw_action: jax.Array) -> jax.Array:
        return self.space.radius * raw_action * jnp.exp(_log_tanh_ratio(_norm(jnp.sum(raw_action**2))))

    def _log_slope(self, square: jax.Array) -> jax.Array:
        """log |d action / d u| for |u|^2."""
        size, radius = self.space.size, self.space.radius
        norm = _norm(square)
        return size * np.log(radius) + _log_slope_of_tanh(norm) + (size - 1) * _log_tanh_ratio(norm)


def _norm(square: jax.Array) -> jax.Array:
    """A square root whose gradient at 0 is finite."""
    return jnp.sqrt(square + 1e-12)


def _log_tanh_ratio(norm: jax.Array) -> jax.Array:
    """log(tanh(r) / r), by its series near 0."""
    small = norm < 1e-2
    safe = jnp.where(small, 1.0, norm)
    return jnp.where(small, -(norm**2) / 3, jnp.log(jnp.tanh(safe) / safe))
