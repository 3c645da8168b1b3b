"""A network of encoder, recurrent core and head."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from rollax import tree
from rollax.networks import cores


class Tower(eqx.Module):
    """Encoder, recurrent core, head: a whole network. Encoder and head take a sequence at once, the core alone is scanned.

    With `precision` "bfloat16" encoder and core compute in bfloat16; inputs, carries, head and outputs are float32.
    """

    encoder: Any  # obs -> features
    core: cores.Core
    head: Any  # (features, obs) -> output
    precision: str = eqx.field(static=True, default="float32")

    def initial_carry(self) -> Any:
        return self.core.initial_carry()

    def __call__(self, carry: Any, obs: Any) -> tuple[Any, Any]:
        net = self._lowered(self)
        carry, features = net.core(self._lowered(carry), self._lowered(net.encoder(obs)))
        return _raised((carry, self.head(_raised(features), obs)))

    def unroll(self, carry: Any, obs: Any, reset: jax.Array) -> tuple[Any, Any]:
        net = self._lowered(self)
        features = self._lowered(tree.over_steps(net.encoder)(obs))
        carry, features = net.core.unroll(self._lowered(carry), features, reset)
        return _raised((carry, tree.over_steps(self.head)(_raised(features), obs)))

    def _lowered(self, values: Any) -> Any:
        return values if self.precision == "float32" else _with_floats(values, self.precision)


def _raised(values: Any) -> Any:
    return _with_floats(values, "float32")


def _with_floats(values: Any, dtype: str) -> Any:
    """A tree with its floats in that precision."""
    return jax.tree.map(lambda x: x.astype(dtype) if jnp.issubdtype(x.dtype, jnp.floating) else x, values)
