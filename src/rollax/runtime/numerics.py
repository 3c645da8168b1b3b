"""JAX settings that rollax requires, such as single precision and standard type promotion.

rollax compiles its programs ahead of time in single precision, transfers arrays between host and
device, and reports non-finite numbers itself. User code may change these settings for other
computations, with `jax.config` or an environment variable such as `JAX_ENABLE_X64`. Public
functions that compute therefore run within `standard_numerics`, which restores the settings of the
caller afterwards.
"""

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any, TypeVar

import jax
import numpy as np

from rollax.types import Leaf

T = TypeVar("T")

# Required value of each setting in `jax.config`.
REQUIRED_SETTINGS: dict[str, Any] = {
    "jax_enable_x64": False,
    "jax_numpy_dtype_promotion": "standard",
    "jax_numpy_rank_promotion": "allow",  # suites rely on rank promotion
    "jax_disable_jit": False,  # ahead-of-time compilation requires jit
    "jax_debug_nans": False,  # empty cells of archives contain NaN
    "jax_debug_infs": False,  # masked actions and empty cells contain minus infinity
    # Runs transfer arrays between host and device. The first guard sets the other ones.
    **dict.fromkeys(
        (
            "jax_transfer_guard",
            "jax_transfer_guard_host_to_device",
            "jax_transfer_guard_device_to_device",
            "jax_transfer_guard_device_to_host",
        ),
        "allow",
    ),
}


_overridden_settings: ContextVar[tuple[str, ...]] = ContextVar("overridden", default=())


def overridden_settings() -> tuple[str, ...]:
    """Return the names of the caller's JAX settings that `standard_numerics` overrides."""
    return _overridden_settings.get()


@contextlib.contextmanager
def standard_numerics() -> Iterator[None]:
    """Apply the JAX settings that rollax requires, as a context manager or a decorator."""
    with contextlib.ExitStack() as stack:
        changed: list[str] = []
        for name, value in REQUIRED_SETTINGS.items():
            if getattr(jax.config, name) not in (None, value):  # None is the default of guards
                set_switch: Any = getattr(jax, name.removeprefix("jax_"))
                stack.enter_context(set_switch(value))
                changed.append(name)
        if changed:
            token = _overridden_settings.set(
                (*_overridden_settings.get(), *map(str.upper, changed))
            )
            stack.callback(_overridden_settings.reset, token)
        yield


def to_single_precision(tree: T) -> T:
    """Convert the 64-bit arrays of a pytree to 32 bits, as JAX does without `JAX_ENABLE_X64`.

    A pytree without 64-bit arrays is returned as the same object, for caches that are keyed by
    identity.
    """
    narrower = {
        "float64": np.float32,
        "int64": np.int32,
        "uint64": np.uint32,
        "complex128": np.complex64,
    }

    def is_double(leaf: Leaf) -> bool:
        return isinstance(leaf, jax.Array) and str(leaf.dtype) in narrower

    if not any(map(is_double, jax.tree.leaves(tree))):
        return tree
    return jax.tree.map(lambda x: x.astype(narrower[str(x.dtype)]) if is_double(x) else x, tree)
