"""The parts of an update, by named scopes: operations of a compiled program keep them, so that a profile can be split by parts.

`with scope("environment"):`, or `@scope("credit")` above a function. Scopes nest, and the innermost counts. What is
differentiated (forward, backward) and random numbers are told by the names that JAX gives them, and need no scope.
"""

import re
from typing import Any, Literal

import jax

Scope = Literal[
    "environment", "restarts", "policy", "credit", "shuffling", "replay", "optimizer", "archive", "emitter", "bookkeeping"
]
_MARK = "rollax."
_INNERMOST = re.compile(rf".*\b{re.escape(_MARK)}(\w+)")
_RANDOM = re.compile(r"threefry|random_(bits|split|fold_in|seed)|_rbg|philox|jit\(_(uniform|normal|gumbel|randint|bernoulli)\)")

# In the order of an update, with what each is.
PARTS = {
    "environment": "steps of the environments",
    "restarts": "starts of episodes, and their selection where one ended",
    "policy": "what acts: networks, distributions",
    "random numbers": "keys and bits, wherever they are drawn",
    "replay": "what the buffer stores and samples",
    "credit": "values of final observations, advantages, targets",
    "shuffling": "minibatches: their order and their gathering",
    "forward": "losses",
    "backward": "their gradients",
    "optimizer": "gradient norms, Adam, new parameters",
    "emitter": "new solutions",
    "archive": "what is kept of them",
    "bookkeeping": "sums over episodes, metrics, what is still finite",
    "other": "loops, copies, and what belongs to no part",
}


def scope(name: Scope) -> Any:
    """Marks operations as of this part of an update. What the program computes is the same."""
    return jax.named_scope(_MARK + name)


def part_of(path: str) -> str | None:
    """The part of an operation by its path of names, such as "jit(run)/while/body/rollax.credit/mul"; None: it says none.

    A scope within what is differentiated counts more than that it is: credit that a loss computes is credit.
    """
    if _RANDOM.search(path):
        return "random numbers"
    found = _INNERMOST.match(path)
    place = found.start(1) if found else 0
    if "transpose(" in path:
        return "backward"
    if "jvp(" in path[place:]:
        return "forward"
    return found[1] if found else None
