"""Every row learns its probes, small tasks with known solutions."""

from typing import Any

import pytest

from laws.learning import mean_return, trained, values
from laws.rows import Row
from laws.table import BY_NAME, ROWS
from rollax.environments import list_environments

UPDATES = 60
QUICK = (("ppo", "two-steps"), ("dqn", "action-observation"))  # part of the quick set
# Mean return of one agent that a policy must reach in a probe, and the highest possible one.
RETURNS = {
    "action-reward": (0.99, 1.0),
    "action-observation": (0.99, 1.0),
    "two-agents": (0.99, 1.0),
    "multi-discrete": (0.99, 1.0),
    "masked": (2.8, 4 * 34 / 45 + 0.2),
    "memory": (0.99, 1.0),
    "continuous": (-0.01, 0.0),
}
# Observations of episodes and their values.
VALUES: dict[str, Any] = {
    "one-action": [([[0.0]], [1.0])],
    "two-observations": [([[-1.0]], [-1.0]), ([[1.0]], [1.0])],
    "two-steps": [([[0.0], [1.0]], [0.9, 1.0])],
}


def scaled(config: Any) -> bool:
    """Return whether rewards or values are normalized by the standard deviation of returns."""
    return getattr(config, "normalize_rewards", False) or getattr(config, "normalize_values", False)


def cells(probes: Any) -> list[Any]:
    """Return pairs of rows and the probes that apply to them.

    Rows with normalized rewards or values skip `one-action`, where returns have a standard
    deviation of 0.
    """

    def mark(row: Row, probe: str) -> Any:
        if (row.name, probe) in QUICK:
            return pytest.mark.quick
        return () if probe in row.telling else pytest.mark.slow

    return [
        pytest.param(row, probe, id=f"{row.name}-{probe}", marks=mark(row, probe))
        for row in ROWS
        for probe in row.probes
        if probe in probes and not (probe == "one-action" and scaled(row.config))
    ]


@pytest.mark.quick
def test_every_probe_is_tested_with_some_row() -> None:
    probes = {name.removeprefix("probe/") for name in list_environments("probe")}
    assert probes == {probe for row in ROWS for probe in row.telling} | {"truncation"}, (
        "truncation has a law of its own"
    )
    assert set(RETURNS) | set(VALUES) | {"truncation"} == probes


@pytest.mark.parametrize(("row", "probe"), cells(VALUES))
def test_values_of_probes(row: Row, probe: str) -> None:
    state = trained(row.name, probe, UPDATES, learning_rate=3e-2)
    for episode, expected in VALUES[probe]:
        assert values(row, state, episode) == pytest.approx(expected, abs=0.05)


@pytest.mark.parametrize(("row", "probe"), cells(RETURNS))
def test_returns_of_probes(row: Row, probe: str) -> None:
    least, best = RETURNS[probe]
    reached = mean_return(row, trained(row.name, probe, UPDATES), probe)
    assert least <= reached <= best + 1e-6


def test_without_memory_the_cue_is_forgotten() -> None:
    """The mean return is that of random choice."""
    row = BY_NAME["ppo"]
    assert abs(mean_return(row, trained("ppo", "memory", UPDATES), "memory")) < 0.4
