"""What a fixed short run measures, so that no change of the numbers goes unnoticed.

A golden value is not a law: where numbers change on purpose, look at the difference that

    PYTHONPATH=tests python -m golden.test_golden

prints, and commit the file that it writes. The tolerance allows for other orders of addition on other machines and versions.
"""

import json
from pathlib import Path

import jax
import numpy as np
import pytest

from laws.table import BY_NAME
from rollax import Metrics, environments

FILE = Path(__file__).parent / "ppo.json"
UPDATES, TOLERANCE = 5, 1e-4


def named(metrics: Metrics) -> dict[str, jax.Array]:
    """All that is measured, by name."""
    parts = {"episodes": metrics.episodes, "finite": metrics.finite}
    return metrics.values | {
        f"{part}/{name}": x for part, values in parts.items() for name, x in values._asdict().items() if name != "by_type"
    }


def measured() -> dict[str, list[float]]:
    """The metrics of five updates of PPO on probe/action-observation, seed 0."""
    row = BY_NAME["ppo"]
    algorithm = row.make(environments.make("probe/action-observation"))
    state = jax.jit(lambda key: algorithm.init(key, row.config))(jax.random.key(0))
    step, rows = jax.jit(algorithm.step), []
    for _ in range(UPDATES):
        state, metrics = step(state)
        rows.append({name: float(value) for name, value in named(metrics).items()})
    return {name: [row[name] for row in rows] for name in sorted(rows[0])}


def test_golden() -> None:
    golden, found = json.loads(FILE.read_text()), measured()
    assert sorted(found) == sorted(golden), "other metrics than before"
    for name, values in golden.items():
        assert found[name] == pytest.approx(values, rel=TOLERANCE, abs=TOLERANCE), name


if __name__ == "__main__":
    new = measured()
    old = json.loads(FILE.read_text()) if FILE.exists() else {}
    for name in sorted(set(old) | set(new)):
        if name not in old or name not in new:
            print(f"{name}: {'new' if name in new else 'gone'}")
        elif not np.allclose(old[name], new[name], rtol=TOLERANCE, atol=TOLERANCE):
            print(f"{name}: {old[name]} -> {new[name]}")
    FILE.write_text(json.dumps(new, indent=1) + "\n")
    print(f"written: {FILE.name}")
