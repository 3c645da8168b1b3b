"""Quick compilation by default: these programs run for milliseconds. `programs.programs` optimizes where a law needs it."""

from collections.abc import Iterator

import jax
import pytest

from laws.programs import compilation


@pytest.fixture(autouse=True, scope="package")
def _quick_compilation() -> Iterator[None]:
    with compilation(optimized=False):
        yield


@pytest.fixture
def double_precision() -> Iterator[None]:
    """What a test compiles may be of double precision."""
    with jax.enable_x64(True):
        yield
