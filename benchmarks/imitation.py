"""Returns of behavior cloning and of the expert that it imitates.

Usage: `python benchmarks/imitation.py ENVIRONMENT [EXPERT] [--episodes N ...] [--seeds N]
[--expert-steps N] [--steps N]`.

The expert is a run of PPO with its preset, or the folder of a run. Behavior cloning learns from the
first N of its recorded episodes, with its preset. Each line has the mean return of a policy in 128
new episodes, and its fraction of the return of the expert.
"""

import argparse
import statistics
from pathlib import Path

import jax

import rollax

EVALUATION_EPISODES = 128


def mean_return(policy: rollax.Policy) -> float:
    numbers, _ = policy.evaluate(EVALUATION_EPISODES, jax.random.key(1))
    return float(numbers["return_mean"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("environment")
    parser.add_argument("expert", nargs="?", type=Path)
    parser.add_argument("--episodes", type=int, nargs="+", default=[5, 20])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--expert-steps", type=int)
    parser.add_argument("--steps", type=int)
    given = parser.parse_args()
    folder = given.expert
    if folder is None:
        folder = rollax.train("ppo", given.environment, total_steps=given.expert_steps).folder
    expert = rollax.load(folder, checkpoint="best")
    target = mean_return(expert)
    data = rollax.record(expert, episodes=max(given.episodes))
    print(f"expert {folder}: {target:.1f}; recorded {data.returns.mean():.1f}", flush=True)
    for number in given.episodes:
        run = rollax.train(
            "bc",
            given.environment,
            demonstrations=data.select(range(number)),
            total_steps=given.steps,
            seeds=given.seeds,
            options={"eval_count": 1},
            quiet=True,
        )
        returns = [
            mean_return(rollax.load(run.folder, member=member if given.seeds > 1 else None))
            for member in range(given.seeds)
        ]
        mean = statistics.fmean(returns)
        listed = ", ".join(f"{value:.1f}" for value in returns)
        print(f"{number} episodes: {mean:.1f} ({mean / target:.1%}) of seeds {listed}", flush=True)


if __name__ == "__main__":
    main()
