"""Named scopes that assign the operations of a compiled program to parts of an update.

Profiles report the time of each part (`rollax.training.profiling`). Use `with
profile_scope("environment"):`, or decorate a function with `@profile_scope("credit")`. If scopes
are nested, the innermost scope applies. Differentiated operations and random numbers are recognized
by names that JAX assigns, and do not require a scope.
"""

from typing import Any, Literal

import jax

Scope = Literal[
    "environment",
    "restarts",
    "policy",
    "credit",
    "shuffling",
    "replay",
    "optimizer",
    "archive",
    "emitter",
    "bookkeeping",
]
SCOPE_PREFIX = "rollax."


def profile_scope(name: Scope) -> Any:
    """Return a context manager and decorator that assigns operations to a part of an update.

    It does not change the results of the program.
    """
    return jax.named_scope(SCOPE_PREFIX + name)
