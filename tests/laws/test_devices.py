"""One run on four devices is the run on one, and the devices exchange sums only: of gradients, moments and metrics."""

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from laws.table import BY_NAME, NAMES, first

ROWS = first("ppo-gru", "ppo-agents", "dqn")


@cache
def results(names: tuple[str, ...], module: str = "laws.devices") -> dict[str, Any]:
    """All rows in one process: the number of devices is fixed when JAX starts."""
    tests = str(Path(__file__).parent.parent)
    path = os.pathsep.join([tests, os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    environment = os.environ | {
        "XLA_FLAGS": os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=4",
        "JAX_PLATFORMS": "cpu",
        "JAX_NUMPY_RANK_PROMOTION": "raise",
        "PYTHONPATH": path,
    }
    command = [sys.executable, "-m", module, *names]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(params=ROWS)
def result(request: pytest.FixtureRequest) -> Any:
    chosen = {item.callspec.params["result"] for item in request.session.items if "result" in getattr(item, "fixturenames", ())}
    return results(tuple(name for name in NAMES if name in chosen))[request.param], BY_NAME[request.param]


def test_four_devices_are_one(result: Any) -> None:
    found, row = result
    assert found["devices"] == 4
    assert found["share"] == row.config.num_envs // 4, "each device has its share of the environments"
    assert found["difference"] < row.rounding


def test_only_sums_are_exchanged(result: Any) -> None:
    """But by those that learn from replay, which is whole on every device: what was met is gathered there."""
    found, row = result
    assert found["collectives"] == ["all-reduce"] or not row.spreads


@pytest.mark.parametrize("name", ["map_elites", pytest.param("pga_me", marks=pytest.mark.slow)])
def test_archives_on_four_devices_are_those_on_one(name: str) -> None:
    """Each device scores its share of the solutions of a single run, or has its members of a population."""
    found = results((name,), "laws.evaluating")[name]
    assert found["devices"] == [4, 4] and found["elites"] >= 4
    assert found["shares"], "each device scores its share"
    assert found["single"] < 1e-5 and found["population"] < 1e-5
