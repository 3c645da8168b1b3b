"""AURORA: quality-diversity with descriptors learned from observations.

Cully 2019, arXiv:1905.11874. Grillotti and Cully 2022, arXiv:2106.05648. `num_frames` observations
of each episode are recorded, and an autoencoder learns to encode them. The codes of all elites keep
a minimum distance from each other (`archives/unstructured.py`). The environment's descriptors do
not affect the search. QD score and coverage count the elites on a grid of these descriptors, as in
the papers.

Deviations from the papers: The autoencoder has dense layers on a few observations instead of
convolutions or a recurrent network. Codes are rescaled to standard deviation 1 whenever the encoder
is trained, so that distances remain comparable. The minimum distance is adjusted once per update.
"""

from collections.abc import Callable

import jax

from rollax.acting.scoring import ScoringOptions
from rollax.algorithm import Algorithm
from rollax.algorithms.map_elites import MAPElitesConfig, make_variation_emitter
from rollax.algorithms.quality_diversity import quality_diversity
from rollax.archives.archive import Archive
from rollax.archives.unstructured import AutoencoderSettings, unstructured_archive
from rollax.config import settings_dataclass, static_field, traced_field
from rollax.environments.environment import Environment
from rollax.types import Solution


@settings_dataclass
class AURORAConfig(MAPElitesConfig):
    """Settings of AURORA.

    Changing a field marked (static) requires recompilation. All other fields may be swept.
    """

    num_elites: int = static_field(1024)
    """(static) Target number of elites. The archive may hold up to twice as many."""
    num_frames: int = static_field(10)
    """(static) Number of evenly spaced observations per episode that the autoencoder is trained
    on, including the last one. Episodes with fewer steps repeat observations.
    """
    code_size: int = static_field(2)
    """(static) Dimension of the learned descriptor."""
    encoder_hidden: tuple[int, ...] = static_field((64,))
    """(static) Sizes of the encoder's dense layers. The decoder uses the same sizes."""
    encoder_updates: int = static_field(500)
    """(static) Gradient steps per training of the autoencoder, which happens at updates 1, 2, 4,
    8, ...
    """
    samples: int = static_field(128)
    """(static) Samples per gradient step."""
    learning_rate: float = traced_field(1e-3, low=0)
    """Learning rate of the autoencoder (Adam)."""
    distance_rate: float = traced_field(0.1, 0, 1)
    """Step size with which the minimum distance between elites adapts to their number."""


def aurora(environment: Environment, solution: Callable[[jax.Array], Solution]) -> Algorithm:
    """Build AURORA, quality-diversity with learned descriptors.

    Args:
        environment: Environment with episodes, state descriptors and `Box` observations.
        solution: Function from a random key to an initial policy.

    Returns:
        The algorithm. Its `init` raises a `UsageError` if the settings are inconsistent.
    """
    return quality_diversity(
        environment,
        solution,
        make_unstructured_archive,
        make_variation_emitter,
        lambda config: ScoringOptions(num_frames=config.num_frames),
    )


def make_unstructured_archive(
    config: AURORAConfig, low: tuple[float, ...], high: tuple[float, ...]
) -> Archive:
    """Build the unstructured archive of AURORA from its settings and the descriptor bounds."""
    learning = AutoencoderSettings(
        config.code_size,
        config.encoder_hidden,
        config.encoder_updates,
        config.samples,
        config.learning_rate,
    )
    return unstructured_archive(
        config.num_elites, low, high, config.distance_rate, learning, config.grid
    )
