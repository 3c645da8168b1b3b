"""Metrics of an algorithm that a run watches, to warn about known problems of training.

An `AlgorithmEntry` uses these functions as `derive_signals`. Custom algorithms can use a function
if their settings have the fields that it reads.
"""

from typing import NamedTuple, Protocol, runtime_checkable

from rollax.networks.actor_critic import NetworkConfig
from rollax.types import Scalar, Settings


class SharedClip(NamedTuple):
    """Gradient clip that policy and value share because one optimizer trains both.

    Attributes:
        grad_norm: Name of the metric with the gradient norm before the clip.
        value_loss: Name of the metric with the value loss.
        value_weight: Weight of the value loss in the loss.
        max_grad_norm: Maximum norm of the gradient.
    """

    grad_norm: str
    value_loss: str
    value_weight: float
    max_grad_norm: float


class LearningSignals(NamedTuple):
    """Metrics of updates that a run watches, as returned by `AlgorithmEntry.derive_signals`.

    None means that the problem does not apply to the algorithm or its settings.

    Attributes:
        entropy: Name of the metric with the entropy of the policy in nats, or None.
        has_normalized_actions: Whether the entropy is that of actions between -1 and 1.
        shared_clip: Gradient clip that policy and value share, or None.
    """

    entropy: str | None = None
    has_normalized_actions: bool = False
    shared_clip: SharedClip | None = None


@runtime_checkable
class ActorCriticLossConfig(Protocol):
    """Settings of the loss of an actor-critic and of its gradient clip."""

    @property
    def normalize_advantages(self) -> str: ...
    @property
    def value_coefficient(self) -> Scalar: ...
    @property
    def max_grad_norm(self) -> Scalar: ...


def watch_nothing(config: Settings, network: Settings) -> LearningSignals:
    """Return `LearningSignals` with default values."""
    return LearningSignals()


def watch_actor_critic(config: ActorCriticLossConfig, network: Settings) -> LearningSignals:
    """Return the signals of an actor-critic that learns from rollouts.

    The entropy of squashed actions also falls if actions are at their bounds, so it is not watched.
    The gradient clip is watched if advantages are normalized, because the size of the policy
    gradient then does not depend on the rewards.
    """
    has_settings = isinstance(network, NetworkConfig)
    is_shared = has_settings and network.shared and config.normalize_advantages != "off"
    clip = SharedClip(
        grad_norm="grad_norm",
        value_loss="value_loss",
        value_weight=float(config.value_coefficient),
        max_grad_norm=float(config.max_grad_norm),
    )
    return LearningSignals(
        entropy="entropy" if has_settings and not network.squash else None,
        shared_clip=clip if is_shared else None,
    )


def watch_entropy_of_normalized_actions(config: Settings, network: Settings) -> LearningSignals:
    """Return the entropy of a policy whose actions are between -1 and 1."""
    return LearningSignals(entropy="entropy", has_normalized_actions=True)
