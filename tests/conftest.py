"""Strict mode for every test: no silent broadcasting of ranks, no key used twice, shapes and types checked at every call."""

import os
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("ROLLAX_COMPILATION_CACHE", "off")  # nothing of a test goes to the user's folder
# Most programs here run for milliseconds, so that optimizing them would cost more than it saves; `laws.programs` and
# `host.runs` have some compiled as a run is. Processes that tests start do as this one.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
# Without the emitters of fusions a program compiles in a third of the time and holds half of the memory maps. From jaxlib 0.11
# on there is no such flag, and a process ends at one that it does not know.
if version("jaxlib").startswith(("0.8.", "0.9.", "0.10.")) and "XLA_FLAGS" not in os.environ:
    os.environ["XLA_FLAGS"] = "--xla_cpu_use_fusion_emitters=false"

import jax
import pytest
from jaxtyping import install_import_hook

from counting import forget, held

jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_debug_key_reuse", True)

# The functions whose annotations say what shapes mean. To take effect, this must come before the first import of rollax.
install_import_hook(["rollax.learning.returns", "rollax.learning.vtrace", "rollax.networks.distributions"], "beartype.beartype")


MOST_MEGABYTES = 2048


def most_maps() -> int:
    """Half of the memory maps that a process may have."""
    path = Path("/proc/sys/vm/max_map_count")
    return int(path.read_text()) // 2 if path.exists() else sys.maxsize


@pytest.fixture(autouse=True, scope="module")
def _bounded(request: pytest.FixtureRequest) -> Iterator[None]:
    """A module holds less than half of what a process may hold, and leaves nothing to the next one."""
    yield
    now = held()
    forget()
    remedy = "let its tests share programs, or split the file"
    assert now["maps"] < most_maps(), f"{request.node.name} ends with {now['maps']} memory maps: {remedy}"
    # With `-m slow` a module holds the programs of all rows of the laws.
    limit = MOST_MEGABYTES * (2 if request.config.getoption("markexpr") else 1)
    assert now["megabytes"] < limit, f"{request.node.name} ends with {now['megabytes']} MB of memory: {remedy}"


@pytest.fixture(autouse=True)
def _within_what_a_process_may_hold(request: pytest.FixtureRequest) -> Iterator[None]:
    """With `-m slow`, where a module has the programs of all rows, these are forgotten when they become too many."""
    yield
    if request.config.getoption("markexpr") and held()["maps"] > most_maps():
        forget()


@pytest.fixture
def double_precision() -> Iterator[None]:
    """What a test compiles may be of double precision."""
    with jax.enable_x64(True):
        yield


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves slow tests out unless `-m` asks for something."""
    if not config.getoption("markexpr"):
        slow = [item for item in items if item.get_closest_marker("slow")]
        config.hook.pytest_deselected(items=slow)
        items[:] = [item for item in items if item not in slow]
