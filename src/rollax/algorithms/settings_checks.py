"""Checks of the settings of an algorithm together with those of its network."""

from rollax.errors import UsageError
from rollax.types import Settings


def accept_any_settings(config: Settings, network: Settings) -> None:
    """Accept any combination of settings. The `init` of the algorithm validates them."""


def check_sequence_length(config: Settings, network: Settings) -> None:
    """Raise UsageError if the network has memory and `config.sequence_length` is 1."""
    lengths = f"{config.num_steps} (num_steps) or a divisor of num_steps"
    _check_memory_length(config, network, lengths)


def check_cloning_sequence_length(config: Settings, network: Settings) -> None:
    """Raise UsageError if the network has memory and imitates single steps."""
    _check_memory_length(config, network, "a number of steps that divides batch_size, such as 16")


def _check_memory_length(config: Settings, network: Settings, lengths: str) -> None:
    if network.core != "none" and network.core_size >= 1 and config.sequence_length == 1:
        raise UsageError(
            f"config.sequence_length must be greater than 1 with network.core {network.core!r}, "
            f"got 1. Set it to {lengths}."
        )


def check_actor_critic_settings(config: Settings, network: Settings) -> None:
    """Raise UsageError if settings for a separate critic are used with a shared network.

    Also raise it if the network has memory and `sequence_length` is 1, so that it would learn from
    single steps.
    """
    check_sequence_length(config, network)
    given = [name for name in ("critic_epochs", "critic_learning_rate") if getattr(config, name)]
    if network.shared and given:
        raise UsageError(
            f"network.shared uses one optimizer for actor and critic, so config.{given[0]} "
            f"({getattr(config, given[0])}) has no effect. Remove one of the two."
        )


def check_value_range(config: Settings, network: Settings) -> None:
    """Raise UsageError if the range of the atoms of returns is empty."""
    if not config.v_min < config.v_max:
        raise UsageError(
            f"config.v_min ({config.v_min:g}) must be less than config.v_max ({config.v_max:g}). "
            "Set them to the lowest and the highest sum of discounted rewards."
        )


def check_fixed_std(config: Settings, network: Settings) -> None:
    """Raise UsageError if the temperature is learned for a policy with a fixed standard deviation.

    The entropy of such a policy hardly changes, so the temperature would grow or shrink without
    limit.
    """
    if network.std == "fixed" and config.learn_temperature:
        raise UsageError(
            "config.learn_temperature must be false with network.std fixed, because the policy "
            "cannot reach the target entropy. Set config.learn_temperature to false, and choose "
            "config.initial_temperature."
        )
