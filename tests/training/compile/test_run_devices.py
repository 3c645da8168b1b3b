"""Runs on two devices equal those on one, with settings that measure or change the training."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.device_runs import CASES, NUM_UPDATES


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the lines of metrics on one and on two devices, keyed by case."""
    tests = str(Path(__file__).parents[2])
    path = os.pathsep.join([tests, os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    environment = os.environ | {
        "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": path,
    }
    command = [sys.executable, "-m", "support.device_runs", str(tmp_path_factory.mktemp("runs"))]
    done = subprocess.run(
        [*command, *CASES],
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("case", CASES)
def test_two_devices_equal_one(lines: dict[str, Any], case: str) -> None:
    one, two = lines[case]
    assert len(one) == len(two) > NUM_UPDATES
    for mine, theirs in zip(one, two, strict=True):
        numbers = {name: value for name, value in mine.items() if isinstance(value, int | float)}
        assert numbers and mine.keys() == theirs.keys()
        assert {name: theirs[name] for name in numbers} == pytest.approx(
            numbers, rel=1e-3, abs=1e-4
        )
