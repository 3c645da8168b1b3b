"""Fixtures that relax checks of JAX for code of other suites."""

from collections.abc import Iterator

import pytest

from configuration import configured


@pytest.fixture(scope="module")
def as_strict_as_the_suite() -> Iterator[None]:
    """Allow rank promotion, which code of other suites uses."""
    with configured(jax_numpy_rank_promotion="allow"):
        yield


@pytest.fixture(scope="module")
def as_free_with_keys_as_the_suite() -> Iterator[None]:
    """Allow reuse of keys, which code of other suites does."""
    with configured(jax_debug_key_reuse=False):
        yield
