"""Demonstrations with random values, for tests."""

from typing import Any

import jax
import numpy as np

from rollax.environments import Environment
from rollax.replay.demonstrations import Demonstrations
from rollax.spaces import flatten_value


def random_demonstrations(
    environment: Environment, lengths: tuple[int, ...] = (5, 1, 4, 6, 2), seed: int = 0
) -> Demonstrations:
    """Return episodes of random values of the environment's spaces.

    Every other episode terminates. The others are truncated.
    """
    number, num_agents = sum(lengths), environment.num_agents
    agents = () if num_agents is None else (num_agents,)
    key = jax.random.key(seed)

    def sample(space: Any, count: int, offset: int) -> Any:
        keys = jax.random.split(jax.random.fold_in(key, offset), count * (num_agents or 1))
        values = jax.vmap(space.sample)(keys)
        return jax.tree.map(lambda x: np.asarray(x).reshape(count, *agents, *x.shape[1:]), values)

    ends = np.cumsum(lengths) - 1
    terminated, truncated = np.zeros((2, number, *agents), bool)
    terminated[ends[::2]], truncated[ends[1::2]] = True, True
    spaces = environment.observation_space, environment.action_space
    arrays = (
        flatten_value(spaces[0], sample(spaces[0], number, 0), "observations")
        | flatten_value(spaces[1], sample(spaces[1], number, 1), "actions")
        | flatten_value(spaces[0], sample(spaces[0], len(lengths), 2), "final_observations")
    )
    rewards = np.random.default_rng(seed).normal(size=(number, *agents))
    return Demonstrations(
        arrays
        | {
            "rewards": rewards,
            "terminated": terminated,
            "truncated": truncated,
            "episode_lengths": np.asarray(lengths),
        },
        {"environment": environment.name},
    )
