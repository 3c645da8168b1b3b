"""Evaluation on whole episodes: every episode counts, long or short, and none is cut but by its own limit."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rollax import tree
from rollax.acting import descriptors
from rollax.algorithm import Algorithm
from rollax.environments.core import Environment
from rollax.host.statistics import summarize
from rollax.spaces import zeros

MOST_SHOWN = 8  # numbers of a curve in a line


class Episodes(NamedTuple):
    """What N episodes gave. With agents, returns have a further axis `[A]`; with members, all lead with `[P]`."""

    returns: jax.Array  # float [N] or [N, A]
    length: jax.Array  # int32 [N]
    terminated: jax.Array  # bool [N]: all agents' tasks ended
    truncated: jax.Array  # bool [N]: cut off by time. Neither: given up after max_steps
    info: dict[str, jax.Array] = {}  # [N, ...]: sums over the episode of what the environment's `info` tells
    descriptor: Any = ()  # float [N, K]: of each episode; () where the environment describes no behavior


def evaluator(
    environment: Environment,
    algorithm: Algorithm,
    num_episodes: int,
    max_steps: int,
    greedy: bool,
    descriptor: descriptors.Choice = None,
) -> Callable[[Any, jax.Array], Episodes]:
    """`(state, key) -> Episodes`: N environments side by side, each for one episode from its own start.

    It runs until the last one ends, so it takes as many steps as the longest episode, at most `max_steps`. What an agent
    gets after its own end does not count. `descriptor`: how the descriptor of an episode is extracted, as for
    `descriptors.describing`; None: as the environment has it.
    """
    agents = environment.num_agents
    describing = descriptors.describing(environment, descriptor, max_steps)

    def evaluate(state: Any, key: jax.Array) -> Episodes:
        reset_key, run_key = jax.random.split(key)
        env_state, obs = jax.vmap(environment.reset)(jax.random.split(reset_key, num_episodes))
        streams = (num_episodes,) if agents is None else (num_episodes, agents)
        carry = jax.tree.map(lambda x: jnp.broadcast_to(x, (num_episodes, *jnp.shape(x))), algorithm.initial_carry(state))
        act = jax.vmap(lambda carry, obs, key: algorithm.act(state, carry, obs, key, greedy))
        no = jnp.zeros(num_episodes, bool)
        # Truths and whole numbers are counted in float32.
        info = jax.tree.map(lambda x: jnp.zeros((num_episodes, *x.shape)), info_shapes(environment))
        length = jnp.zeros(num_episodes, jnp.int32)
        start = Episodes(jnp.zeros(streams), length, no, no, info, describing.start(num_episodes))

        def running(loop: tuple[Any, ...]) -> jax.Array:
            time, *_, episodes = loop
            return (time < max_steps) & ~jnp.all(episodes.terminated | episodes.truncated)

        def body(loop: tuple[Any, ...]) -> tuple[Any, ...]:
            time, carry, env_state, obs, is_gone, episodes = loop
            act_key, env_key = jax.random.split(jax.random.fold_in(run_key, time))
            carry, action = act(carry, obs, jax.random.split(act_key, num_episodes))
            after = jax.vmap(environment.step)(jax.random.split(env_key, num_episodes), env_state, action)
            alive = ~(episodes.terminated | episodes.truncated)
            terminated, truncated = after.terminated, after.truncated
            reward = jnp.where(is_gone, 0.0, after.reward)
            is_gone |= terminated | truncated
            info = tree.where(alive, jax.tree.map(jnp.add, episodes.info, after.info), episodes.info)
            if agents is not None:
                ended = jnp.all(terminated | truncated, axis=-1)
                terminated = jnp.all(terminated, axis=-1)
                truncated = ended & ~terminated
            episodes = Episodes(
                episodes.returns + reward,
                episodes.length + alive,
                episodes.terminated | (alive & terminated),
                episodes.truncated | (alive & truncated),
                info,
                describing.add(episodes.descriptor, after.state, time, alive),
            )
            return time + 1, carry, after.state, after.obs, is_gone, episodes

        first = (jnp.zeros((), jnp.int32), carry, env_state, obs, jnp.zeros(streams, bool), start)
        episodes = jax.lax.while_loop(running, body, first)[-1]
        return episodes._replace(descriptor=describing.finish(episodes.descriptor, episodes.length))

    return evaluate


def info_shapes(environment: Environment) -> dict[str, jax.ShapeDtypeStruct]:
    """What the environment's `info` holds at one step."""
    action = zeros(environment.action_space)
    if environment.num_agents is not None:
        action = jax.tree.map(lambda x: jnp.broadcast_to(x, (environment.num_agents, *x.shape)), action)
    keys = jax.random.split(jax.random.key(0))
    return jax.eval_shape(lambda keys: environment.step(keys[0], environment.reset(keys[1])[0], action).info, keys)


Metric = Callable[[Episodes], dict[str, float]]


def measured(metric: Metric | None, episodes: Episodes) -> dict[str, Any]:
    """The numbers of a user's own, as plain values."""
    return {} if metric is None else {name: np.asarray(value).tolist() for name, value in metric(episodes).items()}


def default_metrics(episodes: Episodes, agent_types: tuple[str, ...] = (), with_interval: bool = True) -> dict[str, Any]:
    """The numbers of an evaluation: a summary of returns, lengths, how episodes ended, the means of `info` and descriptors.

    With one member the summary is over episodes, with several over the members' mean returns. With agents it is of their mean
    return; besides there are the mean return of each agent, of the agents of each type, and of the team: the sum over agents.
    `with_interval`: as for `summarize`.
    """
    told = _returns_of_agents(np.asarray(episodes.returns, np.float64), agent_types) if agent_types else {}
    returns = np.asarray(episodes.returns, np.float64)
    length = np.asarray(episodes.length)
    ended = np.asarray(episodes.terminated) | np.asarray(episodes.truncated)
    if length.ndim == 2:
        returns = returns.reshape(length.shape[0], -1).mean(axis=1)
    elif returns.ndim == 2:
        returns = returns.mean(axis=1)
    described = {} if isinstance(episodes.descriptor, tuple) else {"descriptor_mean": episodes.descriptor}
    told |= {
        name: np.asarray(total, float).reshape(-1, *total.shape[length.ndim :]).mean(axis=0).tolist()
        for name, total in (episodes.info | described).items()
    }
    return told | {
        **{f"return_{name}": value for name, value in summarize(returns, with_interval=with_interval).items()},
        "length_mean": float(length.mean()),
        "terminated": float(np.mean(episodes.terminated)),
        "truncated": float(np.mean(episodes.truncated)),
        "unfinished": float(1 - ended.mean()),
    }


def further(names: Iterable[str], values: dict[str, Any], most: int = MOST_SHOWN) -> list[str]:
    """Those values of an evaluation in words, as far as there are any: one number each, or a curve of `most` at most."""
    curves = {name: np.ravel(values[name]) for name in names if name in values}
    numbers = {name: " ".join(f"{x:.2f}" for x in curve[:most]) for name, curve in curves.items()}
    return [f"{name} {numbers[name]}{' ...' if curve.size > most else ''}" for name, curve in curves.items()]


def _returns_of_agents(returns: np.ndarray, agent_types: tuple[str, ...]) -> dict[str, Any]:
    """Mean returns by agent, type and team. `returns`: `[..., A]`."""
    means = returns.reshape(-1, len(agent_types)).mean(axis=0)
    kinds = {kind: [i for i, other in enumerate(agent_types) if other == kind] for kind in dict.fromkeys(agent_types)}
    by_type = {f"return_{kind}": float(means[agents].mean()) for kind, agents in kinds.items()} if len(kinds) > 1 else {}
    return {"return_agents": means.tolist(), "return_team": float(means.sum()), **by_type}
