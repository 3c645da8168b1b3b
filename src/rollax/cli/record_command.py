"""Command `rollax record`."""

import dataclasses
from pathlib import Path
from typing import Annotated

import tyro

from rollax.cli.command_output import print_summary
from rollax.cli.parsing.dynamic_options import (
    check_checkpoint_name,
    check_seed,
    parse_options,
    take_prefixed_options,
    unwrap_single_values,
)
from rollax.cli.parsing.shared_options import SharedOptions
from rollax.errors import UsageError
from rollax.runtime.printing import print_line
from rollax.training.datasets.demonstration_recorder import record as record_episodes
from rollax.training.evaluation.metrics import format_number

RECORDINGS_FOLDER = "recordings"  # folder of the default file inside a run


@dataclasses.dataclass(frozen=True)
class RecordOptions:
    """Record complete episodes of a run as demonstrations, a .npz file of NumPy arrays.

    The option --demonstrations of rollax train reads the file.

    With --environment, the policy acts in another environment with the same spaces, and
    --env.NAME VALUE sets an argument of that environment.
    """

    run: tyro.conf.Positional[Path]
    """Folder of the run."""
    out: Annotated[Path | None, tyro.conf.arg(aliases=["-o"])] = None
    """New .npz file to write. Defaults to a file in the run's recordings/."""
    episodes: int = 20
    """Number of episodes."""
    checkpoint: str | None = None
    """Checkpoint: last, best, or a step. Defaults to best if known, else last."""
    environment: str | None = None
    """Id of the environment. Defaults to the evaluation environment of the run."""
    seed: int = 0
    """Random seed of the episodes."""
    stochastic: bool = False
    """Sample actions instead of taking the most likely ones."""
    member: int | None = None
    """Member of a population. Defaults to the best one."""
    max_steps: int | None = None
    """Maximum number of steps of an episode. Defaults to the time limit of the environment."""
    json: bool = False
    """Print only one JSON object."""


def record(arguments: list[str], shared: SharedOptions) -> int:
    """Run `rollax record` and return its exit code."""
    rest, env = take_prefixed_options(arguments, "--env.")
    options = parse_options(RecordOptions, rest, "rollax record")
    check_seed(options.seed)
    check_checkpoint_name(options.checkpoint or "")
    if env and options.environment is None:
        raise UsageError("--env.NAME requires --environment ID. Add it.")
    folder = options.run / RECORDINGS_FOLDER
    name = f"{options.checkpoint or 'best'}-{options.episodes}-episodes-seed-{options.seed}.npz"
    path = options.out or folder / name
    recorded = record_episodes(
        options.run,
        options.environment,
        episodes=options.episodes,
        path=path,
        checkpoint=options.checkpoint,
        member=options.member,
        arguments=unwrap_single_values(env) or None,
        greedy=not options.stochastic,
        seed=options.seed,
        max_steps=options.max_steps,
    )
    returns = recorded.returns
    summary = {
        "run": str(options.run),
        "file": str(path),
        "episodes": recorded.num_episodes,
        "steps": recorded.num_steps,
        "return_mean": float(returns.mean()),
        "return_min": float(returns.min()),
        "return_max": float(returns.max()),
    }
    if not options.json:
        low, mean, high = (
            format_number(summary[f"return_{part}"]) for part in ("min", "mean", "max")
        )
        print_line(path)
        print_line(
            f"{recorded.num_episodes:,} episodes, {recorded.num_steps:,} steps, return mean {mean} "
            f"(from {low} to {high})"
        )
    print_summary(summary, options.json)
    return 0
