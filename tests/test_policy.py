"""Tests of `rollax.load` and of the loaded policy."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rollax
from rollax.acting.evaluation import make_evaluator
from rollax.networks import distributions
from rollax.networks.network import ActorCriticOutput
from rollax.training.compile import keys
from rollax.training.compile.evaluators import max_eval_steps
from rollax.training.console.messages import describe_result
from rollax.training.result import Result
from rollax.training.spec import make_spec
from rollax.visualization.render.recorded_episodes import episode_keys
from support.fixtures import compile_once, train  # noqa: F401
from support.runs import FRAMES, NETWORK, SMALL, Script, evaluations, options


@pytest.fixture(params=["none", "gru"])
def policy(train: Callable, request: pytest.FixtureRequest) -> rollax.Policy:
    """Return policies with and without memory."""
    config = rollax.PPOConfig(
        num_envs=4, num_steps=8, sequence_length=8, num_minibatches=2, num_epochs=1
    )
    memory = {} if request.param == "none" else {"core_size": 8}
    network = rollax.NetworkConfig(hidden=(8,), core=request.param, **memory)
    return rollax.load(train(config=config, network=network).folder)


def play(policy: rollax.Policy, seed: int, greedy: bool = True) -> list[tuple[Any, ...]]:
    """Play one episode step by step, and return observations, actions and rewards."""
    reset_key, key = jax.random.split(jax.random.key(seed))
    state, obs = policy.environment.reset(reset_key)
    carry, steps, ended = policy.initial_carry(), [], False
    act = jax.jit(policy.act, static_argnames="greedy")
    while not ended:
        key, act_key, step_key = jax.random.split(key, 3)
        action, carry = act(obs, carry, act_key, greedy=greedy)
        after = policy.environment.step(step_key, state, action)
        steps.append((obs.tolist(), int(action), float(after.reward)))
        state, obs, ended = after.state, after.obs, bool(after.terminated | after.truncated)
    return steps


def test_an_episode_step_by_step(policy: rollax.Policy) -> None:
    """It has the expected length, and greedy actions do not depend on the key."""
    first = play(policy, 0)
    assert len(first) == 4
    assert first == play(policy, 0)
    obs, carry = jnp.ones(1), policy.initial_carry()
    actions = {int(policy.act(obs, carry, jax.random.key(n))[0]) for n in range(20)}
    assert len(actions) == 1
    sampled = {int(policy.act(obs, carry, jax.random.key(n), greedy=False)[0]) for n in range(50)}
    assert sampled == {0, 1}


@pytest.mark.quick
def test_act_is_pure(policy: rollax.Policy) -> None:
    """Results are equal if it is compiled, and for many streams at once."""
    obs = jnp.linspace(-1, 1, 6)[:, None]
    carry = jax.tree.map(lambda x: jnp.broadcast_to(x, (6, *jnp.shape(x))), policy.initial_carry())
    keys = jax.random.split(jax.random.key(0), 6)
    act = jax.jit(jax.vmap(policy.act))
    action, after = act(obs, carry, keys)
    for i in range(6):
        one, one_after = policy.act(obs[i], policy.initial_carry(), keys[i])
        assert int(one) == int(action[i])
        for mine, theirs in zip(jax.tree.leaves(one_after), jax.tree.leaves(after), strict=True):
            np.testing.assert_allclose(mine, theirs[i], rtol=1e-5, atol=1e-6)
    assert jax.tree.structure(after) == jax.tree.structure(carry)
    has_memory = bool(jax.tree.leaves(policy.initial_carry()))
    assert has_memory == (policy.spec.network.core == "gru")


def test_memory_is_reset_where_episodes_start(policy: rollax.Policy) -> None:
    """Reset single environments, some of many, and some agents of each."""
    first = policy.initial_carry()
    no, yes = False, True
    for begins in (
        jnp.asarray(yes),
        jnp.asarray([yes, no, yes]),
        jnp.asarray([[yes, no], [no, no], [yes, yes]]),
    ):
        used = jax.tree.map(
            lambda x, begins=begins: jnp.full((*begins.shape, *jnp.shape(x)), 7.0), first
        )
        reset = jax.jit(policy.reset_memory)(used, begins)
        for x, start in zip(jax.tree.leaves(reset), jax.tree.leaves(first), strict=True):
            for place in np.ndindex(begins.shape):
                np.testing.assert_array_equal(
                    x[place], start if begins[place] else jnp.full_like(start, 7.0)
                )


def test_evaluate_is_deterministic(policy: rollax.Policy) -> None:
    """The same key gives the same episodes."""
    numbers, episodes = policy.evaluate(8, jax.random.key(1))
    further, _ = policy.evaluate(
        8, jax.random.key(1), metrics=lambda played: {"longest": played.length.max()}
    )
    assert further == numbers | {"longest": 4}
    again = policy.evaluate(8, jax.random.key(1))
    assert numbers == again[0]
    np.testing.assert_array_equal(episodes.returns, again[1].returns)
    assert numbers["return_mean"] == pytest.approx(float(np.mean(episodes.returns)))
    assert (episodes.length == 4).all()


def test_evaluations_of_a_run_equal_those_of_its_policy(train: Callable) -> None:
    """With the key of the run, the evaluator returns the recorded episodes."""
    result = train(seed=4)
    policy = rollax.load(result.folder)
    steps = max_eval_steps(policy.environment, policy.spec)
    episodes = jax.jit(make_evaluator(policy.environment, policy.algorithm, 8, steps, True))(
        policy.state, keys.evaluation_key(4)
    )
    np.testing.assert_array_equal(episodes.returns, evaluations(result.folder)["returns"][-1])


def test_all_purposes_have_different_keys() -> None:
    """Keys differ for all seeds, and so do the keys that they are split into.

    They are for training, evaluations, offspring, later evaluations and rendering.
    """
    seeds = range(20)
    later = [jax.random.key(seed) for seed in seeds]
    found = [
        *later,
        *map(keys.training_key, seeds),
        *map(keys.evaluation_key, seeds),
        *map(keys.offspring_key, seeds),
    ]
    found += [
        *map(keys.policy_evaluation_key, later),
        *(episode_keys(seed, 8)[0] for seed in seeds),
    ]
    parts = jax.vmap(lambda key: jax.random.split(key, 8))(jnp.stack(found[len(later) :]))
    numbers = np.concatenate(
        [jax.random.key_data(jnp.stack(found)), jax.random.key_data(parts).reshape(-1, 2)]
    )
    assert len(np.unique(numbers, axis=0)) == len(numbers)


@pytest.mark.parametrize("keep_best", [0, 1])
def test_the_last_lines_name_the_best_checkpoint(tmp_path: Path, keep_best: int) -> None:
    """They have a command to evaluate it if the run stores one."""
    spec = make_spec(
        "ppo", "probe/memory", {}, SMALL, NETWORK, options(tmp_path, keep_best=keep_best), {}
    )
    told = Result(tmp_path, "done", 0, 64, {}, 1.0, 64.0, best=(64, 1.0) if keep_best else None)
    lines = describe_result(told, spec, rollax.make("probe/memory"))
    assert any(f"eval {tmp_path}  " in line for line in lines)
    assert any(f"eval {tmp_path} --checkpoint best" in line for line in lines) == bool(keep_best)
    assert any(f"render {tmp_path}" in line for line in lines)
    lines = describe_result(
        Result(tmp_path, "done", 0, 64, {}, 1.0, 64.0), spec, rollax.make("task/arm")
    )
    assert not any("render" in line for line in lines)


def test_evaluate_plays_other_episodes_than_the_run(train: Callable) -> None:
    """This holds even if the key has the seed of the run."""
    folder = train(environment="gymnax/CartPole-v1", seed=4, eval_stochastic=True, updates=1).folder
    _, episodes = rollax.load(folder).evaluate(8, jax.random.key(4), greedy=False)
    assert not np.array_equal(
        np.sort(episodes.returns), np.sort(evaluations(folder)["returns"][-1])
    )


def test_the_choice_of_a_checkpoint(train: Callable) -> None:
    """It is the last, the best, or that of a step. An error lists the existing ones."""
    result = train(environment="probe/action-reward", eval_stochastic=True, keep_last=20)
    kept = evaluations(result.folder)
    means = kept["returns"].mean(axis=1)
    best = int(kept["step"][np.flatnonzero(means == means.max())[-1]])
    assert rollax.load(result.folder).step == 12 * FRAMES
    assert rollax.load(result.folder, checkpoint="best").step == best
    for which in (4 * FRAMES, str(4 * FRAMES)):
        early = rollax.load(result.folder, checkpoint=which)
        assert (early.step, int(early.state.updates)) == (4 * FRAMES, 4)
    for which in ("worst", 7, -1):
        with pytest.raises(rollax.UsageError, match=rf"checkpoint.*{6 * FRAMES}"):
            rollax.load(result.folder, checkpoint=which)


class Count(eqx.Module):
    """Custom environment with three steps, and a reward for action 1."""

    bonus: jax.Array

    name = "mine/count"
    observation_space = rollax.make("probe/two-steps").observation_space
    action_space = rollax.make("probe/action-reward").action_space
    num_agents = None
    time_limit = 3

    def reset(self, key: jax.Array) -> tuple[Any, Any]:
        return jnp.zeros((), jnp.int32), jnp.zeros(1)

    def step(self, key: jax.Array, state: Any, action: Any) -> rollax.Transition:
        reward = (action == 1) * self.bonus
        last = state >= 2
        return rollax.Transition(
            state + 1, jnp.full(1, state / 3), reward, last, jnp.zeros((), bool), {}
        )


class Linear(eqx.Module):
    """Smallest possible actor-critic network."""

    layer: eqx.nn.Linear

    def initial_carry(self) -> Any:
        return ()

    def __call__(self, carry: Any, obs: Any) -> tuple[Any, ActorCriticOutput]:
        *logits, value = self.layer(obs)
        return carry, ActorCriticOutput(
            distributions.masked_categorical(jnp.stack(logits), jnp.ones(2, bool)), value
        )


def test_a_custom_environment_and_network(train: Callable) -> None:
    """Objects are passed to `train`, and again to `load`."""
    from rollax.networks.network import StepwiseNetwork

    environment = Count(jnp.asarray(5.0, jnp.float32))

    def network(key: jax.Array) -> Any:
        return StepwiseNetwork(Linear(eqx.nn.Linear(1, 3, key=key)))

    config = rollax.PPOConfig(
        num_envs=4, num_steps=8, num_minibatches=2, num_epochs=4, learning_rate=0.05
    )
    show = Script()
    result = train(environment=environment, network=network, config=config, show=show)
    assert result.status == "done"
    # Three times 5 for action 1.
    assert evaluations(result.folder)["returns"][-1].tolist() == [15.0] * 8
    policy = rollax.load(result.folder, environment=environment, network=network)
    assert [step[1:] for step in play(policy, 0)] == [(1, 5.0)] * 3
    assert isinstance(policy.state.train.network, StepwiseNetwork)
