"""Tests of several agents: parameter sharing, and masks of agents that are done."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from laws.programs import assert_close, assert_equal, begun, differs, fresh, plain, programs
from laws.table import BY_NAME
from laws.walk import Walk
from rollax.acting import parameter_sharing
from rollax.acting.streams import flatten_streams, unroll
from rollax.algorithms.on_policy import LearnResult, RolloutEnd
from rollax.algorithms.ppo import learn
from rollax.learning import normalization, train_state
from support.parameters import mark_quick

EARLY = Walk(agents=4, early=True)
TEAMS = {
    sharing: parameter_sharing.make_agent_groups(EARLY, sharing)
    for sharing in ("all", "type", "none")
}


@pytest.mark.quick
def test_agents_are_grouped_by_sharing() -> None:
    assert [group.agents for group in TEAMS["all"].groups] == [(0, 1, 2, 3)] and TEAMS[
        "all"
    ].is_fully_shared
    assert [(group.name, group.agents) for group in TEAMS["type"].groups] == [
        ("walker", (0, 3)),
        ("runner", (1, 2)),
    ]
    assert not any(group.has_separate_parameters for group in TEAMS["type"].groups)
    assert [group.agents for group in TEAMS["none"].groups] == [(0, 3), (1, 2)]
    assert all(group.has_separate_parameters for group in TEAMS["none"].groups)
    assert parameter_sharing.make_agent_groups(Walk(), "none").is_fully_shared, (
        "without agents there is nothing to share"
    )


@pytest.mark.quick
@pytest.mark.parametrize("sharing", TEAMS)
def test_splitting_and_joining_groups_keeps_the_order(sharing: str) -> None:
    team, values = (
        TEAMS[sharing],
        {"a": jnp.arange(3 * 8 * 2).reshape(3, 8, 2), "b": jnp.arange(24).reshape(3, 8)},
    )
    parts = parameter_sharing.split_groups(team, values, 1)
    assert_equal(parameter_sharing.join_groups(team, parts, 1), values)
    if sharing == "type":  # streams of two environments: agents 0 and 3 of each
        assert parts["walker"]["b"][0].tolist() == [0, 3, 4, 7]
    if sharing == "none":  # runner 2 in two environments
        assert parts["runner"]["b"][1, 0].tolist() == [2, 6]


@pytest.mark.parametrize("sharing", TEAMS)
def test_agents_use_the_parameters_of_their_group(sharing: str) -> None:
    """`map_groups` passes values of an agent to the parameters of its group, or to its own."""
    team = TEAMS[sharing]
    made = parameter_sharing.init_groups(
        team, lambda key: jax.random.uniform(key), jax.random.key(0)
    )

    def add(number, x):
        return jnp.broadcast_to(number, x.shape)

    spread = parameter_sharing.map_groups(
        team, add, made, parameter_sharing.split_groups(team, jnp.zeros(8), 0)
    )
    numbers = np.asarray(parameter_sharing.join_groups(team, spread, 0)).reshape(2, 4)
    np.testing.assert_array_equal(numbers[0], numbers[1])
    same = {"all": [[0, 1, 2, 3]], "type": [[0, 3], [1, 2]], "none": [[0], [1], [2], [3]]}[sharing]
    assert len(np.unique(numbers[0])) == len(same)
    assert all(len(np.unique(numbers[0, together])) == 1 for together in same)


@pytest.mark.parametrize("name", mark_quick(["ppo-gru", "impala"], "impala"))
def test_one_agent_equals_no_agent_axis(name: str) -> None:
    """Training with an axis of one agent equals training without it, within rounding.

    This holds for any parameter sharing.
    """
    row = BY_NAME[name]
    states = []
    for environment, sharing in (
        (Walk(), "all"),
        (Walk(agents=1), "all"),
        (Walk(agents=1), "none"),
    ):
        algorithm = row.make(environment)
        config = dataclasses.replace(row.config, sharing=sharing)
        state = jax.jit(lambda key, a=algorithm, c=config: a.init(key, c))(jax.random.key(0))
        step = jax.jit(algorithm.step)
        for _ in range(2):
            state, metrics = step(fresh(state))
        states.append((state.train.network, state.train.optimizer, metrics))
    for state in states[1:]:
        assert_close(states[0], state, 1e-6)


def unrolled(environment: Any, state: Any) -> tuple[Any, Any, Any]:
    """Return the end of a rollout, the rollout, and the sums over its episodes.

    The end has the memory after the rollout and the discounted returns before it.
    """
    team = parameter_sharing.make_agent_groups(environment, state.config.sharing)

    def run(train: Any, actor: Any, key: jax.Array) -> Any:
        return unroll(
            environment,
            parameter_sharing.make_policy(team, train_state.sample_action_with_extras, train),
            actor,
            key,
            state.config.num_steps,
        )

    actor, rollout, episodes = jax.jit(run)(state.train, fresh(state.actor), jax.random.key(5))
    streams = flatten_streams(environment, (actor.carry, actor.obs, actor.agent_done))
    return RolloutEnd(*streams, state.discounted_return), rollout, episodes


def taught(state: Any, last: Any, rollout: Any, **settings: Any) -> Any:
    """Return the train state after `learn` with one set of parameters."""
    config = dataclasses.replace(state.config, **settings)
    run = jax.jit(
        lambda rollout, last, key: (
            learn(config, jnp.zeros(()), state.train, rollout, last, key).train
        )
    )
    return run(rollout, last, jax.random.key(1))


def test_the_order_of_agents_does_not_matter() -> None:
    """After one gradient step over all samples, the parameters are equal within rounding."""
    state = begun("ppo-agents")
    last, rollout, _ = unrolled(BY_NAME["ppo-agents"].environment, state)
    order = np.random.default_rng(0).permutation(rollout.reward.shape[1])
    whole = {"num_minibatches": 1, "num_epochs": 1}
    one = taught(state, last, rollout, **whole)
    swapped = jax.tree.map(lambda x: x[order], last), jax.tree.map(lambda x: x[:, order], rollout)
    other = taught(state, *swapped, **whole)
    assert_close(one.network, other.network, 1e-5)
    assert differs(state.train.network, one.network)


def test_the_order_of_agents_without_sharing_does_not_matter() -> None:
    """Agents and their parameters are permuted. Each agent learns the same within rounding."""
    row, state = BY_NAME["ppo-apart"], begun("ppo-apart")
    last, rollout, _ = unrolled(row.environment, state)
    team = parameter_sharing.make_agent_groups(row.environment, "none")
    (runners,) = (group for group in team.groups if len(group.agents) > 1)
    order = np.arange(team.num_agents)
    order[list(runners.agents)] = runners.agents[::-1]
    streams = (np.arange(row.config.num_envs)[:, None] * team.num_agents + order).reshape(-1)
    config = dataclasses.replace(state.config, num_minibatches=1, num_epochs=1)

    def teach(train: Any, rollout: Any, last: Any) -> LearnResult:
        return learn(config, jnp.zeros(()), train, rollout, last, jax.random.key(1))

    @jax.jit
    def taught_apart(own: Any, rollout: Any, last: Any) -> Any:
        parts = (
            parameter_sharing.split_groups(team, rollout, 1),
            parameter_sharing.split_groups(team, last),
        )
        results = parameter_sharing.map_groups(team, teach, own, *parts)
        result = parameter_sharing.collect_fields(team, results)
        networks = {name: train.network for name, train in result.train.items()}
        return networks, parameter_sharing.join_groups(team, result.discounted_return)

    def turned(parts: Any) -> Any:
        """Return the tree with the parameters of the runners in reverse order."""
        return parts | {runners.name: jax.tree.map(lambda x: x[::-1], parts[runners.name])}

    one, sums = taught_apart(state.train, rollout, last)
    swapped = (
        jax.tree.map(lambda x: x[:, streams], rollout),
        jax.tree.map(lambda x: x[streams], last),
    )
    other, other_sums = taught_apart(turned(state.train), *swapped)
    assert_close(turned(one), other, 1e-5)
    assert_close(sums[streams], other_sums, 1e-5)
    unturned, _ = taught_apart(state.train, *swapped)
    before = {name: train.network for name, train in state.train.items()}
    assert differs(before, one) and differs(turned(one), unturned), (
        "to whom the parameters belong matters"
    )


def early_row() -> tuple[Any, Any, Any, Any]:
    """Return a state of agents that leave early, and the results of `unrolled` for it.

    The state has one set of parameters.
    """
    row = BY_NAME["ppo-agents"]
    environment = Walk(agents=3, early=True)
    algorithm = row.make(environment)
    config = dataclasses.replace(row.config, normalize_observations=True, normalize_rewards=True)
    state = jax.jit(lambda key: algorithm.init(key, config))(jax.random.key(0))
    return state, *unrolled(environment, state)


@pytest.mark.quick
def test_agents_that_are_done_are_masked() -> None:
    """They are masked from the step after their end until the episode ends.

    Nothing is added to their return and length.
    """
    _, _, rollout, episodes = early_row()
    ended = np.asarray(rollout.terminated | rollout.truncated)
    reset, mask = np.asarray(rollout.reset), np.asarray(rollout.mask)
    assert np.array_equal(mask[1:], ~ended[:-1] | reset[1:]), (
        "absent after the end, until the episode is over"
    )
    assert (~mask).any() and mask[0].all()
    assert not np.any(np.asarray(rollout.reward)[~mask])
    assert float(episodes.total_length) <= mask.sum()


def test_agents_that_are_done_do_not_affect_learning() -> None:
    """Observations, actions, values and rewards of absent agents change no parameter or statistic.

    The results are equal bit for bit.
    """
    state, last, rollout, _ = early_row()
    absent = ~np.asarray(rollout.mask)

    def spoil(x: jax.Array) -> jax.Array:
        shaped = absent.reshape(absent.shape + (1,) * (x.ndim - 2))
        return jnp.where(
            jnp.asarray(np.broadcast_to(shaped, x.shape)), (x * 0 + 3).astype(x.dtype), x
        )

    extras = rollout.extras
    spoilt = rollout._replace(
        **{name: spoil(getattr(rollout, name)) for name in ("obs", "next_obs", "reward")},
        extras=extras._replace(
            raw_action=jnp.where(jnp.asarray(absent), 1, extras.raw_action),
            log_prob=spoil(extras.log_prob),  # values follow from the observations
        ),
    )
    clean, dirty = taught(state, last, rollout), taught(state, last, spoilt)
    assert_equal(clean, dirty)
    before = state.train.observations
    seen = [
        normalization.update_moments(before, r.obs, axes=2, mask=r.mask) for r in (rollout, spoilt)
    ]
    assert_equal(*seen)
    assert_close(clean.observations, seen[0])
    everything = spoilt._replace(mask=jnp.ones_like(rollout.mask))
    assert differs(clean.network, taught(state, last, everything).network), (
        "the mask is what makes the difference"
    )
    assert differs(seen[0], normalization.update_moments(before, spoilt.obs, axes=2))


@pytest.mark.parametrize("name", ["ppo-types", "ppo-apart"])
def test_groups_have_separate_parameters_and_metrics(name: str) -> None:
    """The parameters of every group change differently, and every group has its own metrics."""
    before = programs(name).init(jax.random.key(0))
    after, metrics = programs(name).step(before)
    row = BY_NAME[name]
    for group in parameter_sharing.make_agent_groups(row.environment, row.config.sharing).groups:
        assert differs(before.train[group.name].network, after.train[group.name].network)
        labels = (
            [f"agent {agent}" for agent in group.agents]
            if group.has_separate_parameters
            else [group.name]
        )
        assert all(np.isfinite(metrics.values[f"{label}/entropy"]) for label in labels)
    apart = [
        float(value) for name, value in metrics.values.items() if name.endswith("/policy_loss")
    ]
    assert len(set(apart)) == len(apart) > 1
    assert float(metrics.values["policy_loss"]) == pytest.approx(np.mean(apart), rel=1e-4, abs=1e-6)


def test_a_group_does_not_depend_on_other_groups() -> None:
    """The parameters of the runners do not depend on those of the walkers."""
    state = begun("ppo-types")
    walker = state.train["walker"]
    moved = walker._replace(network=jax.tree.map(lambda x: x + 0.1, walker.network))
    other = state._replace(train={**state.train, "walker": moved})
    row = BY_NAME["ppo-types"]
    one, _ = programs("ppo-types").step(state)
    two, _ = programs("ppo-types").step(other)

    def runner(after):
        return plain(after.train["runner"].network)

    assert row.environment.agent_types[1] == "runner"
    assert_equal(runner(one), runner(two))
    assert differs(plain(one.train["walker"].network), plain(two.train["walker"].network))


@pytest.mark.parametrize("name", mark_quick(["ppo", "ppo-apart", "impala"], "ppo"))
def test_sizes_of_one(name: str) -> None:
    """An update needs only one environment, one step and one minibatch.

    The policy changes because of the advantage alone: the coefficient of the entropy is 0.
    """
    row = BY_NAME[name]
    sizes = dict.fromkeys(("num_envs", "num_steps", "sequence_length", "num_minibatches"), 1)
    config = dataclasses.replace(row.config, **sizes, entropy_coefficient=0.0)
    algorithm = row.make(row.environment)
    state = jax.jit(lambda key: algorithm.init(key, config))(jax.random.key(0))
    after, metrics = jax.jit(algorithm.step)(fresh(state))
    assert all(map(bool, metrics.finite))
    assert np.isfinite(float(metrics.values["loss"]))
    for group in parameter_sharing.make_agent_groups(row.environment, config.sharing).groups:
        before, now = (
            (s.train[group.name] if group.name else s.train).network for s in (state, after)
        )
        assert differs(before.actor, now.actor) and differs(before.critic, now.critic)
