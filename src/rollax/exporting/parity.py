"""Whether what was exported acts as the policy does: both see the observations of some steps of its environment."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rollax.acting.evaluate import policy_of
from rollax.acting.streams import begin_streams, unroll
from rollax.environments.core import is_on_host
from rollax.exporting.policy import ACTION, CARRY, KEY, RESET, Exportable, observation_parts
from rollax.exporting.program import Program, run
from rollax.host import simulated

STEPS, NUM_ENVS = 64, 8
# Of a float, relative to the largest of its array from 1 on: rounding grows with the terms of a sum, which may cancel.
MOST = 1e-4
MOST_DIFFERENT = 2e-3  # share of whole numbers: where two actions are as good, rounding decides


class Parity(NamedTuple):
    """How far an exported policy is from the one in hand."""

    observations: int
    difference: float | None  # the largest between two floats, actions or memory; None where there are none
    different: float | None  # share of whole numbers, such as discrete actions, that are not the same
    is_same: bool

    def __str__(self) -> str:
        parts = []
        if self.different is not None:
            parts.append(f"{self.different:.2%} of the actions differ" if self.different else "all actions are the same")
        if self.difference is not None:
            parts.append(f"the largest difference is {self.difference:.2g}")
        return f"on {self.observations} observations {', '.join(parts)}"


@contextlib.contextmanager
def on_processor() -> Iterator[Any]:
    """What is computed inside is so on the processor, where there is one for JAX: accelerators round products more."""
    try:
        device = jax.devices("cpu")[0]
    except RuntimeError:
        yield None
        return
    with jax.default_device(device):
        yield device


def played(policy: Any, key: jax.Array) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Observations by part `[T, E, ...]` of a policy that samples its actions, and where an episode begins, bool `[T, E]`."""
    environment, agents = policy.environment, policy.environment.num_agents
    if is_on_host(environment):
        obs, resets = simulated.observed(policy, key, NUM_ENVS, STEPS)
        return {name: np.asarray(part) for name, part in observation_parts(obs).items()}, resets
    begin_key, key = jax.random.split(key)

    def play(state: Any) -> tuple[Any, jax.Array]:
        actor = begin_streams(environment, begin_key, NUM_ENVS, policy.algorithm.initial_carry(state))
        _, experience, _ = unroll(environment, policy_of(policy.algorithm, state, False), actor, key, STEPS)
        return experience.obs, experience.reset

    def by_environment(x: Any) -> np.ndarray:
        return np.asarray(x) if agents is None else np.asarray(x).reshape(STEPS, NUM_ENVS, agents, *x.shape[2:])

    obs, reset = jax.jit(play)(policy.state)
    resets = by_environment(reset)
    parts = {name: by_environment(part) for name, part in observation_parts(obs).items()}
    return parts, resets if agents is None else resets[:, :, 0]


def reference(one: Callable[..., Any], shapes: Any, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What the policy itself gives for inputs `[T, E, ...]`, its own memory carried from step to step."""
    carry = {name: jnp.zeros((NUM_ENVS, *shape.shape), shape.dtype) for name, shape in shapes.items() if _is_carry(name)}
    given = {name: jnp.asarray(x) for name, x in inputs.items() if name in shapes}

    def step(carry: dict[str, Any], now: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        outputs = jax.vmap(one)(carry | now)
        return {name: outputs[f"next_{name}"] for name in carry}, outputs

    outputs = jax.jit(lambda carry, given: jax.lax.scan(step, carry, given)[1])(carry, given)
    return {name: np.asarray(x) for name, x in outputs.items()}


def compare(
    policy: Any,
    exported: Exportable,
    act: Callable[[dict[str, Any]], dict[str, Any]],
    batch: int | None,
    source: Program | None,
) -> Parity:
    """Plays the policy and compares what `act` gives for what it has observed, step after step.

    `batch`: of how many environments `act` is; `source`: from the keys of `NUM_ENVS` to the uniform numbers that it samples by.
    """
    obs, reset = played(policy, jax.random.key(0))
    inputs = {**obs, RESET: reset}
    if KEY in exported.shapes:
        keys = jax.random.split(jax.random.key(1), (STEPS, NUM_ENVS))
        inputs[KEY] = np.asarray(jax.random.key_data(keys))
    expected = reference(exported.one, exported.shapes, inputs)
    wanted, program = {ACTION: expected[ACTION]}, exported.program
    wanted |= {f"next_{CARRY}/{k}": expected[f"next_{CARRY}/{leaf}"] for k, leaf in enumerate(exported.carry)}
    if source is not None:
        numbers = jax.jit(lambda keys: jax.lax.map(lambda key: run(source, {KEY: key}), keys))(inputs[KEY])
        inputs |= {name: np.asarray(x) - 1 for name, x in numbers.items()}
    groups = range(0, NUM_ENVS, batch or NUM_ENVS)
    found = [follow(program, act, inputs, start, batch or NUM_ENVS) for start in groups]
    joined = {name: np.concatenate([each[name] for each in found], axis=1)[:, :NUM_ENVS] for name in wanted}
    return measured(wanted, joined)


def follow(program: Program, act: Callable[..., Any], inputs: dict[str, Any], start: int, size: int) -> dict[str, np.ndarray]:
    """Outputs `[T, size, ...]` for the environments from `start` on; where there are fewer, the first ones again."""
    which = np.arange(start, start + size) % NUM_ENVS
    names = [name for name in program.inputs if not _is_carry(name)]
    shapes = {name: program.types[n] for name, n in program.inputs.items() if _is_carry(name)}
    carry = {name: np.zeros((size, *shape.shape[1:]), shape.dtype) for name, shape in shapes.items()}
    rows = []
    for time in range(STEPS):
        outputs = act(carry | {name: inputs[name][time][which] for name in names})
        rows.append({name: np.asarray(x) for name, x in outputs.items()})
        carry = {name: rows[-1][f"next_{name}"] for name in carry}
    return {name: np.stack([row[name] for row in rows]) for name in rows[0]}


def measured(wanted: dict[str, np.ndarray], found: dict[str, np.ndarray]) -> Parity:
    """How far outputs are apart. What is not finite on one side only is infinitely far."""
    difference, different, is_same = None, None, True
    for name, right in wanted.items():
        left = found[name]
        is_same &= left.shape == right.shape and left.dtype == right.dtype
        if not is_same:
            continue
        if np.issubdtype(right.dtype, np.floating):
            both = np.isclose(left, right, rtol=0, atol=0, equal_nan=True)
            with np.errstate(invalid="ignore"):  # infinity less infinity
                apart = np.where(both, 0.0, np.abs(left.astype(float) - right.astype(float)))
            apart = np.where(np.isnan(apart), np.inf, apart)
            difference = max(difference or 0.0, float(apart.max(initial=0.0)))
            largest = np.abs(right, where=np.isfinite(right), out=np.zeros_like(right)).max(initial=1.0)
            is_same &= bool(np.all(apart <= MOST * largest))
        else:
            different = max(different or 0.0, float(np.mean(left != right)))
            is_same &= different <= MOST_DIFFERENT
    return Parity(STEPS * NUM_ENVS, difference, different, is_same)


def _is_carry(name: str) -> bool:
    return name.startswith(f"{CARRY}/")
