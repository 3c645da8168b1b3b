"""Protocols for the settings of on-policy algorithms."""

from typing import Protocol, runtime_checkable

from rollax.acting.parameter_sharing import Sharing
from rollax.learning.train_state import EpochConfig, OptimizerConfig
from rollax.types import Scalar


@runtime_checkable
class OnPolicyConfig(Protocol):
    """Settings that all on-policy algorithms share."""

    @property
    def num_envs(self) -> int: ...
    @property
    def num_steps(self) -> int: ...
    @property
    def sharing(self) -> Sharing: ...
    @property
    def total_updates(self) -> Scalar: ...


@runtime_checkable
class MinibatchConfig(Protocol):
    """Settings that divide a rollout into minibatches of sequences."""

    @property
    def num_steps(self) -> int: ...
    @property
    def sequence_length(self) -> int: ...
    @property
    def num_minibatches(self) -> int: ...


@runtime_checkable
class ScheduleConfig(Protocol):
    """Settings of a learning rate that changes linearly over training."""

    @property
    def learning_rate(self) -> Scalar: ...
    @property
    def learning_rate_final_fraction(self) -> Scalar: ...


@runtime_checkable
class GradientStepConfig(OptimizerConfig, EpochConfig, Protocol):
    """Settings of the gradient steps of an actor-critic."""

    @property
    def target_kl(self) -> Scalar: ...
