"""Tests that steps of JaxMARL environments equal those of the suite."""

import jax
import numpy as np
import pytest

from environments.suites.jaxmarl_play import episode
from rollax.environments import make

pytestmark = pytest.mark.usefixtures("as_strict_as_the_suite")


SAME = {
    "MPE_simple_tag_v3": {},
    "MPE_simple_world_comm_v3": {},
    "switch_riddle": {"num_agents": 4},
    "coin_game": {"num_inner_steps": 4, "num_outer_steps": 2},
    "HeuristicEnemySMAX": {"scenario": "3m"},
}


@pytest.mark.parametrize("name", SAME)
def test_every_step_equals_that_of_the_suite(name: str) -> None:
    """Observations, rewards and ends of an episode equal those of the suite's own loop."""
    env = make(f"jaxmarl/{name}", **SAME[name])
    _, obs, action, after = episode(env, 8)
    dynamics, limit = env.dynamics, 8
    raw_step = jax.jit(dynamics.step_env)
    with jax.debug_key_reuse(False):
        raw, state = dynamics.reset(jax.random.key(0))
        for time in range(limit):
            sizes = dict(zip(dynamics.agents, env.action_sizes, strict=True))
            by_name = {
                agent: action[time, i] if action.ndim == 2 else action[time, i, : sizes[agent]]
                for i, agent in enumerate(dynamics.agents)
            }
            seen = obs["observation"] if isinstance(obs, dict) else obs
            for i, agent in enumerate(dynamics.agents):
                size = raw[agent].shape[0]
                np.testing.assert_allclose(seen[time, i, :size], raw[agent], atol=1e-5)
                assert not seen[time, i, size:].any()
            raw, state, reward, done, _ = raw_step(
                jax.random.fold_in(jax.random.key(0), time), state, by_name
            )
            np.testing.assert_allclose(
                after.reward[time], [reward[agent] for agent in dynamics.agents], atol=1e-4
            )
            over = after.terminated[time] | after.truncated[time]
            assert over.all() == bool(done["__all__"])
            if over.all():
                break
    assert (
        after.reward.dtype == np.float32 and after.terminated.dtype == after.truncated.dtype == bool
    )
