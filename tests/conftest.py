"""Strict mode for every test: no silent broadcasting of ranks, no key used twice, shapes and types checked at every call."""

import gc
import os
from collections.abc import Iterator

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import pytest
from jaxtyping import install_import_hook

jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_debug_key_reuse", True)

# The functions whose annotations say what shapes mean. To take effect, this must come before the first import of rollax.
install_import_hook(["rollax.learning.returns", "rollax.learning.vtrace", "rollax.networks.distributions"], "beartype.beartype")


@pytest.fixture(autouse=True, scope="module")
def _forget_programs() -> Iterator[None]:
    """Hundreds of compiled programs in one process ended in a crash of the compiler; memory maps, of which a process may have
    65,530 on Linux, are the likely limit."""
    yield
    jax.clear_caches()
    gc.collect()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves slow tests out unless `-m` asks for something."""
    if not config.getoption("markexpr"):
        slow = [item for item in items if item.get_closest_marker("slow")]
        config.hook.pytest_deselected(items=slow)
        items[:] = [item for item in items if item not in slow]
