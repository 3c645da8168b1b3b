"""Number of floating-point operations of the matrix products in a traced function."""

import math
from typing import Any


def count_products(jaxpr: Any, iterations: int = 1) -> int:
    """Return the number of floating-point operations of all matrix products in a jaxpr.

    A multiplication and an addition count as two operations. The number is computed from shapes,
    because the cost analysis of XLA counts the body of a loop only once. Products in a scan are
    multiplied by its length.

    Args:
        jaxpr: Traced function.
        iterations: Number of iterations of each loop of unknown length.

    Returns:
        The number of operations.
    """
    total = 0
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            ((contracted, _), _), shape = (
                equation.params["dimension_numbers"],
                equation.invars[0].aval.shape,
            )
            total += (
                2
                * math.prod(equation.outvars[0].aval.shape)
                * math.prod(shape[axis] for axis in contracted)
            )
        inner = [getattr(value, "jaxpr", value) for value in equation.params.values()]
        times = iterations if equation.primitive.name == "while" else 1
        total += equation.params.get("length", times) * sum(
            count_products(part, iterations) for part in inner if hasattr(part, "eqns")
        )
    return total
