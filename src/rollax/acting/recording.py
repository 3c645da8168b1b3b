"""Steps that simulators on the host have taken, as an algorithm learns from them.

`rollax.acting.streams.unroll` reads a recording where it scans the steps of a compiled environment, so that an algorithm learns
from both by the same lines.
"""

from typing import Any, NamedTuple


class RecordedSteps(NamedTuple):
    """T steps of E simulators, `[T, E, ...]`: what `rollax.acting.streams.Experience` has of them."""

    obs: Any
    reset: Any  # bool: obs begins an episode
    carry: Any  # the policy's memory before the step, before any reset
    action: Any
    extras: Any  # what the policy gave besides
    reward: Any  # float32
    terminated: Any  # bool
    truncated: Any  # bool
    next_obs: Any  # the true observation after the step, never that of a new episode


class Recording(NamedTuple):
    """A rollout that was played on the host."""

    steps: RecordedSteps
    last: tuple[Any, Any, Any]  # obs, reset and carry [E, ...]: what acting goes on from
