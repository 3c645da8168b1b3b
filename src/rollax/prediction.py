"""Implementation of `Policy.predict`, which chooses actions step by step in a custom loop."""

import dataclasses
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rollax import tree
from rollax.environments.capabilities import capabilities
from rollax.environments.environment import SpaceConversion
from rollax.environments.wrappers import AgentId, add_agent_id
from rollax.errors import UnknownNameError, UsageError
from rollax.spaces import (
    Dict,
    Discrete,
    Grid,
    SimpleActionSpace,
    Space,
    Tuple,
    cast_value,
    make_zeros,
)
from rollax.types import PyTree
from rollax.user_input.coercion import format_value

if TYPE_CHECKING:
    import rollax.policy

# Function (state, obs, carry, begins, number of previous predictions) -> (action, carry).
CompiledActFn = Callable[[PyTree, PyTree, PyTree, np.ndarray, np.uint32], tuple[PyTree, PyTree]]


class PredictionState:
    """State of a policy between predictions.

    Attributes:
        carry: Memory of one environment or of a batch `[B]`, or None before the first prediction.
        batch: Size of the batch, or None for one environment.
        num_predictions: Number of predictions so far.
        act_fns: Compiled functions, keyed by `(is_batch, greedy)`.
    """

    def __init__(self) -> None:
        self.carry: PyTree = None
        self.batch: int | None = None
        self.num_predictions = 0
        self.act_fns: dict[tuple[bool, bool], CompiledActFn] = {}


class ObservationBatch(NamedTuple):
    """Observation, or a batch of observations, in the environment's space.

    Attributes:
        obs: Arrays with the dtypes of the space.
        size: Batch size, or None for one observation.
    """

    obs: PyTree
    size: int | None


def predict(
    policy: "rollax.policy.Policy", obs: PyTree, begins: bool | np.ndarray, greedy: bool
) -> PyTree:
    """Return the action of a policy for an observation, or actions for a batch.

    Args:
        policy: The policy, whose memory is updated.
        obs: Observation, or a batch.
        begins: Whether each observation is the first of an episode, bool `[]` or `[B]`.
        greedy: Whether to take the most likely action instead of sampling.

    Returns:
        The action as a NumPy array, or a dictionary or tuple of arrays, `[B, ...]` for a batch. For
        a policy trained in a simulator on the host, such as gymnasium, the action in the format
        that the simulator's `step` accepts.

    Raises:
        UsageError: If `obs` or `begins` is invalid.
    """
    memory, acting = policy.memory, add_agent_ids(policy)
    translation = capabilities(policy.environment).space_conversion
    num_agents = acting.environment.num_agents
    agents = () if num_agents is None else (num_agents,)
    space = acting.environment.observation_space
    batch = (
        validate_observation(space, agents, obs)
        if translation is None
        else convert_simulator_observation(translation, space, agents, obs)
    )
    is_batch = batch.size is not None
    if (is_batch, greedy) not in memory.act_fns:
        memory.act_fns[is_batch, greedy] = compile_act(acting, is_batch, greedy)
    is_begin = validate_begins(memory, batch.size, begins)
    if memory.carry is None or memory.batch != batch.size:
        leading = () if batch.size is None else (batch.size,)
        memory.carry = jax.tree.map(
            lambda x: jnp.broadcast_to(x, leading + jnp.shape(x)), policy.initial_carry()
        )
        memory.batch = batch.size
    action, memory.carry = memory.act_fns[is_batch, greedy](
        policy.state, batch.obs, memory.carry, is_begin, np.uint32(memory.num_predictions)
    )
    memory.num_predictions += 1
    # Convert 0-dimensional arrays to scalars: some simulators use actions as dictionary keys.
    action = jax.tree.map(
        lambda x: x[()] if isinstance(x, np.ndarray) else x, jax.device_get(action)
    )
    return action if translation is None else translation.action(action, obs)


def convert_simulator_observation(
    translation: SpaceConversion, space: Space, agents: tuple[int, ...], obs: PyTree
) -> ObservationBatch:
    """Convert an observation of a simulator to the environment's space.

    Args:
        translation: Conversion from values of the simulator's spaces to values of rollax spaces.
        space: Observation space of the environment.
        agents: `(A,)`, or `()` without an agent axis.
        obs: Observation of the simulator, or a batch.

    Returns:
        The converted observation and the batch size.

    Raises:
        UsageError: If the observation is not in the simulator's space. The message describes the
            space.
    """
    try:
        return validate_observation(space, agents, translation.observation(obs))
    except UnknownNameError:  # names the agent and similar ones
        raise
    except UsageError as error:
        raise UsageError(
            f"the observation ({format_value(obs)}: {_describe_arrays(obs)}) must be of "
            f"{translation.description}, or a batch of it."
        ) from error


def add_agent_ids(policy: "rollax.policy.Policy") -> "rollax.policy.Policy":
    """Return a policy that appends the index of each agent to observations before it acts.

    The environment of the returned policy has observations without the index. The policy is
    returned unchanged unless the setting `network.agent_id` is enabled.
    """
    environment, algorithm = policy.environment, policy.algorithm
    if not isinstance(environment, AgentId):
        return policy
    space = environment.env.observation_space

    def act(
        state: PyTree, obs: PyTree, carry: PyTree, key: jax.Array, greedy: bool | jax.Array
    ) -> tuple[PyTree, PyTree]:
        return algorithm.act(state, add_agent_id(space, obs), carry, key, greedy)

    return dataclasses.replace(
        policy, environment=environment.env, algorithm=algorithm._replace(act=act)
    )


def compile_act(policy: "rollax.policy.Policy", is_batch: bool, greedy: bool) -> CompiledActFn:
    """Build a compiled function `(state, obs, carry, begins, number) -> (action, carry)`.

    Args:
        policy: The policy.
        is_batch: Whether arguments have a leading axis `[B]`.
        greedy: Whether to take the most likely action instead of sampling.

    Returns:
        The function. Its argument `number` is the number of predictions so far, which determines
        the random key.
    """
    algorithm, seed = policy.algorithm, int(policy.spec.members()[policy.member or 0]["seed"])
    space = policy.environment.action_space

    def act_once(
        state: PyTree, obs: PyTree, carry: PyTree, begins: jax.Array, key: jax.Array
    ) -> tuple[PyTree, PyTree]:
        carry = tree.where(begins, algorithm.initial_carry(state), carry)
        action, carry = algorithm.act(state, obs, carry, key, greedy)
        return cast_value(space, action), carry

    def act(
        state: PyTree, obs: PyTree, carry: PyTree, begins: jax.Array, number: jax.Array
    ) -> tuple[PyTree, PyTree]:
        key = jax.random.fold_in(jax.random.key(seed), number)
        if not is_batch:
            return act_once(state, obs, carry, begins, key)
        keys = jax.random.split(key, begins.shape[0])
        return jax.vmap(functools.partial(act_once, state))(obs, carry, begins, keys)

    return jax.jit(act)


def validate_begins(memory: PredictionState, batch: int | None, begins: object) -> np.ndarray:
    """Return whether each observation is the first of an episode, bool `[]` or `[B]`.

    In the first call, the result is true for all observations.

    Args:
        memory: State of the policy between predictions.
        batch: Batch size, or None for one observation.
        begins: Argument of `Policy.predict`.

    Raises:
        UsageError: If `begins` is not a bool or an array of bools `[B]`. For a policy with memory,
            also if the batch size has changed and `begins` is not true everywhere.
    """
    shape = () if batch is None else (batch,)
    is_begin = np.asarray(begins)
    if is_begin.dtype != bool or is_begin.shape not in ((), shape):
        constraint = "True or False" if batch is None else f"True, False or {batch} of them"
        raise UsageError(f"begins ({format_value(begins)}) must be {constraint}.")
    is_begin = np.broadcast_to(is_begin, shape)
    if memory.carry is None:
        return np.ones(shape, bool)
    if memory.batch != batch and jax.tree.leaves(memory.carry) and not is_begin.all():
        before, now = (
            "one environment" if size is None else f"a batch of {size}"
            for size in (memory.batch, batch)
        )
        raise UsageError(
            f"The memory of the policy belongs to {before}, and the observation is {now}. Pass "
            "begins=True where episodes begin."
        )
    return is_begin


def validate_observation(space: Space, agents: tuple[int, ...], obs: PyTree) -> ObservationBatch:
    """Convert an observation to arrays with the dtypes of the space.

    The entry `global_state` of a dictionary observation may be missing, because only critics
    observe it. It is then set to 0.

    Args:
        space: Observation space of one agent.
        agents: `(A,)`, or `()` without an agent axis.
        obs: Observation, or a batch with a leading axis `[B]`.

    Returns:
        The converted observation and the batch size.

    Raises:
        UsageError: If the observation differs from the space in dictionary keys, shapes or dtypes.
    """
    assert not isinstance(space, Tuple), "a space of actions"
    if not isinstance(space, Dict):
        value = _convert_array("observation", space, obs)
        size = _find_batch_size("observation", (*agents, *space.shape), value)
        return ObservationBatch(value, size)
    parts = space.spaces
    if not isinstance(obs, dict):
        raise UsageError(
            f"the observation ({format_value(obs)}) must be a dictionary with the parts "
            f"{', '.join(parts)}."
        )
    required = [name for name in parts if name != "global_state"]
    wrong = sorted(set(obs) - set(parts)) or sorted(set(required) - set(obs))
    if wrong:
        raise UsageError(
            f"the observation must have the parts {', '.join(required)}, got {', '.join(obs)}. "
            f"Check the part {wrong[0]}."
        )
    converted = {
        name: validate_observation(parts[name], agents, value) for name, value in obs.items()
    }
    sizes = {name: part.size for name, part in converted.items()}
    if len(set(sizes.values())) > 1:
        raise UsageError(
            f"the parts of the observation must have the same batch size, got {sizes}."
        )
    (size,) = set(sizes.values())
    values = {name: part.obs for name, part in converted.items()}
    if "global_state" in parts and "global_state" not in values:
        leading = agents if size is None else (size, *agents)
        zeros = np.asarray(make_zeros(parts["global_state"]))
        values["global_state"] = np.broadcast_to(zeros, (*leading, *zeros.shape))
    return ObservationBatch(values, size)


def _convert_array(name: str, space: SimpleActionSpace | Grid, value: object) -> np.ndarray:
    """Convert a value to an array with the dtype of the space, or raise UsageError."""
    try:
        array = np.asarray(value)
    except ValueError as error:  # rows of different lengths
        raise UsageError(f"the {name} must be an array: {error}") from error
    # Zeros and ones of any type are accepted as booleans.
    is_truth = space.dtype == "bool" and bool(np.all((array == 0) | (array == 1)))
    kinds = "biuf" if is_truth or np.issubdtype(space.dtype, np.floating) else "biu"
    if array.dtype.kind not in kinds:
        raise UsageError(f"the {name} must have the type {space.dtype}, got {array.dtype}.")
    if isinstance(space, Discrete) and array.size and not 0 <= array.min() <= array.max() < space.n:
        raise UsageError(f"the {name} ({format_value(value)}) must be between 0 and {space.n - 1}.")
    return array.astype(space.dtype)


def _describe_arrays(value: object) -> str:
    """Describe the dtypes and shapes of the arrays in a nested value for an error message."""
    if isinstance(value, dict):
        return (
            f"{{{', '.join(f'{name}: {_describe_arrays(part)}' for name, part in value.items())}}}"
        )
    if isinstance(value, tuple):
        return f"({', '.join(map(_describe_arrays, value))})"
    try:
        array = np.asarray(value)
    except ValueError:
        return "rows of different lengths"
    return f"{array.dtype}{list(array.shape)}"


def _find_batch_size(name: str, shape: tuple[int, ...], value: np.ndarray) -> int | None:
    """Return the number of observations in a batch, or None for one observation.

    Raises:
        UsageError: If the shape of the value is neither `shape` nor `[B, *shape]` with B > 0.
    """
    if value.shape == shape:
        return None
    if value.shape[1:] == shape and value.ndim == len(shape) + 1 and len(value) > 0:
        return len(value)
    batch = ", ".join(("B", *map(str, shape)))
    raise UsageError(
        f"the {name} must have the shape {list(shape)}, or [{batch}] for a batch, got "
        f"{list(value.shape)}."
    )
