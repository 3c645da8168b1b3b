"""Matches between two policies that play the agents of one environment."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from rollax import tree
from rollax.acting.evaluation import make_episode_runner, make_policy, split_episode_keys
from rollax.algorithm import Algorithm
from rollax.environments.environment import Environment
from rollax.types import Carry, Observation, PyTree, State


def make_match(
    environment: Environment,
    first: Algorithm,
    second: Algorithm,
    num_episodes: int,
    max_steps: int,
    greedy: bool,
) -> Callable[[State, State, jax.Array, jax.Array], jax.Array]:
    """Build a function that plays N episodes between two policies.

    Args:
        environment: Environment with several agents.
        first: Algorithm of the first policy.
        second: Algorithm of the second policy.
        num_episodes: Number of episodes N.
        max_steps: Maximum number of steps of an episode.
        greedy: Whether the policies take their most likely actions instead of sampling.

    Returns:
        Function `(first_state, second_state, is_second, key)` that returns the return of each
        agent, float `[N, A]`. The second policy plays the agents where `is_second`, bool `[A]`, is
        true.
    """
    play_all = make_episode_runner(environment, max_steps)

    def play(
        first_state: State, second_state: State, is_second: jax.Array, key: jax.Array
    ) -> jax.Array:
        first_policy = make_policy(first, first_state, greedy)
        second_policy = make_policy(second, second_state, greedy)

        def policy(
            carry: Carry, obs: Observation, reset: jax.Array, key: jax.Array
        ) -> tuple[Carry, PyTree, None]:
            first_key, second_key = jax.random.split(key)
            first_carry, first_action, _ = first_policy(carry[0], obs, reset, first_key)
            second_carry, second_action, _ = second_policy(carry[1], obs, reset, second_key)
            second_action = jax.tree.map(
                lambda x, like: x.astype(like.dtype), second_action, first_action
            )
            action = tree.where(is_second, second_action, first_action)
            return (first_carry, second_carry), action, None

        carry = first.initial_carry(first_state), second.initial_carry(second_state)
        carries = jax.tree.map(lambda x: jnp.broadcast_to(x, (num_episodes, *jnp.shape(x))), carry)
        episodes, _ = play_all(policy, carries, split_episode_keys(key, num_episodes))
        return episodes.returns

    return play
