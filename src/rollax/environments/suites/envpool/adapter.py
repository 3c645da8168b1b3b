"""Adapter of EnvPool (1.2 or newer): C++ simulators that step together in their own threads.

In EnvPool, the step after the end of an episode starts the next episode. The adapter takes this
step immediately, and still returns the last observation of the ended episode. Numbers become
float32, and 8-bit images stay 8-bit with channels last. `info` contains the EnvPool scalars, except
those that identify environments or mark the end of a game. Rendering uses a pool with a single
environment.
"""

import functools
import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol, runtime_checkable

import gymnasium
import numpy as np

from rollax.environments.conversion import convert_arguments, to_positive_int
from rollax.environments.environment import SpaceConversion
from rollax.environments.host_environment import HostedEnvironment
from rollax.environments.suites.gymnasium import converters, display
from rollax.environments.suites.gymnasium.simulator import CHECK_INTERVAL, NUM_INITIAL_CHECKS
from rollax.environments.suites.gymnasium.validation import ObservationCheck
from rollax.environments.suites.suite import SuiteEnvironment
from rollax.errors import UsageError
from rollax.spaces import Box, Dict, Space
from rollax.types import Action, Observation, Setting

# Arguments that rollax sets, including the game, without which EnvPool terminates the process.
_HOST_ARGUMENTS = (
    "num_envs",
    "batch_size",
    "seed",
    "env_type",
    "base_path",
    "gym_reset_return_info",
    "from_pixels",
    "task",
)
# Indices of the environments that moved, and the end of an Atari game.
_EXCLUDED_INFO = ("env_id", "players.env_id", "terminated")
_TIME_LIMIT_ARGUMENT = "max_episode_steps"
# Smaller values terminate the process or do not step.
_POSITIVE_ARGUMENTS = (
    _TIME_LIMIT_ARGUMENT,
    "stack_num",
    "frame_skip",
    "noop_max",
    "img_height",
    "img_width",
)
_STICKY_ACTIONS_ARGUMENT = "repeat_action_probability"
MAX_THREADS = 1024
_FIRST_ID = np.zeros(1, np.int32)  # index of the environment in a pool of one


@runtime_checkable
class ArraySpec(Protocol):
    """Specification of an array that a step of EnvPool returns."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> np.dtype | type: ...


class PoolStep(NamedTuple):
    """Result of one step of N environments of a pool. Arrays have a leading axis `[N]`.

    Attributes:
        obs: Observations after the step.
        reward: Rewards.
        terminated: Mask of the environments whose task ended.
        truncated: Mask of the environments whose episode was cut off.
        info: Additional arrays, keyed by name.
        ids: Index in the pool of the environment of each row, int `[N]`.
    """

    obs: Observation
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    info: Mapping[str, np.ndarray]
    ids: np.ndarray


class EnvPoolSimulators:
    """Pool of EnvPool simulators with the spaces of rollax.

    Methods take the indices of N environments in the pool. They return arrays `[N, ...]` and, for
    each row, the index of its environment.
    """

    def __init__(self, pool: SuiteEnvironment, name: str) -> None:
        self.pool, self._name = pool, name
        self.observation_space, self._arrange_fn = convert_observation_space(
            name, pool.observation_space
        )
        self._convert_fn = converters.make_observation_converter(
            self.observation_space, self._arrange_fn
        )
        # Warnings are disabled, because float observations of EnvPool often exceed their declared
        # bounds.
        self._check, self._num_calls = ObservationCheck(name, pool.observation_space), 0
        self.action_space, _ = converters.convert_action_space(name, pool.action_space)
        self._first_action, self._action_dtype = (
            int(getattr(pool.action_space, "start", 0)),
            pool.action_space.dtype,
        )
        self.info_names = find_info_names(pool.spec.state_array_spec)

    def reset(self, ids: np.ndarray) -> tuple[Any, np.ndarray]:
        """Start new episodes and return observations and environment indices."""
        obs, info = self.pool.reset(ids)
        return self._observe(obs), info["env_id"]

    def begin_next(self, ids: np.ndarray) -> tuple[Any, np.ndarray]:
        """Start the next episode in environments whose episode ended.

        The results are observations and environment indices.

        With `episodic_life`, this continues the game, whereas `reset` would restart it.
        """
        step = self.step(
            np.zeros((len(ids), *self.pool.action_space.shape), self._action_dtype), ids
        )
        return step.obs, step.ids

    def step(self, action: np.ndarray, ids: np.ndarray) -> PoolStep:
        """Step the environments `ids` with their actions `[N, ...]`."""
        obs, reward, terminated, truncated, info = self.pool.step(
            (action + self._first_action).astype(self._action_dtype),
            ids,
        )
        return PoolStep(
            obs=self._observe(obs),
            reward=reward,
            terminated=terminated.astype(bool),
            truncated=truncated.astype(bool),
            info=info,
            ids=info["env_id"],
        )

    def _observe(self, obs: Observation) -> Any:
        """Convert observations. The first calls and every `CHECK_INTERVAL`-th call check them."""
        if self._num_calls < NUM_INITIAL_CHECKS or self._num_calls % CHECK_INTERVAL == 0:
            self._check(obs)
        self._num_calls += 1
        return self._convert_fn(obs)

    def frames(self, ids: np.ndarray) -> np.ndarray:
        """Return images, uint8 `[N, H, W, 3]`. The pool must have been made for rendering."""
        return self.pool.render(env_ids=ids)

    def close(self) -> None:
        self.pool.close()

    def space_conversion(self) -> SpaceConversion:
        """Return the conversion of observations and actions between EnvPool and rollax."""
        return converters.space_conversion(
            self._name, self.pool.observation_space, self._arrange_fn, self.pool.action_space
        )


class EnvPoolSimulator:
    """`Simulator` that uses a pool of one environment. A reset with a seed creates a new pool."""

    def __init__(self, build: Callable[[int, int], EnvPoolSimulators]) -> None:
        self._build = build
        self._pool: EnvPoolSimulators | None = None
        self._has_ended = False

    def reset(self, seed: int | None) -> Any:
        ended, self._has_ended = self._has_ended, False
        if seed is not None or self._pool is None:
            self.close()
            self._pool, ended = self._build(1, seed or 0), False
        return _take_first((self._pool.begin_next if ended else self._pool.reset)(_FIRST_ID)[0])

    def step(self, action: Action) -> tuple[Any, float, bool, bool, Mapping[str, Any]]:
        assert self._pool is not None, "reset comes first"
        obs, reward, terminated, truncated, info, _ = self._pool.step(
            np.asarray(action)[None], _FIRST_ID
        )
        scalar_info = {name: info[name][0] for name in self._pool.info_names}
        is_terminated, is_truncated = bool(terminated[0]), bool(truncated[0])
        self._has_ended = is_terminated or is_truncated
        return (
            _take_first(obs),
            float(reward[0]),
            is_terminated,
            is_truncated and not is_terminated,
            scalar_info,
        )

    def frame(self) -> np.ndarray:
        assert self._pool is not None, "reset comes first"
        return self._pool.frames(_FIRST_ID)[0]

    def close(self) -> None:
        if self._pool is not None:
            self._pool.close()
        self._pool = None


def _take_first(rows: Observation) -> Any:
    return {name: row[0] for name, row in rows.items()} if isinstance(rows, dict) else rows[0]


def find_info_names(spec: Mapping[str, ArraySpec]) -> tuple[str, ...]:
    """Return the sorted names of the scalars in `info`, except those in `_EXCLUDED_INFO`.

    Args:
        spec: EnvPool specifications of the arrays that a step returns, keyed by name.

    Returns:
        The names.
    """
    single = {
        name.removeprefix("info:")
        for name, part in spec.items()
        if name.startswith("info:")
        and tuple(part.shape) in ((), (-1,))
        and np.dtype(part.dtype).kind in "biuf"
    }
    return tuple(sorted(single.difference(_EXCLUDED_INFO)))


def convert_observation_space(name: str, space: gymnasium.Space) -> tuple[Space, Any]:
    """Convert an EnvPool observation space.

    Most EnvPool images have channels first. Converted images have channels last.

    Args:
        name: Name of the environment, for error messages.
        space: EnvPool observation space.

    Returns:
        The space, and the function that converts observations of the pool.

    Raises:
        UsageError: If the space is neither a Box nor a Dict of boxes.
    """
    if (
        isinstance(space, gymnasium.spaces.Box)
        and space.dtype == np.uint8
        and len(space.shape) == 3
        and space.shape[-1] >= space.shape[0]
    ):
        channels, *size = space.shape
        return Box(0.0, 255.0, (*size, channels), "uint8"), converters.chw_to_hwc
    converted, convert_fn = converters.convert_observation_space(name, space)
    if isinstance(converted, Box) and np.any(np.equal(converted.low, np.finfo(np.float32).tiny)):
        # The declared lower bound is the smallest positive float, which does not hold.
        converted = Box(float("-inf"), float("inf"), converted.shape)
    parts = converted.spaces.values() if isinstance(converted, Dict) else (converted,)
    if not all(isinstance(part, Box) for part in parts):
        raise UsageError(
            f"{name}: observations of a pool must be a Box or a Dict of them. Use the environment "
            "of gymnasium/."
        )
    return converted, convert_fn


def make(name: str, arguments: dict[str, Setting]) -> HostedEnvironment:
    """Build an EnvPool environment.

    Args:
        name: Id of the environment in EnvPool.
        arguments: Arguments of the pool (see `default_arguments`).

    Returns:
        The environment.

    Raises:
        ModuleNotFoundError: If EnvPool is not installed.
        UsageError: If EnvPool rejects the arguments, or its spaces are not supported.
        UnknownNameError: If an argument does not exist.
    """
    id, defaults = f"envpool/{name}", default_arguments(name)
    values = convert_arguments(id, arguments, defaults)
    _check_arguments(id, values)
    settings = tuple(values.items())
    build = functools.partial(_make_pool, name, settings)
    pool = build(1, 0)
    try:
        limit = (defaults | values).get(_TIME_LIMIT_ARGUMENT)
        single = functools.partial(_make_simulator, name, settings)
        spaces_and_limit = pool.observation_space, pool.action_space, limit, pool.info_names
        return HostedEnvironment(
            id, *spaces_and_limit, single, build, space_conversion=pool.space_conversion()
        )
    finally:
        pool.close()


def _check_arguments(id: str, arguments: Mapping[str, Setting]) -> None:
    """Raise UsageError for values with which EnvPool terminates the process or never steps."""
    if not 0 <= arguments.get("num_threads", 0) <= MAX_THREADS:
        raise UsageError(
            f"{id}: num_threads ({arguments['num_threads']}) must be between 0 (chosen by EnvPool) "
            f"and {MAX_THREADS}."
        )
    if not 0 <= arguments.get(_STICKY_ACTIONS_ARGUMENT, 0) < 1:
        raise UsageError(
            f"{id}: {_STICKY_ACTIONS_ARGUMENT} ({arguments[_STICKY_ACTIONS_ARGUMENT]}) must be at "
            "least 0 and less than 1."
        )
    for name in _POSITIVE_ARGUMENTS:
        if name in arguments:
            to_positive_int(id, name, arguments[name])


def _make_pool(
    name: str,
    arguments: tuple[tuple[str, Setting], ...],
    num_envs: int,
    seed: int,
    render_mode: str | None = None,
) -> EnvPoolSimulators:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # gymnasium warns that bounds are rounded
            arguments = (*arguments, ("render_mode", render_mode))
            pool = _import_envpool().make(
                name, env_type="gymnasium", num_envs=num_envs, seed=seed % 2**31, **dict(arguments)
            )
            return EnvPoolSimulators(pool, f"envpool/{name}")
    except UsageError:
        raise
    except Exception as error:  # EnvPool may raise any exception
        raise UsageError(
            f"Cannot create envpool/{name}: {type(error).__name__}: {error}"
        ) from error


def _make_simulator(
    name: str, arguments: tuple[tuple[str, Setting], ...], shows_frames: bool = False
) -> EnvPoolSimulator:
    if shows_frames and _is_mujoco(name) and not display.has_egl_before("envpool"):
        raise UsageError(
            f"envpool/{name} is rendered with OpenGL, which needs EGL before envpool is imported. "
            "Install the library EGL, and do not import envpool before rollax does."
        )
    return EnvPoolSimulator(
        functools.partial(
            _make_pool, name, arguments, render_mode="rgb_array" if shows_frames else None
        )
    )


def _is_mujoco(name: str) -> bool:
    return any(
        base.__module__.startswith("envpool.mujoco.")
        for base in type(_import_envpool().make_spec(name)).__mro__
    )


def _import_envpool() -> Any:
    """Import EnvPool after EGL.

    On Linux, MuJoCo in EnvPool creates its OpenGL context with a bundled copy of EGL, but calls the
    OpenGL functions of the system library. MuJoCo terminates the process when it renders, unless
    the system library is loaded first and used for both.
    """
    display.has_egl_before("envpool")
    import envpool

    return envpool


@functools.cache
def default_arguments(name: str) -> dict[str, Any]:
    """Return the defaults of the arguments of the pool, keyed by name."""
    config = _import_envpool().make_spec(name).config._asdict()
    kinds = (bool, int, float, str)
    return {
        key: value
        for key, value in config.items()
        if key not in _HOST_ARGUMENTS and isinstance(value, kinds)
    }
