"""Comparison of an exported policy with the original on observations of its environment."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rollax.acting.evaluation import make_policy
from rollax.acting.streams import init_actor, unroll
from rollax.environments.capabilities import is_on_host
from rollax.exporting.jaxpr_program import Arrays, Program, run_program
from rollax.exporting.policy_function import (
    ACTION,
    CARRY,
    KEY,
    RESET,
    InputShapes,
    PolicyProgram,
    TracedPolicy,
    flatten_observation,
)
from rollax.policy import Policy
from rollax.training.simulators import runner
from rollax.types import Leaf, Observation, State

NUM_STEPS, NUM_ENVS = 64, 8
# Tolerance of floats, relative to max(1, largest magnitude in the array). The rounding error of a
# sum grows with its terms, which may cancel.
RELATIVE_TOLERANCE = 1e-4
# Share of integers that may differ: rounding decides between two actions with equal logits.
MAX_MISMATCH_RATE = 2e-3


class Parity(NamedTuple):
    """Result of the comparison of an exported policy with the original.

    Attributes:
        observations: Number of compared observations.
        difference: Largest absolute difference between floats of actions and memory. None if there
            are no floats.
        mismatch_rate: Share of integers, such as discrete actions, that differ. None if there are
            no integers.
        is_same: Whether shapes and dtypes match and all differences are within the tolerances.
    """

    observations: int
    difference: float | None
    mismatch_rate: float | None
    is_same: bool

    def __str__(self) -> str:
        parts = []
        if self.mismatch_rate is not None:
            parts.append(
                f"{self.mismatch_rate:.2%} of the actions differ"
                if self.mismatch_rate
                else "all actions are the same"
            )
        if self.difference is not None:
            parts.append(f"the largest difference is {self.difference:.2g}")
        return f"on {self.observations} observations {', '.join(parts)}"


@contextlib.contextmanager
def use_cpu() -> Iterator[Any]:
    """Run the block on the CPU if JAX has one, because accelerators are less precise.

    Yields:
        The CPU device, or None.
    """
    try:
        device = jax.devices("cpu")[0]
    except RuntimeError:
        yield None
        return
    with jax.default_device(device):
        yield device


def collect_observations(
    policy: TracedPolicy, key: jax.Array
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Collect observations and episode starts of a policy that samples its actions.

    Args:
        policy: Policy that acts.
        key: Random key.

    Returns:
        Observations by name `[T, E, ...]`, and a mask of episode starts, bool `[T, E]`.
    """
    environment, agents = policy.environment, policy.environment.num_agents
    if is_on_host(environment):
        assert isinstance(policy, Policy)  # its options limit the time of the simulators
        obs, resets = runner.collect_observations(policy, key, NUM_ENVS, NUM_STEPS)
        return {name: np.asarray(part) for name, part in flatten_observation(obs).items()}, resets
    begin_key, key = jax.random.split(key)

    def play(state: State) -> tuple[Observation, jax.Array]:
        actor = init_actor(environment, begin_key, NUM_ENVS, policy.algorithm.initial_carry(state))
        _, experience, _ = unroll(
            environment, make_policy(policy.algorithm, state, False), actor, key, NUM_STEPS
        )
        return experience.obs, experience.reset

    def by_environment(x: Leaf) -> np.ndarray:
        return (
            np.asarray(x)
            if agents is None
            else np.asarray(x).reshape(NUM_STEPS, NUM_ENVS, agents, *x.shape[2:])
        )

    obs, reset = jax.jit(play)(policy.state)
    resets = by_environment(reset)
    parts = {name: by_environment(part) for name, part in flatten_observation(obs).items()}
    return parts, resets if agents is None else resets[:, :, 0]


def compute_reference(
    one: Callable[[Arrays], Arrays], shapes: InputShapes, inputs: dict[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Run the original policy over a rollout, with its memory carried from step to step.

    Args:
        one: Policy for one environment, as in `PolicyProgram`.
        shapes: Shapes of the inputs of `one`.
        inputs: Inputs by name `[T, E, ...]`, without the memory.

    Returns:
        Outputs by name `[T, E, ...]`.
    """
    carry = {
        name: jnp.zeros((NUM_ENVS, *shape.shape), shape.dtype)
        for name, shape in shapes.items()
        if _is_carry(name)
    }
    given = {name: jnp.asarray(x) for name, x in inputs.items() if name in shapes}

    def step(carry: Arrays, now: Arrays) -> tuple[Arrays, Arrays]:
        outputs = jax.vmap(one)(carry | now)
        return {name: outputs[f"next_{name}"] for name in carry}, outputs

    outputs = jax.jit(lambda carry, given: jax.lax.scan(step, carry, given)[1])(carry, given)
    return {name: np.asarray(x) for name, x in outputs.items()}


def compare_with_policy(
    policy: TracedPolicy,
    exported: PolicyProgram,
    act: Callable[[Arrays], Arrays],
    batch: int | None,
    source: Program | None,
) -> Parity:
    """Compare an exported policy with the original on observations of a rollout.

    Args:
        policy: Original policy.
        exported: Program of the exported policy.
        act: Function from inputs to outputs by name, loaded from the exported files.
        batch: Number of environments that `act` expects, or None for any number.
        source: Program from the keys of `NUM_ENVS` environments to uniform numbers plus 1, as
            returned by `replace_key_with_uniforms`. None if the exported policy takes keys or is
            greedy.

    Returns:
        Result of the comparison.
    """
    obs, reset = collect_observations(policy, jax.random.key(0))
    inputs = {**obs, RESET: reset}
    if KEY in exported.shapes:
        keys = jax.random.split(jax.random.key(1), (NUM_STEPS, NUM_ENVS))
        inputs[KEY] = np.asarray(jax.random.key_data(keys))
    expected = compute_reference(exported.one, exported.shapes, inputs)
    wanted, program = {ACTION: expected[ACTION]}, exported.program
    wanted |= {
        f"next_{CARRY}/{k}": expected[f"next_{CARRY}/{leaf}"]
        for k, leaf in enumerate(exported.carry)
    }
    if source is not None:
        numbers = jax.jit(
            lambda keys: jax.lax.map(lambda key: run_program(source, {KEY: key}), keys)
        )(inputs[KEY])
        inputs |= {name: np.asarray(x) - 1 for name, x in numbers.items()}
    groups = range(0, NUM_ENVS, batch or NUM_ENVS)
    found = [run_exported(program, act, inputs, start, batch or NUM_ENVS) for start in groups]
    joined = {
        name: np.concatenate([each[name] for each in found], axis=1)[:, :NUM_ENVS]
        for name in wanted
    }
    return measure_parity(wanted, joined)


def run_exported(
    program: Program, act: Callable[[Arrays], Arrays], inputs: Arrays, start: int, size: int
) -> dict[str, np.ndarray]:
    """Run the exported policy in `size` environments, starting with environment `start`.

    Indices beyond the last environment wrap around.

    Returns:
        Outputs by name `[T, size, ...]`.
    """
    which = np.arange(start, start + size) % NUM_ENVS
    names = [name for name in program.inputs if not _is_carry(name)]
    shapes = {name: program.types[n] for name, n in program.inputs.items() if _is_carry(name)}
    carry = {
        name: np.zeros((size, *shape.shape[1:]), shape.dtype) for name, shape in shapes.items()
    }
    rows = []
    for time in range(NUM_STEPS):
        outputs = act(carry | {name: inputs[name][time][which] for name in names})
        rows.append({name: np.asarray(x) for name, x in outputs.items()})
        carry = {name: rows[-1][f"next_{name}"] for name in carry}
    return {name: np.stack([row[name] for row in rows]) for name in rows[0]}


def measure_parity(wanted: dict[str, np.ndarray], found: dict[str, np.ndarray]) -> Parity:
    """Compare outputs with expected outputs of the same names.

    A value that is finite on only one side counts as an infinite difference.
    """
    difference, different, is_same = None, None, True
    for name, right in wanted.items():
        left = found[name]
        is_same &= left.shape == right.shape and left.dtype == right.dtype
        if not is_same:
            continue
        if np.issubdtype(right.dtype, np.floating):
            both = np.isclose(left, right, rtol=0, atol=0, equal_nan=True)
            with np.errstate(invalid="ignore"):  # inf - inf
                apart = np.where(both, 0.0, np.abs(left.astype(float) - right.astype(float)))
            apart = np.where(np.isnan(apart), np.inf, apart)
            difference = max(difference or 0.0, float(apart.max(initial=0.0)))
            largest = np.abs(right, where=np.isfinite(right), out=np.zeros_like(right)).max(
                initial=1.0
            )
            is_same &= bool(np.all(apart <= RELATIVE_TOLERANCE * largest))
        else:
            different = max(different or 0.0, float(np.mean(left != right)))
            is_same &= different <= MAX_MISMATCH_RATE
    return Parity(NUM_STEPS * NUM_ENVS, difference, different, is_same)


def _is_carry(name: str) -> bool:
    return name.startswith(f"{CARRY}/")
