"""Strict mode for every test: rank promotion, key reuse, and checks of shapes and types."""

import os
import signal
import sys
from collections.abc import Iterator
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("ROLLAX_COMPILATION_CACHE", "off")  # tests write nothing to the user's folder
# Most programs here run for milliseconds, so optimizing them takes more time than it saves.
# `laws.programs` and `support.runs` have some that are compiled as a run is. Processes that tests
# start have the same setting.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
# Without fusion emitters, a program compiles in a third of the time and needs half of the memory
# maps. From jaxlib 0.11 on this flag does not exist, and a process ends if a flag is unknown.
if version("jaxlib").startswith(("0.8.", "0.9.", "0.10.")) and "XLA_FLAGS" not in os.environ:
    os.environ["XLA_FLAGS"] = "--xla_cpu_use_fusion_emitters=false"

import jax
import pytest
from jaxtyping import install_import_hook

import quick_set
from counting import forget, held

jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_debug_key_reuse", True)

# Functions whose annotations describe shapes. The hook must precede the first import of rollax.
# With ROLLAX_TEST_TYPES=1, the types of the whole package are checked at every call.
# On accelerators, tests may run without beartype.
if os.environ.get("ROLLAX_TEST_TYPES"):
    import support.type_checks  # noqa: F401  the import hook finds it by name

    install_import_hook("rollax", "support.type_checks.check_types")
elif find_spec("beartype"):
    install_import_hook(
        ["rollax.learning.returns", "rollax.learning.vtrace", "rollax.networks.distributions"],
        "beartype.beartype",
    )

from rollax.runtime.numerics import REQUIRED_SETTINGS

# Programs of rollax itself are tested in strict mode, which runs of users do not have.
del REQUIRED_SETTINGS["jax_numpy_rank_promotion"]


# Registered for all folders, so that each shared run is trained once per process.
pytest_plugins = ("support.command", "support.shared_runs")

MOST_MEGABYTES = 2048


def most_maps() -> int:
    """Return half of the number of memory maps that a process may have."""
    path = Path("/proc/sys/vm/max_map_count")
    return int(path.read_text()) // 2 if path.exists() else sys.maxsize


@pytest.fixture(autouse=True, scope="module")
def _bounded(request: pytest.FixtureRequest) -> Iterator[None]:
    """Check the memory of the process after each module, and clear all caches."""
    yield
    now = held()
    forget()
    remedy = "let its tests share programs, or split the file"
    assert now["maps"] < most_maps(), (
        f"{request.node.name} ends with {now['maps']} memory maps: {remedy}"
    )
    # With `-m slow`, a module holds the programs of all rows of `laws.table`.
    limit = MOST_MEGABYTES * (2 if request.config.getoption("markexpr") else 1)
    assert now["megabytes"] < limit, (
        f"{request.node.name} ends with {now['megabytes']} MB of memory: {remedy}"
    )


@pytest.fixture(autouse=True)
def _within_what_a_process_may_hold(request: pytest.FixtureRequest) -> Iterator[None]:
    """With `-m slow`, clear the caches if there are too many memory maps.

    A module may have the programs of all rows then.
    """
    yield
    if request.config.getoption("markexpr") and held()["maps"] > most_maps():
        forget()


@pytest.fixture(autouse=True, scope="session")
def _default_signals() -> Iterator[None]:
    """Handle signals as in a terminal, also under nohup and in the background.

    Some signals are ignored there, and processes that tests start would inherit this.
    """
    handlers = {
        "SIGHUP": signal.SIG_DFL,
        "SIGINT": signal.default_int_handler,
        "SIGTERM": signal.SIG_DFL,
    }
    ignored = [
        getattr(signal, name)
        for name in handlers
        if hasattr(signal, name) and signal.getsignal(getattr(signal, name)) == signal.SIG_IGN
    ]
    for number in ignored:
        signal.signal(number, handlers[number.name])
    yield
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)


@pytest.fixture
def double_precision() -> Iterator[None]:
    """Allow double precision in a test."""
    with jax.enable_x64(True):
        yield


def pytest_addoption(parser: pytest.Parser) -> None:
    text = "run the quick set, or what it leaves out"
    parser.addoption("--part", choices=("quick", "rest"), default=None, help=text)
    if not find_spec("pytest_timeout"):  # its settings in pyproject.toml would be unknown
        for name in ("timeout", "timeout_method"):
            parser.addini(name, "setting of pytest-timeout, which is not installed")


def is_accelerator_run(config: pytest.Config) -> bool:
    """Return whether only the laws for accelerators are run."""
    return config.getoption("markexpr") == "accelerator"


def pytest_configure(config: pytest.Config) -> None:
    """With `-m accelerator`, use the default device, and compile as a run does."""
    if not is_accelerator_run(config):
        return
    if os.environ["JAX_PLATFORMS"] == "cpu":
        os.environ["JAX_PLATFORMS"] = ""
        jax.config.update("jax_platforms", None)
    # Processes that tests start use the same device.
    os.environ |= {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "JAX_DISABLE_MOST_OPTIMIZATIONS": "0"}
    jax.config.update("jax_disable_most_optimizations", False)
    # Products in reduced precision would exceed the tolerances.
    os.environ["JAX_DEFAULT_MATMUL_PRECISION"] = "highest"
    jax.config.update("jax_default_matmul_precision", "highest")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With `-m accelerator`, import no other test files, which may need further packages."""
    is_test = collection_path.name.startswith("test_") and collection_path.suffix == ".py"
    if is_accelerator_run(config) and is_test and "accelerator" not in collection_path.read_text():
        return True
    return None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the tests that `--part` leaves out."""
    part, whole = config.getoption("part"), quick_set.whole_files(quick_set.read_seconds())

    def is_selected(item: pytest.Item) -> bool:
        is_quick = item.get_closest_marker("quick") or item.nodeid.split("::")[0] in whole
        return part is None or bool(is_quick) == (part == "quick")

    config.hook.pytest_deselected(items=[item for item in items if not is_selected(item)])
    items[:] = [item for item in items if is_selected(item)]
