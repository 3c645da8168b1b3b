"""Metrics of a short run of every algorithm with a fixed seed, to detect unintended changes.

Where numbers change on purpose, check the differences that

    PYTHONPATH=tests python -m golden.test_golden

prints, and commit the file that it writes. `--exact` compares every bit and writes nothing. It
needs the machine and the versions that wrote the file. The tolerance of the test allows for other
orders of addition on other machines and versions.
"""

import functools
import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from laws.programs import fresh, plain
from laws.table import BY_NAME
from rollax import Metrics
from rollax.algorithms.registry import ALGORITHMS

FILE = Path(__file__).parent / "values.json"
NUM_UPDATES, NUM_COMPARED, TOLERANCE = 4, 2, 1e-3  # later updates may differ by one elite
ROWS = tuple(BY_NAME)


def build(name: str) -> tuple[Any, Any]:
    """Return the algorithm and the settings of a row."""
    row = BY_NAME[name]
    return row.make(row.environment), row.config


def flatten_metrics(metrics: Metrics) -> dict[str, jax.Array]:
    """Return all metrics of an update by name."""
    parts = {"episodes": metrics.episodes, "finite": metrics.finite}
    return metrics.values | {
        f"{part}/{name}": x
        for part, values in parts.items()
        for name, x in values._asdict().items()
        if name not in ("agent_type_sums", "info")
    }


@functools.cache
def record(name: str, num_updates: int = NUM_UPDATES) -> dict[str, Any]:
    """Return the metrics of each update and a digest of the last state.

    The digest is under "state" and covers all leaves.
    """
    algorithm, config = build(name)
    state = jax.jit(lambda key: algorithm.init(key, config))(jax.random.key(0))
    step, rows = jax.jit(algorithm.step), []
    for _ in range(num_updates):
        state, metrics = step(fresh(state))
        rows.append(
            {
                key: np.asarray(x).astype(float).tolist()
                for key, x in flatten_metrics(metrics).items()
            }
        )
    leaves = sorted(
        hashlib.sha256(leaf.tobytes()).hexdigest() for leaf in jax.tree.leaves(plain(state))
    )
    digest = hashlib.sha256("".join(leaves).encode()).hexdigest()[:16]
    return {key: [row[key] for row in rows] for key in sorted(rows[0])} | {"state": digest}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_metrics_are_those_recorded(name: str) -> None:
    name = "dqn-rainbow" if name == "dqn" else name
    golden, found = json.loads(FILE.read_text())[name], record(name, NUM_COMPARED)
    assert sorted(found) == sorted(golden), "other metrics than before"
    for metric, values in golden.items():
        if metric != "state":
            assert found[metric] == pytest.approx(
                values[:NUM_COMPARED], rel=TOLERANCE, abs=TOLERANCE, nan_ok=True
            ), metric


def differences(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """Return one line for each metric or state that differs in any bit."""
    lines = []
    for name in sorted(set(old) | set(new)):
        if name not in old or name not in new:
            lines.append(f"{name}: {'new' if name in new else 'gone'}")
        elif json.dumps(old[name]) != json.dumps(new[name]):
            lines.append(f"{name}: {old[name]} -> {new[name]}")
    return lines


def main(arguments: list[str]) -> int:
    exact = "--exact" in arguments
    rows = [name for name in arguments if name != "--exact"] or list(ROWS)
    golden = json.loads(FILE.read_text()) if FILE.exists() else {}
    found, changed = {}, 0
    for name in rows:
        found[name] = json.loads(json.dumps(record(name)))
        lines = differences(golden.get(name, {}), found[name])
        changed += bool(lines)
        print(f"{name}: {'equal' if not lines else ''}", *lines, sep="\n  ", flush=True)
        jax.clear_caches()
    if not exact:
        FILE.write_text(json.dumps(golden | found, indent=0) + "\n")
    print(
        f"{len(rows) - changed} rows equal, {changed} differ"
        + ("" if exact else f"; wrote {FILE.name}")
    )
    return 1 if exact and changed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
