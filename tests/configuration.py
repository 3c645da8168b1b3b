"""Temporary changes of JAX's configuration."""

import contextlib
from collections.abc import Iterator
from typing import Any

import jax


@contextlib.contextmanager
def configured(**values: Any) -> Iterator[None]:
    """Set values of JAX's configuration in all threads, because some threads compile programs."""
    before = {name: jax.config.values[name] for name in values}
    for name, value in values.items():
        jax.config.update(name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            jax.config.update(name, value)
