"""Named scopes that assign the operations of a compiled program to phases of an update.

Profiles report the time of each phase (`rollax.training.profiling`). Use `with
profile_scope("environment"):`, or decorate a function with `@profile_scope("credit")`. If scopes
are nested, the innermost scope applies. Operations of gradients and of random numbers do not
require a scope, because profiles recognize the names that JAX gives them.
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
    """Return a context manager and decorator that assigns operations to a phase of an update.

    The scope affects only the names of operations, not the results of the program.
    """
    return jax.named_scope(SCOPE_PREFIX + name)
