"""Type aliases that several packages share.

Most aliases stand for pytrees of arrays whose structure depends on a user, an environment or a
network. All other aliases stand for values without a class.
"""

import os
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import jax

PyTree: TypeAlias = Any
"""Pytree of arrays of any structure."""
Leaf: TypeAlias = Any
"""Leaf of a pytree: an array, its shape and dtype, or a number."""
State: TypeAlias = Any
"""State of an algorithm, an archive, an emitter, an optimizer or an environment."""
Carry: TypeAlias = Any
"""Memory (recurrent state) of a network or policy, or `()` for a network without memory."""
Observation: TypeAlias = Any
"""Observation of an environment: an array, or a dictionary of arrays for a `Dict` space."""
Action: TypeAlias = Any
"""Action of an environment: an array, or a pytree of arrays."""
ArchiveState: TypeAlias = Any
"""State of an archive."""
Task: TypeAlias = Any
"""Task of an environment, or `()` if the environment has a single task."""
Parameters: TypeAlias = Any
"""Parameters of a network, or a pytree of the same structure, such as a gradient."""
Solution: TypeAlias = Any
"""Solution of a quality-diversity algorithm, a pytree of floats."""
Settings: TypeAlias = Any
"""Settings of an algorithm or a network, which are an instance of a settings class."""
Setting: TypeAlias = Any
"""Value of a setting before its type is checked, such as a value from a file or a user."""
SettingValues: TypeAlias = Mapping[str, Any]
"""Dictionary from setting names to values whose types are not checked yet."""
TypeHint: TypeAlias = Any
"""Type annotation, such as `int | None`."""

RunPath: TypeAlias = str | os.PathLike[str]
"""Run: a `rollax.Result`, or the path of its folder."""
Scalar: TypeAlias = jax.Array | float
"""Number that may be traced, such as a hyperparameter that does not affect array shapes."""
Flag: TypeAlias = jax.Array | bool
"""Boolean that may be traced, such as whether actions are greedy."""

NetworkFn: TypeAlias = Callable[[jax.Array], Any]
"""Function from a random key to a network or, for quality diversity, to a solution."""
Optimizer: TypeAlias = str | tuple[Any, ...] | Callable[[jax.Array], Any]
"""Name of an optimizer, an optimizer of optax, or a function from a learning rate to one."""
LearningRateSchedule: TypeAlias = str | Callable[[jax.Array], Any]
"""Name of a schedule, or a function from the number of environment steps to a learning rate."""
MetricValues: TypeAlias = dict[str, Any]
"""Metrics of an evaluation or an update, keyed by name: numbers, lists of numbers or strings."""
JsonValue: TypeAlias = str | int | float | None | list[Any] | dict[str, Any]
"""Value that `json.loads` returns."""
Record: TypeAlias = dict[str, Any]
"""JSON object as a dictionary, such as one line of a metrics file."""
