"""Quick compilation by default: these programs run for milliseconds. `programs.programs` optimizes where a law needs it."""

from collections.abc import Iterator

import pytest

from laws.programs import compilation


@pytest.fixture(autouse=True, scope="package")
def _quick_compilation() -> Iterator[None]:
    with compilation(optimized=False):
        yield
