"""Parameters of tests, with marks."""

from collections.abc import Iterable
from typing import Any

import pytest


def mark_quick(values: Iterable[Any], *chosen: Any) -> list[Any]:
    """Return parameters of a test, and mark the chosen ones quick.

    Args:
        values: Parameters. Each one is a tuple if the test has several arguments.
        *chosen: Those that belong to the quick set.
    """
    made = [value if isinstance(value, tuple) else (value,) for value in values]
    quick = [value if isinstance(value, tuple) else (value,) for value in chosen]
    assert all(value in made for value in quick), f"{chosen} must be among the parameters"
    return [
        pytest.param(*value, marks=pytest.mark.quick if value in quick else ()) for value in made
    ]
