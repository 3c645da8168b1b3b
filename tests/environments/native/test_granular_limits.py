"""Tests of invalid physical parameters of granular environments."""

import pytest

from rollax.environments import make
from rollax.errors import UsageError


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        (
            "many-navigators",
            {"radius": 1.0},
            "radius must be above 0 and at most half of spacing",
        ),
        ("single-navigator", {"radius": 6.0}, "at most half of side"),
        ("single-roller", {"time_step": 0.0}, "time_step must be above 0"),
        ("many-navigators", {"damping": 1.5}, "damping must be at least 0 and below 1"),
    ],
)
def test_invalid_physics_is_refused(name: str, arguments: dict[str, float], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make(f"granular/{name}", **arguments)
