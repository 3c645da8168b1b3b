"""The environments of EnvPool (1.2 or newer): simulators in C++ that step together in threads of their own.

EnvPool begins an episode at the step after its end; here that step is taken at once, so that none is lost and the last
observation is the true one. Numbers become float32, 8-bit images stay with the channels last. `info` has EnvPool's numbers
without those that identify environments or say that a game ended. One environment alone, which can be drawn, is a pool of one.
"""

import functools
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from rollax.environments.convert import convert_all, step_limit
from rollax.environments.hosted import Hosted, Translation
from rollax.environments.suites.gymnasium import display, spaces
from rollax.errors import UsageError
from rollax.spaces import Box, Dict, Space

# What the host decides on, and the game of an id: EnvPool ends the process where it finds no other.
_HOST = ("num_envs", "batch_size", "seed", "env_type", "base_path", "gym_reset_return_info", "from_pixels", "task")
_NO_INFO = ("env_id", "players.env_id", "terminated")  # which environments moved, and the end of a game of Atari
_LIMIT = "max_episode_steps"
_FROM_ONE = (_LIMIT, "stack_num", "frame_skip", "noop_max", "img_height", "img_width")  # less ends the process, or is no step
_STICKY = "repeat_action_probability"
MOST_THREADS = 1024
_FIRST = np.zeros(1, np.int32)  # the only one of a pool of one


class Pool:
    """A pool of EnvPool with our spaces: `[E]` in, `[E]` out, with the numbers of those that moved last."""

    def __init__(self, made: Any, name: str) -> None:
        self.made, self._name = made, name
        self.observation_space, self._arrange = observation(name, made.observation_space)
        self._seen = spaces.typed(self.observation_space, self._arrange)
        self.action_space, _ = spaces.action(name, made.action_space)
        self._start, self._dtype = int(getattr(made.action_space, "start", 0)), made.action_space.dtype
        self.info_names = numbers(made.spec.state_array_spec)

    def reset(self, ids: np.ndarray) -> tuple[Any, np.ndarray]:
        obs, info = self.made.reset(ids)
        return self._seen(obs), info["env_id"]

    def begin_next(self, ids: np.ndarray) -> tuple[Any, np.ndarray]:
        """The episodes after those that ended. Not `reset`, by which Atari's games with `episodic_life` would begin anew."""
        begun = self.step(np.zeros((len(ids), *self.made.action_space.shape), self._dtype), ids)
        return begun[0], begun[-1]

    def step(
        self, action: np.ndarray, ids: np.ndarray
    ) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, Mapping[str, np.ndarray], np.ndarray]:
        obs, reward, terminated, truncated, info = self.made.step((action + self._start).astype(self._dtype), ids)
        return self._seen(obs), reward, terminated.astype(bool), truncated.astype(bool), info, info["env_id"]

    def frames(self, ids: np.ndarray) -> np.ndarray:
        """Pictures of those environments, uint8 `[N, height, width, 3]`, of a pool that was made to draw."""
        return self.made.render(env_ids=ids)

    def close(self) -> None:
        self.made.close()

    def translation(self) -> Translation:
        """What a pool of EnvPool gives and takes as ours."""
        return spaces.translation(self._name, self.made.observation_space, self._arrange, self.made.action_space)


class Single:
    """A pool of one as a `rollax.environments.core.Simulator`. A start with a seed is that of a new pool with this seed."""

    def __init__(self, build: Callable[[int, int], Pool]) -> None:
        self._build = build
        self._pool: Pool | None = None
        self._has_ended = False

    def reset(self, seed: int | None) -> Any:
        ended, self._has_ended = self._has_ended, False
        if seed is not None or self._pool is None:
            self.close()
            self._pool, ended = self._build(1, seed or 0), False
        return _of_first((self._pool.begin_next if ended else self._pool.reset)(_FIRST)[0])

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Mapping[str, Any]]:
        assert self._pool is not None, "reset comes first"
        obs, reward, terminated, truncated, info, _ = self._pool.step(np.asarray(action)[None], _FIRST)
        told = {name: info[name][0] for name in self._pool.info_names}
        ended, cut = bool(terminated[0]), bool(truncated[0])
        self._has_ended = ended or cut
        return _of_first(obs), float(reward[0]), ended, cut and not ended, told

    def frame(self) -> np.ndarray:
        assert self._pool is not None, "reset comes first"
        return self._pool.frames(_FIRST)[0]

    def close(self) -> None:
        if self._pool is not None:
            self._pool.close()
        self._pool = None


def _of_first(rows: Any) -> Any:
    return {name: row[0] for name, row in rows.items()} if isinstance(rows, dict) else rows[0]


def numbers(spec: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of the numbers in `info`, one of each environment, from what EnvPool says of all that a step gives."""
    single = {
        name.removeprefix("info:")
        for name, part in spec.items()
        if name.startswith("info:") and tuple(part.shape) in ((), (-1,)) and np.dtype(part.dtype).kind in "biuf"
    }
    return tuple(sorted(single.difference(_NO_INFO)))


def observation(name: str, space: Any) -> tuple[Space, Any]:
    """The space of observations, and what makes those of a pool ours. Most images of EnvPool have their channels first."""
    if space.dtype == np.uint8 and len(space.shape) == 3 and space.shape[-1] >= space.shape[0]:
        channels, *size = space.shape
        return Box(0.0, 255.0, (*size, channels), "uint8"), spaces.channels_last
    found, seen = spaces.observation(name, space)
    if isinstance(found, Box) and np.any(np.equal(found.low, np.finfo(np.float32).tiny)):
        found = Box(float("-inf"), float("inf"), found.shape)  # its lower bounds are the least number above 0
    parts = found.spaces.values() if isinstance(found, Dict) else (found,)
    if not all(isinstance(part, Box) for part in parts):
        raise UsageError(f"{name}: of a pool only observations of Box, or a Dict of them, are offered: take gymnasium/...")
    return found, seen


def make(name: str, arguments: dict[str, Any]) -> Hosted:
    """The environment of that id; arguments are those of its pool. Raises UsageError when EnvPool refuses them."""
    id, defaults = f"envpool/{name}", _defaults(name)
    given = convert_all(id, arguments, defaults)
    _check(id, given)
    settings = tuple(given.items())
    build = functools.partial(_pool, name, settings)
    one = build(1, 0)
    try:
        limit = (defaults | given).get(_LIMIT)
        single = functools.partial(_single, name, settings)
        found = one.observation_space, one.action_space, limit, one.info_names
        return Hosted(id, *found, single, build, translation=one.translation())
    finally:
        one.close()


def _check(id: str, given: Mapping[str, Any]) -> None:
    """Raises UsageError for numbers with which EnvPool ends the process, or which mean nothing to it."""
    if not 0 <= given.get("num_threads", 0) <= MOST_THREADS:
        raise UsageError(
            f"{id}: num_threads ({given['num_threads']}) must be between 0 (EnvPool's own choice) and {MOST_THREADS}."
        )
    if not 0 <= given.get(_STICKY, 0) < 1:
        raise UsageError(f"{id}: {_STICKY} ({given[_STICKY]}) must be from 0 to less than 1.")
    for name in _FROM_ONE:
        if name in given:
            step_limit(id, name, given[name])


def arguments(name: str) -> dict[str, Any]:
    """What the environment's pool can be given, with its defaults."""
    return _defaults(name)


def _pool(name: str, given: tuple[tuple[str, Any], ...], number: int, seed: int, render_mode: str | None = None) -> Pool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that bounds are rounded
            given = (*given, ("render_mode", render_mode))
            made = _envpool().make(name, env_type="gymnasium", num_envs=number, seed=seed % 2**31, **dict(given))
            return Pool(made, f"envpool/{name}")
    except UsageError:
        raise
    except Exception as error:  # whatever EnvPool raises
        raise UsageError(f"making envpool/{name} fails with {type(error).__name__}: {error}") from error


def _single(name: str, given: tuple[tuple[str, Any], ...], shows_frames: bool = False) -> Single:
    if shows_frames and _is_mujoco(name) and not display.has_egl_before("envpool"):
        raise UsageError(
            f"envpool/{name} is drawn by OpenGL: install the library EGL, and leave the import of envpool to rollax, which "
            "loads EGL before it"
        )
    return Single(functools.partial(_pool, name, given, render_mode="rgb_array" if shows_frames else None))


def _is_mujoco(name: str) -> bool:
    return any(base.__module__.startswith("envpool.mujoco.") for base in type(_envpool().make_spec(name)).__mro__)


def _envpool() -> Any:
    """The package. On Linux its MuJoCo makes its context by a copy of EGL and looks up OpenGL's functions in the system's. Both
    become the same library if the system's is loaded first; otherwise MuJoCo ends the process where it should draw.
    """
    display.has_egl_before("envpool")
    import envpool

    return envpool


@functools.cache
def _defaults(name: str) -> dict[str, Any]:
    config = _envpool().make_spec(name).config._asdict()
    kinds = (bool, int, float, str)
    return {key: value for key, value in config.items() if key not in _HOST and isinstance(value, kinds)}
