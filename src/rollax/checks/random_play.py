"""Checks of compilation, observed values and episode ends with random actions."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rollax import tree
from rollax.acting import streams
from rollax.acting.streams import ActorState, PolicyFn
from rollax.checks.faults import find_differences, out_of_space_faults, to_numpy
from rollax.environments.environment import Environment, Transition
from rollax.environments.trace_cache import trace_once
from rollax.spaces import Box, Dict, Space, Tuple, join_values, list_parts
from rollax.types import Observation, PyTree, State

NUM_COPIES = 4  # number of parallel environments
NUM_STARTS = 8
_SIDE_EFFECTS_REMEDY = "Look for side effects or NumPy in it"


class RandomStep(NamedTuple):
    """Inputs and result of a random step. In a rollout, leaves have the leading axes `[E, T]`."""

    key: jax.Array
    state: Any
    obs: Any
    action: Any
    transition: Transition
    is_episode_end: jax.Array


def random_action(env: Environment, key: jax.Array, obs: Observation) -> Any:
    """Sample a uniform legal action. Masked dimensions of a box are 0.

    Args:
        env: The environment.
        key: Random key.
        obs: Observation, with a leading agent axis in multi-agent environments.

    Returns:
        The action, with a leading agent axis in multi-agent environments.
    """

    def sample_action(key: jax.Array, obs: Observation) -> Any:
        mask = obs["action_mask"] if isinstance(obs, dict) and "action_mask" in obs else None
        return _sample_legal(env.action_space, mask, key)

    return (
        sample_action(key, obs)
        if env.num_agents is None
        else jax.vmap(sample_action)(jax.random.split(key, env.num_agents), obs)
    )


def _sample_legal(space: Space, mask: PyTree, key: jax.Array) -> Any:
    """Sample a uniform action of a space, with a mask of legal actions or None."""
    if mask is None:
        return space.sample(key)
    if isinstance(space, Dict | Tuple):
        parts = list_parts(space)
        keys = jax.random.split(key, len(parts))
        values = {
            name: _sample_legal(part, mask.get(name), k)
            for (name, part), k in zip(parts.items(), keys, strict=True)
        }
        return join_values(space, values)
    if isinstance(space, Box):
        return jnp.where(mask, space.sample(key), 0).astype(space.dtype)
    logits = jnp.where(mask, 0.0, -jnp.inf)
    return jax.random.categorical(key, logits).astype(jnp.int32)


def random_policy(env: Environment) -> PolicyFn:
    """Return a policy that samples uniform legal actions."""
    return lambda carry, obs, reset, key: (carry, random_action(env, key, obs), None)


def collect_random_steps(env: Environment, key: jax.Array, steps: int) -> RandomStep:
    """Take random steps in `NUM_COPIES` environments, which restart after each episode.

    Args:
        env: The environment.
        key: Random key.
        steps: Number of steps T.

    Returns:
        The steps of E = `NUM_COPIES` environments, `[E, T, ...]`.
    """

    def take_step(
        carry: tuple[ActorState, jax.Array], time: jax.Array
    ) -> tuple[tuple[ActorState, jax.Array], RandomStep]:
        old_actor, copy_keys = carry
        keys = jax.vmap(lambda key: jax.random.fold_in(key, time))(copy_keys)
        actor, experience, transition = streams.step(
            env, random_policy(env), old_actor, streams.split_step_keys(keys)
        )
        ended = streams.has_episode_ended(env, transition)
        env_keys = jax.vmap(lambda key: jax.random.split(key)[1])(keys)  # as the step splits them
        random_step = RandomStep(
            env_keys, old_actor.env_state, old_actor.obs, experience.action, transition, ended
        )
        return (streams.restart_ended_episodes(env, actor, ended), copy_keys), random_step

    def run(key: jax.Array) -> RandomStep:
        start_key, step_key = jax.random.split(key)
        carry = (
            streams.init_actor(env, start_key, NUM_COPIES, ()),
            jax.random.split(step_key, NUM_COPIES),
        )
        random_steps = jax.lax.scan(take_step, carry, jnp.arange(steps))[1]
        return jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), random_steps)

    return jax.jit(run)(key)


def sample_starts(env: Environment, key: jax.Array) -> tuple[Any, Any]:
    """Return the states and observations of `NUM_STARTS` resets, `[NUM_STARTS, ...]` each."""
    return jax.jit(jax.vmap(lambda key: env.reset(key)))(jax.random.split(key, NUM_STARTS))


def compilation_faults(
    env: Environment, random_steps: RandomStep, key: jax.Array, starts: tuple[State, Observation]
) -> list[str]:
    """Return error messages if the results of resets or steps change under jit and vmap.

    Args:
        env: The environment.
        random_steps: Random steps.
        key: Random key that was passed to `sample_starts`.
        starts: Result of `sample_starts`.

    Returns:
        One message per problem.
    """
    expected = env.reset(jax.random.split(key, NUM_STARTS)[0])
    differences = find_differences(jax.tree.map(lambda x: x[0], starts), expected, 1e-3)
    faults = [
        f"reset differs when compiled with jit and vmap: {x}. {_SIDE_EFFECTS_REMEDY}."
        for x in differences
    ]
    for step in (0, min(2, random_steps.is_episode_end.shape[1] - 1)):
        random_step = jax.tree.map(lambda x, step=step: x[0, step], random_steps)
        expected = env.step(random_step.key, random_step.state, random_step.action)
        differences = find_differences(random_step.transition, expected, 1e-3)
        faults += [
            f"step differs when compiled with jit and vmap: {x}. {_SIDE_EFFECTS_REMEDY}."
            for x in differences
        ]
    return list(dict.fromkeys(faults))


def value_faults(
    env: Environment, random_steps: RandomStep, starts: tuple[State, Observation]
) -> list[str]:
    """Return error messages about values outside of their space, NaN, and all-zero action masks.

    Args:
        env: The environment.
        random_steps: Random steps.
        starts: States and observations after resets.

    Returns:
        One message per problem.
    """
    transition = random_steps.transition
    flat_obs = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), transition.obs)
    num_axes = 1 if env.num_agents is None else 2
    faults = out_of_space_faults(starts[1], env.observation_space, num_axes, "after reset, obs")
    faults += out_of_space_faults(flat_obs, env.observation_space, num_axes, "after step, obs")
    checked_values = {
        "obs": transition.obs,
        "reward": transition.reward,
        "state": transition.state,
        "info": transition.info,
    }
    for path, leaf in jax.tree_util.tree_leaves_with_path(checked_values):
        name = jax.tree_util.keystr(path[1:])
        array = to_numpy(leaf)
        if array.dtype.kind == "f" and np.isnan(array).any():
            step = int(np.argwhere(np.isnan(array))[:, 1].min())
            faults.append(
                f"{path[0].key}{name} is NaN, first at step {step}. Look for 0/0, and sqrt or log "
                "of negative numbers."
            )
    reward = np.asarray(transition.reward)
    if np.isinf(reward).any():
        faults.append(f"reward must be finite, got {reward[np.isinf(reward)][0]}.")
    return faults + mask_faults(env, starts[1], transition.obs, transition.terminated)


def collect_first_episodes(
    env: Environment, key: jax.Array, steps: int
) -> tuple[Any, Any, jax.Array]:
    """Take random steps in the first episode of `NUM_COPIES` environments.

    In contrast to `collect_random_steps`, environments do not restart, so the program is smaller.

    Args:
        env: The environment.
        key: Random key.
        steps: Number of random steps T in each environment.

    Returns:
        Observations after the reset, `[E, ...]`, observations after each step, `[E, T, ...]`, and
        whether the task has terminated, bool `[E, T]` or `[E, T, A]`. After the end of an episode,
        its last values are repeated.
    """

    def advance(carry: tuple[State, Observation, jax.Array, jax.Array], key: jax.Array) -> Any:
        state, obs, terminated, is_over = carry
        action_key, step_key = jax.random.split(key)
        transition = trace_once(env, "step")(step_key, state, random_action(env, action_key, obs))
        new_carry = (
            transition.state,
            transition.obs,
            transition.terminated,
            is_over | jnp.all(transition.terminated | transition.truncated),
        )
        next_carry = tree.where(is_over, carry, new_carry)
        return next_carry, (next_carry[1], next_carry[2])

    def run_episode(key: jax.Array) -> Any:
        reset_key, *keys = jax.random.split(key, 1 + steps)
        state, obs = trace_once(env, "reset")(reset_key)
        agents = () if env.num_agents is None else (env.num_agents,)
        initial_carry = state, obs, jnp.zeros(agents, bool), jnp.zeros((), bool)
        return obs, *jax.lax.scan(advance, initial_carry, jnp.stack(keys))[1]

    return jax.jit(jax.vmap(run_episode))(jax.random.split(key, NUM_COPIES))


def mask_faults(
    env: Environment, start_obs: PyTree, next_obs: PyTree, is_terminated: PyTree
) -> list[str]:
    """Return error messages about masks that allow no action before the task has terminated.

    Args:
        env: The environment.
        start_obs: Observations after resets, `[E, ...]`.
        next_obs: Observations after steps, `[E, T, ...]`.
        is_terminated: Whether the task has terminated, bool `[E, T]` or `[E, T, A]`.

    Returns:
        One message per problem.
    """
    if not isinstance(start_obs, dict) or "action_mask" not in start_obs:
        return []
    return _empty_mask_faults(
        env.action_space,
        "action_mask",
        start_obs["action_mask"],
        next_obs["action_mask"],
        np.asarray(is_terminated),
    )


def _empty_mask_faults(
    space: Space, label: str, start_mask: PyTree, next_mask: PyTree, terminated: np.ndarray
) -> list[str]:
    """Return error messages about the masks of a space and of its entries.

    Args:
        space: Space of the masked actions.
        label: Name of the mask in messages.
        start_mask: Masks after resets, `[E, ...]`, or a dictionary of masks by entry.
        next_mask: Masks after steps, `[E, T, ...]`, or a dictionary of masks by entry.
        terminated: Whether the task has terminated, bool `[E, T]` or `[E, T, A]`.
    """
    if isinstance(space, Dict | Tuple):
        return [
            fault
            for name, part in list_parts(space).items()
            if name in start_mask
            for fault in _empty_mask_faults(
                part, f"{label}[{name!r}]", start_mask[name], next_mask[name], terminated
            )
        ]
    if isinstance(space, Box):
        return []
    faults = []
    mask = np.asarray(next_mask)
    if not np.asarray(start_mask).any(axis=-1).all():
        faults.append(
            f"{label} is all False after a reset. Leave at least one action legal until the "
            "task has terminated."
        )
    has_choice = mask.any(axis=-1).reshape(*terminated.shape, -1).all(axis=-1)
    masked_steps = np.argwhere(~has_choice & ~terminated)
    if masked_steps.size:
        faults.append(
            f"{label} is all False at step {int(masked_steps[:, 1].min()) + 1}, but the task "
            "has not terminated. Leave at least one action legal there, or terminate the episode."
        )
    return faults


def episode_end_faults(
    env: Environment, random_steps: RandomStep, starts: tuple[State, Observation]
) -> list[str]:
    """Return error messages about automatic resets and episodes that exceed the time limit.

    Args:
        env: The environment.
        random_steps: Random steps.
        starts: States and observations after resets.

    Returns:
        One message per problem.
    """
    faults = []
    if _has_automatic_reset(random_steps, starts[0]) and _is_last_state_from_key_only(
        env, random_steps
    ):
        faults.append(
            "step resets by itself: after the end of an episode, the state is one that reset "
            "returns. Return the true last state and observation. rollax restarts episodes."
        )
    limit = env.time_limit
    max_length = _longest_episode(np.asarray(random_steps.is_episode_end))
    if limit is not None and max_length > limit:
        faults.append(
            f"an episode lasted {max_length} steps without an end, but time_limit is {limit}. End "
            "it, or raise the limit."
        )
    inconsistent_agents = (
        []
        if env.num_agents is None
        else np.flatnonzero(
            (_agents_done_before(random_steps) & ~_reported_ends(random_steps)).any(axis=(0, 1))
        ).tolist()
    )
    if inconsistent_agents:
        faults.append(
            f"agent {inconsistent_agents[0]} reports its end and then no longer, but an episode "
            "ends when all agents report their end at one step. Keep in the state which agents "
            "have ended, and report terminated or truncated for them until all have."
        )
    return faults


def _reported_ends(random_steps: RandomStep) -> np.ndarray:
    """Return whether each step reports termination or truncation, `[E, T]` or `[E, T, A]`."""
    return np.asarray(random_steps.transition.terminated | random_steps.transition.truncated)


def _agents_done_before(random_steps: RandomStep) -> np.ndarray:
    """Return whether each agent ended earlier in the same episode, bool `[E, T, A]`."""
    is_reported, is_episode_end = (
        _reported_ends(random_steps),
        np.asarray(random_steps.is_episode_end),
    )
    done = np.zeros_like(is_reported)
    for step in range(1, is_reported.shape[1]):
        done[:, step] = (done[:, step - 1] | is_reported[:, step - 1]) & ~is_episode_end[
            :, step - 1, None
        ]
    return done


def _has_automatic_reset(random_steps: RandomStep, start_states: State) -> bool:
    """Return whether the states at all episode ends look like states after a reset.

    The function considers state values that are equal after all resets and change during episodes,
    for example a step counter that starts at 0. The result is true if all of them have their reset
    value again after the last step of each episode.
    """
    is_episode_end = np.asarray(random_steps.is_episode_end)
    has_changed = np.zeros(is_episode_end.sum(), bool)
    has_returned = np.ones(is_episode_end.sum(), bool)
    leaves = (
        jax.tree.leaves(x)
        for x in (start_states, random_steps.state, random_steps.transition.state)
    )
    for start, before, after in zip(*leaves, strict=True):
        start, before, after = (
            to_numpy(start),
            to_numpy(before)[is_episode_end],
            to_numpy(after)[is_episode_end],
        )
        if (start == start[0]).all():
            axes = tuple(range(1, before.ndim))
            has_changed |= (before != start[0]).any(axis=axes)
            has_returned &= (after == start[0]).all(axis=axes)
    return bool(has_changed.any() and has_returned[has_changed].all())


def _is_last_state_from_key_only(env: Environment, random_steps: RandomStep) -> bool:
    """Return whether the last state of an episode depends only on the key, as after a reset.

    The last step of each episode is repeated with the same key and the state and action of another
    episode.
    """
    copies, steps = np.nonzero(np.asarray(random_steps.is_episode_end))
    last_steps = jax.tree.map(lambda x: x[copies, steps], random_steps)
    other_inputs = jax.tree.map(
        lambda x: jnp.roll(x, 1, axis=0), (last_steps.state, last_steps.action)
    )
    repeated = jax.jit(jax.vmap(lambda key, state, action: env.step(key, state, action)))(
        last_steps.key, *other_inputs
    )
    pairs = zip(
        jax.tree.leaves(last_steps.transition.state), jax.tree.leaves(repeated.state), strict=True
    )
    return all(
        np.array_equal(to_numpy(a), to_numpy(b), equal_nan=to_numpy(a).dtype.kind == "f")
        for a, b in pairs
    )


def _longest_episode(is_episode_end: np.ndarray) -> int:
    """Return the length of the longest episode. `is_episode_end` is `[E, T]`."""
    longest = 0
    for row in is_episode_end:
        boundaries = np.concatenate([[-1], np.flatnonzero(row), [len(row) - 1]])
        longest = max(longest, int(np.diff(boundaries).max()))
    return longest


def collect_notes(
    random_steps: RandomStep, starts: tuple[State, Observation], steps: int
) -> tuple[str, ...]:
    """Return messages about behavior that is allowed but may be unintended.

    Args:
        random_steps: Random steps.
        starts: States and observations after resets.
        steps: Number of steps, for the messages.

    Returns:
        The messages.
    """
    notes = []
    leaves = [to_numpy(x) for x in jax.tree.leaves(starts)]
    if all((x == x[0]).all() for x in leaves):
        notes.append("reset returns the same start for every key.")
    if not np.asarray(random_steps.is_episode_end).any():
        notes.append(
            f"no episode ended within {steps} random steps, so episode ends were not checked."
        )
    if np.asarray(random_steps.transition.terminated & random_steps.transition.truncated).any():
        notes.append("some steps are both terminated and truncated and count as terminated.")
    if (
        np.ndim(random_steps.transition.reward) == 3
        and np.asarray(random_steps.transition.reward)[_agents_done_before(random_steps)].any()
    ):
        notes.append("agents get rewards after their own end, which do not count.")
    return tuple(notes)
