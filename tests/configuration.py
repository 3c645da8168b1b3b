"""Temporary changes of JAX's configuration."""

import contextlib
from collections.abc import Iterator
from typing import Any

import jax


@contextlib.contextmanager
def configured(**values: Any) -> Iterator[None]:
    """In all threads, for programs are compiled in some of their own."""
    before = {name: jax.config.values[name] for name in values}
    for name, value in values.items():
        jax.config.update(name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            jax.config.update(name, value)
