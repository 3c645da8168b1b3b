"""The commands that look at runs: eval, plot, render."""

import dataclasses
import sys
from pathlib import Path
from typing import Any

import tyro

from rollax.cli.shared import Shared
from rollax.cli.words import close, parse, single, take
from rollax.errors import UsageError
from rollax.typed import shown

MOST_NUMBERS = 50  # of a curve in a line
MOST_RENDERED = 1000  # episodes
LONGEST_STEP = 18  # digits


@dataclasses.dataclass(frozen=True)
class Evaluate:
    """Plays whole episodes with the policy of a run.

    After RUN, --eval-env.NAME VALUE gives an argument of the environment another value than the run's own evaluations have:
    rollax eval RUN --eval-env.episodes 10
    """

    run: tyro.conf.Positional[Path]
    """Folder of the run."""
    checkpoint: str = "last"
    """last, best, or the step of a checkpoint."""
    episodes: int = 128
    """How many episodes."""
    stochastic: bool = False
    """Sample actions instead of taking the likeliest."""
    seed: int = 0
    """Seed of the episodes."""
    member: int | None = None
    """Which member of a population; the best when not given."""
    descriptor: str | None = None
    """How an episode's descriptor of behavior is extracted: final or mean; default: the environment's own."""
    json: bool = False
    """Print one JSON object and nothing else."""


def evaluate(arguments: list[str], shared: Shared) -> int:
    import time

    import jax

    from rollax.host import api

    rest, eval_env = take(arguments, "--eval-env.")
    given = parse(Evaluate, rest, "rollax eval")
    if given.episodes < 1:
        raise UsageError(f"episodes ({given.episodes}) must be at least 1")
    _check(given)
    policy = api.load(given.run, checkpoint=given.checkpoint, member=given.member, eval_arguments=single(eval_env))
    for warning in policy.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    started = time.monotonic()
    numbers, episodes = policy.evaluate(given.episodes, jax.random.key(given.seed), not given.stochastic, given.descriptor)
    wall_time = time.monotonic() - started
    frames = int(episodes.length.sum())
    if not given.json:
        print(of_evaluation(given, policy, numbers, episodes))
    summary = {
        "run": str(given.run),
        "steps": policy.step,
        **({} if policy.member is None else {"member": policy.member}),
        "episodes": given.episodes,
        **{name: value for name, value in numbers.items() if name != "return_any_nan"},
        "any_nan": bool(numbers["return_any_nan"]),
        "wall_time": round(wall_time, 3),
        "steps_per_second": round(frames / wall_time, 1),
    }
    close(summary, given.json)
    return 0


def _check(given: "Evaluate | Render") -> None:
    """Raises UsageError for what no run has, before any is looked for."""
    if not 0 <= given.seed < 2**32:
        raise UsageError(f"seed ({shown(given.seed)}) must be at least 0 and less than 2^32")
    if given.checkpoint.isdecimal() and len(given.checkpoint) > LONGEST_STEP:
        raise UsageError(f"checkpoint ({shown(given.checkpoint)}) must be last, best or the number of a step")


def of_evaluation(given: Any, policy: Any, numbers: dict[str, Any], episodes: Any) -> str:
    """An evaluation as a person reads it."""
    from rollax.environments.core import agent_types
    from rollax.host.evaluation import further

    by_agents = ["return_agents", "return_team", *(f"return_{kind}" for kind in dict.fromkeys(agent_types(policy.environment)))]
    low, high = numbers["return_iqm_low"], numbers["return_iqm_high"]
    member = "" if policy.member is None else f", member {policy.member}"
    elsewhere = ", ".join(f"{name} {value}" for name, value in policy.spec.eval_arguments.items())
    figures = "  ".join(f"{name} {numbers[f'return_{name}']:.3f}" for name in ("mean", "std", "min", "p20", "median", "max"))
    ends = f"{numbers['terminated']:.0%} terminated, {numbers['truncated']:.0%} truncated"
    lines = [
        f"{given.run} at step {policy.step:,}{member}: {given.episodes} episodes{f' (with {elsewhere})' if elsewhere else ''}",
        f"  return   {figures}",
        f"           interquartile mean {numbers['return_iqm']:.3f}, 95 % interval [{low:.3f}, {high:.3f}]",
        f"  length   mean {numbers['length_mean']:.1f}; {ends}",
        *(f"  {words}" for words in further([*by_agents, *episodes.info], numbers, MOST_NUMBERS)),
    ]
    if "descriptor_mean" in numbers:
        lines.append(f"  descriptor mean [{', '.join(f'{value:.3f}' for value in numbers['descriptor_mean'])}]")
    return "\n".join(lines)


@dataclasses.dataclass(frozen=True)
class Plot:
    """Draws the learning curves of one run, or of several together."""

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Folders of runs."""
    out: Path | None = None
    """Picture to write (png, pdf or svg); default: in the run's figures/."""


def plot(arguments: list[str], shared: Shared) -> int:
    from rollax.view.plot import plot as draw

    given = parse(Plot, arguments, "rollax plot")
    if not given.runs:
        raise UsageError("plot takes one or more run folders: rollax plot RUN")
    print(draw(list(given.runs), given.out))
    if len(given.runs) == 1 and given.out is None:
        from rollax.view.archive import draw_if_any

        for path in draw_if_any(given.runs[0]):
            print(path)
    return 0


@dataclasses.dataclass(frozen=True)
class Render:
    """Plays an episode with the policy of a run and writes it as a GIF, or shows it in the terminal."""

    run: tyro.conf.Positional[Path]
    """Folder of the run."""
    out: Path | None = None
    """GIF to write; default: in the run's figures/."""
    checkpoint: str = "last"
    """last, best, or the step of a checkpoint."""
    seed: int = 0
    """Seed of the episode."""
    episodes: int = 1
    """How many episodes, one after the other."""
    stochastic: bool = False
    """Sample actions instead of taking the likeliest."""
    member: int | None = None
    """Which member of a population; the best when not given."""
    descriptor: tuple[float, ...] | None = None
    """Of an archive: the elite whose descriptor is nearest to this."""
    cell: tuple[int, ...] | None = None
    """Of an archive with a grid: the elite of this cell, indices from 0."""
    text: bool = False
    """Show it in the terminal's characters and write no GIF (environments with a grid)."""


def render(arguments: list[str], shared: Shared) -> int:
    from rollax.view.render import render as draw
    from rollax.view.text import show

    given = parse(Render, arguments, "rollax render")
    _check(given)
    if not 1 <= given.episodes <= MOST_RENDERED:
        raise UsageError(f"episodes ({shown(given.episodes)}) must be between 1 and {MOST_RENDERED}")
    if given.text and given.out is not None:
        raise UsageError(f"--text writes nothing to --out ({given.out}): leave one of them out")
    which = {name: getattr(given, name) for name in ("checkpoint", "member", "seed", "episodes")}
    if given.text:
        show(given.run, greedy=not given.stochastic, **which)
        return 0
    print(draw(given.run, given.out, greedy=not given.stochastic, descriptor=given.descriptor, cell=given.cell, **which))
    return 0
