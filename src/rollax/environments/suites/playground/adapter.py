"""Adapter of MuJoCo Playground (0.2 or newer; Zakka et al. 2025, arXiv:2502.08844).

The adapter makes the tasks of the DeepMind Control Suite in MJX. Episodes are truncated at the time
limit. They terminate only if the simulation becomes non-finite. Physics are computed with JAX
(`impl`), because Warp, the default of Playground, cannot reset single copies. Differences from
Playground:

- A step does not modify its input state. A step of Playground writes into the dictionaries of the
  state.
- If a simulation becomes non-finite, its episode terminates with the previous observation and zero
  reward.
- Rewards are float32, `terminated` and `truncated` are bool, and states have fixed dtypes.

If observations are a dictionary, "privileged_state" becomes the key "global_state", which only
critics observe. `info` contains the terms of the reward. Locomotion and manipulation tasks are not
available, because they clone a repository of robot models.
"""

import copy
import functools
import importlib
import operator
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
from rollax.environments.suites.lazy_imports import defer_package_init
from rollax.environments.suites.nonfinite_guard import terminate_nonfinite
from rollax.environments.suites.output_capture import suppress_output
from rollax.environments.suites.physics_parameters import (
    Physics,
    reset_with_physics,
    step_with_physics,
    take_example_step,
)
from rollax.environments.suites.suite import SuiteEnvironment
from rollax.errors import UsageError
from rollax.spaces import Box, Dict
from rollax.types import Action, Observation, Setting, State

defer_package_init("mujoco_playground", "mujoco_playground._src")
with suppress_output(), jax.ensure_compile_time_eval():
    suite: Any = importlib.import_module("mujoco_playground._src.dm_control_suite")

CHOICES = {"impl": ("jax",)}
_TIME_LIMIT_ARGUMENT = "episode_length"
# Actions are repeated by the wrapper `ActionRepeat`, and pictures need Warp.
_EXCLUDED_ARGUMENTS = ("action_repeat", "vision")
# Physics parameters, with their paths in the MuJoCo model.
_PHYSICS_PATHS = {
    "gravity": "opt.gravity",
    "mass": "body_mass",
    "inertia": "body_inertia",
    "damping": "dof_damping",
    "armature": "dof_armature",
    "gear": "actuator_gear",
    "friction": "geom_friction",
}


class PlaygroundState(NamedTuple):
    """State of an episode.

    Attributes:
        suite_state: Playground state.
        time: Number of steps taken, int32 `[]`.
    """

    suite_state: Any
    time: jax.Array


class Playground(eqx.Module):
    """MuJoCo Playground environment.

    Attributes:
        physics: Physics parameters. `DomainRandomization` can sample them. Values that MuJoCo
            derives from them once are not updated.
        dynamics: Playground environment.
        name: Id of the environment.
        observation_space: Space of observations.
        action_space: Space of actions.
        state_dtypes: Dtypes of the leaves of a Playground state.
        info_names: Names of the scalars in the Playground metrics that `info` contains.
        time_limit: Time limit in steps.
        num_agents: None, for a single agent.
    """

    physics: dict[str, jax.Array]
    dynamics: Any = eqx.field(static=True)
    name: str = eqx.field(static=True)
    observation_space: Box | Dict = eqx.field(static=True)
    action_space: Box = eqx.field(static=True)
    state_dtypes: tuple[str, ...] = eqx.field(static=True)
    info_names: tuple[str, ...] = eqx.field(static=True)
    time_limit: int = eqx.field(static=True)
    num_agents: None = eqx.field(static=True, default=None)

    def __repr__(self) -> str:
        return format_environment(self)

    def _repr_html_(self) -> str:
        return format_environment_html(self)

    def reset(self, key: jax.Array) -> tuple[State, Observation]:
        """Return the state and the observation at the start of an episode."""
        suite_state = cast_leaves(
            reset_with_physics(_replace_physics, self.dynamics, self.physics, key),
            self.state_dtypes,
        )
        return PlaygroundState(suite_state, jnp.zeros((), jnp.int32)), _observe(suite_state.obs)

    def step(self, key: jax.Array, state: State, action: Action) -> Transition:
        """Return the transition of one step.

        At the time limit, the episode is truncated unless it has terminated.
        """
        del key  # Playground keeps a key in its state
        next_suite_state = step_with_physics(
            _replace_physics, self.dynamics, self.physics, state.suite_state, jnp.asarray(action)
        )
        suite_state = cast_leaves(
            terminate_nonfinite(
                state.suite_state,
                next_suite_state,
                (next_suite_state.data.qpos, next_suite_state.data.qvel),
            ),
            self.state_dtypes,
        )
        time, terminated = state.time + 1, suite_state.done > 0.5
        return Transition(
            state=PlaygroundState(suite_state, time),
            obs=_observe(suite_state.obs),
            reward=jnp.asarray(suite_state.reward, jnp.float32),
            terminated=terminated,
            truncated=(time >= self.time_limit) & ~terminated,
            info={
                name: jnp.asarray(suite_state.metrics[name], jnp.float32)
                for name in self.info_names
            },
        )


def _replace_physics(dynamics: SuiteEnvironment, physics: Physics) -> Any:
    """Return a copy of a Playground environment with other physics parameters."""
    changed = copy.copy(dynamics)
    changed._mjx_model = dynamics.mjx_model.tree_replace(
        {_PHYSICS_PATHS[name]: value for name, value in physics.items()}
    )
    return changed


def _observe(obs: Observation) -> Any:
    return (
        {_PART_NAMES.get(name, name): part for name, part in obs.items()}
        if isinstance(obs, dict)
        else obs
    )


_PART_NAMES = {"privileged_state": "global_state"}


def make(name: str, arguments: dict[str, Setting]) -> Playground:
    """Build a MuJoCo Playground environment.

    Args:
        name: Name of the environment in Playground.
        arguments: Environment arguments (see `default_arguments`).

    Returns:
        The environment.

    Raises:
        UsageError: If Playground is too old or rejects the arguments, or a value is invalid.
        UnknownNameError: If an argument does not exist.
    """
    id, defaults = f"playground/{name}", _load_default_arguments(name)
    values = defaults | convert_arguments(id, arguments, defaults)
    check_no_tracers(id, values, "Change `physics` inside of transformations.")
    limit = to_positive_int(id, _TIME_LIMIT_ARGUMENT, values[_TIME_LIMIT_ARGUMENT])
    _check_implementation(id, values["impl"])
    # Concrete values even inside a traced function, so that cached constants can be reused.
    with jax.ensure_compile_time_eval(), jax.debug_key_reuse(False):
        return _build_environment(id, _make_dynamics(name, tuple(sorted(values.items()))), limit)


def _check_implementation(id: str, impl: str) -> None:
    """Raise UsageError for Warp. Its environments share state and cannot be reset one by one."""
    if impl != "jax":
        raise UsageError(
            f"{id}: impl ({impl!r}) must be jax. Pass config_overrides={{'impl': 'jax'}} to "
            "Playground."
        )


def default_arguments(name: str) -> dict[str, Any]:
    """Return the plain values in the Playground configuration of the task, keyed by name."""
    return dict(_load_default_arguments(name))


def wrap_environment(id: str, dynamics: SuiteEnvironment, episode_length: int | None) -> Playground:
    """Build an environment from a MuJoCo Playground object, without its wrappers.

    Args:
        id: Id of the environment.
        dynamics: Playground environment. Its wrappers are removed.
        episode_length: Time limit in steps, or None for the value in its configuration.

    Returns:
        The environment.

    Raises:
        UsageError: If `dynamics` is not a Playground environment, or uses Warp.
    """
    dynamics = getattr(dynamics, "unwrapped", dynamics)
    if not callable(getattr(dynamics, "reset", None)) or not hasattr(dynamics, "_mjx_model"):
        raise UsageError(
            "environment must be an environment of MuJoCo Playground, got an object of "
            f"{type(dynamics).__name__}."
        )
    _check_implementation(id, dynamics.mjx_model.impl.value)
    limit = dynamics._config.episode_length if episode_length is None else episode_length
    with jax.ensure_compile_time_eval(), jax.debug_key_reuse(False):
        return _build_environment(id, dynamics, to_positive_int(id, _TIME_LIMIT_ARGUMENT, limit))


def _build_environment(id: str, dynamics: SuiteEnvironment, limit: int) -> Playground:
    """Build a `Playground` environment that truncates episodes after `limit` steps."""
    example = jax.eval_shape(
        functools.partial(take_example_step, dynamics), jax.eval_shape(lambda: jax.random.key(0))
    )
    space = jax.tree.map(lambda x: Box(-np.inf, np.inf, x.shape), _observe(example.obs))
    model = dynamics.mjx_model
    return Playground(
        physics={
            key: jnp.asarray(operator.attrgetter(path)(model), jnp.float32)
            for key, path in _PHYSICS_PATHS.items()
        },
        dynamics=dynamics,
        name=id,
        observation_space=Dict(space) if isinstance(space, dict) else space,
        action_space=Box(-1.0, 1.0, (dynamics.action_size,)),
        state_dtypes=leaf_dtypes(example),
        info_names=tuple(name for name, value in example.metrics.items() if value.shape == ()),
        time_limit=limit,
    )


@functools.cache
def _load_default_arguments(name: str) -> dict[str, Any]:
    package_versions.require_version("playground", "0.2")
    config = suite.get_default_config(name).to_dict()
    plain_values = {
        key: value for key, value in config.items() if isinstance(value, bool | int | float | str)
    }
    return {key: value for key, value in plain_values.items() if key not in _EXCLUDED_ARGUMENTS} | {
        "impl": "jax"
    }


@functools.cache
def _make_dynamics(name: str, arguments: tuple[tuple[str, Setting], ...]) -> Any:
    """Create a Playground environment, cached so that equal environments share a compilation."""
    try:
        with suppress_output():
            return suite.load(name, config_overrides=dict(arguments))
    except (ValueError, TypeError, AssertionError, NotImplementedError, RuntimeError) as error:
        raise creation_error("Playground", name, dict(arguments), error) from error
