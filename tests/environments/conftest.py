"""What other suites may, and our own programs may not."""

from collections.abc import Iterator

import pytest

from configuration import configured


@pytest.fixture(scope="module")
def as_strict_as_the_suite() -> Iterator[None]:
    """Other suites promote ranks, which our own programs may not."""
    with configured(jax_numpy_rank_promotion="allow"):
        yield


@pytest.fixture(scope="module")
def as_free_with_keys_as_the_suite() -> Iterator[None]:
    """Other suites use a key twice, which our own programs may not."""
    with configured(jax_debug_key_reuse=False):
        yield
