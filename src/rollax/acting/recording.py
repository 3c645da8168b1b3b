"""Recorded steps of simulators on the host.

`rollax.acting.streams.unroll` steps a compiled environment, or reads a recording of a simulator.
Algorithms therefore learn from both with the same code.
"""

from typing import Any, NamedTuple


class RecordedSteps(NamedTuple):
    """Steps `[T, E, ...]` of E simulators, with the fields of `rollax.acting.streams.Experience`.

    Attributes:
        obs: Observations before the step.
        reset: Whether `obs` begins an episode, bool.
        carry: Memory of the policy before the step and before any reset.
        action: Actions.
        extras: Other outputs of the policy.
        reward: Rewards, float32.
        terminated: Whether the step terminated the episode, bool.
        truncated: Whether the step truncated the episode, bool.
        next_obs: Observations after the step and before any reset.
    """

    obs: Any
    reset: Any
    carry: Any
    action: Any
    extras: Any
    reward: Any
    terminated: Any
    truncated: Any
    next_obs: Any


class Recording(NamedTuple):
    """Rollout that was recorded on the host.

    Attributes:
        steps: Steps of the rollout.
        last: Observations, reset flags and memory of the policy after the last step, `[E, ...]`.
    """

    steps: RecordedSteps
    last: tuple[Any, Any, Any]
