"""Whole episodes: every episode counts, long or short, and none is cut but by its own limit."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rollax import tree
from rollax.acting import descriptors
from rollax.acting.info import reducing
from rollax.acting.streams import Actor, Experience, Policy, begin, episode_ended, split, step
from rollax.algorithm import Algorithm
from rollax.environments.core import Environment, Transition
from rollax.environments.once import once


class Episodes(NamedTuple):
    """What N episodes gave. With agents, returns have a further axis `[A]`; with members, all lead with `[P]`."""

    returns: jax.Array  # float [N] or [N, A]
    length: jax.Array  # int32 [N]
    terminated: jax.Array  # bool [N]: all agents' tasks ended
    truncated: jax.Array  # bool [N]: cut off by time. Neither: given up after max_steps
    info: dict[str, jax.Array] = {}  # [N, ...]: numbers of the environment's `info` over the episode (`rollax.acting.info`)
    descriptor: Any = None  # float [N, K]: of each episode; None where the environment describes no behavior
    state_metrics: dict[str, jax.Array] = {}  # []: what the algorithm says of the state whose policy played


class Playing(NamedTuple):
    """N episodes under way, each in an environment of its own."""

    actor: Actor
    terminated: jax.Array  # bool [N]
    truncated: jax.Array  # bool [N]

    @property
    def alive(self) -> jax.Array:
        """Which episodes still go on, bool [N]."""
        return ~(self.terminated | self.truncated)


def policy_of(algorithm: Algorithm, state: Any, greedy: bool | jax.Array) -> Policy:
    """The policy of an algorithm's state, for whole episodes: what it gives besides the action is None."""

    def act(carry: Any, obs: Any, reset: jax.Array, key: jax.Array) -> tuple[Any, Any, None]:
        carry = tree.where(reset, algorithm.initial_carry(state), carry)
        action, carry = algorithm.act(state, obs, carry, key, greedy)
        return carry, action, None

    return act


def begin_episodes(environment: Any, keys: jax.Array, carry: Any, tasks: Any = None) -> Playing:
    """Episodes before their first step, by a key each, `[N]`. `carry`: a memory for each, `[N]`; `tasks`: a task for each of
    a `TaskEnvironment`, in place of one that it samples.
    """
    each = (keys,) if tasks is None else (keys, tasks)
    state, obs = jax.vmap(once(environment, "reset" if tasks is None else "reset_task"))(*each)
    actor = begin(environment, state, obs, ())._replace(carry=carry)
    no = jnp.zeros(keys.shape, bool)
    # Every leaf of a definite type, so that the first step compiles no second program.
    return tree.as_leaves(Playing(actor, no, no))


def play(
    environment: Environment, policy: Policy, playing: Playing, keys: jax.Array
) -> tuple[Playing, tuple[Experience, Transition]]:
    """One step of every episode that still goes on, by a key each, `[N]`; those that are over stay as they are."""
    actor, experience, after = step(environment, policy, playing.actor, split(keys))
    ended, all_terminated = episode_ended(environment, after), after.terminated
    if environment.num_agents is not None:
        all_terminated = jnp.all(all_terminated, axis=-1)
    moved = Playing(actor, ended & all_terminated, ended & ~all_terminated)
    return tree.where(playing.alive, moved, playing), (experience, after)


def evaluator(
    environment: Environment,
    algorithm: Algorithm,
    num_episodes: int,
    max_steps: int,
    greedy: bool,
    descriptor: descriptors.Choice = None,
    info: Mapping[str, str] | None = None,
) -> Callable[..., Episodes]:
    """`(state, key, tasks=None) -> Episodes`: N environments side by side, each for one episode from its own start.

    It runs until the last one ends, so it takes as many steps as the longest episode, at most `max_steps`. What an agent
    gets after its own end does not count. `descriptor`: how the descriptor of an episode is extracted, as for
    `descriptors.describing`; None: as the environment has it. `info`: how its numbers are reduced, as for `reducing`.
    `tasks`: as for `begin_episodes`.
    """
    play_all = episodes(environment, max_steps, descriptor, info=info)

    def evaluate(state: Any, key: jax.Array, tasks: Any = None) -> Episodes:
        policy, carry = policy_of(algorithm, state, greedy), algorithm.initial_carry(state)
        each = jax.tree.map(lambda x: jnp.broadcast_to(x, (num_episodes, *jnp.shape(x))), carry)
        result, _ = play_all(policy, each, episode_keys(key, num_episodes), tasks)
        return result._replace(state_metrics=algorithm.state_metrics(state))

    return evaluate


def episode_keys(key: jax.Array, number: int) -> tuple[jax.Array, jax.Array]:
    """The keys of so many episodes, `[N]` each: of their starts, and of what happens in them."""
    reset_key, run_key = jax.random.split(key)
    return jax.random.split(reset_key, number), jax.random.split(run_key, number)


def episodes(
    environment: Environment,
    max_steps: int,
    descriptor: descriptors.Choice = None,
    record: Callable[[Experience], Any] | None = None,
    info: Mapping[str, str] | None = None,
) -> Callable[..., tuple[Episodes, Any]]:
    """`(policy, carry [N], episode_keys(key, N), tasks=None) -> (Episodes, rows)`: N episodes side by side until all ended,
    with a memory for each.

    What is in a memory may be the policy itself, so that each episode is played by another.
    `descriptor`, `info`: as for `evaluator`.
    `record`: what is kept of every step `[N, ...]`, as rows `[max_steps, N, ...]`; those after an episode's end say nothing.
    """
    describing = descriptors.describing(environment, descriptor, max_steps)

    def play_all(policy: Policy, carry: Any, of_episodes: Any, tasks: Any = None) -> tuple[Episodes, Any]:
        telling = reducing(environment, info)
        reset_keys, keys = of_episodes
        number = keys.shape[0]
        playing = begin_episodes(environment, reset_keys, carry, tasks)

        def running(loop: tuple[Any, ...]) -> jax.Array:
            time, playing, *_ = loop
            return (time < max_steps) & jnp.any(playing.alive)

        def body(loop: tuple[Any, ...]) -> tuple[Any, ...]:
            time, playing, told, memory, rows = loop
            alive = playing.alive
            step_keys = jax.vmap(lambda key: jax.random.fold_in(key, time))(keys)
            playing, (experience, after) = play(environment, policy, playing, step_keys)
            told = telling.add(told, after.info, alive)
            if record is not None:
                rows = jax.tree.map(lambda all, row: all.at[time].set(row), rows, record(experience))
            return time + 1, playing, told, describing.add(memory, after.state, time, alive), rows

        rows: Any = ()
        if record is not None:
            row = jax.eval_shape(record, jax.eval_shape(lambda: play(environment, policy, playing, keys)[1][0]))
            rows = jax.tree.map(lambda x: jnp.zeros((max_steps, *x.shape), x.dtype), row)
        loop = jnp.zeros((), jnp.int32), playing, telling.start(number), describing.start(number), rows
        _, playing, told, memory, rows = jax.lax.while_loop(running, body, loop)
        length = playing.actor.episode_length
        length = length if environment.num_agents is None else jnp.max(length, axis=-1)
        descriptor = describing.finish(memory, length)
        ends = playing.terminated, playing.truncated
        return Episodes(playing.actor.episode_return, length, *ends, telling.finish(told, length), descriptor), rows

    return play_all
