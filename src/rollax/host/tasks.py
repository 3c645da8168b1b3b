"""A policy on every task of an environment that lists its tasks: which are solved, and which fail."""

from typing import Any

import jax
import numpy as np

from rollax.acting.evaluate import evaluator
from rollax.environments.core import task_numbers
from rollax.errors import UsageError
from rollax.host import keys, program

EPISODES = 8  # of each task, where nobody says
AT_ONCE = 1024  # episodes that are played side by side


def by_task(policy: Any, num_episodes: int, key: jax.Array, greedy: bool = True) -> dict[str, np.ndarray]:
    """Columns of a table, a row for each task: its number, mean, std and least of the returns, and the share of episodes that
    terminated, over `num_episodes` episodes each.

    Raises UsageError where the environment has no list of tasks.
    """
    environment = policy.environment
    numbers = task_numbers(environment)
    if not numbers:
        raise UsageError(
            f"{environment.name} has no list of tasks to play one by one: take one that has, such as those of "
            "xminigrid/XLand-..., or give your own task_numbers, tasks_at and describe (docs/environments.md, Tasks)"
        )
    total = len(numbers) * num_episodes
    size = min(total, AT_ONCE)
    steps = program.eval_steps(environment, policy.spec)
    play = jax.jit(evaluator(environment, policy.algorithm, size, steps, greedy))
    key, returns, terminated = keys.of_evaluate(key), [], []
    for index in range(-(-total // size)):
        places = np.arange(index * size, (index + 1) * size) % total // num_episodes  # the last begins again from the first
        played = play(policy.state, jax.random.fold_in(key, index), environment.tasks_at(places))
        returns.append(np.asarray(played.returns, np.float64))
        terminated.append(np.asarray(played.terminated))
    rows, ends = (np.concatenate(x)[:total].reshape(len(numbers), num_episodes) for x in (returns, terminated))
    return {
        "task": np.asarray(numbers),
        "return_mean": rows.mean(axis=1),
        "return_std": rows.std(axis=1),
        "return_min": rows.min(axis=1),
        "terminated": ends.mean(axis=1),
    }


def in_words(table: dict[str, np.ndarray], environment: Any, most: int) -> str:
    """How many tasks fail, that is have a mean return of 0 or less, and the `most` with the lowest means."""
    means = table["return_mean"]
    order, failed = np.argsort(means, kind="stable")[:most], int(np.sum(means <= 0))
    lines = [f"{failed:,} of {len(means):,} tasks have a mean return of 0 or less; those with the lowest:"]
    for place in order:
        number, mean, std = (table[name][place] for name in ("task", "return_mean", "return_std"))
        first, *rest = environment.describe(int(number)).splitlines()
        lines += [f"  {first}: return {mean:.3g} (std {std:.3g})", *(f"    {line}" for line in rest)]
    return "\n".join(lines)
