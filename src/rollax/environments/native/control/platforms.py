"""Row of platforms, which tests actions with a discrete and a continuous part.

The agent jumps from platform to platform. For every gap it chooses the kind of jump and its power,
as in the domain Platform of Masson et al. 2016, arXiv:1509.01644. With the default settings, the
optimal action has a closed form (`Platforms.best_action`), because gaps are independent of each
other.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from rollax.environments.environment import Transition
from rollax.environments.environment_text import format_environment_html
from rollax.errors import UsageError
from rollax.spaces import Box, Dict, Discrete
from rollax.types import Action

KINDS = ("hop", "leap")
MIN_GAP, MAX_GAP = 0.1, 0.9


class PlatformsState(NamedTuple):
    """State of the row of platforms.

    Attributes:
        gap: Distance to the next platform, float32 [].
        time: Number of jumps so far, int32 [].
        landing: Distance of the last jump, float32 []. 0 before the first jump.
    """

    gap: jax.Array
    time: jax.Array
    landing: jax.Array


class Platforms(eqx.Module):
    """Row of platforms, between which the agent hops and leaps.

    The action is `{"kind": 0 or 1, "power": [2]}`: a hop (0) or a leap (1), and the powers p_0 of a
    hop and p_1 of a leap, from 0 to 1. Only the power of the chosen kind has an effect. A jump of
    kind k over the gap g has the length d = reach_k p_k and the reward

        bonus_k - effort_k p_k^2 - precision (d - g)^2

    with the reaches (0.5, 1), the bonuses (1, 0.8) and the efforts (0.1, 0.4). Hops are cheap and
    too short for wide gaps. The gaps are independent and uniform between 0.1 and 0.9.

    The observation is the gap and the fraction of completed jumps, float32 [2], from 0 to 1. The
    task terminates after `num_platforms` jumps, or if the agent misses a platform by more than
    `tolerance`.

    Args:
        num_platforms: (static) Number of jumps of a complete episode.
        precision: Weight of the squared distance to the middle of the platform, at least 8, so that
            the action with the largest reward lands within 0.2 of the middle.
        tolerance: Largest distance to the middle of the platform, from 0.2 to 1.

    Raises:
        UsageError: If a number is out of range.
    """

    precision: jax.Array
    tolerance: jax.Array
    reach: jax.Array  # float32 [2]
    bonus: jax.Array  # float32 [2]
    effort: jax.Array  # float32 [2]
    num_platforms: int = eqx.field(static=True)

    name = "control/platforms"
    observation_space = Box(0.0, 1.0, (2,))
    action_space = Dict({"kind": Discrete(2), "power": Box(0.0, 1.0, (2,))})
    info_reductions = {"landed": "sum"}
    num_agents = None
    _repr_html_ = format_environment_html

    def __init__(
        self, num_platforms: int = 5, precision: float = 10.0, tolerance: float = 0.3
    ) -> None:
        if num_platforms < 1:
            raise UsageError(f"{self.name}: num_platforms ({num_platforms}) must be at least 1.")
        for argument, value, low, high in (
            ("precision", precision, 8.0, np.inf),
            ("tolerance", tolerance, 0.2, 1.0),
        ):
            if not isinstance(value, Tracer) and not np.all(
                (np.asarray(value) >= low) & (np.asarray(value) <= high)
            ):
                raise UsageError(
                    f"{self.name}: {argument} ({value}) must be between {low:g} and {high:g}."
                )
        self.num_platforms = num_platforms
        self.precision = jnp.asarray(precision, jnp.float32)
        self.tolerance = jnp.asarray(tolerance, jnp.float32)
        self.reach = jnp.asarray([0.5, 1.0], jnp.float32)
        self.bonus = jnp.asarray([1.0, 0.8], jnp.float32)
        self.effort = jnp.asarray([0.1, 0.4], jnp.float32)

    @property
    def time_limit(self) -> int:
        """Maximum number of steps of an episode."""
        return self.num_platforms

    def reset(self, key: jax.Array) -> tuple[PlatformsState, jax.Array]:
        """Sample the first gap and return the state and the observation."""
        state = PlatformsState(_sample_gap(key), jnp.zeros((), jnp.int32), jnp.zeros(()))
        return state, self.observe(state)

    def step(self, key: jax.Array, state: PlatformsState, action: Action) -> Transition:
        """Jump with the kind of jump and the power that the action selects."""
        kind, power = action["kind"], jnp.clip(action["power"], 0.0, 1.0)
        length = (self.reach * power)[kind]
        has_landed = jnp.abs(length - state.gap) <= self.tolerance
        next_state = PlatformsState(_sample_gap(key), state.time + 1, length)
        return Transition(
            next_state,
            self.observe(next_state),
            self.jump_reward(state.gap, power)[kind],
            ~has_landed | (next_state.time >= self.num_platforms),
            jnp.zeros((), bool),
            {"landed": has_landed.astype(jnp.float32)},
        )

    def observe(self, state: PlatformsState) -> jax.Array:
        """Return the observation of a state, [2]."""
        return jnp.stack([state.gap, state.time / self.num_platforms])

    def jump_reward(self, gap: jax.Array, power: jax.Array) -> jax.Array:
        """Return the rewards of a hop and of a leap `[2]` over a gap with the powers `[2]`."""
        miss = self.reach * power - gap
        return self.bonus - self.effort * power**2 - self.precision * miss**2

    def best_action(self, gap: jax.Array) -> dict[str, jax.Array]:
        """Return the action with the largest reward for a gap.

        The reward of kind k is quadratic in the power. Its maximum is at precision reach_k gap /
        (precision reach_k^2 + effort_k), clipped to 1. The best kind has the largest maximum.

        The action is optimal, because it never misses a platform, no action changes later gaps, and
        all rewards are positive.
        """
        power = self.precision * self.reach * gap / (self.precision * self.reach**2 + self.effort)
        power = jnp.clip(power, 0.0, 1.0)
        kind = jnp.argmax(self.jump_reward(gap, power)).astype(jnp.int32)
        return {"kind": kind, "power": power}


def _sample_gap(key: jax.Array) -> jax.Array:
    return jax.random.uniform(key, minval=MIN_GAP, maxval=MAX_GAP)
