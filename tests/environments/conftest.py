"""These programs run once, so that optimising them would cost more than it saves."""

from collections.abc import Iterator

import jax
import pytest


@pytest.fixture(autouse=True, scope="package")
def _quick_compilation() -> Iterator[None]:
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", before)


@pytest.fixture(scope="module")
def as_strict_as_the_suite() -> Iterator[None]:
    """Other suites promote ranks, which our own programs may not."""
    before = jax.config.values["jax_numpy_rank_promotion"]
    jax.config.update("jax_numpy_rank_promotion", "allow")
    yield
    jax.config.update("jax_numpy_rank_promotion", before)
