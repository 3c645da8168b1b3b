"""Returns of simple rules in games, as baselines for policies.

Usage: `python benchmarks/rules.py [--episodes 128]`.

Each rule looks one move ahead and takes the best legal action. Ties are broken at random. In Snake,
the best action eats the fruit or moves nearest to it. In 2048, the best action merges most. Random
legal actions are measured for comparison. Results are means over episodes with 95 % intervals.

For Pgx games, `rollax eval RUN --eval-env.opponent greedy` plays a policy against such a rule.
"""

import argparse
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import rollax

# Function from an observation and the transition of an action to the value of the action, `[]`.
Rule = Callable[[Any, Any], jax.Array]


def nearer(obs: Any, after: Any) -> jax.Array:
    """Return the value of an action in Snake.

    Eating has the highest value and dying the lowest. Otherwise, a smaller distance between head
    and fruit is better.
    """
    rows, columns = obs["grid"].shape[:2]
    head, fruit = (
        jnp.argmax(each.reshape(-1)) for each in (after.obs["grid"][..., 1], obs["grid"][..., 3])
    )
    distance = jnp.abs(head // columns - fruit // columns) + jnp.abs(
        head % columns - fruit % columns
    )
    return jnp.where(after.terminated, -rows * columns, -distance) + 2 * rows * columns * (
        after.reward > 0
    )


def merging(obs: Any, after: Any) -> jax.Array:
    """Return the value of an action in 2048: the reward, which is the sum of merged tiles."""
    return after.reward


RULES: dict[str, dict[str, Rule]] = {
    "jumanji/Snake-v1": {"random": lambda obs, after: jnp.zeros(()), "nearer to the fruit": nearer},
    "jumanji/Game2048-v1": {"random": lambda obs, after: jnp.zeros(()), "merges most": merging},
}


def returns(env: Any, rule: Rule, episodes: int) -> np.ndarray:
    """Play episodes with a rule and return their returns, `[episodes]`."""

    def act(carry: Any) -> Any:
        key, state, obs, _, total = carry
        key, choice_key, step_key = jax.random.split(key, 3)
        actions = jnp.arange(env.action_space.n)
        value = jax.vmap(lambda action: rule(obs, env.step(step_key, state, action)))(actions)
        value = jnp.where(obs["action_mask"], value, -jnp.inf)
        action = jax.random.categorical(choice_key, jnp.where(value == value.max(), 0.0, -jnp.inf))
        after = env.step(step_key, state, action)
        return key, after.state, after.obs, after.terminated | after.truncated, total + after.reward

    def episode(key: jax.Array) -> jax.Array:
        key, reset_key = jax.random.split(key)
        start = (key, *env.reset(reset_key), jnp.zeros((), bool), jnp.zeros(()))
        return jax.lax.while_loop(lambda carry: ~carry[3], act, start)[4]

    return np.asarray(jax.jit(jax.vmap(episode))(jax.random.split(jax.random.key(0), episodes)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=128)
    episodes = parser.parse_args().episodes
    for id, rules in RULES.items():
        for name, rule in rules.items():
            found = returns(rollax.make(id), rule, episodes)
            interval = 1.96 * found.std(ddof=1) / np.sqrt(episodes)
            print(f"{id}  {name}  {found.mean():,.1f} +- {interval:.1f}", flush=True)


if __name__ == "__main__":
    main()
