"""Tests of the contract for every listed environment, and of the probes."""

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from counting import forget
from pythons import skip_where_too_old
from rollax.checks.environment_check import check_environment
from rollax.environments import default_arguments, list_environments, make
from rollax.environments.suites.table import SUITES

# They take seconds each, mostly to compile. Of suites with many ids, some different kinds are
# chosen.
CHOSEN = (
    "gymnax/Acrobot-v1",
    "gymnax/Breakout-MinAtar",
    "gymnax/CartPole-v1",
    "gymnax/Catch-bsuite",
    "gymnax/MemoryChain-bsuite",
    "gymnax/MetaMaze-misc",
    "gymnax/MountainCarContinuous-v0",
    "gymnax/Pendulum-v1",
    "gymnax/SpaceInvaders-MinAtar",
    "xminigrid/MiniGrid-DoorKey-5x5",
    "xminigrid/MiniGrid-MemoryS8",
    "rl2/XLand-MiniGrid-R1-9x9",
    "jaxmarl/MPE_simple_spread_v3",
    "jaxmarl/MPE_simple_speaker_listener_v4",
    "jaxmarl/switch_riddle",
    "brax/inverted_pendulum",
    "jumanji/Game2048-v1",
    "jumanji/LevelBasedForaging-v0",
    "navix/Navix-DoorKey-5x5-v0",
    "navix/Navix-Fetch-5x5-N2-v0",
    "pgx/connect_four",
    "pgx/leduc_holdem",
)
OTHERS = (
    "gymnax/",
    "xminigrid/",
    "rl2/",
    "jaxmarl/",
    "brax/",
    "craftax/",
    "jumanji/",
    "navix/",
    "pgx/",
    "playground/",
)
# Games of more than 30 random steps without a time limit to shorten.
STEPS = {
    "jumanji/Game2048-v1": 300,
    "jumanji/JobShop-v0": 400,
    "memory/autoencode": 110,
    "memory/count-recall": 60,
    "memory/higher-lower": 60,
    "memory/repeat-first": 60,
    "pgx/animal_shogi": 260,
    "pgx/backgammon": 1000,
    "pgx/chess": 520,
    "pgx/gardner_chess": 260,
    "pgx/go_19x19": 730,
    "pgx/go_9x9": 170,
    "pgx/hex": 130,
    "pgx/othello": 130,
    "pgx/shogi": 520,
    "pgx/sparrow_mahjong": 100,
}
BRAX = tuple(
    f"jaxmarl/{name}"
    for name in ("ant_4x2", "halfcheetah_6x1", "hopper_3x1", "humanoid_9|8", "walker2d_2x3")
)


def is_slow(id: str) -> bool:
    return id.startswith(OTHERS) and id not in CHOSEN


@pytest.fixture(autouse=True)
def _one_at_a_time() -> Iterator[None]:
    """Free compiled programs after each test, because all of them need gigabytes."""
    yield
    forget()


# Environments on the host are not part of JAX programs.
COMPILED = [id for id in list_environments() if not SUITES[id.split("/")[0]].is_on_host]


# The first of each suite that is not slow.
QUICK = {id.split("/")[0]: id for id in reversed(COMPILED) if not is_slow(id)}
MARKS = {id: pytest.mark.slow for id in COMPILED if is_slow(id)} | dict.fromkeys(
    QUICK.values(), pytest.mark.quick
)


@pytest.mark.parametrize("id", [pytest.param(id, marks=MARKS.get(id, ())) for id in COMPILED])
def test_every_listed_environment_passes_the_check(id: str) -> None:
    skip_where_too_old(id)
    if id in BRAX or id.startswith("brax/"):
        pytest.importorskip("brax")
    # A short limit, so that long episodes end too. 30 steps include at least four ends.
    limits = (
        "max_steps_in_episode",
        "max_steps",
        "length",
        "time_limit",
        "num_inner_steps",
        "episode_length",
        "max_timesteps",
    )
    short = {name: 6 for name in limits if name in default_arguments(id)}
    short |= {"num_outer_steps": 1} if "num_outer_steps" in default_arguments(id) else {}
    # Swimmer of Gymnax, the rooms of XLand-MiniGrid and most others add arrays of different ranks.
    with jax.numpy_rank_promotion("allow" if id.startswith(("gymnax/", *OTHERS)) else "raise"):
        env = make(id, **short)
        report = check_environment(env, steps=STEPS.get(id, 30))
    assert report.episodes > 0, report
    assert env.name == id
    assert not any(leaf.weak_type for leaf in jax.tree.leaves(env))


def _play(id: str, policy, **options: object) -> tuple[np.ndarray, np.ndarray]:
    """Return rewards of episodes from 64 starts, `[64, T, ...]`, and the first observations."""
    env = make(id, **options)

    def episode(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        reset_key, loop_key = jax.random.split(key)
        state, obs = env.reset(reset_key)
        first, rewards = obs, []
        for step_key in jax.random.split(loop_key, env.time_limit):
            transition = env.step(step_key, state, policy(first, obs))
            state, obs = transition.state, transition.obs
            rewards.append(transition.reward)
        return jnp.stack(rewards), first

    rewards, first = jax.jit(jax.vmap(episode))(jax.random.split(jax.random.key(0), 64))
    return np.asarray(rewards), jax.tree.map(np.asarray, first)


POLICIES = {
    "one-action": lambda first, obs: 0,
    "action-reward": lambda first, obs: 1,
    "action-observation": lambda first, obs: obs[0] > 0,
    "memory": lambda first, obs: first[0] > 0,
    "two-agents": lambda first, obs: obs[:, 0] * obs[:, 1] < 0,
    "two-steps": lambda first, obs: 0,
    "multi-discrete": lambda first, obs: obs > 0,
}


@pytest.mark.parametrize("name", POLICIES)
def test_the_best_policy_of_a_probe_has_its_return(name: str) -> None:
    rewards, _ = _play(
        f"probe/{name}", lambda first, obs: jnp.asarray(POLICIES[name](first, obs), jnp.int32)
    )
    np.testing.assert_allclose(rewards.sum(axis=1), 1.0)


def test_a_worse_policy_has_a_lower_return() -> None:
    wrong = {
        "action-reward": -1.0,
        "action-observation": -1.0,
        "memory": -1.0,
        "multi-discrete": 0.0,
    }
    for name, expected in wrong.items():
        policy = POLICIES[name]
        rewards, _ = _play(
            f"probe/{name}",
            lambda first, obs, policy=policy: 1 - jnp.asarray(policy(first, obs), jnp.int32),
        )
        np.testing.assert_allclose(rewards.sum(axis=1), expected)


def test_continuous_and_masked_probes() -> None:
    rewards, _ = _play("probe/continuous", lambda first, obs: obs)
    np.testing.assert_allclose(rewards, 0.0)
    rewards, _ = _play(
        "probe/masked", lambda first, obs: 3 - jnp.argmax(obs["action_mask"][::-1]), steps=40
    )
    assert (rewards >= 0).all()
    np.testing.assert_allclose(rewards.mean(), 34 / 45, atol=0.02)
    rewards, first = _play("probe/masked", lambda first, obs: 3, steps=1)
    np.testing.assert_allclose(rewards[:, 0], np.where(first["action_mask"][:, 3], 1.0, -10.0))


@pytest.mark.parametrize("terminate", [False, True])
def test_truncation_probe(terminate: bool) -> None:
    env = make("probe/truncation", time_limit=3, terminate=terminate)
    state, obs = env.reset(jax.random.key(0))
    seen = [obs]
    for time in (1, 2, 3):
        transition = env.step(jax.random.key(time), state, 0)
        state = transition.state
        seen.append(transition.obs)
        assert (bool(transition.terminated), bool(transition.truncated)) == (
            terminate and time == 3,
            not terminate and time == 3,
        )
    expected = np.vstack([np.eye(3), np.zeros((1, 3))]) if terminate else np.zeros((4, 1))
    np.testing.assert_array_equal(np.stack(seen), expected)
