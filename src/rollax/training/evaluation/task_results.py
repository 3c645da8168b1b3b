"""Evaluation of a policy on every task of a multi-task environment."""

from typing import TYPE_CHECKING

import jax
import numpy as np

from rollax.acting.evaluation import TRIAL_END_NAMES, make_evaluator
from rollax.environments.capabilities import has_finite_tasks
from rollax.environments.environment import FiniteTaskEnvironment
from rollax.errors import UsageError
from rollax.training.compile import background, keys
from rollax.training.compile.evaluators import max_eval_steps

if TYPE_CHECKING:
    import rollax.policy

DEFAULT_EPISODES_PER_TASK = 8
MAX_PARALLEL_EPISODES = 1024


def evaluate_tasks(
    policy: "rollax.policy.Policy", num_episodes: int, key: jax.Array, greedy: bool = True
) -> dict[str, np.ndarray]:
    """Evaluate a policy on every task of its environment.

    Args:
        policy: Loaded policy.
        num_episodes: Number of episodes per task.
        key: Random key.
        greedy: Whether to take the most likely actions.

    Returns:
        Arrays with one entry per task: `task` (task number), `return_mean`, `return_std`,
        `return_min`, and `terminated` (fraction of episodes).

    Raises:
        UsageError: If the environment has no list of tasks.
    """
    environment = policy.environment
    if not has_finite_tasks(environment):
        raise UsageError(
            f"{environment.name} has no list of tasks. Use an environment with tasks, such as "
            "xminigrid/XLand-..., or define task_numbers, tasks_at and describe "
            "(docs/environments.md, Tasks)."
        )
    task_numbers = environment.task_numbers
    total = len(task_numbers) * num_episodes
    size = min(total, MAX_PARALLEL_EPISODES)
    steps = max_eval_steps(environment, policy.spec)
    jitted = jax.jit(make_evaluator(environment, policy.algorithm, size, steps, greedy))
    compiled = None
    key, returns, terminated = keys.policy_evaluation_key(key), [], []
    for index in range(-(-total // size)):
        # The last batch is filled up with tasks from the beginning.
        task_indices = np.arange(index * size, (index + 1) * size) % total // num_episodes
        arguments = policy.state, jax.random.fold_in(key, index), environment.tasks_at(task_indices)
        compiled = compiled or background.compile_for_arguments(jitted, *arguments)
        episodes = background.execute(compiled, *arguments)
        returns.append(np.asarray(episodes.returns, np.float64))
        # For trials, count the ends of their inner episodes.
        ends = episodes.info.get(TRIAL_END_NAMES[0], episodes.terminated)
        terminated.append(np.asarray(ends, np.float64))
    rows, ends = (
        np.concatenate(x)[:total].reshape(len(task_numbers), num_episodes)
        for x in (returns, terminated)
    )
    return {
        "task": np.asarray(task_numbers),
        "return_mean": rows.mean(axis=1),
        "return_std": rows.std(axis=1),
        "return_min": rows.min(axis=1),
        "terminated": ends.mean(axis=1),
    }


def format_worst_tasks(
    table: dict[str, np.ndarray], environment: FiniteTaskEnvironment, max_tasks: int
) -> str:
    """Format the number of failed tasks and the tasks with the lowest mean returns.

    Args:
        table: Result of `evaluate_tasks`. Tasks with a mean return of 0 or less have failed.
        environment: Environment that describes the tasks.
        max_tasks: Number of tasks to list.

    Returns:
        The lines as one string.
    """
    means = table["return_mean"]
    is_finite = np.isfinite(means)
    worst_first = np.argsort(np.where(is_finite, means, -np.inf), kind="stable")
    num_failed = int(np.sum(means <= 0))
    nonfinite = f" ({np.sum(~is_finite):,} not finite)" if not is_finite.all() else ""
    lines = [
        f"{num_failed:,} of {len(means):,} tasks{nonfinite} have a mean return of 0 or less. "
        "Lowest mean returns:"
    ]
    for index in worst_first[:max_tasks]:
        title, *details = environment.describe(int(table["task"][index])).splitlines()
        mean, std = means[index], table["return_std"][index]
        lines.append(f"  {title}: return {mean:.3g} (std {std:.3g})")
        lines += [f"    {line}" for line in details]
    return "\n".join(lines)
