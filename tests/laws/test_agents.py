"""What holds where there are several agents: who learns from whom, and what agents that have left do not do."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from laws.programs import assert_close, assert_equal, begun, compilation, differs, fresh, plain, programs
from laws.table import BY_NAME
from laws.walk import Walk
from rollax.acting import agents, rollout
from rollax.algorithms.on_policy import Happened, Learner
from rollax.algorithms.ppo import learn
from rollax.environments import Streams
from rollax.learning import normalization

EARLY = Walk(agents=4, early=True)
TEAMS = {sharing: agents.team(EARLY, sharing) for sharing in ("all", "type", "none")}


def test_who_shares_with_whom() -> None:
    assert [group.agents for group in TEAMS["all"].groups] == [(0, 1, 2, 3)] and TEAMS["all"].is_one
    assert [(group.name, group.agents) for group in TEAMS["type"].groups] == [("walker", (0, 3)), ("runner", (1, 2))]
    assert not any(group.is_separate for group in TEAMS["type"].groups)
    assert [group.agents for group in TEAMS["none"].groups] == [(0, 3), (1, 2)]
    assert all(group.is_separate for group in TEAMS["none"].groups)
    assert agents.team(Walk(), "none").is_one, "without agents there is nothing to share"


@pytest.mark.parametrize("sharing", TEAMS)
def test_streams_come_back_in_their_order(sharing: str) -> None:
    team, values = TEAMS[sharing], {"a": jnp.arange(3 * 8 * 2).reshape(3, 8, 2), "b": jnp.arange(24).reshape(3, 8)}
    parts = agents.split(team, values, 1)
    assert_equal(agents.join(team, parts, 1), values)
    if sharing == "type":  # streams of two environments: agents 0 and 3 of each
        assert parts["walker"]["b"][0].tolist() == [0, 3, 4, 7]
    if sharing == "none":  # the runner 2 in two environments
        assert parts["runner"]["b"][1, 0].tolist() == [2, 6]


@pytest.mark.parametrize("sharing", TEAMS)
def test_every_agent_acts_by_its_own_parameters(sharing: str) -> None:
    """`each` hands an agent's values to the parameters of its group, or its own."""
    team = TEAMS[sharing]
    made = agents.make(team, lambda key: jax.random.uniform(key), jax.random.key(0))
    add = lambda number, x: (jnp.broadcast_to(number, x.shape),)  # noqa: E731
    (spread,) = agents.each(team, add, made, agents.split(team, jnp.zeros(8), 0))
    numbers = np.asarray(agents.join(team, spread, 0)).reshape(2, 4)
    np.testing.assert_array_equal(numbers[0], numbers[1])
    same = {"all": [[0, 1, 2, 3]], "type": [[0, 3], [1, 2]], "none": [[0], [1], [2], [3]]}[sharing]
    assert len(np.unique(numbers[0])) == len(same)
    assert all(len(np.unique(numbers[0, together])) == 1 for together in same)


@pytest.mark.parametrize("name", ["ppo-gru", "impala"])
def test_one_agent_is_no_agents(name: str) -> None:
    """Training with an axis of one agent is training without it, bit for bit, whoever shares with whom."""
    row = BY_NAME[name]
    states = []
    for environment, sharing in ((Walk(), "all"), (Walk(agents=1), "all"), (Walk(agents=1), "none")):
        algorithm = row.make(environment)
        config = dataclasses.replace(row.config, sharing=sharing)
        with compilation(optimized=False):
            state = jax.jit(lambda key, a=algorithm, c=config: a.init(key, c))(jax.random.key(0))
            step = jax.jit(algorithm.step)
            for _ in range(2):
                state, metrics = step(fresh(state))
        states.append((state.network, state.optimizer, metrics))
    for state in states[1:]:
        assert_equal(states[0], state)


def trajectory_of(name: str) -> tuple[Any, Any, Any]:
    """The row's state, and a trajectory with the actor after it."""
    row, state = BY_NAME[name], begun(name)
    team = agents.team(row.environment, row.config.sharing)
    streams = Streams(row.environment, row.config.num_envs)
    run = jax.jit(lambda actor, key: rollout.rollout(streams, team, state.network, actor, key, row.config.num_steps))
    actor, trajectory, _ = run(fresh(state.actor), jax.random.key(5))
    return state, actor, trajectory


def taught(state: Any, actor: Any, trajectory: Any, **settings: Any) -> Any:
    """What `learn` makes of a trajectory for one set of parameters: learner, discounted return, metrics."""
    config = dataclasses.replace(state.config, **settings)
    learner = Learner(state.network, state.optimizer, state.observations, state.returns)
    run = jax.jit(lambda happened, key: learn(config, jnp.zeros(()), learner, happened, key))
    return run(Happened(trajectory, actor.carry, actor.discounted_return), jax.random.key(1))


def test_the_order_of_agents_does_not_matter() -> None:
    """One gradient step over everything: agents in another order give the same parameters, within rounding."""
    state, actor, trajectory = trajectory_of("ppo-agents")
    order = np.random.default_rng(0).permutation(trajectory.reward.shape[1])
    whole = {"num_minibatches": 1, "num_epochs": 1}
    one = taught(state, actor, trajectory, **whole)
    carry, discounted = jax.tree.map(lambda x: x[order], (actor.carry, actor.discounted_return))
    swapped = actor._replace(carry=carry, discounted_return=discounted)
    other = taught(state, swapped, jax.tree.map(lambda x: x[:, order], trajectory), **whole)
    assert_close(one[0].network, other[0].network, 1e-5)
    assert differs(state.network, one[0].network)


def test_the_order_of_agents_apart_does_not_matter() -> None:
    """Agents that share with none, in another order with their parameters: each learns the same, within rounding."""
    state, actor, trajectory = trajectory_of("ppo-apart")
    row = BY_NAME["ppo-apart"]
    team = agents.team(row.environment, "none")
    (runners,) = (group for group in team.groups if len(group.agents) > 1)
    order = np.arange(team.num_agents)
    order[list(runners.agents)] = runners.agents[::-1]
    streams = (np.arange(row.config.num_envs)[:, None] * team.num_agents + order).reshape(-1)
    own = state.network, state.optimizer, state.observations, state.returns
    config = dataclasses.replace(state.config, num_minibatches=1, num_epochs=1)

    def teach(*parts: Any) -> tuple[Any, ...]:
        *learner, trajectory, (carry, discounted) = parts
        return learn(config, jnp.zeros(()), Learner(*learner), Happened(trajectory, carry, discounted), jax.random.key(1))

    @jax.jit
    def taught_apart(own: Any, trajectory: Any, left: Any) -> Any:
        parts = agents.split(team, trajectory, 1), agents.split(team, left, 0)
        learners, discounted, _ = agents.each(team, teach, *own, *parts)
        return {name: learner.network for name, learner in learners.items()}, agents.join(team, discounted, 0)

    def turned(parts: Any) -> Any:
        """The same with the parameters of that kind in the other order."""
        return parts | {runners.name: jax.tree.map(lambda x: x[::-1], parts[runners.name])}

    left = actor.carry, actor.discounted_return
    one, sums = taught_apart(own, trajectory, left)
    swapped = jax.tree.map(lambda x: x[:, streams], trajectory), jax.tree.map(lambda x: x[streams], left)
    other, other_sums = taught_apart(tuple(turned(part) for part in own), *swapped)
    assert_close(turned(one), other, 1e-5)
    assert_close(sums[streams], other_sums, 1e-5)
    unturned, _ = taught_apart(own, *swapped)
    assert differs(state.network, one) and differs(turned(one), unturned), "to whom the parameters belong matters"


def early_row() -> tuple[Any, Any, Any]:
    """A trajectory of agents that leave early, with the parameters of one group."""
    row = BY_NAME["ppo-agents"]
    environment = Walk(agents=3, early=True)
    algorithm = row.make(environment)
    config = dataclasses.replace(row.config, normalize_observations=True, normalize_rewards=True)
    state = jax.jit(lambda key: algorithm.init(key, config))(jax.random.key(0))
    team = agents.team(environment, "all")
    streams = Streams(environment, config.num_envs)
    run = jax.jit(lambda actor, key: rollout.rollout(streams, team, state.network, actor, key, config.num_steps))
    actor, trajectory, episodes = run(fresh(state.actor), jax.random.key(5))
    return state, actor, (trajectory, episodes)


def test_agents_that_left_are_absent() -> None:
    """From the step after an agent's own end until the episode is over; nothing is added to its return or its length."""
    _, _, (trajectory, episodes) = early_row()
    ended = np.asarray(trajectory.terminated | trajectory.truncated)
    reset, present = np.asarray(trajectory.reset), np.asarray(trajectory.present)
    assert np.array_equal(present[1:], ~ended[:-1] | reset[1:]), "absent after the end, until the episode is over"
    assert (~present).any() and present[0].all()
    assert not np.any(np.asarray(trajectory.reward)[~present])
    assert float(episodes.total_length) <= present.sum()


def test_what_absent_agents_do_teaches_nothing() -> None:
    """Neither what they see nor draw, value or are paid: parameters and statistics are the same, bit for bit."""
    state, actor, (trajectory, _) = early_row()
    absent = ~np.asarray(trajectory.present)

    def spoil(x: jax.Array) -> jax.Array:
        shaped = absent.reshape(absent.shape + (1,) * (x.ndim - 2))
        return jnp.where(jnp.asarray(np.broadcast_to(shaped, x.shape)), (x * 0 + 3).astype(x.dtype), x)

    spoilt = trajectory._replace(
        **{name: spoil(getattr(trajectory, name)) for name in ("obs", "final_obs", "value", "log_prob")},
        draw=jnp.where(jnp.asarray(absent), 1, trajectory.draw),
        reward=spoil(trajectory.reward),
    )
    clean, dirty = taught(state, actor, trajectory), taught(state, actor, spoilt)
    assert_equal(clean[0], dirty[0])
    seen = [normalization.update(state.observations, t.obs, axes=2, weight=t.present) for t in (trajectory, spoilt)]
    assert_equal(*seen)
    everything = spoilt._replace(present=jnp.ones_like(trajectory.present))
    assert differs(clean[0].network, taught(state, actor, everything)[0].network), "the mask is what makes the difference"
    assert differs(seen[0], normalization.update(state.observations, spoilt.obs, axes=2))


@pytest.mark.parametrize("name", ["ppo-types", "ppo-apart"])
def test_groups_learn_apart(name: str) -> None:
    """Every group's parameters change, each in its own way, and each has metrics of its own."""
    before = programs(name).init(jax.random.key(0))
    after, metrics = programs(name).step(before)
    row = BY_NAME[name]
    for group in agents.team(row.environment, row.config.sharing).groups:
        assert differs(before.network[group.name], after.network[group.name])
        labels = [f"agent {agent}" for agent in group.agents] if group.is_separate else [group.name]
        assert all(np.isfinite(metrics[f"{label}/entropy"]) for label in labels)
    apart = [float(value) for name, value in metrics.items() if name.endswith("/policy_loss")]
    assert len(set(apart)) == len(apart) > 1
    assert float(metrics["policy_loss"]) == pytest.approx(np.mean(apart), rel=1e-4, abs=1e-6)


def test_a_group_learns_as_if_alone() -> None:
    """What the runners become does not depend on what the walkers saw."""
    state = begun("ppo-types")
    other = state._replace(network={**state.network, "walker": jax.tree.map(lambda x: x + 0.1, state.network["walker"])})
    row = BY_NAME["ppo-types"]
    with compilation(optimized=False):
        one, _ = programs("ppo-types").step(state)
        two, _ = programs("ppo-types").step(other)
    runner = lambda after: plain(after.network["runner"])  # noqa: E731
    assert row.environment.agent_types[1] == "runner"
    assert_equal(runner(one), runner(two))
    assert differs(plain(one.network["walker"]), plain(two.network["walker"]))


@pytest.mark.parametrize("name", ["ppo", "ppo-apart", "impala"])
def test_one_step_of_one_environment_is_enough(name: str) -> None:
    """Sizes of one: one environment, one step, one minibatch. The advantage alone moves the policy."""
    row = BY_NAME[name]
    sizes = dict.fromkeys(("num_envs", "num_steps", "sequence_length", "num_minibatches"), 1)
    config = dataclasses.replace(row.config, **sizes, entropy_coefficient=0.0)
    algorithm = row.make(row.environment)
    state = jax.jit(lambda key: algorithm.init(key, config))(jax.random.key(0))
    with compilation(optimized=False):
        after, metrics = jax.jit(algorithm.step)(fresh(state))
    assert all(bool(metrics[name]) for name in metrics if name.startswith("finite/"))
    assert np.isfinite(float(metrics["loss"]))
    for group in agents.team(row.environment, config.sharing).groups:
        before, now = ((s.network[group.name] if group.name else s.network) for s in (state, after))
        assert differs(before.actor, now.actor) and differs(before.critic, now.critic)
