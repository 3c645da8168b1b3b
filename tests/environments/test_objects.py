"""Environments that a user made with a suite's own classes are those behind ids."""

from typing import Any

import gymnax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rollax
from configuration import configured
from rollax.checks.environment import check_contract
from rollax.environments import make
from rollax.environments.convert import step_limit
from rollax.errors import UsageError
from rollax.host.given import own_environment

pytestmark = pytest.mark.usefixtures("as_strict_as_the_suite")


def same(first: Any, second: Any, action: Any, steps: int = 3) -> None:
    """The same starts, spaces and transitions."""
    for what in ("observation_space", "action_space", "num_agents", "time_limit"):
        assert getattr(first, what) == getattr(second, what)
    with configured(jax_debug_key_reuse=False):
        states = [env.reset(jax.random.key(0))[0] for env in (first, second)]
        for time in range(steps):
            after = [env.step(jax.random.key(time), state, action) for env, state in zip((first, second), states, strict=True)]
            states = [each.state for each in after]
            jax.tree.map(
                lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5), after[0]._replace(state=0), after[1]._replace(state=0)
            )


def test_gymnax() -> None:
    env, params = gymnax.make("CartPole-v1")
    params = params.replace(gravity=5.0, max_steps_in_episode=3)
    found = rollax.from_gymnax(env, params)
    assert found.name == "own/CartPole-v1"
    same(found, make("gymnax/CartPole-v1", gravity=5.0, max_steps_in_episode=3), 1)
    assert rollax.from_gymnax(env, name="mine/Cart").name == "mine/Cart"
    assert rollax.from_gymnax(env, name="cart").name == "cart"
    assert rollax.from_gymnax(env).time_limit == 500
    heavy = [rollax.from_gymnax(env, params.replace(masspole=1.0), name=name) for name in (None, "mine/heavy")]
    same(*heavy, 1)
    chain = [rollax.from_gymnax(*gymnax.make("MemoryChain-bsuite"), name=name) for name in (None, "mine/chain")]
    assert chain[0].observation_space == chain[1].observation_space == make("gymnax/MemoryChain-bsuite").observation_space
    with pytest.raises(UsageError, match="environment of gymnax"):
        rollax.from_gymnax(3)
    with pytest.raises(UsageError, match=r"takes the parameters of an environment, .* not a dict: default_params.replace"):
        rollax.from_gymnax(env, {"gravity": 5.0})


@pytest.mark.parametrize("limit", ["5", 2.5, None, True, float("inf"), [5]])
def test_a_time_limit_is_a_whole_number(limit: Any) -> None:
    with pytest.raises(UsageError, match=r"mine/Cart: max_steps \(.*\) must be a whole number"):
        step_limit("mine/Cart", "max_steps", limit)
    assert [step_limit("mine/Cart", "max_steps", x) for x in (5, np.int64(5), jnp.asarray(5), 5.0)] == [5] * 4


def test_a_class_of_ones_own_trains() -> None:
    """Of gymnax's classes, with another reward: all else is as of any environment."""

    class Upright(gymnax.environments.CartPole):
        def step_env(self, key: Any, state: Any, action: Any, params: Any) -> Any:
            obs, state, _, done, info = super().step_env(key, state, action, params)
            return obs, state, jnp.cos(state.theta), done, info

    env = rollax.from_gymnax(Upright(), name="mine/Upright")
    check_contract(env)
    assert own_environment(env) is env
    with pytest.raises(UsageError, match=r"rollax.from_gymnax\(environment, params\)"):
        own_environment(Upright())


def test_jumanji() -> None:
    jumanji = pytest.importorskip("jumanji")
    from jumanji.wrappers import AutoResetWrapper

    found = rollax.from_jumanji(jumanji.make("Snake-v1", num_rows=6, num_cols=6, time_limit=2))
    assert found.name == "own/Snake"
    same(found, make("jumanji/Snake-v1", num_rows=6, num_cols=6, time_limit=2), 1)
    wrapped = rollax.from_jumanji(AutoResetWrapper(jumanji.make("LevelBasedForaging-v0")))
    assert wrapped.num_agents == 2 and wrapped.name == "own/LevelBasedForaging"
    mines = rollax.from_jumanji(jumanji.make("Minesweeper-v0"))
    same(mines, make("jumanji/Minesweeper-v0"), jnp.zeros((), jnp.int32))
    with pytest.raises(UsageError, match=r"rollax.from_jumanji\(environment\)"):
        own_environment(jumanji.make("Snake-v1"))


def test_pgx() -> None:
    pgx = pytest.importorskip("pgx")
    found = rollax.from_pgx(pgx.make("tic_tac_toe"), opponent="random")
    same(found, make("pgx/tic_tac_toe", opponent="random"), jnp.asarray([4, 4]))
    from pgx.go import Go

    longer = rollax.from_pgx(Go(size=9, max_terminal_steps=400))
    assert longer.time_limit == 400 and make("pgx/go_9x9").time_limit == 162
    with pytest.raises(UsageError, match="two players"):
        rollax.from_pgx(pgx.make("2048"))


@pytest.mark.filterwarnings("ignore:Brax System:UserWarning")  # of brax's making, for its own model
def test_brax() -> None:
    envs = pytest.importorskip("brax.envs")
    env = envs.training.wrap(envs.get_environment("inverted_pendulum", backend="generalized"), episode_length=5)
    found = rollax.from_brax(env, max_steps=2)
    assert found.name == "own/InvertedPendulum"
    same(found, make("brax/inverted_pendulum", max_steps=2), jnp.ones(1))


def test_playground() -> None:
    pytest.importorskip("mujoco_playground")
    from mujoco_playground import registry, wrapper

    env = registry.load("PointMass", config_overrides={"impl": "jax"})
    found = rollax.from_playground(wrapper.wrap_for_brax_training(env), episode_length=7)
    assert found.name == "own/PointMass" and found.time_limit == 7
    assert getattr(found, "dynamics", None) is env, "physics of a wrapper are read by nobody"
    check_contract(found)
