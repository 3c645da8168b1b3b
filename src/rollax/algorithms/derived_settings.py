"""Quantities that a run derives from the settings of an algorithm.

An `AlgorithmEntry` uses these functions as `derive_settings` or `adapt_to_host`. Custom algorithms
can use a function if their settings have the fields that it reads.
"""

import dataclasses
from collections.abc import Mapping
from typing import NamedTuple

from rollax.algorithms.bc import BCConfig
from rollax.algorithms.cma_mae import CMAMAEConfig
from rollax.algorithms.cma_maega import CMAMAEGAConfig
from rollax.algorithms.mome import MOMEConfig
from rollax.algorithms.on_policy import OnPolicyConfig
from rollax.algorithms.policy_gradient import PolicyGradientConfig
from rollax.algorithms.quality_diversity import QDConfig
from rollax.replay.replay_config import ReplayConfig, compute_replay_cycle
from rollax.types import Settings


class ArchiveSettings(NamedTuple):
    """Settings of an algorithm's archive, as returned by `AlgorithmEntry.derive_settings`.

    Attributes:
        batch_size: Number of solutions per batch.
        grid: Number of cells along each descriptor dimension of the grid that the archive or its
            metrics use.
        objectives: Names of the objectives, or `()` for a single fitness.
        reference: Reference point of the hypervolume, one number per objective.
        threshold_start: Initial acceptance threshold of cells, or None if cells have no thresholds.
    """

    batch_size: int
    grid: tuple[int, ...]
    objectives: tuple[str, ...] = ()
    reference: tuple[float, ...] = ()
    threshold_start: float | None = None


class DerivedSettings(NamedTuple):
    """Quantities that a run derives from the settings of an algorithm.

    Runs read these quantities because the names of settings differ between algorithms. A default
    value means that a quantity does not apply to the algorithm.

    Attributes:
        num_envs: Number of environments, which a run divides among devices, or 0.
        replay_capacity: Capacity of the replay buffer in transitions, or 0.
        gradient_steps: Number of gradient steps per update on replayed batches.
        learning_starts: Number of frames before learning starts, keyed by the setting that
            determines it. Learning starts after the largest of these numbers.
        sizes: Values of the settings that determine the memory use of an update, keyed by setting
            name, for error messages.
        archive: Settings of the archive, or None for algorithms without an archive.
    """

    num_envs: int = 0
    replay_capacity: int = 0
    gradient_steps: float = 0.0
    learning_starts: Mapping[str, float] = {}
    sizes: Mapping[str, int] = {}
    archive: ArchiveSettings | None = None


def derive_nothing(config: Settings) -> DerivedSettings:
    """Return `DerivedSettings` with default values, which state that no quantity applies."""
    return DerivedSettings()


def derive_on_policy(config: OnPolicyConfig) -> DerivedSettings:
    """Return the derived settings of an on-policy algorithm: `num_envs` and `sizes`."""
    return DerivedSettings(
        num_envs=config.num_envs,
        sizes={"num_envs": config.num_envs, "num_steps": config.num_steps},
    )


def derive_behavior_cloning(config: BCConfig) -> DerivedSettings:
    """Return the derived settings of behavior cloning: `sizes`."""
    return DerivedSettings(
        sizes={"batch_size": config.batch_size, "num_gradient_steps": config.num_gradient_steps}
    )


def derive_replay(config: ReplayConfig) -> DerivedSettings:
    """Return the derived settings of an off-policy algorithm: all except `archive`."""
    return DerivedSettings(
        num_envs=config.num_envs,
        replay_capacity=config.capacity,
        gradient_steps=config.replay_ratio * config.steps_per_update,
        learning_starts={
            "warmup": config.warmup,
            "learning_starts": config.learning_starts,
        },
        sizes={
            "num_envs": config.num_envs,
            "num_steps": config.num_steps,
            "capacity": config.capacity,
            "batch_size": config.batch_size,
        },
    )


def derive_quality_diversity(config: QDConfig) -> DerivedSettings:
    """Return the derived settings of a quality-diversity algorithm: `sizes` and `archive`."""
    return DerivedSettings(
        sizes={"batch_size": config.batch_size},
        archive=ArchiveSettings(batch_size=config.batch_size, grid=config.grid),
    )


def derive_policy_gradient(config: PolicyGradientConfig) -> DerivedSettings:
    """Return the derived settings of a quality-diversity algorithm with a replay buffer.

    They are those of `derive_quality_diversity` and the capacity of the buffer.
    """
    return derive_quality_diversity(config)._replace(
        replay_capacity=config.capacity,
        sizes={"capacity": config.capacity, "batch_size": config.batch_size},
    )


def derive_multi_objective(config: MOMEConfig) -> DerivedSettings:
    """Return the derived settings of a quality-diversity algorithm with several objectives."""
    archive = ArchiveSettings(
        batch_size=config.batch_size,
        grid=config.grid,
        objectives=config.objectives,
        reference=config.reference,
    )
    return derive_quality_diversity(config)._replace(archive=archive)


def derive_thresholds(config: CMAMAEConfig | CMAMAEGAConfig) -> DerivedSettings:
    """Return the derived settings of a quality-diversity algorithm with acceptance thresholds."""
    archive = ArchiveSettings(
        batch_size=config.batch_size, grid=config.grid, threshold_start=config.threshold_start
    )
    return derive_quality_diversity(config)._replace(archive=archive)


def keep_settings(config: Settings) -> Settings:
    """Return the settings unchanged."""
    return config


def use_one_cycle_per_update(config: ReplayConfig) -> ReplayConfig:
    """Return the settings with `num_steps` set to one cycle of acting and learning per update.

    In simulators on the host, the acting policy is fixed during an update. With one cycle per
    update, it has learned from the steps of all previous cycles.
    """
    return dataclasses.replace(config, num_steps=compute_replay_cycle(config)[0])
