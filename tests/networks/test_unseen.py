"""The part "global_state" of observations affects only the values of separate critics."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rollax import PPORNDConfig
from rollax.algorithms.registry import ALGORITHMS
from rollax.learning import novelty
from rollax.networks import layers
from rollax.spaces import Box, Dict, Discrete

OWN, WHOLE = Box(-1.0, 1.0, (4,)), Box(-1.0, 1.0, (5,))
SPACE = Dict({"own": OWN, "global_state": WHOLE})
OBS = {"own": jnp.linspace(-1, 1, 4), "global_state": jnp.linspace(1, -1, 5)}
ACTIONS = {
    name: Box(-1.0, 1.0, (2,)) if name in ("sac", "td3") else Discrete(3) for name in ALGORITHMS
}


class Nowhere:
    name, num_agents, observation_space = "test/nowhere", None, SPACE

    def __init__(self, action_space: Any) -> None:
        self.action_space = action_space


def moved(function: Callable[[Any], Any]) -> dict[str, bool]:
    """Return for each part of the observation whether the outputs depend on it."""

    def total(obs: Any) -> jax.Array:
        numbers = [
            x for x in jax.tree.leaves(function(obs)) if jnp.issubdtype(x.dtype, jnp.floating)
        ]
        return sum((jnp.sum(jnp.sin(x)) for x in numbers), jnp.zeros(()))

    return {name: bool(np.any(slope)) for name, slope in jax.grad(total)(OBS).items()}


@pytest.mark.parametrize("name", ["ppo", "impala", "ppo_rnd", "pqn", "dqn", "sac", "td3"])
def test_policies_ignore_the_global_state(name: str) -> None:
    entry = ALGORITHMS[name]
    network = entry.make_network(Nowhere(ACTIONS[name]), entry.network_config(), jax.random.key(0))  # pyright: ignore[reportArgumentType]
    if name in ("dqn", "sac", "td3"):
        assert moved(network if name == "dqn" else network.actor) == {
            "own": True,
            "global_state": False,
        }
        return

    def output(obs: Any) -> Any:
        return network(network.initial_carry(), obs)[1]

    if name == "pqn":
        assert moved(output) == {"own": True, "global_state": False}
        return
    assert moved(lambda obs: output(obs).policy) == {"own": True, "global_state": False}
    assert moved(lambda obs: output(obs).value) == {"own": True, "global_state": True}


def test_novelty_ignores_the_global_state() -> None:
    made = novelty.init_novelty(SPACE, PPORNDConfig(), jax.random.key(0))
    assert moved(lambda obs: novelty.prediction_error(made, obs)) == {
        "own": True,
        "global_state": False,
    }
    assert moved(lambda obs: novelty.intrinsic_value(made, obs)) == {
        "own": True,
        "global_state": False,
    }


def test_critic_only_parts_of_spaces() -> None:
    assert layers.critic_only_parts(SPACE) == ("global_state",)
    assert layers.critic_only_parts(Dict({"own": OWN})) == () == layers.critic_only_parts(WHOLE)
