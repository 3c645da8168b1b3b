"""Heads of policies: categorical and normal distributions, and products of these."""

import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from rollax.errors import UsageError
from rollax.networks import distributions
from rollax.networks.layers import Head, make_orthogonal_linear
from rollax.spaces import (
    Ball,
    Box,
    Dict,
    Discrete,
    MultiDiscrete,
    Space,
    Tuple,
    join_values,
    list_parts,
)
from rollax.types import Observation

StdKind = Literal["shared", "state", "fixed", "gsde"]
# Bounds of a log standard deviation that depends on the state, as in pytorch_sac (Yarats and
# Kostrikov 2020) and CleanRL. Haarnoja et al. 2018 use -20 ... 2 in their code.
MIN_LOG_STD, MAX_LOG_STD = -5.0, 2.0
# Added to the variance of noise that is linear in features, as in Stable-Baselines3.
MIN_LATENT_VARIANCE = 1e-6


class StdOutput(NamedTuple):
    """Mean and log standard deviation of a policy."""

    mean: jax.Array
    log_std: jax.Array


def make_categorical(
    logits: jax.Array, space: Discrete | MultiDiscrete, action_mask: jax.Array | None
) -> distributions.Categorical:
    """Return a categorical distribution over the choices of a space.

    Args:
        logits: Logits `[n]`, or `[k * max n]` or `[k, max n]` for a multi-discrete space.
        space: The action space.
        action_mask: Mask of the legal choices, `[n]` or `[k, max n]`, or None.

    Returns:
        The distribution.
    """
    legal = True if action_mask is None else action_mask.astype(bool)
    if isinstance(space, Discrete):
        return distributions.masked_categorical(logits, jnp.broadcast_to(legal, logits.shape))
    logits = logits.reshape(len(space.sizes), -1)
    return distributions.masked_categorical(
        logits, jnp.asarray(distributions.valid_choices_mask(space)) & legal
    )


def make_gaussian(
    mean: jax.Array,
    log_std: jax.Array,
    space: Box,
    squash: bool,
    action_mask: jax.Array | None = None,
    noise_scale: jax.Array | None = None,
) -> distributions.Gaussian | distributions.SquashedGaussian:
    """Return a normal distribution over a box.

    Args:
        mean: Mean, with as many elements as the action.
        log_std: Log standard deviation, with the shape of the action.
        space: The action space.
        squash: Map actions to their bounds by tanh instead of clipping.
        action_mask: Mask of the legal dimensions, or None.
        noise_scale: Factors of random weights whose sum is the noise, or None for independent noise
            (`distributions.Gaussian`).

    Returns:
        The distribution.
    """
    legal = None if action_mask is None else jnp.asarray(action_mask, bool)
    gaussian = distributions.Gaussian(mean.reshape(space.shape), log_std, space, legal, noise_scale)
    return distributions.SquashedGaussian(gaussian) if squash else gaussian


def split_std(outputs: jax.Array, log_std: jax.Array, size: int, std: StdKind) -> StdOutput:
    """Split the outputs of a layer into the mean and the log standard deviation of a policy.

    Args:
        outputs: The mean `[size]`, followed by the log standard deviation relative to `log_std` if
            `std` is "state".
        log_std: Log standard deviation, a parameter of the head.
        size: Number of elements of the mean.
        std: "shared" and "gsde" learn `log_std`, "fixed" does not change it, and "state" adds the
            outputs to it and clips the sum to the range from `MIN_LOG_STD` to `MAX_LOG_STD`.
    """
    if std in ("shared", "gsde"):
        return StdOutput(outputs, log_std)
    constant = jax.lax.stop_gradient(log_std)
    if std == "fixed":
        return StdOutput(outputs, constant)
    offset = outputs[size:].reshape(log_std.shape)
    return StdOutput(outputs[:size], jnp.clip(constant + offset, MIN_LOG_STD, MAX_LOG_STD))


class LatentNoise(NamedTuple):
    """Noise that is linear in features: its log standard deviation, and the factors of weights."""

    log_std: jax.Array
    noise_scale: jax.Array


def make_latent_noise(features: jax.Array, log_std: jax.Array) -> LatentNoise:
    """Return the noise of generalized state-dependent exploration (gSDE).

    The noise of an action is the product of the features z and a matrix of weights ~ N(0, sigma^2),
    so its variance is sum_i z_i^2 sigma_ij^2. The features receive no gradient from the noise, and
    1e-6 is added to the variance, as in Stable-Baselines3.

    Args:
        features: Features z `[n]`.
        log_std: Log standard deviations sigma of the weights, `[n, *shape of the action]`.

    References:
        Raffin et al. 2021, Smooth exploration for robotic reinforcement learning, arXiv:2005.05719.
    """
    latent = jax.lax.stop_gradient(features).reshape(-1, *[1] * (log_std.ndim - 1))
    scale = latent * jnp.exp(log_std)
    return LatentNoise(0.5 * jnp.log(jnp.sum(scale**2, axis=0) + MIN_LATENT_VARIANCE), scale)


def check_std(std: StdKind, space: Space) -> None:
    """Raise UsageError if `std` is "gsde" and a part of the action is not a `Box`."""
    if std == "gsde" and not isinstance(space, Box):
        raise UsageError(
            f"network.std gsde requires actions that consist of Boxes, got {space}. Remove "
            "network.std."
        )


def check_initial_std(initial_std: float) -> None:
    """Raise UsageError if an initial standard deviation is not positive."""
    if not initial_std > 0:
        raise UsageError(f"network.initial_std must be greater than 0, got {initial_std}.")


class CategoricalHead(eqx.Module):
    """Head that returns a distribution over a `Discrete` or `MultiDiscrete` space.

    If `is_masked`, the "action_mask" of the observation excludes actions.
    """

    layer: eqx.nn.Linear
    space: Discrete | MultiDiscrete = eqx.field(static=True)
    is_masked: bool = eqx.field(static=True)

    def __init__(
        self, inputs: int, space: Discrete | MultiDiscrete, is_masked: bool, *, key: jax.Array
    ) -> None:
        shape = (space.n,) if isinstance(space, Discrete) else (len(space.sizes), max(space.sizes))
        self.layer = make_orthogonal_linear(inputs, math.prod(shape), key, 0.01)
        self.space, self.is_masked = space, is_masked

    def __call__(self, features: jax.Array, obs: Observation) -> distributions.Categorical:
        return make_categorical(
            self.layer(features), self.space, obs["action_mask"] if self.is_masked else None
        )


class GaussianHead(eqx.Module):
    """Head that returns independent normal distributions over a `Box`.

    `std` selects how the standard deviation of each dimension is computed (`split_std`). If
    `is_masked`, dimensions that the "action_mask" forbids are 0.
    """

    layer: eqx.nn.Linear
    log_std: jax.Array
    space: Box = eqx.field(static=True)
    squash: bool = eqx.field(static=True)
    is_masked: bool = eqx.field(static=True)
    std: StdKind = eqx.field(static=True)

    def __init__(
        self,
        inputs: int,
        space: Box,
        squash: bool,
        initial_std: float,
        is_masked: bool = False,
        std: StdKind = "shared",
        *,
        key: jax.Array,
    ) -> None:
        if squash and not space.is_bounded:
            raise ValueError(
                f"network.squash requires an action space with finite bounds, got {space}. "
                "Remove network.squash."
            )
        size = math.prod(space.shape) * (2 if std == "state" else 1)
        self.layer = make_orthogonal_linear(inputs, size, key, 0.01)
        shape = (inputs, *space.shape) if std == "gsde" else space.shape
        self.log_std = jnp.full(shape, np.log(initial_std), jnp.float32)
        self.space, self.squash, self.is_masked, self.std = space, squash, is_masked, std

    def __call__(
        self, features: jax.Array, obs: Observation
    ) -> distributions.Gaussian | distributions.SquashedGaussian:
        mask = obs["action_mask"] if self.is_masked else None
        size = math.prod(self.space.shape)
        mean, log_std = split_std(self.layer(features), self.log_std, size, self.std)
        noise_scale = None
        if self.std == "gsde":
            log_std, noise_scale = make_latent_noise(features, log_std)
        return make_gaussian(mean, log_std, self.space, self.squash, mask, noise_scale)


class BallHead(eqx.Module):
    """Head that returns a normal distribution squashed into a `Ball`.

    All directions have one standard deviation. `std` selects how it is computed (`split_std`).
    """

    layer: eqx.nn.Linear
    log_std: jax.Array
    space: Ball = eqx.field(static=True)
    std: StdKind = eqx.field(static=True)

    def __init__(
        self,
        inputs: int,
        space: Ball,
        initial_std: float,
        std: StdKind = "shared",
        *,
        key: jax.Array,
    ) -> None:
        size = space.size + (1 if std == "state" else 0)
        self.layer = make_orthogonal_linear(inputs, size, key, 0.01)
        self.log_std = jnp.asarray(np.log(initial_std), jnp.float32)
        self.space, self.std = space, std

    def __call__(
        self, features: jax.Array, obs: Observation
    ) -> distributions.RadiallySquashedGaussian:
        mean, log_std = split_std(self.layer(features), self.log_std, self.space.size, self.std)
        return distributions.RadiallySquashedGaussian(mean, log_std, self.space)


class JointHead(eqx.Module):
    """Head with one head for each entry of a `Dict` or `Tuple` action space.

    If the observation has an "action_mask", the head of an entry receives the mask of this entry.
    """

    heads: dict[str, Head] | tuple[Head, ...]

    def __call__(self, features: jax.Array, obs: Observation) -> distributions.JointDistribution:
        if isinstance(self.heads, dict):
            return distributions.JointDistribution(
                {
                    name: head(features, select_action_mask(obs, name))
                    for name, head in self.heads.items()
                }
            )
        return distributions.JointDistribution(
            tuple(
                head(features, select_action_mask(obs, str(i))) for i, head in enumerate(self.heads)
            )
        )


def make_joint_head(
    space: Space,
    mask: Space | None,
    make_head: Callable[[Space, bool, jax.Array], Any],
    key: jax.Array,
) -> Any:
    """Return the head for an action space, a `JointHead` for a `Dict` or a `Tuple`.

    Args:
        space: The action space.
        mask: Space of the "action_mask" of observations, or None if they have none.
        make_head: Function `(space, is_masked, key)` that returns the head of a part that is not a
            `Dict` or a `Tuple`.
        key: Random key of the weights.
    """
    if not isinstance(space, Dict | Tuple):
        return make_head(space, mask is not None, key)
    parts, masks = list_parts(space), {} if mask is None else list_parts(mask)
    keys = jax.random.split(key, len(parts))
    heads = {
        name: make_joint_head(part, masks.get(name), make_head, k)
        for (name, part), k in zip(parts.items(), keys, strict=True)
    }
    return JointHead(join_values(space, heads))


def select_action_mask(obs: Observation, name: str) -> Observation:
    """Return `{"action_mask": mask}` for one entry of the action, or `{}` if it has no mask.

    Args:
        obs: Observation.
        name: Name or index of the entry.
    """
    masks = obs.get("action_mask", {}) if isinstance(obs, dict) else {}
    return {"action_mask": masks[name]} if name in masks else {}
