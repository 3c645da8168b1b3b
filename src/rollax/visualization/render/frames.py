"""Recorded frames of episodes, thinned to a maximum number."""

from typing import Any, NamedTuple

import numpy as np


class Frame(NamedTuple):
    """State after a step and the action that led to it.

    Attributes:
        step: Number of steps since the start of the episode.
        state: State to render (`state_to_render`), or the picture of a host environment.
        obs: Observation of the state.
        action: Action that led to the state, or None at the start.
        reward: Reward of the step, float `[]` or `[A]`.
        total: Return so far, float `[]` or `[A]`.
        end: "terminated", "truncated", or an empty string if the episode continues.
    """

    step: int
    state: Any
    obs: Any
    action: np.ndarray | None
    reward: np.ndarray
    total: np.ndarray
    end: str


class RecordedEpisode(NamedTuple):
    """Frames of one episode: every `stride`-th step and the last."""

    frames: list[Frame]
    stride: int


def thin_frames(
    frames: list[Frame], new_frames: list[Frame], stride: int, max_frames: int
) -> tuple[list[Frame], int]:
    """Append new frames, then double the stride until fewer than `max_frames` frames remain.

    Thinning during the episode bounds the memory of long episodes with large states.

    Args:
        frames: Frames kept so far.
        new_frames: Frames to append.
        stride: Current stride.
        max_frames: Upper limit of the number of frames, exclusive.

    Returns:
        Frames of every `stride`-th step, and the new stride.
    """
    frames = frames + [frame for frame in new_frames if frame.step % stride == 0]
    while len(frames) >= max_frames:
        stride *= 2
        frames = [frame for frame in frames if frame.step % stride == 0]
    return frames, stride
