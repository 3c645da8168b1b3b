"""Network that consists of an encoder, a recurrent core and a head."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from rollax import tree
from rollax.networks import recurrent
from rollax.types import Carry, Observation, PyTree


class Tower(eqx.Module):
    """Network that consists of an encoder, a recurrent core and a head.

    Encoder and head process all steps of a sequence at once. Only the core is scanned.

    Attributes:
        encoder: Function from an observation to features.
        core: Recurrent core.
        head: Function `(features, obs)` that returns the output.
        precision: "float32" or "bfloat16". With "bfloat16", encoder and core compute in bfloat16.
            Inputs, carries, the head and outputs are float32.
    """

    encoder: Any
    core: recurrent.Core
    head: Any
    precision: str = eqx.field(static=True, default="float32")

    def initial_carry(self) -> Any:
        return self.core.initial_carry()

    def __call__(self, carry: Carry, obs: Observation) -> tuple[Any, Any]:
        net = self._cast_to_precision(self)
        carry, features = net.core(
            self._cast_to_precision(carry), self._cast_to_precision(net.encoder(obs))
        )
        return _cast_to_float32((carry, self.head(_cast_to_float32(features), obs)))

    def unroll(self, carry: Carry, obs: Observation, reset: jax.Array) -> tuple[Any, Any]:
        net = self._cast_to_precision(self)
        features = self._cast_to_precision(tree.vmap_over_steps(net.encoder)(obs))
        carry, features = net.core.unroll(self._cast_to_precision(carry), features, reset)
        return _cast_to_float32(
            (carry, tree.vmap_over_steps(self.head)(_cast_to_float32(features), obs))
        )

    def _cast_to_precision(self, values: PyTree) -> Any:
        return values if self.precision == "float32" else _cast_floats(values, self.precision)


def _cast_to_float32(values: PyTree) -> Any:
    return _cast_floats(values, "float32")


def _cast_floats(values: PyTree, dtype: str) -> Any:
    """Cast the float arrays of a pytree to `dtype`. Other arrays are unchanged."""
    return jax.tree.map(
        lambda x: x.astype(dtype) if jnp.issubdtype(x.dtype, jnp.floating) else x, values
    )
