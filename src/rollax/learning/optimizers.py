"""Optimizers and learning rates of all algorithms that learn by gradients.

Optimizers are rebuilt in every trace, because their settings may be traced.
"""

import inspect
from collections.abc import Callable
from typing import Any, Literal, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
import optax

from rollax.config import UserFunction
from rollax.errors import UsageError
from rollax.learning.freezing import FreezingConfig, freeze_parts
from rollax.types import Scalar
from rollax.user_input.coercion import format_value

OptimizerName = Literal[
    "adam", "adabelief", "amsgrad", "lamb", "lion", "muon", "nadam", "radam", "rmsprop", "sgd"
]
ScheduleName = Literal["linear", "cosine"]
AdaptiveScheduleName = Literal["linear", "cosine", "kl"]
# Bounds of a learning rate that adapts to the KL divergence, and the factor of each change.
MIN_ADAPTIVE_RATE, MAX_ADAPTIVE_RATE, RATE_FACTOR = 1e-5, 1e-2, 1.5


@runtime_checkable
class ScheduleConfig(Protocol):
    """Settings of a learning rate that changes over training."""

    @property
    def learning_rate(self) -> Scalar: ...
    @property
    def learning_rate_final_fraction(self) -> Scalar: ...
    @property
    def learning_rate_schedule(self) -> AdaptiveScheduleName | UserFunction: ...
    @property
    def learning_rate_warmup_fraction(self) -> Scalar: ...
    @property
    def total_updates(self) -> Scalar: ...
    @property
    def steps_per_update(self) -> int: ...


@runtime_checkable
class AdaptiveScheduleConfig(ScheduleConfig, Protocol):
    """Settings of a learning rate that may adapt to the KL divergence of the policy."""

    @property
    def learning_rate_kl(self) -> Scalar: ...


@runtime_checkable
class OptimizerConfig(FreezingConfig, Protocol):
    """Settings of an optimizer, without its learning rate."""

    @property
    def optimizer(self) -> OptimizerName | UserFunction: ...
    @property
    def weight_decay(self) -> Scalar: ...
    @property
    def adam_epsilon(self) -> Scalar: ...
    @property
    def max_grad_norm(self) -> Scalar: ...


@runtime_checkable
class ScheduledOptimizerConfig(OptimizerConfig, ScheduleConfig, Protocol):
    """Settings of an optimizer and its learning rate."""


def linear_schedule(
    initial: jax.Array | float, final_fraction: jax.Array | float, progress: jax.Array | float
) -> jax.Array:
    """Interpolate linearly from initial to final_fraction * initial over progress in [0, 1]."""
    return initial * (1 + (jnp.asarray(final_fraction) - 1) * jnp.clip(progress, 0.0, 1.0))


def cosine_schedule(
    initial: jax.Array | float, final_fraction: jax.Array | float, progress: jax.Array | float
) -> jax.Array:
    """Interpolate from initial to final_fraction * initial along half a period of a cosine.

    References:
        Loshchilov and Hutter 2017, SGDR, arXiv:1608.03983, eq. 5.
    """
    share = (1 - jnp.cos(jnp.pi * jnp.clip(progress, 0.0, 1.0))) / 2
    return linear_schedule(initial, final_fraction, share)


def scheduled_rate(
    config: ScheduleConfig, rate: jax.Array | float, progress: jax.Array | float
) -> jax.Array:
    """Return a learning rate at the current progress.

    During the warm-up, the scheduled rate is multiplied by the completed fraction of the warm-up. A
    schedule function returns the learning rate of all optimizers at the current environment step.

    Args:
        config: Settings of the schedule.
        rate: Learning rate without schedule.
        progress: Completed fraction of training, from 0 to 1.
    """
    if isinstance(config.learning_rate_schedule, UserFunction):
        schedule_fn = config.learning_rate_schedule.function
        updates = jnp.round(jnp.where(progress > 0, progress * config.total_updates, 0.0))
        steps = updates * config.steps_per_update
        return jnp.asarray(rate) if schedule_fn is None else _call_schedule(schedule_fn, steps)
    schedules = {"linear": linear_schedule, "cosine": cosine_schedule, "kl": linear_schedule}
    schedule = schedules[config.learning_rate_schedule]
    rate = schedule(rate, config.learning_rate_final_fraction, progress)
    warmup = config.learning_rate_warmup_fraction
    return rate * jnp.where(progress < warmup, progress / jnp.maximum(warmup, 1e-12), 1.0)


def _call_schedule(schedule_fn: Any, steps: jax.Array) -> jax.Array:
    """Return the learning rate that the function of the user returns for a number of steps."""
    remedy = "Pass a schedule of optax, or a function that uses only operations of JAX."
    rate = _call_user_function("learning_rate_schedule", schedule_fn, steps, remedy)
    if not isinstance(rate, int | float | np.ndarray | np.generic | jax.Array) or jnp.shape(rate):
        raise UsageError(
            "learning_rate_schedule must return one number for a number of environment steps, got "
            f"{format_value(rate)}. {remedy}"
        )
    return jnp.asarray(rate, jnp.float32)


def _call_user_function(name: str, function: Any, value: Scalar, remedy: str) -> Any:
    """Return `function(value)`. Raise UsageError with the cause if the function raises."""
    try:
        return function(value)
    except Exception as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        raise UsageError(
            f"{name} must be a function of one traced number, but its call raised "
            f"{type(error).__name__}: {reason}. {remedy}"
        ) from error


def has_own_rate(config: OptimizerConfig) -> bool:
    """Return whether the optimizer is an object of optax, which does not use `learning_rate`."""
    optimizer = config.optimizer
    return isinstance(optimizer, UserFunction) and isinstance(
        optimizer.function, optax.GradientTransformation
    )


def rate_metric(config: OptimizerConfig, rate: jax.Array) -> dict[str, jax.Array]:
    """Return the metric "learning_rate", or no metric if the optimizer does not use the rate."""
    return {} if has_own_rate(config) else {"learning_rate": rate}


def check_adaptive_rate(config: OptimizerConfig, schedule: object) -> None:
    """Raise UsageError if the learning rate adapts but the optimizer does not use it."""
    if schedule == "kl" and has_own_rate(config):
        raise UsageError(
            "learning_rate_schedule kl requires an optimizer that takes the learning rate. Pass a "
            "function of it, such as optimizer=lambda learning_rate: optax.lion(learning_rate)."
        )


def adapt_rate_scale(
    config: AdaptiveScheduleConfig, scale: jax.Array, divergence: jax.Array
) -> jax.Array:
    """Return the factor of the learning rates after a minibatch.

    The factor is divided by 1.5 if the KL divergence is more than twice `config.learning_rate_kl`,
    and multiplied by 1.5 if the KL divergence is less than half of `config.learning_rate_kl`. A KL
    divergence of 0, as before the first gradient step of an update, does not change the factor.
    `learning_rate` times the factor stays between 1e-5 and 1e-2.

    Args:
        config: Settings of the schedule.
        scale: Current factor.
        divergence: KL divergence of the policy from the policy that acted.

    References:
        Schwarke et al. 2025, RSL-RL, arXiv:2509.10771, whose schedule "adaptive" has the same rule.
    """
    rate, target = jnp.maximum(config.learning_rate, 1e-12), config.learning_rate_kl
    lower = jnp.maximum(scale / RATE_FACTOR, MIN_ADAPTIVE_RATE / rate)
    higher = jnp.minimum(scale * RATE_FACTOR, MAX_ADAPTIVE_RATE / rate)
    is_small = (divergence > 0) & (divergence < target / 2)
    return jnp.where(divergence > 2 * target, lower, jnp.where(is_small, higher, scale))


def clipped_adam(
    rate: jax.Array | float, epsilon: jax.Array | float, max_norm: jax.Array | float
) -> optax.GradientTransformation:
    """Build an Adam optimizer that clips gradients by their global norm.

    Args:
        rate: Learning rate.
        epsilon: Epsilon of Adam.
        max_norm: Maximum global norm of the gradients.

    References:
        Pascanu et al. 2013.
    """
    return optax.chain(_clip_by_norm(max_norm), optax.adam(rate, eps=epsilon))


def _clip_by_norm(max_norm: jax.Array | float) -> optax.GradientTransformation:
    # A norm of 0 would divide 0 by 0 for a gradient of 0.
    max_norm = jnp.where(max_norm > 0, max_norm, jnp.finfo(jnp.float32).tiny)
    return optax.clip_by_global_norm(max_norm)


def make_optimizer(
    config: OptimizerConfig,
    rate: jax.Array | float,
    progress: jax.Array | float,
    path: tuple[str, ...] = (),
) -> optax.GradientTransformation:
    """Build the optimizer that the settings select.

    It clips gradients by their global norm, and does not change the frozen parts of the network. An
    optimizer of the user decays weights by `weight_decay` only if it takes the learning rate.

    Args:
        config: Settings of the optimizer.
        rate: Learning rate.
        progress: Completed fraction of training, from 0 to 1, for parts that are frozen for a time.
        path: Path of the trained parameters in the network.

    Returns:
        The optimizer.

    References:
        Loshchilov and Hutter 2019, arXiv:1711.05101, for weight decay: each step subtracts `rate *
        weight_decay` times the parameters. Adam with weight decay is AdamW.
    """
    if isinstance(config.optimizer, UserFunction):
        built = _call_optimizer_function(config.optimizer.function, rate)
        parts = [_clip_by_norm(config.max_grad_norm), built]
        if not has_own_rate(config):
            parts.append(optax.add_decayed_weights(-rate * config.weight_decay))
        return freeze_parts(optax.chain(*parts), config, progress, path)
    build = _find_optimizer(config.optimizer)
    settings: dict[str, Any] = {"eps": config.adam_epsilon, "weight_decay": 0.0}
    accepted = inspect.signature(build).parameters
    optimizer = optax.chain(
        _clip_by_norm(config.max_grad_norm),
        build(rate, **{name: value for name, value in settings.items() if name in accepted}),
        optax.add_decayed_weights(-rate * config.weight_decay),
    )
    return freeze_parts(optimizer, config, progress, path)


def _call_optimizer_function(function: Any, rate: Scalar) -> optax.GradientTransformation:
    """Return the optimizer that the user passed, or that the function of the user returns.

    Without a function, as in a run that is only read, the optimizer has no state.
    """
    if function is None:
        return optax.identity()
    if isinstance(function, optax.GradientTransformation):
        return function
    remedy = "Pass a function such as lambda learning_rate: optax.lion(learning_rate)."
    optimizer = _call_user_function("optimizer", function, rate, remedy)
    if not isinstance(optimizer, optax.GradientTransformation):
        raise UsageError(
            "optimizer must return an optimizer of optax for a learning rate, got "
            f"{format_value(optimizer)}. {remedy}"
        )
    return optimizer


def _find_optimizer(name: OptimizerName) -> Callable[..., optax.GradientTransformation]:
    if name != "muon":
        return getattr(optax, name)
    from optax import contrib  # loaded only if it is used

    return contrib.muon
