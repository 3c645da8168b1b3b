"""Tests that environments created with a suite's classes equal those created by id."""

from typing import Any

import gymnax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct
from gymnax.environments import environment as gymnax_environment
from gymnax.environments import spaces as gymnax_spaces

import rollax
from configuration import configured
from rollax.checks.environment_check import check_contract
from rollax.environments import make
from rollax.environments.conversion import to_positive_int
from rollax.errors import UsageError
from rollax.training.argument_validation import validate_environment

pytestmark = pytest.mark.usefixtures("as_strict_as_the_suite")


def same(first: Any, second: Any, action: Any, steps: int = 3) -> None:
    """Check that two environments have the same starts, spaces and transitions."""
    for what in ("observation_space", "action_space", "num_agents", "time_limit"):
        assert getattr(first, what) == getattr(second, what)
    with configured(jax_debug_key_reuse=False):
        states = [env.reset(jax.random.key(0))[0] for env in (first, second)]
        for time in range(steps):
            after = [
                env.step(jax.random.key(time), state, action)
                for env, state in zip((first, second), states, strict=True)
            ]
            states = [each.state for each in after]
            jax.tree.map(
                lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5),
                after[0]._replace(state=0),
                after[1]._replace(state=0),
            )


def test_a_gymnax_object_equals_the_environment_of_its_id() -> None:
    env, params = gymnax.make("CartPole-v1")
    params = params.replace(gravity=5.0, max_steps_in_episode=3)
    found = rollax.from_gymnax(env, params)
    assert found.name == "own/CartPole-v1"
    same(found, make("gymnax/CartPole-v1", gravity=5.0, max_steps_in_episode=3), 1)
    assert rollax.from_gymnax(env, name="mine/Cart").name == "mine/Cart"
    assert rollax.from_gymnax(env, name="cart").name == "cart"
    assert rollax.from_gymnax(env).time_limit == 500
    heavy = [
        rollax.from_gymnax(env, params.replace(masspole=1.0), name=name)
        for name in (None, "mine/heavy")
    ]
    same(*heavy, 1)
    chain = [
        rollax.from_gymnax(*gymnax.make("MemoryChain-bsuite"), name=name)
        for name in (None, "mine/chain")
    ]
    assert (
        chain[0].observation_space
        == chain[1].observation_space
        == make("gymnax/MemoryChain-bsuite").observation_space
    )
    with pytest.raises(UsageError, match="environment of gymnax"):
        rollax.from_gymnax(3)
    with pytest.raises(
        UsageError,
        match=r"must be parameters of the environment, .* got an object of "
        r"dict.*default_params.replace",
    ):
        rollax.from_gymnax(env, {"gravity": 5.0})


@pytest.mark.parametrize("limit", ["5", 2.5, None, True, float("inf"), [5]])
def test_a_time_limit_must_be_an_integer(limit: Any) -> None:
    with pytest.raises(UsageError, match=r"mine/Cart: max_steps must be an integer, got"):
        to_positive_int("mine/Cart", "max_steps", limit)
    assert [
        to_positive_int("mine/Cart", "max_steps", x) for x in (5, np.int64(5), jnp.asarray(5), 5.0)
    ] == [5] * 4


def test_a_custom_gymnax_class_is_valid() -> None:
    """The class changes the reward, and the environment passes the contract check."""

    class Upright(gymnax.environments.CartPole):
        def step_env(self, key: Any, state: Any, action: Any, params: Any) -> Any:
            obs, state, _, done, info = super().step_env(key, state, action, params)
            return obs, state, jnp.cos(state.theta), done, info

    env = rollax.from_gymnax(Upright(), name="mine/Upright")
    check_contract(env)
    assert validate_environment(env) is env
    with pytest.raises(UsageError, match=r"rollax.from_gymnax\(environment, params\)"):
        validate_environment(Upright())


def test_a_jumanji_object_equals_the_environment_of_its_id() -> None:
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
        validate_environment(jumanji.make("Snake-v1"))


def test_a_pgx_object_equals_the_environment_of_its_id() -> None:
    pgx = pytest.importorskip("pgx")
    found = rollax.from_pgx(pgx.make("tic_tac_toe"), opponent="random")
    same(found, make("pgx/tic_tac_toe", opponent="random"), jnp.asarray([4, 4]))
    from pgx.go import Go

    longer = rollax.from_pgx(Go(size=9, max_terminal_steps=400))
    assert longer.time_limit == 400 and make("pgx/go_9x9").time_limit == 162
    with pytest.raises(UsageError, match="two or more players"):
        rollax.from_pgx(pgx.make("2048"))


@pytest.mark.filterwarnings("ignore:Brax System:UserWarning")  # caused by Brax for its own model
def test_a_brax_object_equals_the_environment_of_its_id() -> None:
    envs = pytest.importorskip("brax.envs")
    env = envs.training.wrap(
        envs.get_environment("inverted_pendulum", backend="generalized"), episode_length=5
    )
    found = rollax.from_brax(env, max_steps=2)
    assert found.name == "own/InvertedPendulum"
    same(found, make("brax/inverted_pendulum", max_steps=2), jnp.ones(1))


def test_a_playground_object_is_a_valid_environment() -> None:
    pytest.importorskip("mujoco_playground")
    from mujoco_playground import registry, wrapper

    env = registry.load("PointMass", config_overrides={"impl": "jax"})
    found = rollax.from_playground(wrapper.wrap_for_brax_training(env), episode_length=7)
    assert found.name == "own/PointMass" and found.time_limit == 7
    assert getattr(found, "dynamics", None) is env, "physics of a wrapper are read by nobody"
    check_contract(found)


@struct.dataclass
class LegacyState(gymnax_environment.EnvState):
    place: jax.Array


@struct.dataclass
class LegacyParams(gymnax_environment.EnvParams):
    max_steps_in_episode: int = 6


class Legacy(gymnax_environment.Environment):
    """Environment written for Gymnax before 1.0, where `done` includes the time limit.

    Action 1 moves towards the goal.
    """

    @property
    def default_params(self) -> LegacyParams:
        return LegacyParams()

    def reset_env(self, key: jax.Array, params: Any) -> Any:
        state = LegacyState(time=0, place=jnp.zeros(()))  # pyright: ignore[reportCallIssue]
        return jnp.stack([state.place]), state

    def step_env(self, key: jax.Array, state: Any, action: Any, params: Any) -> Any:
        state = LegacyState(time=state.time + 1, place=state.place + action)  # pyright: ignore[reportCallIssue]
        done = self.is_terminal(state, params)
        return (
            jnp.stack([state.place]),
            state,
            jnp.ones(()),
            done,
            {"discount": self.discount(state, params)},
        )

    def is_terminal(self, state: Any, params: Any) -> jax.Array:
        return (state.place >= 6) | (state.time >= params.max_steps_in_episode)

    def action_space(self, params: Any = None) -> Any:
        return gymnax_spaces.Discrete(3)

    def observation_space(self, params: Any) -> Any:
        return gymnax_spaces.Box(0, 20, (1,), jnp.float32)


class LegacyDone(Legacy):
    """Environment with an additional goal in `step_env`."""

    def step_env(self, key: jax.Array, state: Any, action: Any, params: Any) -> Any:
        obs, state, reward, done, info = super().step_env(key, state, action, params)
        return obs, state, reward, done | (state.place == 4), info


@pytest.mark.parametrize(
    ("kind", "action", "length", "terminated"),
    [
        (Legacy, 0, 6, False),
        (Legacy, 1, 6, True),
        (Legacy, 2, 3, True),
        (LegacyDone, 2, 2, True),
        (LegacyDone, 0, 6, False),
    ],
)
def test_ends_of_a_class_for_gymnax_before_1_are_distinguished(
    kind: Any, action: int, length: int, terminated: bool
) -> None:
    environment = rollax.from_gymnax(kind())
    state, _ = environment.reset(jax.random.key(0))
    for step in range(1, length + 1):
        after = environment.step(jax.random.key(1), state, jnp.asarray(action))
        state = after.state
        assert bool(after.terminated | after.truncated) == (step == length)
    assert (bool(after.terminated), bool(after.truncated)) == (terminated, not terminated)  # pyright: ignore


def test_a_gymnax_class_that_lacks_a_method_is_refused() -> None:
    class Unfinished(Legacy):
        def step_env(self, key: jax.Array, state: Any, action: Any, params: Any) -> Any:
            raise NotImplementedError

    with pytest.raises(UsageError, match="step_env.* of Unfinished, got NotImplementedError"):
        rollax.from_gymnax(Unfinished())
