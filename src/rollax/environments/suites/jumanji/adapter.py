"""Adapter of Jumanji environments (1.1 or newer; Bonnet et al. 2024, arXiv:2306.09884).

Jumanji treats nearly all ends of episodes as terminations, including time limits. Here, the wrapped
Jumanji environment has a time limit that no episode reaches, so its ends are terminations. rollax
applies the actual time limit, which truncates episodes. Differences from Jumanji:

- Observations are flat dictionaries: "ems_x1" is `ems.x1` in Jumanji. Boards of symbols are grids,
  which networks embed. Lists of categories are one-hot. "step_count" is a fraction of the time
  limit. In Tetris of Jumanji it is always 0. Other numbers are float32.
- Actions of several numbers with a joint mask are encoded as one number, in row-major order of
  `joint_action_sizes`.
- After the end of a game, action masks still contain a legal action. Rewards are float32, and
  states have fixed dtypes.
- If agents share one reward, each of them receives it. Observations about all agents are repeated
  for each agent.
"""

import copy
import functools
import inspect
import json
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from rollax.environments.conversion import (
    cast_leaves,
    check_no_tracers,
    convert_arguments,
    leaf_dtypes,
    to_positive_int,
)
from rollax.environments.environment import Transition
from rollax.environments.environment_text import format_environment, format_environment_html
from rollax.environments.suites import package_versions
from rollax.environments.suites.argument_checks import creation_error
from rollax.environments.suites.jumanji.specs import (
    JumanjiSpaces,
    convert_action,
    convert_observation,
    convert_specs,
)
from rollax.environments.suites.output_capture import suppress_output
from rollax.environments.suites.suite import SuiteEnvironment
from rollax.errors import UsageError
from rollax.spaces import ActionSpace, Space
from rollax.types import Action, Observation, PyTree, Setting, State

with suppress_output(), jax.ensure_compile_time_eval():
    import jumanji as suite

_TIME_LIMIT_ARGUMENT = "time_limit"
_UNREACHED_TIME_LIMIT = np.iinfo(np.int32).max - 1  # no episode reaches it
_STEP_CAPACITY_ARGUMENT = "max_step"  # of a generator: number of steps that a state can store
# Largest number of steps in games without a time limit. Each step makes progress or ends the game.
_MAX_STEPS_FNS: dict[str, Callable[[Any], int]] = {
    "BinPack": lambda spec: spec.items_mask.shape[0],
    "CVRP": lambda spec: spec.trajectory.shape[0],
    "FlatPack": lambda spec: spec.blocks.shape[0],
    "GraphColoring": lambda spec: spec.colors.shape[0],
    "JobShop": lambda spec: (
        int(np.prod(spec.ops_durations.shape)) * int(spec.ops_durations.maximum)
    ),
    "Knapsack": lambda spec: spec.weights.shape[0],
    "Minesweeper": lambda spec: int(spec.step_count.maximum),
    "MultiCVRP": lambda spec: 2 * spec.nodes.demands.shape[0],
    "Sudoku": lambda spec: int(np.prod(spec.board.shape)),
    "TSP": lambda spec: spec.coordinates.shape[0],
}
_EXCLUDED_ARGUMENTS = ("debug",)
_SUMMED_INFO = ("invalid_action",)  # other entries of `info` describe the state


class JumanjiState(NamedTuple):
    """State of an episode.

    Attributes:
        suite_state: Jumanji state.
        time: Number of steps taken, int32 `[]`.
    """

    suite_state: Any
    time: jax.Array


class Jumanji(eqx.Module):
    """Jumanji environment.

    Attributes:
        dynamics: Jumanji environment with a time limit that no episode reaches.
        name: Id of the environment.
        spaces: Spaces of observations and actions.
        info_names: Names of the scalars in `extras` of Jumanji that `info` contains.
        state_dtypes: Dtypes of the leaves of a Jumanji state.
        time_limit: Maximum number of steps of an episode, or None if it is unknown.
        has_time_limit: Whether episodes are truncated after `time_limit` steps.
    """

    dynamics: Any = eqx.field(static=True)
    name: str = eqx.field(static=True)
    spaces: JumanjiSpaces = eqx.field(static=True)
    info_names: tuple[str, ...] = eqx.field(static=True)
    state_dtypes: tuple[str, ...] = eqx.field(static=True)
    time_limit: int | None = eqx.field(static=True)
    has_time_limit: bool = eqx.field(static=True)

    def __repr__(self) -> str:
        return format_environment(self)

    def _repr_html_(self) -> str:
        return format_environment_html(self)

    @property
    def observation_space(self) -> Space:
        return self.spaces.observation

    @property
    def action_space(self) -> ActionSpace:
        return self.spaces.action

    @property
    def num_agents(self) -> int | None:
        return self.spaces.num_agents

    @property
    def joint_action_sizes(self) -> tuple[int, ...]:
        """Number of values of each component that an action encodes in row-major order.

        The tuple is empty if actions are not encoded.
        """
        return self.spaces.joint_action_sizes

    @property
    def info_reductions(self) -> dict[str, str]:
        return {name: "sum" if name in _SUMMED_INFO else "last" for name in self.info_names}

    def reset(self, key: jax.Array) -> tuple[State, Observation]:
        """Return the state and the observation at the start of an episode."""
        suite_state, timestep = _reset(self.dynamics, key)
        time = jnp.zeros((), jnp.int32)
        return JumanjiState(cast_leaves(suite_state, self.state_dtypes), time), convert_observation(
            self.spaces, timestep.observation, time
        )

    def step(self, key: jax.Array, state: State, action: Action) -> Transition:
        """Return the transition of one step.

        At the time limit, the episode is truncated unless the task has terminated.
        """
        del key  # Jumanji keeps a key in its state
        suite_state, timestep = _step(
            self.dynamics, state.suite_state, convert_action(self.spaces, jnp.asarray(action))
        )
        time = state.time + 1
        axis = () if self.num_agents is None else (self.num_agents,)
        terminated = jnp.broadcast_to(_is_task_done(self.dynamics, suite_state, timestep), axis)
        is_late = time >= self.time_limit if self.has_time_limit else jnp.zeros((), bool)
        return Transition(
            state=JumanjiState(cast_leaves(suite_state, self.state_dtypes), time),
            obs=convert_observation(self.spaces, timestep.observation, time),
            reward=jnp.broadcast_to(jnp.asarray(timestep.reward, jnp.float32), axis),
            terminated=terminated,
            truncated=is_late & ~terminated,
            info={
                name: jnp.asarray(timestep.extras[name]).astype(jnp.float32)
                for name in self.info_names
            },
        )


# Compiled because a step outside of jit would take seconds.
@functools.partial(jax.jit, static_argnums=0)
def _reset(dynamics: SuiteEnvironment, key: jax.Array) -> Any:
    return dynamics.reset(key)


@functools.partial(jax.jit, static_argnums=0)
def _step(dynamics: SuiteEnvironment, state: State, action: jax.Array) -> Any:
    return dynamics.step(state, action)


def _is_task_done(dynamics: SuiteEnvironment, state: State, timestep: PyTree) -> jax.Array:
    """Return whether the task has terminated.

    SearchAndRescue keeps the time limit of Jumanji, because its reward depends on the limit. The
    task terminates when all targets are found.
    """
    return jnp.all(state.targets.found) if _is_search_and_rescue(dynamics) else timestep.last()


def _is_search_and_rescue(dynamics: SuiteEnvironment) -> bool:
    return type(dynamics).__name__ == "SearchAndRescue"


def make(name: str, arguments: dict[str, Setting]) -> Jumanji:
    """Build a Jumanji environment.

    Args:
        name: Name of the environment in Jumanji.
        arguments: Environment arguments (see `default_arguments`).

    Returns:
        The environment.

    Raises:
        ModuleNotFoundError: If Jumanji is not installed.
        UsageError: If Jumanji is too old or rejects the arguments, or a value is invalid.
        UnknownNameError: If an argument does not exist.
    """
    id, defaults = f"jumanji/{name}", default_arguments(name)
    values = convert_arguments(id, arguments, defaults)
    check_no_tracers(id, values)
    if _TIME_LIMIT_ARGUMENT in values:
        to_positive_int(id, _TIME_LIMIT_ARGUMENT, values[_TIME_LIMIT_ARGUMENT])
    # Concrete values even inside a traced function, so that cached constants can be reused.
    with jax.ensure_compile_time_eval():
        return _build_environment(id, _make_dynamics(name, json.dumps(values, sort_keys=True)))


def wrap_environment(id: str, dynamics: SuiteEnvironment) -> Jumanji:
    """Build an environment from a Jumanji environment object, without its wrappers.

    Args:
        id: Id of the environment.
        dynamics: Jumanji environment. Its wrappers are removed.

    Returns:
        The environment.

    Raises:
        UsageError: If `dynamics` is not a Jumanji environment.
    """
    unwrapped = getattr(dynamics, "unwrapped", dynamics)
    if not isinstance(unwrapped, suite.Environment):
        raise UsageError(
            "environment must be an environment of Jumanji, got an object of "
            f"{type(dynamics).__name__}."
        )
    with jax.ensure_compile_time_eval():
        return _build_environment(id, unwrapped)


def _build_environment(id: str, dynamics: SuiteEnvironment) -> Jumanji:
    """Build the environment with a Jumanji time limit that no episode reaches."""
    agents = getattr(dynamics, "num_agents", None)
    has_agents = agents is not None and dynamics.action_spec.shape[:1] == (agents,)
    limit = getattr(dynamics, _TIME_LIMIT_ARGUMENT, None)
    max_steps_fn = _MAX_STEPS_FNS.get(
        type(dynamics).__name__ if type(dynamics).__module__.startswith("jumanji.") else ""
    )
    max_steps = (
        limit
        if limit is not None
        else max_steps_fn(dynamics.observation_spec)
        if max_steps_fn
        else None
    )
    unlimited = copy.copy(dynamics)
    if limit is not None and not _is_search_and_rescue(dynamics):
        unlimited.time_limit = _UNREACHED_TIME_LIMIT
    spaces = convert_specs(
        dynamics, has_agents, _max_symbol(dynamics), None if max_steps is None else float(max_steps)
    )
    with jax.debug_key_reuse(False):
        state, timestep = jax.eval_shape(
            functools.partial(_take_example_step, dynamics),
            jax.eval_shape(lambda: jax.random.key(0)),
        )
    info_names = tuple(name for name, value in timestep.extras.items() if jnp.shape(value) == ())
    return Jumanji(
        unlimited,
        id,
        spaces,
        info_names,
        leaf_dtypes(state),
        None if max_steps is None else int(max_steps),
        limit is not None,
    )


def _take_example_step(dynamics: SuiteEnvironment, key: jax.Array) -> Any:
    """Return the state and timestep after one step. All later states have the same dtypes."""
    state, _ = dynamics.reset(key)
    return dynamics.step(
        jax.tree.map(jnp.asarray, state),
        jnp.zeros(dynamics.action_spec.shape, dynamics.action_spec.dtype),
    )


def _max_symbol(dynamics: SuiteEnvironment) -> int | None:
    """Return the largest exponent on a board of 2048, or None for other games."""
    return dynamics.board_size**2 + 1 if type(dynamics).__name__ == "Game2048" else None


@functools.cache
def default_arguments(name: str) -> dict[str, Any]:
    """Return the defaults of numeric arguments of the constructor and generator, keyed by name."""
    package_versions.require_version("jumanji", "1.1")
    with jax.ensure_compile_time_eval():
        dynamics = _make_dynamics(name, "{}")
    return _plain_arguments(_get_generator(dynamics)) | _plain_arguments(dynamics)


def _get_generator(dynamics: SuiteEnvironment) -> Any:
    """Return the generator of an environment, or None without a generator."""
    return getattr(dynamics, "generator", getattr(dynamics, "_generator", None))


def _plain_arguments(instance: object) -> dict[str, Any]:
    """Return the values of an object's bool, int and float constructor arguments, keyed by name."""
    if instance is None:
        return {}
    names = [
        name for name in inspect.signature(type(instance).__init__).parameters if name != "self"
    ]
    values = {name: getattr(instance, name, getattr(instance, f"_{name}", None)) for name in names}
    return {
        name: value
        for name, value in values.items()
        if isinstance(value, bool | int | float) and name not in _EXCLUDED_ARGUMENTS
    }


@functools.cache
def _make_dynamics(name: str, arguments: str) -> Any:
    """Create a Jumanji environment from arguments in JSON, cached to share compilations."""
    values = json.loads(arguments)
    try:
        with suppress_output():
            if not values:
                return suite.make(name)
            default_dynamics = _make_dynamics(name, "{}")
            generated = {
                key: value
                for key, value in values.items()
                if key not in _plain_arguments(default_dynamics)
            }
            constructor_values = {
                key: value for key, value in values.items() if key not in generated
            }
            if generated:
                generator_defaults = _plain_arguments(_get_generator(default_dynamics))
                generator_defaults |= (
                    {_STEP_CAPACITY_ARGUMENT: constructor_values[_TIME_LIMIT_ARGUMENT]}
                    if _STEP_CAPACITY_ARGUMENT in generator_defaults
                    and _TIME_LIMIT_ARGUMENT in constructor_values
                    else {}
                )
                constructor_values["generator"] = type(_get_generator(default_dynamics))(
                    **{**generator_defaults, **generated}
                )
            return suite.make(name, **constructor_values)
    except (ValueError, TypeError, AssertionError, IndexError, ZeroDivisionError) as error:
        raise creation_error("Jumanji", name, values, error) from error
