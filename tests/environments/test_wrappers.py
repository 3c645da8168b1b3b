"""Tests of wrappers: previous actions and rewards, trials, time limits and repeated actions."""

from functools import cache
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rollax.acting.streams import init_actor
from rollax.checks.environment_check import check_environment
from rollax.environments import Transition, make
from rollax.environments.wrappers import ActionRepeat, PreviousActionReward, TimeLimit, Trials
from rollax.errors import UsageError
from rollax.spaces import Box, Dict, Discrete
from streaming import advance

ACTIONS, LIMIT, EPISODES = 4, 5, 3
NUM_ENVS, STEPS = 4, 80


class Levers(eqx.Module):
    """Environment in which one of four levers, which is the task, ends the episode.

    Episodes are truncated after `LIMIT` steps. Each episode observes a random number.
    """

    parts: bool = eqx.field(static=True, default=False)

    name = "test/levers"
    action_space = Discrete(ACTIONS)
    num_agents = None
    time_limit = LIMIT

    @property
    def observation_space(self) -> Any:
        place = Box(0.0, 1e9, (2,))
        return Dict({"place": place, "other": Discrete(2)}) if self.parts else place

    def sample_task(self, key: jax.Array) -> Any:
        return jax.random.randint(key, (), 0, ACTIONS)

    def reset_task(self, key: jax.Array, task: Any) -> tuple[Any, Any]:
        state = {
            "task": task,
            "number": jax.random.randint(key, (), 0, 1_000_000),
            "time": jnp.zeros((), jnp.int32),
        }
        return state, self._observe(state)

    def reset(self, key: jax.Array) -> tuple[Any, Any]:
        task_key, start_key = jax.random.split(key)
        return self.reset_task(start_key, self.sample_task(task_key))

    def step(self, key: jax.Array, state: Any, action: Any) -> Transition:
        state = {**state, "time": state["time"] + 1}
        won = action == state["task"]
        reward = action + jax.random.uniform(key)
        info = {"steps": jnp.ones(())}
        return Transition(
            state, self._observe(state), reward, won, (state["time"] >= LIMIT) & ~won, info
        )

    def _observe(self, state: Any) -> Any:
        place = jnp.stack([state["number"], state["time"]]).astype(jnp.float32)
        return {"place": place, "other": state["time"] % 2} if self.parts else place


def script(env: Any) -> dict[str, Any]:
    """Return states, observations, actions and rewards of random actions in streams, `[T, E]`."""

    def act(before: Any, key: jax.Array) -> tuple[Any, Any]:
        action_key, step_key = jax.random.split(key)
        action = jax.random.randint(action_key, (NUM_ENVS,), 0, ACTIONS)
        after, step, told = advance(env, before, action, jax.random.split(step_key, NUM_ENVS))
        shown = {
            "state": before.env_state,
            "next": after.obs,
            "following": after.env_state,
            "info": told.info,
        }
        return after, {**step._asdict(), **shown}

    run = jax.jit(lambda key, keys: jax.lax.scan(act, init_actor(env, key, NUM_ENVS, ()), keys)[1])
    return jax.tree.map(
        np.asarray, run(jax.random.key(0), jax.random.split(jax.random.key(1), STEPS))
    )


@cache
def played(kind: str) -> dict[str, Any]:
    views = {
        "recalling": PreviousActionReward(Levers()),
        "trials": PreviousActionReward(Trials(Levers(), EPISODES)),
    }
    record = script(views[kind])
    assert record["reset"].sum() > 2 * NUM_ENVS, "there are several episodes"
    assert record["terminated"].any() and (kind == "trials" or record["truncated"].any())
    return record


@pytest.mark.parametrize("kind", ["recalling", "trials"])
def test_the_previous_action_and_reward_are_observed(kind: str) -> None:
    """At the start and after every end, the reward is 0 and the action is the number of actions."""
    record = played(kind)
    obs, final, following = record["obs"], record["next_obs"], record["next"]
    np.testing.assert_array_equal(final["previous_action"], record["action"])
    np.testing.assert_array_equal(final["previous_reward"], record["reward"])
    ended = record["terminated"] | record["truncated"]
    np.testing.assert_array_equal(
        following["previous_action"], np.where(ended, ACTIONS, record["action"])
    )
    np.testing.assert_array_equal(
        following["previous_reward"], np.where(ended, 0, record["reward"])
    )
    for name in ("previous_action", "previous_reward"):
        np.testing.assert_array_equal(obs[name][1:], following[name][:-1])
    assert (obs["previous_action"][0] == ACTIONS).all() and (obs["previous_reward"][0] == 0).all()


def test_observing_previous_actions_changes_nothing_else() -> None:
    """The same keys and actions give the same episodes. A dictionary keeps its parts."""
    plain, record = script(Levers()), played("recalling")
    for name in ("reward", "terminated", "truncated", "action", "reset", "state", "info"):
        jax.tree.map(np.testing.assert_array_equal, record[name], plain[name])
    for name in ("obs", "next_obs"):
        np.testing.assert_array_equal(record[name]["observation"], plain[name])
        assert set(record[name]) == {"observation", "previous_action", "previous_reward"}
    space = PreviousActionReward(Levers(parts=True)).observation_space
    assert set(space.spaces) == {"place", "other", "previous_action", "previous_reward"}
    assert space.spaces["previous_action"] == Discrete(ACTIONS + 1)


def episode_of(record: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Return the index of the episode in its trial for every step `[T, E]`, and whether it ends."""
    inner = record["state"][0]
    ends = (record["action"] == inner["task"]) | (inner["time"] + 1 >= LIMIT)
    number = np.zeros(ends.shape, int)
    for t in range(1, STEPS):
        number[t] = np.where(record["reset"][t], 0, number[t - 1] + ends[t - 1])
    return number, ends


def test_a_trial_ends_with_its_last_episode() -> None:
    """It terminates exactly then, whether that episode terminated or was truncated."""
    record = played("trials")
    number, ends = episode_of(record)
    np.testing.assert_array_equal(record["terminated"], ends & (number == EPISODES - 1))
    assert not record["truncated"].any()
    cut = ends & (record["action"] != record["state"][0]["task"])
    assert (cut & record["terminated"]).any() and (ends & ~cut & record["terminated"]).any(), (
        "both kinds of ends are seen"
    )
    np.testing.assert_array_equal(record["state"][2], number)


def test_the_starts_of_episodes_are_observed() -> None:
    """`begins` is 1 at the start of a trial and after inner ends. After the last step it is 0."""
    record = played("trials")
    number, ends = episode_of(record)
    last = record["terminated"]
    np.testing.assert_array_equal(record["next_obs"]["begins"], ends & ~last)
    np.testing.assert_array_equal(record["next"]["begins"], ends)
    assert (record["obs"]["begins"][0] == 1).all()
    time = record["obs"]["observation"][..., 1]
    np.testing.assert_array_equal(record["obs"]["begins"] == 1, time == 0)
    assert (record["next_obs"]["observation"][..., 1][last] > 0).all(), (
        "the last observation is not that of a start"
    )


@pytest.mark.quick
def test_a_trial_has_one_task() -> None:
    """All of its episodes have the same task and different starts.

    Another trial samples another task.
    """
    record = played("trials")
    number, _ = episode_of(record)
    task, start = record["state"][0]["task"], record["obs"]["observation"][..., 0]
    trial = np.cumsum(record["reset"], axis=0)
    tasks, starts = {}, {}
    for t, e in np.ndindex(trial.shape):
        tasks.setdefault((trial[t, e], e), set()).add(int(task[t, e]))
        starts.setdefault((trial[t, e], e, number[t, e]), set()).add(int(start[t, e]))
    assert all(len(found) == 1 for found in (*tasks.values(), *starts.values()))
    assert set().union(*tasks.values()) == set(range(ACTIONS))
    assert len(set().union(*starts.values())) == len(starts), "no start is used twice"
    assert {place for _, _, place in starts} == set(range(EPISODES))


def test_returns_of_episodes_sum_to_that_of_the_trial() -> None:
    """The reward of a step is at the index of its episode, and the rest is zero."""
    record = played("trials")
    number, _ = episode_of(record)
    expected = np.where(np.arange(EPISODES) == number[..., None], record["reward"][..., None], 0)
    np.testing.assert_array_equal(record["info"]["episode_returns"], expected)
    np.testing.assert_allclose(record["info"]["episode_returns"].sum(axis=-1), record["reward"])
    assert (record["info"]["steps"] == 1).all(), "what the environment itself tells is kept"


def test_previous_actions_are_kept_between_episodes_of_a_trial() -> None:
    """After an inner end they are still observed, in contrast to an end without trials."""
    record = played("trials")
    _, ends = episode_of(record)
    inner = ends & ~record["terminated"]
    assert inner.any()
    np.testing.assert_array_equal(record["next"]["previous_action"][inner], record["action"][inner])
    single = played("recalling")
    ends = single["terminated"] | single["truncated"]
    assert (single["next"]["previous_action"][ends] == ACTIONS).all()


class Alone(Levers):
    """Environment with the starts that a trial of one episode samples."""

    def reset(self, key: jax.Array) -> tuple[Any, Any]:
        task_key, start_key = jax.random.split(key)
        return self.reset_task(jax.random.split(start_key, 1)[0], self.sample_task(task_key))


def test_a_trial_of_one_episode_equals_the_episode() -> None:
    """States, observations, rewards and restarts are the same.

    `begins` is added, and a truncation becomes a termination.
    """
    alone, trial = (
        script(PreviousActionReward(Alone(parts=True))),
        script(PreviousActionReward(Trials(Levers(parts=True), 1))),
    )
    for name in ("reward", "reset", "action"):
        np.testing.assert_array_equal(trial[name], alone[name])
    jax.tree.map(np.testing.assert_array_equal, trial["state"][0], alone["state"])
    np.testing.assert_array_equal(trial["terminated"], alone["terminated"] | alone["truncated"])
    assert alone["truncated"].any() and not trial["truncated"].any()
    np.testing.assert_array_equal(trial["obs"].pop("begins"), trial["reset"])
    assert (trial["next_obs"].pop("begins") == 0).all()
    for name in ("obs", "next_obs"):
        jax.tree.map(np.testing.assert_array_equal, trial[name], alone[name])
    np.testing.assert_array_equal(trial["info"]["episode_returns"][..., 0], alone["reward"])


@pytest.mark.parametrize("parts", [False, True])
def test_wrappers_pass_the_check(parts: bool) -> None:
    env = PreviousActionReward(Trials(Levers(parts), 2))
    assert check_environment(env, steps=30).episodes > 4
    assert (env.name, env.time_limit, env.num_agents, env.action_space) == (
        "test/levers",
        2 * LIMIT,
        None,
        Discrete(ACTIONS),
    )
    assert PreviousActionReward(Levers(parts)).time_limit == LIMIT


def test_unsupported_environments_are_refused() -> None:
    for id in ("probe/continuous", "probe/multi-discrete", "probe/two-agents"):
        with pytest.raises(
            UsageError, match=f"{id}: .*an environment with discrete actions and without agents"
        ):
            PreviousActionReward(make(id))
    for view, name in ((Trials, "episodes"), (TimeLimit, "max_steps"), (ActionRepeat, "times")):
        with pytest.raises(UsageError, match=rf"{name} \(0\) must be an integer of at least 1"):
            view(Levers(), 0)


class Steps(eqx.Module):
    """Environment that observes the time and returns it as reward.

    A single agent ends after 5 steps. With several, the first one does, and each other one a step
    later.
    """

    num_agents: int | None = eqx.field(static=True, default=None)
    how: str = eqx.field(static=True, default="mean")

    name = "test/steps"
    observation_space = Box(0.0, 10.0, (1,))
    action_space = Discrete(2)
    time_limit = 10

    @property
    def info_reductions(self) -> dict[str, str]:
        return {"odd": self.how}

    def reset(self, key: jax.Array) -> tuple[Any, Any]:
        return jnp.zeros((), jnp.int32), self._each(jnp.zeros(1))

    def step(self, key: jax.Array, state: Any, action: Any) -> Transition:
        time = state + 1
        ends = self._each(time) >= 5 + (
            0 if self.num_agents is None else jnp.arange(self.num_agents)
        )
        obs = self._each(jnp.minimum(time, 10).astype(jnp.float32)[None])
        return Transition(
            time,
            obs,
            self._each(time.astype(jnp.float32)),
            ends,
            ends & False,
            {"odd": time % 2 == 1},
        )

    def _each(self, x: jax.Array) -> jax.Array:
        return x if self.num_agents is None else jnp.broadcast_to(x, (self.num_agents, *x.shape))


def walked(env: Any, steps: int) -> list[Transition]:
    state, _ = env.reset(jax.random.key(0))
    action, after = jnp.zeros(() if env.num_agents is None else env.num_agents, jnp.int32), []
    for key in jax.random.split(jax.random.key(1), steps):
        after.append(env.step(key, state, action))
        state = after[-1].state
    return after


@pytest.mark.quick
def test_a_time_limit_truncates() -> None:
    """The last observation is the true one.

    Terminations remain, and a shorter inner limit is kept.
    """
    steps = walked(TimeLimit(Steps(), 3), 3)
    assert [bool(step.truncated) for step in steps] == [False, False, True]
    assert not any(step.terminated for step in steps) and steps[-1].obs.tolist() == [3.0]
    (*_, last) = walked(TimeLimit(Steps(), 5), 5)
    assert last.terminated and not last.truncated
    (*_, last) = walked(TimeLimit(Steps(2), 5), 5)
    assert (last.terminated.tolist(), last.truncated.tolist()) == ([True, False], [False, True])
    assert (TimeLimit(Steps(), 3).time_limit, TimeLimit(Steps(), 30).time_limit) == (3, 10)


def test_an_action_is_repeated_until_the_first_end() -> None:
    """Rewards and info are the sums over repeats. An agent that has ended receives nothing more."""
    steps = walked(ActionRepeat(Steps(how="sum"), 3), 2)
    assert [
        float(step.info["odd"]) for step in walked(ActionRepeat(Steps(), 3), 2)
    ] == pytest.approx([2 / 3, 1 / 2])
    assert [float(step.info["odd"]) for step in walked(ActionRepeat(Steps(how="last"), 3), 2)] == [
        1,
        1,
    ]
    assert [float(step.reward) for step in steps] == [1 + 2 + 3, 4 + 5]
    assert [float(step.info["odd"]) for step in steps] == [2, 1]
    assert [bool(step.terminated) for step in steps] == [False, True] and steps[
        -1
    ].obs.tolist() == [5.0]
    (_, last) = walked(ActionRepeat(Steps(2), 4), 2)
    assert last.reward.tolist() == [5, 5 + 6] and last.obs.tolist() == [[6.0], [6.0]]
    assert ActionRepeat(Steps(), 3).time_limit == 4


def test_repeated_actions_report_their_total_reward_in_trials() -> None:
    """Inner wrappers observe the reward of the whole repeat.

    A repeat stops at the end of an episode.
    """
    env = ActionRepeat(PreviousActionReward(Trials(Levers(), 3)), 2)
    state, _ = env.reset(jax.random.key(0))
    begun = []
    for key in jax.random.split(jax.random.key(1), 3 * LIMIT):
        task = jax.tree.map(np.asarray, state[0])["task"]
        after = env.step(key, state, (task + 1) % ACTIONS)
        np.testing.assert_allclose(after.obs["previous_reward"], after.reward)
        begun.append(int(after.obs["begins"]))
        state = after.state
        if after.terminated:
            break
    assert begun == [0, 0, 1, 0, 0, 1, 0, 0, 0], "five steps each, the last of them alone"


@pytest.mark.parametrize(
    "env",
    [Levers(), Levers(parts=True), Steps(), Steps(2)],
    ids=["levers", "parts", "steps", "agents"],
)
def test_time_limits_and_repeats_pass_the_check(env: Any) -> None:
    for view in (TimeLimit(env, 3), ActionRepeat(env, 2), TimeLimit(ActionRepeat(env, 2), 2)):
        report = check_environment(view, steps=12)
        assert report.episodes >= 12 and not any("own end" in note for note in report.notes)
