"""Demonstrations: recorded episodes of observations, actions and rewards."""

import dataclasses
import hashlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rollax.errors import UsageError
from rollax.spaces import (
    ActionSpace,
    Ball,
    Box,
    Dict,
    Discrete,
    Grid,
    MultiDiscrete,
    Space,
    Tuple,
    describe_space,
    flatten_space,
    flatten_value,
    unflatten_value,
)
from rollax.types import PyTree, Record
from rollax.user_input.coercion import format_repr, format_value

OBSERVATIONS, ACTIONS, FINAL_OBSERVATIONS = "observations", "actions", "final_observations"
REWARDS, TERMINATED, TRUNCATED = "rewards", "terminated", "truncated"
EPISODE_LENGTHS = "episode_lengths"
_NESTED_NAMES = (OBSERVATIONS, ACTIONS, FINAL_OBSERVATIONS)  # names of pytrees of arrays
_NUMERIC_KINDS = "biuf"  # kinds of NumPy types
# Relative and absolute tolerance of actions at their bounds, which float32 may round.
_BOUND_TOLERANCE = 1e-4


class DemonstrationSteps(NamedTuple):
    """Steps of demonstrations as one sequence of M rows, for learning.

    With agents, the steps of the first agent precede those of the second agent, and so on. Steps of
    agents that were done before the step are removed.

    Attributes:
        obs: Observations before the steps, `[M, ...]`.
        action: Actions, `[M, ...]`.
        reward: Rewards, float32 `[M]`.
        terminated: Whether the step terminated the episode, bool `[M]`.
        truncated: Whether the step truncated the episode, bool `[M]`.
        next_obs: Observations after the steps and before any reset, `[M, ...]`.
        reset: Whether `obs` begins an episode, bool `[M]`.
    """

    obs: PyTree
    action: PyTree
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    next_obs: PyTree
    reset: np.ndarray


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Demonstrations:
    """Recorded episodes, one after the other.

    N is the number of steps of all E episodes together. With A agents, all arrays except
    `episode_lengths` have a second axis `[A]`.

    Attributes:
        arrays: Arrays, keyed by name. "observations" `[N, ...]`, "actions" `[N, ...]` and
            "final_observations" `[E, ...]`, the observations after the last step of each episode,
            are one array each, or one array per entry of a `Dict` or `Tuple` space, such as
            "observations/position". "rewards" `[N]`, "terminated" `[N]`, "truncated" `[N]` and
            "episode_lengths" `[E]`.
        metadata: Description of their origin, such as the environment id, keyed by name.
    """

    arrays: dict[str, np.ndarray]
    metadata: Record = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        """Convert the arrays to NumPy arrays, and check that they form complete episodes.

        Raises:
            UsageError: If an array is missing, or its shape, its type or a value is invalid.
        """
        if not isinstance(self.arrays, dict) or not isinstance(self.metadata, dict):
            raise UsageError(
                "Demonstrations must be a dictionary of arrays and a dictionary of metadata, got "
                f"{format_value(self.arrays)}. Use rollax.record or rollax.load_demonstrations."
            )
        arrays = {name: _to_numeric_array(name, value) for name, value in self.arrays.items()}
        _check_names(arrays)
        for name, dtype in (
            (REWARDS, np.float32),
            (TERMINATED, bool),
            (TRUNCATED, bool),
            (EPISODE_LENGTHS, np.int64),
        ):
            arrays[name] = _convert_dtype(name, arrays[name], dtype)
        object.__setattr__(self, "arrays", arrays)
        _check_lengths(self)

    def __repr__(self) -> str:
        return format_repr(
            "Demonstrations",
            environment=self.metadata.get("environment"),
            episodes=self.num_episodes,
            steps=self.num_steps,
            return_mean=round(float(self.returns.mean()), 3),
        )

    @property
    def num_episodes(self) -> int:
        """Number of episodes E."""
        return len(self.arrays[EPISODE_LENGTHS])

    @property
    def num_steps(self) -> int:
        """Number of steps N of all episodes."""
        return len(self.arrays[REWARDS])

    @property
    def lengths(self) -> np.ndarray:
        """Number of steps of each episode, int64 `[E]`."""
        return self.arrays[EPISODE_LENGTHS]

    @property
    def starts(self) -> np.ndarray:
        """Index of the first step of each episode, int64 `[E]`."""
        return np.cumsum(self.lengths) - self.lengths

    @property
    def returns(self) -> np.ndarray:
        """Undiscounted return of each episode, float64 `[E]`, or `[E, A]` with agents."""
        return np.add.reduceat(self.arrays[REWARDS].astype(np.float64), self.starts, axis=0)

    def select(self, episodes: Sequence[int]) -> "Demonstrations":
        """Return the demonstrations of some episodes, for example of the best ones.

        Args:
            episodes: Indices of the episodes, in the order of the result.

        Raises:
            UsageError: If `episodes` is empty, or an index is out of range.
        """
        try:
            indices = [range(self.num_episodes)[index] for index in episodes]
        except (TypeError, IndexError) as error:
            raise UsageError(
                f"episodes must be indices from 0 to {self.num_episodes - 1}, got "
                f"{format_value(episodes)}."
            ) from error
        if not indices:
            raise UsageError("episodes must have at least one index, got none.")
        steps = np.concatenate(
            [np.arange(self.lengths[index]) + self.starts[index] for index in indices]
        )
        arrays = {
            name: values[indices if _has_episode_axis(name) else steps]
            for name, values in self.arrays.items()
        }
        return Demonstrations(arrays, self.metadata)

    def digest(self) -> str:
        """Return the SHA-256 hash of the arrays, which identifies the demonstrations."""
        sha256 = hashlib.sha256()
        for name, values in sorted(self.arrays.items()):
            sha256.update(f"{name} {values.dtype.str} {values.shape}\n".encode())
            sha256.update(np.ascontiguousarray(values).data)
        return sha256.hexdigest()

    def to_steps(
        self, observation_space: Space, action_space: ActionSpace, num_agents: int | None
    ) -> DemonstrationSteps:
        """Return the steps as values of the spaces of an environment.

        Args:
            observation_space: Observation space of the environment, as networks observe it.
            action_space: Action space of the environment.
            num_agents: Number of agents, or None without an agent axis.

        Raises:
            UsageError: If an array is missing or does not fit the spaces.
        """
        agents = () if num_agents is None else (num_agents,)
        spaces = {
            OBSERVATIONS: observation_space,
            ACTIONS: action_space,
            FINAL_OBSERVATIONS: observation_space,
        }
        flat = {
            name: values
            for kind, space in spaces.items()
            for name, values in _match_space(self.arrays, kind, space, agents).items()
        }
        if self.arrays[REWARDS].shape[1:] != agents:
            raise UsageError(
                f"rewards must have the shape {['N', *agents]} in this environment, got "
                f"{['N', *self.arrays[REWARDS].shape[1:]]}. Use demonstrations of an environment "
                "with as many agents."
            )
        return _flatten_agents(self, flat, spaces, bool(agents))


def _to_numeric_array(name: str, value: object) -> np.ndarray:
    """Convert a value to an array of finite numbers."""
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise UsageError(f"{name} must be an array of numbers, got rows of unequal length.") from (
            error
        )
    if array.dtype.kind not in _NUMERIC_KINDS:
        raise UsageError(f"{name} must be an array of numbers, got the type {array.dtype}.")
    if array.dtype.kind == "f" and not np.all(np.isfinite(array)):
        raise UsageError(
            f"{name} must be finite, got NaN or infinity. Remove the episodes that contain them."
        )
    return array


def _convert_dtype(name: str, values: np.ndarray, dtype: npt.DTypeLike) -> np.ndarray:
    """Convert an array to a dtype. Raise UsageError if the dtype cannot represent a value.

    Floats may be rounded, but not become infinite.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        converted = values.astype(dtype)
    is_float = converted.dtype.kind == "f"
    if not np.all(np.isfinite(converted) if is_float else converted == values):
        described = "0 or 1" if converted.dtype == bool else f"{converted.dtype} values"
        raise UsageError(
            f"{name} must be {described}, got {values.dtype} values from {values.min():g} to "
            f"{values.max():g}, which would be changed. Correct the values."
        )
    return converted


def _check_names(arrays: dict[str, np.ndarray]) -> None:
    """Raise UsageError for an unknown or a missing array."""
    nested = {name.partition("/")[0] for name in arrays if "/" in name}
    known = {*_NESTED_NAMES, REWARDS, TERMINATED, TRUNCATED, EPISODE_LENGTHS}
    roots = {name.partition("/")[0] for name in arrays}
    for name in sorted(known - roots):
        raise UsageError(
            f"Demonstrations must have the array {name}, got {', '.join(sorted(arrays)) or 'none'}."
        )
    for name in sorted((roots - known) | (nested - set(_NESTED_NAMES)) | (nested & set(arrays))):
        raise UsageError(
            f"Demonstrations must have the arrays {', '.join(sorted(known))}, or entries of them, "
            f"got {format_value(name)}. Remove it."
        )


def _has_episode_axis(name: str) -> bool:
    """Return whether the first axis of the array `name` counts episodes instead of steps."""
    return name == EPISODE_LENGTHS or name.partition("/")[0] == FINAL_OBSERVATIONS


def _check_lengths(demonstrations: Demonstrations) -> None:
    """Raise UsageError if the lengths of arrays do not match, or an episode ends too early."""
    arrays, lengths = demonstrations.arrays, demonstrations.lengths
    if lengths.ndim != 1 or not len(lengths) or lengths.min() < 1:
        raise UsageError(
            f"{EPISODE_LENGTHS} must be a list of positive integers, got {format_value(lengths)}."
        )
    for name, values in arrays.items():
        is_of_episodes = _has_episode_axis(name)
        number = len(lengths) if is_of_episodes else int(lengths.sum())
        if values.ndim < 1 or len(values) != number:
            unit = "episodes" if is_of_episodes else "steps"
            raise UsageError(
                f"{name} must have {number} rows, the number of {unit}, got the shape "
                f"{list(values.shape)}."
            )
    shape = arrays[REWARDS].shape
    for name in (TERMINATED, TRUNCATED):
        if arrays[name].shape != shape or len(shape) > 2:
            raise UsageError(
                f"{name} must have the shape of rewards, [N] or [N, agents], got "
                f"{list(arrays[name].shape)} and {list(shape)}."
            )
    flags = (arrays[TERMINATED] | arrays[TRUNCATED]).reshape(len(arrays[REWARDS]), -1)
    ended: np.ndarray = np.all(flags, axis=1)
    ended[np.cumsum(lengths) - 1] = False
    if ended.any():
        raise UsageError(
            f"Step {int(np.argmax(ended))} is marked as the end of an episode, but "
            f"{EPISODE_LENGTHS} continues the episode. Correct one of them."
        )


def _match_space(
    arrays: dict[str, np.ndarray], kind: str, space: Space, agents: tuple[int, ...]
) -> dict[str, np.ndarray]:
    """Return the arrays of a space with the dtypes of the space.

    Raises:
        UsageError: If an array is missing, or is not in its space.
    """
    spaces = flatten_space(space, kind)
    found = {name for name in arrays if name.partition("/")[0] == kind}
    if found != set(spaces):
        raise UsageError(
            f"The demonstrations must have the arrays {', '.join(sorted(spaces))} for this "
            f"environment, got {', '.join(sorted(found))}. Use demonstrations of the same "
            "environment, with the same options that change observations, such as frame_stack."
        )
    return {name: _cast_to_space(name, arrays[name], part, agents) for name, part in spaces.items()}


def _cast_to_space(
    name: str, values: np.ndarray, space: Space, agents: tuple[int, ...]
) -> np.ndarray:
    """Return an array `[N, ...]` with the dtype of a space. Raise UsageError if it does not fit."""
    assert not isinstance(space, Dict | Tuple), "flatten_space returns the space of an array"
    shape = (*agents, *space.shape)
    if values.shape[1:] != shape:
        raise UsageError(
            f"{name} must have the shape {['N', *shape]} in this environment "
            f"({describe_space(space)}), got {['N', *values.shape[1:]]}. Use demonstrations of the "
            "same environment."
        )
    is_integer = np.dtype(space.dtype).kind in "biu"
    if is_integer and values.dtype.kind == "f" and np.any(values != np.round(values)):
        raise UsageError(
            f"{name} must be integers ({describe_space(space)}), got {values.dtype}. Use "
            "demonstrations of the same environment."
        )
    is_action = name.partition("/")[0] == ACTIONS
    if isinstance(space, Discrete | MultiDiscrete | Grid):
        sizes = space.n if isinstance(space, Discrete) else np.asarray(space.sizes)
        _check_bounds(name, values, 0, sizes - 1, space)
    elif isinstance(space, Box) and is_action:
        low, high = np.asarray(space.low, float), np.asarray(space.high, float)
        slack = _BOUND_TOLERANCE * (1 + np.minimum(np.abs(low), np.abs(high)))
        slack = np.where(np.isfinite(slack), slack, 0.0)
        _check_bounds(name, values, low - slack, high + slack, space)
    elif isinstance(space, Ball) and is_action:
        norms = np.linalg.norm(values.astype(float), axis=-1)
        _check_bounds(f"The norm of {name}", norms, 0, space.radius + _BOUND_TOLERANCE, space)
    return _convert_dtype(name, values, space.dtype)


def _check_bounds(name: str, values: np.ndarray, low: Any, high: Any, space: Space) -> None:
    """Raise UsageError if a value is out of bounds."""
    if np.any(values < low) or np.any(values > high):
        raise UsageError(
            f"{name} must be within {describe_space(space)}, got values from {values.min():g} to "
            f"{values.max():g}. Use demonstrations of the same environment."
        )


def describe_values_out_of_bounds(steps: DemonstrationSteps, space: Space) -> list[str]:
    """Return a sentence for each array of observations with values beyond the bounds of its space.

    Args:
        steps: Steps of demonstrations.
        space: Observation space of the environment.

    Returns:
        Sentences with the name of the array, the range of its values, and the declared range.
    """
    obs, next_obs = (
        flatten_value(space, value, OBSERVATIONS) for value in (steps.obs, steps.next_obs)
    )
    sentences = [
        _describe_range(name, np.asarray(obs[name]), part)
        or _describe_range(name, np.asarray(next_obs[name]), part)
        for name, part in flatten_space(space, OBSERVATIONS).items()
        if isinstance(part, Box)
    ]
    return [sentence for sentence in sentences if sentence]


def _describe_range(name: str, values: np.ndarray, space: Box) -> str:
    """Return a sentence about values `[M, ...]` beyond the bounds of a box, "" if there are none.

    If the elements of the box have different bounds, the sentence is about the first such element.
    """
    if values.size == 0:
        return ""
    low, high = np.asarray(space.low, float), np.asarray(space.high, float)
    lowest, highest = values.min(axis=0), values.max(axis=0)
    is_outside = (lowest < _widen(low, -1)) | (highest > _widen(high, 1))
    if not is_outside.any():
        return ""
    if low.ndim or high.ndim:
        index = tuple(int(i[0]) for i in np.nonzero(is_outside))
        low, high = (np.broadcast_to(bound, is_outside.shape)[index] for bound in (low, high))
        lowest, highest = lowest[index], highest[index]
        name = f"{name}[{', '.join(map(str, index))}]"
    return (
        f"{name} has values from {lowest.min():g} to {highest.max():g}, but the environment "
        f"declares values from {low:g} to {high:g}. Use demonstrations of the same environment, or "
        "correct its observation_space."
    )


def _widen(bound: np.ndarray, sign: int) -> np.ndarray:
    """Return a bound that is moved outward by a tolerance, because float32 rounds values."""
    return bound + sign * np.where(np.isfinite(bound), _BOUND_TOLERANCE * (1 + np.abs(bound)), 0.0)


def _flatten_agents(
    demonstrations: Demonstrations,
    flat: dict[str, np.ndarray],
    spaces: dict[str, Space],
    has_agents: bool,
) -> DemonstrationSteps:
    """Return the steps of all agents as one sequence, without steps of agents that were done."""
    arrays, starts, lengths = (
        demonstrations.arrays,
        demonstrations.starts,
        demonstrations.lengths,
    )
    lasts = starts + lengths - 1
    ended = arrays[TERMINATED] | arrays[TRUNCATED]
    # An episode that a limit of the recording cut off was truncated.
    truncated = arrays[TRUNCATED].copy()
    truncated[lasts] |= ~ended[lasts]
    reset = np.zeros(ended.shape, bool)
    reset[starts] = True
    num_ends = np.cumsum(ended, axis=0) - ended  # number of ends before each step
    is_active = num_ends == np.repeat(num_ends[starts], lengths, axis=0)

    def to_rows(values: np.ndarray) -> np.ndarray:
        if not has_agents:
            return values
        return np.swapaxes(values, 0, 1)[np.swapaxes(is_active, 0, 1)]

    next_flat = {}
    for name in flat:
        kind, slash, path = name.partition("/")
        if kind == OBSERVATIONS:
            following = np.roll(flat[name], -1, axis=0)
            following[lasts] = flat[f"{FINAL_OBSERVATIONS}{slash}{path}"]
            next_flat[name] = following

    def to_value(kind: str, values: dict[str, np.ndarray]) -> PyTree:
        return unflatten_value(spaces[kind], {k: to_rows(v) for k, v in values.items()}, kind)

    def of_kind(kind: str) -> dict[str, np.ndarray]:
        return {name: v for name, v in flat.items() if name.partition("/")[0] == kind}

    return DemonstrationSteps(
        obs=to_value(OBSERVATIONS, of_kind(OBSERVATIONS)),
        action=to_value(ACTIONS, of_kind(ACTIONS)),
        reward=to_rows(arrays[REWARDS]),
        terminated=to_rows(arrays[TERMINATED]),
        truncated=to_rows(truncated),
        next_obs=to_value(OBSERVATIONS, next_flat),
        reset=to_rows(reset),
    )


@dataclasses.dataclass(frozen=True)
class RunDemonstrations:
    """Demonstrations that a run learns from.

    Attributes:
        sha256: Hash of the arrays (`Demonstrations.digest`), or "" without demonstrations.
        data: The demonstrations, or None if they are not loaded. They are not part of config.yaml.
    """

    sha256: str = ""
    data: Demonstrations | None = dataclasses.field(default=None, compare=False, repr=False)
