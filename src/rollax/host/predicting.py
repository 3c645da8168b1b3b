"""Actions for observations as they come, in a loop of one's own: what is behind `Policy.predict`."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rollax import tree
from rollax.environments.hosted import Translation
from rollax.environments.views import AgentId, with_agent_id
from rollax.errors import UsageError
from rollax.spaces import Dict, Discrete, Space, zeros
from rollax.typed import shown


class Memory:
    """What a policy keeps between its predictions: its memory, of one environment or `[B]`, and how many it has made."""

    def __init__(self) -> None:
        self.carry: Any = None  # before the first prediction
        self.batch: int | None = None  # of the carry; None for one environment
        self.predictions = 0
        self.compiled: dict[tuple[bool, bool], Callable[..., Any]] = {}  # by whether there is a batch, and greedy


def predict(policy: Any, obs: Any, begins: Any, greedy: bool) -> Any:
    """The action of a policy for an observation, or actions for a batch, as for `Policy.predict`."""
    memory, plain = policy.memory, identifying(policy)
    translation: Translation | None = getattr(policy.environment, "translation", None)
    agents = () if plain.environment.num_agents is None else (plain.environment.num_agents,)
    space = plain.environment.observation_space
    obs, batch = checked(space, agents, obs) if translation is None else translated(translation, space, agents, obs)
    if (batch is not None, greedy) not in memory.compiled:
        memory.compiled[batch is not None, greedy] = compiled(plain, batch is not None, greedy)
    begins = beginnings(memory, batch, begins)
    if memory.carry is None or memory.batch != batch:
        initial, size = policy.initial_carry(), () if batch is None else (batch,)
        memory.carry, memory.batch = jax.tree.map(lambda x: jnp.broadcast_to(x, size + jnp.shape(x)), initial), batch
    act = memory.compiled[batch is not None, greedy]
    action, memory.carry = act(policy.state, obs, memory.carry, begins, np.uint32(memory.predictions))
    memory.predictions += 1
    action = jax.device_get(action)
    # A 0-dimensional array is no key of a dictionary, which simulators of toy texts look their actions up in.
    action = action[()] if isinstance(action, np.ndarray) else action
    return action if translation is None else translation.action(action)


def translated(translation: Translation, space: Space, agents: tuple[int, ...], obs: Any) -> tuple[Any, int | None]:
    """As `checked`, for an observation as a simulator gives it; in words of its own space where it is none."""
    try:
        return checked(space, agents, translation.observation(obs))
    except UsageError as error:
        raise UsageError(
            f"the observation ({shown(obs)}: {_form(obs)}) must be of {translation.description}, or a batch of it"
        ) from error


def identifying(policy: Any) -> Any:
    """The policy of observations that do not tell agents who they are, where it adds that itself (`network.agent_id`)."""
    environment, algorithm = policy.environment, policy.algorithm
    if not isinstance(environment, AgentId):
        return policy
    space = environment.env.observation_space

    def act(state: Any, obs: Any, carry: Any, key: jax.Array, greedy: bool | jax.Array) -> tuple[Any, Any]:
        return algorithm.act(state, with_agent_id(space, obs), carry, key, greedy)

    return dataclasses.replace(policy, environment=environment.env, algorithm=algorithm._replace(act=act))


def compiled(policy: Any, is_batch: bool, greedy: bool) -> Callable[..., Any]:
    """`(state, obs, carry, begins, number) -> (action, carry)`, of one environment or of a batch; `number`: how many before."""
    algorithm, seed = policy.algorithm, int(policy.spec.members()[policy.member or 0]["seed"])
    dtype = policy.environment.action_space.dtype

    def one(state: Any, obs: Any, carry: Any, begins: jax.Array, key: jax.Array) -> tuple[Any, Any]:
        carry = tree.where(begins, algorithm.initial_carry(state), carry)
        action, carry = algorithm.act(state, obs, carry, key, greedy)
        return jnp.asarray(action, dtype), carry

    def run(state: Any, obs: Any, carry: Any, begins: jax.Array, number: jax.Array) -> tuple[Any, Any]:
        key = jax.random.fold_in(jax.random.key(seed), number)
        if not is_batch:
            return one(state, obs, carry, begins, key)
        keys = jax.random.split(key, begins.shape[0])
        return jax.vmap(functools.partial(one, state))(obs, carry, begins, keys)

    return jax.jit(run)


def beginnings(memory: Memory, batch: int | None, begins: Any) -> np.ndarray:
    """Which observations begin an episode, bool `[]` or `[B]`: all of the first call. Raises UsageError for another shape."""
    each = () if batch is None else (batch,)
    given = np.asarray(begins)
    if given.dtype != bool or given.shape not in ((), each):
        wanted = "True or False" if batch is None else f"True, False or {batch} of them"
        raise UsageError(f"begins ({shown(begins)}) must be {wanted}")
    given = np.broadcast_to(given, each)
    if memory.carry is None:
        return np.ones(each, bool)
    if memory.batch != batch and jax.tree.leaves(memory.carry) and not given.all():
        before, now = ("one environment" if size is None else f"a batch of {size}" for size in (memory.batch, batch))
        raise UsageError(f"the policy's memory is that of {before}, and this is {now}: say begins=True where episodes begin")
    return given


def checked(space: Space, agents: tuple[int, ...], obs: Any) -> tuple[Any, int | None]:
    """The observation as arrays of the space's types, and the size of the batch, None for one.

    Parts that only critics observe may be missing, and are zeros then. Raises UsageError for parts, shapes or types that the
    space does not have.
    """
    if not isinstance(space, Dict):
        value = _numbers("observation", space, obs)
        return value, _batch_of("observation", (*agents, *space.shape), value)
    parts = space.spaces
    if not isinstance(obs, dict):
        raise UsageError(f"the observation ({shown(obs)}) must be a dictionary with the parts {', '.join(parts)}")
    wanted = [name for name in parts if name != "global_state"]
    wrong = sorted(set(obs) - set(parts)) or sorted(set(wanted) - set(obs))
    if wrong:
        raise UsageError(f"the observation has the parts {', '.join(obs)}, and must have {', '.join(wanted)}: see {wrong[0]}")
    found = {name: checked(parts[name], agents, value) for name, value in obs.items()}
    batches = {name: batch for name, (_, batch) in found.items()}
    if len(set(batches.values())) > 1:
        raise UsageError(f"the parts of the observation have batches of {batches}: they must have one size")
    (batch,) = set(batches.values())
    values = {name: value for name, (value, _) in found.items()}
    if "global_state" in parts and "global_state" not in values:
        lead = agents if batch is None else (batch, *agents)
        nothing = np.asarray(zeros(parts["global_state"]))
        values["global_state"] = np.broadcast_to(nothing, (*lead, *nothing.shape))
    return values, batch


def _numbers(name: str, space: Any, value: Any) -> np.ndarray:
    """The value as an array of the space's type."""
    try:
        array = np.asarray(value)
    except ValueError as error:  # rows of several lengths
        raise UsageError(f"the {name} is no array: {error}") from error
    is_truth = space.dtype == "bool" and bool(np.all((array == 0) | (array == 1)))  # also where others give them as floats
    kinds = "biuf" if is_truth or np.issubdtype(space.dtype, np.floating) else "biu"
    if array.dtype.kind not in kinds:
        raise UsageError(f"the {name} has the type {array.dtype}, and must be of {space.dtype}")
    if isinstance(space, Discrete) and array.size and not 0 <= array.min() <= array.max() < space.n:
        raise UsageError(f"the {name} ({shown(value)}) must be within 0 ... {space.n - 1}")
    return array.astype(space.dtype)


def _form(value: Any) -> str:
    """Types and shapes of the parts of a value."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{name}: {_form(part)}' for name, part in value.items())}}}"
    if isinstance(value, tuple):
        return f"({', '.join(map(_form, value))})"
    try:
        array = np.asarray(value)
    except ValueError:
        return "rows of several lengths"
    return f"{array.dtype}{list(array.shape)}"


def _batch_of(name: str, shape: tuple[int, ...], value: np.ndarray) -> int | None:
    """How many observations of that shape there are, None for one. Raises UsageError where it is of another shape."""
    if value.shape == shape:
        return None
    if value.shape[1:] == shape and value.ndim == len(shape) + 1 and len(value) > 0:
        return len(value)
    batch = ", ".join(("B", *map(str, shape)))
    raise UsageError(f"the {name} has the shape {list(value.shape)}, and must have {list(shape)}, or [{batch}] as a batch")
