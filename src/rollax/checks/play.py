"""What random steps show of an environment: the same compiled as alone, values within spaces, ends as they must be."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rollax.acting import streams
from rollax.acting.streams import Actor, Policy
from rollax.checks.faults import outside, plain, unlike
from rollax.environments.core import Environment, Transition
from rollax.spaces import Box

COPIES = 4  # environments acted in side by side
STARTS = 8
_NO_SIDE_EFFECTS = "look for side effects or numpy in it"


class Visit(NamedTuple):
    """One random step and what it came from; in a rollout every leaf leads with `[E, T]`."""

    key: jax.Array
    state: Any
    obs: Any
    action: Any
    transition: Transition
    ended: jax.Array


def random_action(env: Environment, key: jax.Array, obs: Any) -> Any:
    """A uniform action, among the legal ones where there is a mask; numbers that a mask leaves out are 0."""

    def one(key: jax.Array, obs: Any) -> Any:
        if isinstance(obs, dict) and "action_mask" in obs:
            if isinstance(env.action_space, Box):
                return jnp.where(obs["action_mask"], env.action_space.sample(key), 0).astype(env.action_space.dtype)
            logits = jnp.where(obs["action_mask"], 0.0, -jnp.inf)
            return jax.random.categorical(key, logits).astype(jnp.int32)
        return env.action_space.sample(key)

    return one(key, obs) if env.num_agents is None else jax.vmap(one)(jax.random.split(key, env.num_agents), obs)


def random_policy(env: Environment) -> Policy:
    """Uniform random actions."""
    return lambda carry, obs, reset, key: (carry, random_action(env, key, obs), None)


def rollout(env: Environment, key: jax.Array, steps: int) -> Visit:
    """Random steps in a few copies, with a restart after each end. Every leaf leads with `[E, T]`."""

    def act(loop: tuple[Actor, jax.Array], time: jax.Array) -> tuple[tuple[Actor, jax.Array], Visit]:
        before, copy_keys = loop
        keys = jax.vmap(lambda key: jax.random.fold_in(key, time))(copy_keys)
        actor, experience, after = streams.step(env, random_policy(env), before, streams.split(keys))
        ended = streams.episode_ended(env, after)
        env_keys = jax.vmap(lambda key: jax.random.split(key)[1])(keys)  # as the step splits them
        visit = Visit(env_keys, before.env_state, before.obs, experience.action, after, ended)
        return (streams.restart(env, actor, ended), copy_keys), visit

    def run(key: jax.Array) -> Visit:
        start_key, step_key = jax.random.split(key)
        loop = streams.begin_streams(env, start_key, COPIES, ()), jax.random.split(step_key, COPIES)
        visits = jax.lax.scan(act, loop, jnp.arange(steps))[1]
        return jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), visits)

    return jax.jit(run)(key)


def starts(env: Environment, key: jax.Array) -> tuple[Any, Any]:
    """`(state, obs)` of the first steps of a few episodes. Every leaf leads with `[STARTS]`."""
    return jax.jit(jax.vmap(lambda key: env.reset(key)))(jax.random.split(key, STARTS))


def compiled_as_alone(env: Environment, visits: Visit, key: jax.Array, starts: tuple[Any, Any]) -> list[str]:
    """Faults where resets and steps, compiled and vmapped, differ from the same ones run alone, operation by operation.

    `starts`: what `starts(env, key)` gives.
    """
    alone = env.reset(jax.random.split(key, STARTS)[0])
    different = unlike(jax.tree.map(lambda x: x[0], starts), alone, 1e-3)
    faults = [f"reset differs when compiled with jit and vmap: {x}; {_NO_SIDE_EFFECTS}." for x in different]
    for step in (0, min(2, visits.ended.shape[1] - 1)):
        visit = jax.tree.map(lambda x, step=step: x[0, step], visits)
        alone = env.step(visit.key, visit.state, visit.action)
        different = unlike(visit.transition, alone, 1e-3)
        faults += [f"step differs when compiled with jit and vmap: {x}; {_NO_SIDE_EFFECTS}." for x in different]
    return list(dict.fromkeys(faults))


def values(env: Environment, visits: Visit, starts: tuple[Any, Any]) -> list[str]:
    """Faults in values: out of bounds, not finite, no legal action."""
    after = visits.transition
    flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), after.obs)
    axes = 1 if env.num_agents is None else 2
    faults = outside(starts[1], env.observation_space, axes, "after reset, obs")
    faults += outside(flat, env.observation_space, axes, "after step, obs")
    watched = {"obs": after.obs, "reward": after.reward, "state": after.state, "info": after.info}
    for path, leaf in jax.tree_util.tree_leaves_with_path(watched):
        name = jax.tree_util.keystr(path[1:])
        array = plain(leaf)
        if array.dtype.kind == "f" and np.isnan(array).any():
            step = int(np.argwhere(np.isnan(array))[:, 1].min())
            faults.append(f"{path[0].key}{name} is NaN, first at step {step}: look for 0/0, sqrt or log of what is below 0.")
    reward = np.asarray(after.reward)
    if np.isinf(reward).any():
        faults.append(f"reward is {reward[np.isinf(reward)][0]}: rewards must be finite.")
    if isinstance(flat, dict) and "action_mask" in flat and not np.asarray(flat["action_mask"]).any(axis=-1).all():
        faults.append("action_mask is all False at some step: leave at least one action legal, also at the end.")
    return faults


def ends(env: Environment, visits: Visit, starts: tuple[Any, Any]) -> list[str]:
    """Faults around the ends of episodes: resets of its own, and episodes beyond the time limit."""
    faults = []
    if _resets_itself(visits, starts[0]):
        faults.append(
            "step resets by itself: where an episode ended, the state is one that reset gives. Return the true last state "
            "and observation; rollax restarts episodes."
        )
    limit = env.time_limit
    lengths = _longest(np.asarray(visits.ended))
    if limit is not None and lengths > limit:
        faults.append(f"an episode lasted {lengths} steps without an end but time_limit is {limit}: end it or raise the limit.")
    forgetful = (
        [] if env.num_agents is None else np.flatnonzero((_agent_done(visits) & ~_ends(visits)).any(axis=(0, 1))).tolist()
    )
    if forgetful:
        faults.append(
            f"agent {forgetful[0]} reports its end and then no longer, but an episode is over when all report theirs at "
            "one step: keep in the state who has ended, and report terminated or truncated for them until all have."
        )
    return faults


def _ends(visits: Visit) -> np.ndarray:
    """Where an end is reported, `[E, T]` or `[E, T, A]`."""
    return np.asarray(visits.transition.terminated | visits.transition.truncated)


def _agent_done(visits: Visit) -> np.ndarray:
    """Which agents reported their end at an earlier step of the same episode, `[E, T, A]`."""
    ends, ended = _ends(visits), np.asarray(visits.ended)
    done = np.zeros_like(ends)
    for step in range(1, ends.shape[1]):
        done[:, step] = (done[:, step - 1] | ends[:, step - 1]) & ~ended[:, step - 1, None]
    return done


def _resets_itself(visits: Visit, start_states: Any) -> bool:
    """True when, at every end, all that a reset sets to a constant is back at it although it had moved before.

    A clock is such a constant: it begins at 0, and where it is 0 again after the last step, that step has reset.
    """
    ended = np.asarray(visits.ended)
    moved = np.zeros(ended.sum(), bool)
    back = np.ones(ended.sum(), bool)
    leaves = (jax.tree.leaves(x) for x in (start_states, visits.state, visits.transition.state))
    for start, before, after in zip(*leaves, strict=True):
        start, before, after = plain(start), plain(before)[ended], plain(after)[ended]
        if (start == start[0]).all():
            rest = tuple(range(1, before.ndim))
            moved |= (before != start[0]).any(axis=rest)
            back &= (after == start[0]).all(axis=rest)
    return bool(moved.any() and back[moved].all())


def _longest(ended: np.ndarray) -> int:
    """The longest run of steps without an end inside, the ending step included: `ended` is `[E, T]`."""
    longest = 0
    for row in ended:
        marks = np.concatenate([[-1], np.flatnonzero(row), [len(row) - 1]])
        longest = max(longest, int(np.diff(marks).max()))
    return longest


def notes(visits: Visit, starts: tuple[Any, Any], steps: int) -> tuple[str, ...]:
    """What is allowed but perhaps not meant."""
    found = []
    leaves = [plain(x) for x in jax.tree.leaves(starts)]
    if all((x == x[0]).all() for x in leaves):
        found.append("reset gives the same start for every key.")
    if not np.asarray(visits.ended).any():
        found.append(f"no episode ended within {steps} random steps; the check of ends saw nothing.")
    if np.asarray(visits.transition.terminated & visits.transition.truncated).any():
        found.append("some steps are both terminated and truncated; they count as terminated.")
    if np.ndim(visits.transition.reward) == 3 and np.asarray(visits.transition.reward)[_agent_done(visits)].any():
        found.append("agents get rewards after their own end; these do not count.")
    return tuple(found)
