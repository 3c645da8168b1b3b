"""A run on two or four devices equals the run on one, and the devices exchange only sums."""

import json
import math
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from laws.evaluating import GRID, SHARE
from laws.table import BY_NAME, LEARNERS, first

AT_ONCE = 6  # rows per process, which compiles four programs for each
ROWS = first("ppo-gru", "ppo-agents", "dqn", among=LEARNERS)


@cache
def results(arguments: tuple[str, ...], module: str = "laws.devices") -> dict[str, Any]:
    """Return the results of several rows, computed in a separate process.

    The number of devices is fixed when JAX starts.
    """
    tests = str(Path(__file__).parent.parent)
    path = os.pathsep.join([tests, os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    environment = os.environ | {
        "XLA_FLAGS": os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=4",
        "JAX_PLATFORMS": "cpu",
        "JAX_NUMPY_RANK_PROMOTION": "raise",
        "PYTHONPATH": path,
    }
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(params=ROWS)
def result(request: pytest.FixtureRequest) -> Any:
    chosen = {
        item.callspec.params["result"]
        for item in request.session.items
        if "result" in getattr(item, "fixturenames", ())
    }
    names = [name for name in LEARNERS if name in chosen]
    first = names.index(request.param) // AT_ONCE * AT_ONCE
    return results(tuple(names[first : first + AT_ONCE]))[request.param], BY_NAME[request.param]


@pytest.mark.parametrize("count", [2, 4])
def test_several_devices_equal_one(result: Any, count: int) -> None:
    found, row = result[0][str(count)], result[1]
    assert found["devices"] == count
    assert found["share"] == row.config.num_envs // count, (
        "each device has its share of the environments"
    )
    assert found["difference"] < row.rounding


def test_only_sums_are_exchanged(result: Any) -> None:
    """A sample of a replay buffer is such a sum.

    Devices with a replay buffer also exchange the numbers of rows of their streams.
    """
    found, row = result
    allowed = {"all-reduce"} if row.spreads else {"all-reduce", "all-gather"}
    assert all(set(each["collectives"]) <= allowed for each in found.values())
    if not row.spreads and not row.name.startswith("impala"):
        for count, each in found.items():
            (share,) = each["streams"]
            streams = share * int(count)
            assert each["gathered"] <= 2 * streams, "numbers of streams and places, no rows"
            assert streams % row.config.num_envs == 0 and share == streams // int(count)


@pytest.mark.parametrize(
    "name", ["map_elites", *(pytest.param(n, marks=pytest.mark.slow) for n in ("pga_me", "cma_me"))]
)
@pytest.mark.parametrize("count", [pytest.param(2, marks=pytest.mark.slow), 4])
def test_archives_on_several_devices_equal_those_on_one(name: str, count: int) -> None:
    """Each device scores its share of the solutions of a single run, or has its own members."""
    found = results((name, str(count)), "laws.evaluating")
    assert found["devices"] == [count, count] and found["elites"] >= 4
    assert found["scored"] == [SHARE], "each device scores its share"
    assert found["single"] < 1e-5 and found["population"] < 1e-5


@pytest.mark.parametrize("name", ["map_elites", pytest.param("pga_me", marks=pytest.mark.slow)])
def test_archives_are_split_over_devices(name: str) -> None:
    """Parents need one sum, and scores one gather per kind of score.

    Every device has the whole replay buffer.
    """
    found = results((name, "4"), "laws.evaluating")
    kinds = {kind for kind, number in found["collectives"].items() if number}
    assert found["places"] == math.prod(GRID) // 4 and kinds == {"all-reduce", "all-gather"}
    if name == "map_elites":
        assert (
            found["collectives"]["all-reduce"] == 1
            and found["collectives"]["all-gather"] == 2
            and not found["streams"]
        )
        assert found["gathered"] == 2 * 4 * SHARE, "fitness, and descriptors of two numbers"
    else:
        assert found["streams"] == [1]
