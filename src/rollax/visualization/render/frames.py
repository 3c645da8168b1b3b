"""Recorded frames of episodes, thinned to a maximum number."""

from typing import Any, NamedTuple

import numpy as np


class Frame(NamedTuple):
    """State after a step and the action that led to it.

    Attributes:
        step: Number of steps since the start of the episode.
        state: State to render (`state_to_render`), or the image that a host environment rendered.
        obs: Observation of the state.
        action: Action that led to the state, or None at the start.
        reward: Reward of the step, float `[]`, or `[A]` for A agents.
        total: Return since the start of the episode, float `[]` or `[A]`.
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
    """Frames of one episode: every `stride`-th step and the last step."""

    frames: list[Frame]
    stride: int


def thin_frames(
    frames: list[Frame], new_frames: list[Frame], stride: int, max_frames: int
) -> tuple[list[Frame], int]:
    """Append new frames, then double the stride until fewer than `max_frames` frames remain.

    Thinning during the episode limits the memory for long episodes with large states.

    Args:
        frames: Frames of every `stride`-th step until now.
        new_frames: Frames of the next steps.
        stride: Current stride in steps.
        max_frames: Number of frames that must not be reached.

    Returns:
        Frames of every `stride`-th step with the new stride, and the new stride.
    """
    frames = frames + [frame for frame in new_frames if frame.step % stride == 0]
    while len(frames) >= max_frames:
        stride *= 2
        frames = [frame for frame in frames if frame.step % stride == 0]
    return frames, stride
