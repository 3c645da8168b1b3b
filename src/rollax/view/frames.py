"""What is shown of an episode: states with the actions that led to them, thinned where there are too many."""

from typing import Any, NamedTuple

import numpy as np


class Frame(NamedTuple):
    """What is shown at once: the state after a step (`View.shown_state`) and the action that led to it, None at the start."""

    step: int
    state: Any  # of an environment on the host its picture
    obs: Any
    action: np.ndarray | None
    reward: np.ndarray  # float [] or [A]
    total: np.ndarray  # float [] or [A]: return so far
    end: str  # "", "terminated" or "truncated"


class Play(NamedTuple):
    """One episode, thinned to every `stride`-th step and the last."""

    frames: list[Frame]
    stride: int


def thinned(frames: list[Frame], new: list[Frame], stride: int, most: int) -> tuple[list[Frame], int]:
    """The frames with new ones, fewer than `most`: every `stride`-th step, and that stride.

    Thinned while it is played, so that a long episode of large states does not fill the memory.
    """
    frames = frames + [frame for frame in new if frame.step % stride == 0]
    while len(frames) >= most:
        stride *= 2
        frames = [frame for frame in frames if frame.step % stride == 0]
    return frames, stride
