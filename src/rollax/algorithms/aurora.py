"""AURORA: quality-diversity whose descriptors are not given but learnt, from what policies see.

Cully 2019, arXiv:1905.11874; Grillotti and Cully 2022, arXiv:2106.05648. Of every episode some observations are kept, and an
autoencoder learns to tell them apart; elites are those whose codes are far enough from each other (`archives/unstructured.py`).
The environment's own descriptors play no part in it: metrics lay the elites on a grid of them to say what was found, as the
papers do. Deviations: dense layers on a few observations in place of convolutions or a recurrent network; codes are scaled to
deviation 1 each time they are learnt, so that the distance keeps its meaning; the distance is corrected once an update.
"""

from collections.abc import Callable
from typing import Any

import jax

from rollax.acting.scoring import Watched
from rollax.algorithm import Algorithm
from rollax.algorithms.map_elites import MAPElitesConfig, varied
from rollax.algorithms.quality_diversity import quality_diversity
from rollax.archives.core import Archive
from rollax.archives.unstructured import Learning, unstructured
from rollax.config import number, settings, static
from rollax.environments.core import Environment


@settings
class AURORAConfig(MAPElitesConfig):
    """Settings of AURORA. Those marked (static) shape the program; all others are data, so they can be swept over."""

    num_elites: int = static(1024)
    """Elites that are aimed at; there may be up to twice as many. (static)"""
    num_frames: int = static(10)
    """Observations of an episode that are learnt from, at equal distances, up to the last. (static)"""
    code_size: int = static(2)
    """Numbers of a learnt descriptor. (static)"""
    encoder_hidden: tuple[int, ...] = static((64,))
    """Sizes of the encoder's dense layers; the decoder has the same. (static)"""
    encoder_updates: int = static(500)
    """Gradient steps each time the autoencoder learns: at updates 1, 2, 4, 8, ... (static)"""
    samples: int = static(128)
    """Samples of a gradient step. (static)"""
    learning_rate: float = number(1e-3, low=0)
    """Adam's step size for the autoencoder."""
    distance_rate: float = number(0.1, 0, 1)
    """How fast the minimum distance between elites follows their number."""


def aurora(environment: Environment, solution: Callable[[jax.Array], Any]) -> Algorithm:
    """AURORA of the policies that `solution(key)` begins with. `init` raises UsageError when the parts do not fit."""
    return quality_diversity(environment, solution, apart, varied, lambda config: Watched(num_frames=config.num_frames))


def apart(config: AURORAConfig, low: tuple[float, ...], high: tuple[float, ...]) -> Archive:
    """The archive that the settings ask for."""
    learning = Learning(config.code_size, config.encoder_hidden, config.encoder_updates, config.samples, config.learning_rate)
    return unstructured(config.num_elites, low, high, config.distance_rate, learning, config.grid)
