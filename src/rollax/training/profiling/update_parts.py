"""Phases of an update (parts), and assignment of compiled operations to them."""

import re

from rollax.scopes import SCOPE_PREFIX

_INNERMOST_SCOPE = re.compile(rf".*\b{re.escape(SCOPE_PREFIX)}(\w+)")
_RANDOM_OPERATION = re.compile(
    r"threefry|random_(bits|split|fold_in|seed)|_rbg|philox"
    r"|jit\(_(uniform|normal|gumbel|randint|bernoulli)\)"
)

# Description of each part, in the order of an update.
UPDATE_PARTS = {
    "environment": "steps of the environments",
    "restarts": "starts of new episodes",
    "policy": "networks and distributions of the acting policy",
    "random numbers": "random keys and bits of all parts",
    "replay": "insertion into and sampling from the replay buffer",
    "credit": "values of final observations, advantages, targets",
    "shuffling": "order and gathering of minibatches",
    "forward": "losses",
    "backward": "gradients of the losses",
    "optimizer": "gradient norms, Adam, new parameters",
    "emitter": "generation of solutions",
    "archive": "insertion of solutions",
    "bookkeeping": "sums over episodes, metrics, checks for NaN and infinity",
    "other": "loops, copies, and operations of no other part",
}


def classify_operation(path: str) -> str | None:
    """Return the phase of an update that contains an operation, or None if it is unknown.

    In the forward pass, a named scope inside a differentiated function takes precedence. For
    example, operations of the scope "credit" in a loss belong to "credit", not to "forward".

    Args:
        path: Name stack of the operation, such as "jit(run)/while/body/rollax.credit/mul".
    """
    if _RANDOM_OPERATION.search(path):
        return "random numbers"
    found = _INNERMOST_SCOPE.match(path)
    place = found.start(1) if found else 0
    if "transpose(" in path:
        return "backward"
    if "jvp(" in path[place:]:
        return "forward"
    return found[1] if found else None
