"""Checks of the observations, rewards and action masks of simulators."""

from collections.abc import Callable

import numpy as np

from rollax.training.simulators.restarts import SimulatorError


def check_finite(
    rows: list[np.ndarray], reward: np.ndarray | None, name: Callable[[int], str]
) -> None:
    """Check that all observations and rewards are finite.

    Args:
        rows: Leaves of the observations [E, ...].
        reward: Rewards [E], or None after a reset.
        name: Function that maps the index of a simulator to its name.

    Raises:
        SimulatorError: If a value is not finite. The message names the first such simulator.
    """
    parts = [("an observation", row) for row in rows if row.dtype.kind == "f"]
    for what, values in parts if reward is None else [("a reward", reward), *parts]:
        is_finite = np.isfinite(values)
        if not is_finite.all():
            index = int(np.argmin(is_finite.reshape(len(values), -1).all(axis=1)))
            raise SimulatorError(f"{name(index)} returned {what} that is not finite.", index)


def check_action_masks(
    mask: np.ndarray,
    moved: np.ndarray,
    over: tuple[np.ndarray, np.ndarray] | None,
    name: Callable[[int], str],
    steps: np.ndarray,
) -> None:
    """Check that every simulator has a legal action unless its episode ends.

    If a truncated episode ends without a legal action, all actions are marked as legal. The value
    estimate of its final observation is then finite. Simulators with several agents must mark all
    actions of agents that are not in the episode as legal.

    Args:
        mask: Action masks, bool [E, ...]. They are changed in place.
        moved: Mask of the simulators with a new observation, bool [E].
        over: Whether each episode terminated and whether it was truncated, bool [E] each, or None
            after a reset. With several agents, these flags are those of the whole episode.
        name: Function that maps the index of a simulator to its name.
        steps: Number of steps in the current episode of each simulator, [E].

    Raises:
        SimulatorError: If an episode continues without a legal action.
    """
    has_choice = mask.any(axis=-1).reshape(len(mask), -1).all(axis=1) | ~moved
    if has_choice.all():
        return
    continues = moved if over is None else moved & ~over[0] & ~over[1]
    stuck = np.flatnonzero(~has_choice & continues)
    if stuck.size:
        raise SimulatorError(
            f"{name(stuck[0])}: action_mask must leave a legal action until the episode ends, "
            f"got a mask without one at step {steps[stuck[0]]} of an episode. "
            "End the episode at that step, or allow an action.",
            int(stuck[0]),
        )
    if over is not None:
        mask[~has_choice & over[1] & ~over[0]] = True
