"""Acting: copies of an environment side by side, one step of all of them by a policy, and T steps with restarts.

An environment never resets itself. Everyone who makes environments move - rollouts, replay, evaluation, rendering, checks -
does it by `step`, and keeps no books of its own.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rollax import spaces, tree
from rollax.acting.recording import Recording
from rollax.algorithm import EpisodeSums
from rollax.algorithm import reseed as reseed_keys
from rollax.environments.core import Environment, Transition, agent_types, is_on_host
from rollax.environments.once import once
from rollax.environments.starts import Starts, first_starts, refill
from rollax.networks import windows
from rollax.scopes import scope

# (carry, obs, reset, key) -> (carry, action, extras), in one environment: `reset` bool [] says that `obs` begins an episode, so
# that the policy begins with its initial memory. With agents, carry, obs, action and extras lead with [A].
Policy = Callable[[Any, Any, jax.Array, jax.Array], tuple[Any, Any, Any]]


class Actor(NamedTuple):
    """What acting carries from step to step. Every leaf leads with [E]; with agents, what belongs to each with [E, A]."""

    env_state: Any
    obs: Any
    reset: jax.Array  # bool [E]: `obs` begins an episode
    carry: Any  # the policy's memory as the last step left it, before any reset
    agent_done: jax.Array | None  # bool [E, A]: this agent's episode has ended before its environment's; None with one agent
    episode_return: jax.Array  # float [E] or [E, A]: of the running episode
    episode_length: jax.Array  # int32, likewise
    starts: Starts | None  # None where nothing restarts


class Experience(NamedTuple):
    """One step of every stream, `[S, ...]`, S = environments x agents; of a rollout `[T, S, ...]`."""

    obs: Any
    reset: jax.Array  # bool: obs begins an episode
    carry: Any  # the policy's memory before the step, before any reset; of a rollout as `networks.windows` has it
    action: Any
    extras: Any  # what the policy gave besides
    reward: jax.Array  # float; 0 for agents that are done
    terminated: jax.Array  # bool
    truncated: jax.Array  # bool
    next_obs: Any  # the true observation after the step, never that of a new episode
    mask: jax.Array | None  # bool: False where the agent was done before the step; None where none ever is


def begin(environment: Environment, env_state: Any, obs: Any, carry: Any) -> Actor:
    """Actors at the start of an episode in each of E environments. `carry`: the memory in one environment."""
    size = jax.tree.leaves(obs)[0].shape[0]
    each = (size,) if environment.num_agents is None else (size, environment.num_agents)
    carry = jax.tree.map(lambda x: jnp.broadcast_to(x, (size, *jnp.shape(x))), carry)
    done = jnp.zeros(each, bool) if (environment.num_agents or 1) > 1 else None
    return Actor(env_state, obs, jnp.ones(size, bool), carry, done, jnp.zeros(each), jnp.zeros(each, jnp.int32), None)


def begin_streams(environment: Environment, key: jax.Array, num_envs: int, carry: Any) -> Actor:
    """As `begin`, in environments that restart in `unroll`. Of those on the host nothing has been observed yet: zeros."""
    if is_on_host(environment):
        nothing = spaces.zeros(environment.observation_space)
        return begin(environment, (), jax.tree.map(lambda x: jnp.broadcast_to(x, (num_envs, *x.shape)), nothing), carry)
    (env_state, obs), starts = first_starts(environment, key, num_envs)
    return begin(environment, env_state, obs, carry)._replace(starts=starts)


def split(keys: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Keys `[E]` as those of the policies and those of the environments: what `jax.random.split` makes of each.

    In one row, whatever `vmap` adds: XLA takes three to four times as long to compile threefry of three axes for a CPU.
    """
    of_both = jax.vmap(jax.random.fold_in)(_repeated(keys, 2), jnp.repeat(jnp.arange(2), keys.shape[0]))
    return of_both[: keys.shape[0]], of_both[keys.shape[0] :]


def _repeated(keys: jax.Array, times: int) -> jax.Array:
    """All keys `[E]`, then all again: `[times * E]`."""
    return jnp.broadcast_to(keys, (times, *keys.shape)).reshape(-1)


def step(
    environment: Environment, policy: Policy, actor: Actor, keys: tuple[jax.Array, jax.Array]
) -> tuple[Actor, Experience, Transition]:
    """One step of every environment, without restarts: the actor after it, what it experienced `[E, ...]`, the transition.

    `keys`: those of the policies and those of the environments, each `[E]` (`split`).
    """
    act_keys, env_keys = keys
    with scope("policy"):
        carry, action, extras = jax.vmap(policy)(actor.carry, actor.obs, actor.reset, act_keys)
    with scope("environment"):
        after = jax.vmap(once(environment, "step"))(env_keys, actor.env_state, action)
    mask = None if actor.agent_done is None else ~actor.agent_done
    reward = after.reward if mask is None else jnp.where(mask, after.reward, 0.0)
    done = None if actor.agent_done is None else actor.agent_done | after.terminated | after.truncated
    reset = _spread(actor.reset, reward)
    acted = actor.obs, reset, actor.carry, action, extras
    experience = Experience(*acted, reward, after.terminated, after.truncated, after.obs, mask)
    totals = actor.episode_return + reward, actor.episode_length + (1 if mask is None else mask)
    moved = Actor(after.state, after.obs, jnp.zeros_like(actor.reset), carry, done, *totals, actor.starts)
    return moved, experience, after


def _spread(values: jax.Array, like: jax.Array) -> jax.Array:
    """A value for each environment, `[E]`, in the shape of `like`, `[E]` or `[E, A]`."""
    return jnp.broadcast_to(values.reshape(-1, *(1,) * (like.ndim - 1)), like.shape)


def episode_ended(environment: Environment, after: Transition) -> jax.Array:
    """Whether the episode of each environment is over, bool [E]: with agents, when that of every agent is."""
    ended = after.terminated | after.truncated
    return ended if environment.num_agents is None else jnp.all(ended, axis=-1)


@scope("restarts")
def restart(environment: Environment, actor: Actor, ended: jax.Array) -> Actor:
    """The actor with the next episode begun where one `ended` [E]. It must have `starts`."""
    assert actor.starts is not None
    starts = refill(environment, actor.starts, ended)
    env_state, obs = tree.where(ended, starts.spare, (actor.env_state, actor.obs))
    books = actor.agent_done, actor.episode_return, actor.episode_length
    done, total, length = tree.where(ended, jax.tree.map(jnp.zeros_like, books), books)
    starts = starts._replace(episode=starts.episode + ended)
    return Actor(env_state, obs, ended, actor.carry, done, total, length, starts)


def unroll(
    environment: Environment, policy: Policy, actor: Actor, key: jax.Array, num_steps: int
) -> tuple[Actor, Experience, EpisodeSums]:
    """T steps of every stream with restarts: the actor after them, `Experience` [T, S, ...], sums over episodes that ended.

    Steps that simulators on the host have taken already are read: the state of the actor's environments is their `Recording`.
    """
    if isinstance(actor.env_state, Recording):
        return _recorded(actor.env_state, actor)

    def body(actor: Actor, numbers: tuple[jax.Array, jax.Array]) -> tuple[Actor, tuple[Experience, EpisodeSums]]:
        keys = tuple(jax.random.wrap_key_data(each, impl=jax.random.key_impl(key)) for each in numbers)
        actor, experience, after = step(environment, policy, actor, keys)
        ended = episode_ended(environment, after)
        sums = _sums(actor.episode_return, actor.episode_length, _spread(ended, actor.episode_return))
        experience = experience._replace(carry=windows.newest(experience.carry))
        return restart(environment, actor, ended), (by_stream(environment, experience), sums)

    def run(actor: Actor, keys: jax.Array) -> tuple[Actor, tuple[Experience, EpisodeSums]]:
        # Keys are per environment, so that a device's share does not depend on the others. All are drawn here, as threefry is a
        # loop of many small operations on a CPU, whatever the number of keys. As numbers, since the check against reuse of keys
        # takes those that a scan is given for used.
        of_steps = split(_keys_at(_repeated(keys, num_steps), jnp.repeat(jnp.arange(num_steps), keys.shape[0])))
        numbers = jax.tree.map(jax.random.key_data, of_steps)
        return jax.lax.scan(body, actor, jax.tree.map(lambda x: x.reshape(num_steps, -1, *x.shape[1:]), numbers))

    keys, first = jax.random.split(key, actor.reset.shape[0]), by_stream(environment, actor.carry)
    actor, (experience, sums) = tree.over_devices(run, in_axes=(0, 0), out_axes=(0, (1, 1)))(actor, keys)
    experience = experience._replace(carry=windows.sequence(first, experience.carry))
    types = agent_types(environment)
    agents = {name: np.flatnonzero([name == other for other in types]) for name in dict.fromkeys(types)}
    of = lambda index: tuple(jnp.sum(total[..., index]) for total in sums[:2])  # noqa: E731
    by_type = {name: of(index) for name, index in agents.items()} if len(agents) > 1 else {}
    return actor, experience, jax.tree.map(jnp.sum, sums)._replace(by_type=by_type)


def _keys_at(keys: jax.Array, time: jax.Array) -> jax.Array:
    """The keys of a step of a rollout, `[E]`, from those of the rollout. `time`: int32 [E] or []."""
    return jax.vmap(jax.random.fold_in)(keys, jnp.broadcast_to(time, keys.shape))


@scope("bookkeeping")
def _sums(episode_return: jax.Array, episode_length: jax.Array, ended: jax.Array) -> EpisodeSums:
    """Of the streams whose episode ended."""
    of_ended = lambda total: jnp.where(ended, total, 0).astype(jnp.float32)  # noqa: E731
    return EpisodeSums(of_ended(1), of_ended(episode_return), of_ended(episode_length))


def act_at(policy: Policy, key: jax.Array, time: jax.Array, carry: Any, obs: Any, reset: jax.Array) -> tuple[Any, Any, Any]:
    """What the policy does at step `time` of `unroll(..., key, T)` in E environments: `(carry, action, extras)`, `[E, ...]`."""
    act_keys, _ = split(_keys_at(jax.random.split(key, reset.shape[0]), time))
    return jax.vmap(policy)(carry, obs, reset, act_keys)


def with_recording(state: Any, recording: Recording | tuple[()]) -> Any:
    """The state of an algorithm with this in place of the state of its environments; `()` takes a recording out."""
    put = lambda part: part._replace(env_state=recording) if _is_actor(part) else part  # noqa: E731
    return jax.tree.map(put, state, is_leaf=_is_actor)


def actor_of(state: Any) -> Actor:
    """The actor in the state of an algorithm, which has one."""
    (actor,) = [part for part in jax.tree.leaves(state, is_leaf=_is_actor) if _is_actor(part)]
    return actor


def _is_actor(part: Any) -> bool:
    return isinstance(part, Actor)


def _recorded(recording: Recording, actor: Actor) -> tuple[Actor, Experience, EpisodeSums]:
    """As `unroll`, of steps that were taken already."""
    steps = recording.steps
    carry = windows.sequence(jax.tree.map(lambda x: x[0], steps.carry), windows.newest(steps.carry))
    experience = Experience(*steps, mask=None)._replace(carry=carry)
    books = actor.episode_return, actor.episode_length
    clear = lambda where, books: tree.where(where, jax.tree.map(jnp.zeros_like, books), books)  # noqa: E731

    def body(books: Any, row: tuple[jax.Array, jax.Array]) -> tuple[Any, EpisodeSums]:
        reward, ended = row
        books = books[0] + reward, books[1] + 1
        return clear(ended, books), _sums(books[0], books[1], ended)

    # Where an episode began anew, as all do when a run is resumed, the one before it does not count.
    rows = steps.reward, steps.terminated | steps.truncated
    books, sums = jax.lax.scan(body, clear(steps.reset[0], books), rows)
    obs, reset, carry = recording.last
    moved = actor._replace(obs=obs, reset=reset, carry=carry, episode_return=books[0], episode_length=books[1])
    return moved, experience, jax.tree.map(jnp.sum, sums)


def by_stream(environment: Environment, values: Any) -> Any:
    """`[E, A, ...]` as `[S, ...]`; without agents the two are the same."""
    if environment.num_agents is None:
        return values
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), values)


def reseed(state: Any, key: jax.Array) -> Any:
    """A state of an algorithm with other random numbers ahead, its starts of episodes drawn with the former keys dropped."""
    is_starts = lambda part: isinstance(part, Starts)  # noqa: E731
    drop = lambda part: part._replace(spare_episode=jnp.full_like(part.spare_episode, -1)) if is_starts(part) else part  # noqa: E731
    return jax.tree.map(drop, reseed_keys(state, key), is_leaf=is_starts)
