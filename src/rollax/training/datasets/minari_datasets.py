"""Local data sets of Minari as demonstrations. The package minari is imported on first use."""

import importlib.util
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from rollax.errors import UsageError, describe_error
from rollax.replay.demonstrations import (
    ACTIONS,
    EPISODE_LENGTHS,
    FINAL_OBSERVATIONS,
    OBSERVATIONS,
    REWARDS,
    TERMINATED,
    TRUNCATED,
    Demonstrations,
)
from rollax.runtime.installation import install_command
from rollax.types import PyTree

_ID = re.compile(r"[\w.-]+(/[\w.-]+)*-v\d+")


def is_minari_id(source: str) -> bool:
    """Return whether a text has the form of the id of a data set, such as "mujoco/hopper-v0"."""
    return _ID.fullmatch(source) is not None


def load_minari(dataset_id: str) -> Demonstrations:
    """Load a local data set of Minari. Nothing is downloaded.

    Args:
        dataset_id: Id of the data set, such as "mujoco/hopper/expert-v0".

    Returns:
        The demonstrations.

    Raises:
        UsageError: If minari is not installed, or the data set is not on this machine or cannot be
            read.
    """
    if importlib.util.find_spec("minari") is None:
        raise UsageError(
            f"{dataset_id} is a data set of Minari, and the package minari is not installed. Run: "
            f"{install_command('minari')}"
        )
    import minari

    try:
        local = list(minari.list_local_datasets())
        if dataset_id not in local:
            raise UsageError(
                f"The data set {dataset_id} must be on this machine, got "
                f"{', '.join(local[:20]) or 'no data sets'}. Run: minari download {dataset_id}"
            )
        dataset: Any = minari.load_dataset(dataset_id)
        episodes = list(dataset.iterate_episodes())
        spec = dataset.env_spec
    except UsageError:
        raise
    except Exception as error:  # h5py and minari raise many types for damaged files
        raise UsageError(
            f"Reading the data set {dataset_id} fails with {describe_error(error)}"
        ) from error
    return _join_episodes(dataset_id, episodes, None if spec is None else spec.id)


def _join_episodes(dataset_id: str, episodes: list[Any], environment: str | None) -> Demonstrations:
    """Join episodes of Minari, which have one more observation than steps."""
    if not episodes:
        raise UsageError(f"The data set {dataset_id} must have an episode, got none.")

    def join(name: str, select: Callable[[Any], PyTree]) -> dict[str, np.ndarray]:
        parts = [_flatten(name, select(episode)) for episode in episodes]
        return {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}

    def steps(values: PyTree) -> PyTree:
        return _map_arrays(lambda x: x[:-1], values)

    arrays = (
        join(OBSERVATIONS, lambda episode: steps(episode.observations))
        | join(ACTIONS, lambda episode: episode.actions)
        | join(FINAL_OBSERVATIONS, lambda e: _map_arrays(lambda x: x[-1:], e.observations))
        | join(REWARDS, lambda episode: episode.rewards)
        | join(TERMINATED, lambda episode: episode.terminations)
        | join(TRUNCATED, lambda episode: episode.truncations)
    )
    lengths = np.array([len(episode.rewards) for episode in episodes])
    metadata = {"environment": environment, "policy": dataset_id}
    return Demonstrations(arrays | {EPISODE_LENGTHS: lengths}, metadata)


def _map_arrays(function: Callable[[np.ndarray], np.ndarray], values: PyTree) -> PyTree:
    """Apply a function to the arrays of nested dictionaries and tuples."""
    if isinstance(values, dict):
        return {name: _map_arrays(function, part) for name, part in values.items()}
    if isinstance(values, tuple):
        return tuple(_map_arrays(function, part) for part in values)
    return function(np.asarray(values))


def _flatten(name: str, values: PyTree) -> dict[str, np.ndarray]:
    """Return the arrays of nested dictionaries and tuples, with keys joined by "/"."""
    if isinstance(values, dict | tuple):
        named = values.items() if isinstance(values, dict) else enumerate(values)
        parts = [_flatten(f"{name}/{key}", part) for key, part in named]
        return {key: array for part in parts for key, array in part.items()}
    return {name: np.asarray(values)}
