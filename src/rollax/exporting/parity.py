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
    CARRY,
    KEY,
    RESET,
    InputShapes,
    PolicyProgram,
    TracedPolicy,
    flatten_observation,
)
from rollax.policy import Policy
from rollax.training.simulators import policy_episodes
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
        difference: Largest absolute difference between floats in actions and recurrent states, or
            None without floats.
        mismatch_rate: Fraction of integers, such as discrete actions, that differ, or None without
            integers.
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
    """Run the context on the CPU if it is available, because accelerators are less precise.

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
    """Run a policy with sampled actions, and collect its observations and episode starts.

    Args:
        policy: Policy to run.
        key: Random key.

    Returns:
        Observation arrays `[T, E, ...]`, keyed by input name, and a mask of the first step of each
        episode, bool `[T, E]`.
    """
    environment, agents = policy.environment, policy.environment.num_agents
    if is_on_host(environment):
        assert isinstance(policy, Policy)  # its options limit the time of the simulators
        obs, resets = policy_episodes.collect_observations(policy, key, NUM_ENVS, NUM_STEPS)
        return {name: np.asarray(part) for name, part in flatten_observation(obs).items()}, resets
    begin_key, key = jax.random.split(key)

    def run_policy(state: State) -> tuple[Observation, jax.Array]:
        actor = init_actor(environment, begin_key, NUM_ENVS, policy.algorithm.initial_carry(state))
        _, experience, _ = unroll(
            environment, make_policy(policy.algorithm, state, False), actor, key, NUM_STEPS
        )
        return experience.obs, experience.reset

    def split_agents(x: Leaf) -> np.ndarray:
        return (
            np.asarray(x)
            if agents is None
            else np.asarray(x).reshape(NUM_STEPS, NUM_ENVS, agents, *x.shape[2:])
        )

    obs, reset = jax.jit(run_policy)(policy.state)
    resets = split_agents(reset)
    parts = {name: split_agents(part) for name, part in flatten_observation(obs).items()}
    return parts, resets if agents is None else resets[:, :, 0]


def compute_reference(
    unbatched_fn: Callable[[Arrays], Arrays], shapes: InputShapes, inputs: dict[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Run the original policy on a rollout and carry its recurrent state from step to step.

    Args:
        unbatched_fn: Policy for one environment, as in `PolicyProgram`.
        shapes: Shapes of the inputs of `unbatched_fn`.
        inputs: Inputs `[T, E, ...]`, keyed by name, without the recurrent state.

    Returns:
        Outputs `[T, E, ...]`, keyed by name.
    """
    carry = {
        name: jnp.zeros((NUM_ENVS, *shape.shape), shape.dtype)
        for name, shape in shapes.items()
        if _is_carry(name)
    }
    step_inputs = {name: jnp.asarray(x) for name, x in inputs.items() if name in shapes}

    def step(carry: Arrays, current_inputs: Arrays) -> tuple[Arrays, Arrays]:
        outputs = jax.vmap(unbatched_fn)(carry | current_inputs)
        return {name: outputs[f"next_{name}"] for name in carry}, outputs

    outputs = jax.jit(lambda carry, step_inputs: jax.lax.scan(step, carry, step_inputs)[1])(
        carry, step_inputs
    )
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
        act: Function loaded from the exported files. It maps a dictionary of inputs to a
            dictionary of outputs.
        batch: Number of environments that `act` expects, or None for any number.
        source: Program that computes 1 + u from the keys of `NUM_ENVS` environments (second result
            of `replace_key_with_uniforms`). None if the exported policy takes keys or is greedy.

    Returns:
        Result of the comparison.
    """
    obs, reset = collect_observations(policy, jax.random.key(0))
    inputs = {**obs, RESET: reset}
    if KEY in exported.shapes:
        keys = jax.random.split(jax.random.key(1), (NUM_STEPS, NUM_ENVS))
        inputs[KEY] = np.asarray(jax.random.key_data(keys))
    expected = compute_reference(exported.unbatched_fn, exported.shapes, inputs)
    expected_outputs = {
        name: value for name, value in expected.items() if not name.startswith("next_")
    }
    program = exported.program
    expected_outputs |= {
        f"next_{CARRY}/{k}": expected[f"next_{CARRY}/{leaf}"]
        for k, leaf in enumerate(exported.carry)
    }
    if source is not None:
        uniforms = jax.jit(
            lambda keys: jax.lax.map(lambda key: run_program(source, {KEY: key}), keys)
        )(inputs[KEY])
        inputs |= {name: np.asarray(x) - 1 for name, x in uniforms.items()}
    groups = range(0, NUM_ENVS, batch or NUM_ENVS)
    results = [run_exported(program, act, inputs, start, batch or NUM_ENVS) for start in groups]
    outputs = {
        name: np.concatenate([result[name] for result in results], axis=1)[:, :NUM_ENVS]
        for name in expected_outputs
    }
    return measure_parity(expected_outputs, outputs)


def run_exported(
    program: Program, act: Callable[[Arrays], Arrays], inputs: Arrays, start: int, num_envs: int
) -> dict[str, np.ndarray]:
    """Run the exported policy in `num_envs` environments, starting with environment `start`.

    Indices beyond the last environment wrap around.

    Args:
        program: Program of the policy, which declares inputs and shapes.
        act: Function of the exported policy, from a dictionary of inputs to one of outputs.
        inputs: Inputs of all environments except carries, `[T, NUM_ENVS, ...]`, keyed by name.
        start: Index of the first environment.
        num_envs: Number of environments.

    Returns:
        Outputs `[T, num_envs, ...]`, keyed by name.
    """
    environment_indices = np.arange(start, start + num_envs) % NUM_ENVS
    names = [name for name in program.inputs if not _is_carry(name)]
    shapes = {name: program.types[n] for name, n in program.inputs.items() if _is_carry(name)}
    carry = {
        name: np.zeros((num_envs, *shape.shape[1:]), shape.dtype) for name, shape in shapes.items()
    }
    rows = []
    for time in range(NUM_STEPS):
        outputs = act(carry | {name: inputs[name][time][environment_indices] for name in names})
        rows.append({name: np.asarray(x) for name, x in outputs.items()})
        carry = {name: rows[-1][f"next_{name}"] for name in carry}
    return {name: np.stack([row[name] for row in rows]) for name in rows[0]}


def measure_parity(expected: dict[str, np.ndarray], outputs: dict[str, np.ndarray]) -> Parity:
    """Compare outputs with expected outputs of the same names.

    A value that is finite on only one side counts as an infinite difference.
    """
    difference, mismatch_rate, is_same = None, None, True
    for name, reference in expected.items():
        output = outputs[name]
        is_same &= output.shape == reference.shape and output.dtype == reference.dtype
        if not is_same:
            continue
        if np.issubdtype(reference.dtype, np.floating):
            is_close = np.isclose(output, reference, rtol=0, atol=0, equal_nan=True)
            with np.errstate(invalid="ignore"):  # inf - inf
                differences = np.where(
                    is_close, 0.0, np.abs(output.astype(float) - reference.astype(float))
                )
            differences = np.where(np.isnan(differences), np.inf, differences)
            difference = max(difference or 0.0, float(differences.max(initial=0.0)))
            largest = np.abs(
                reference, where=np.isfinite(reference), out=np.zeros_like(reference)
            ).max(initial=1.0)
            is_same &= bool(np.all(differences <= RELATIVE_TOLERANCE * largest))
        else:
            mismatch_rate = max(mismatch_rate or 0.0, float(np.mean(output != reference)))
            is_same &= mismatch_rate <= MAX_MISMATCH_RATE
    return Parity(NUM_STEPS * NUM_ENVS, difference, mismatch_rate, is_same)


def _is_carry(name: str) -> bool:
    return name.startswith(f"{CARRY}/")
