"""The commands that play the policies of runs: eval, render."""

import dataclasses
import re
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
MOST_FPS = 240
LONGEST_STEP = 18  # digits
NUMBERS = re.compile(r"[-+.\deE]+(,[-+.\deE]+)+")  # with commas between them


@dataclasses.dataclass(frozen=True)
class Evaluate:
    """Plays whole episodes with the policy of a run, or of several in turn, and with every elite of its archive if it has one.

    The corrected archive is what remains when these are added to an empty one with their mean fitness and mean descriptor.

    After the runs, --eval-env.NAME VALUE gives an argument of the environment another value than their own evaluations have:
    rollax eval RUN --eval-env.episodes 10
    """

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Folders of runs, folders that contain runs, or patterns such as "runs/*"."""
    checkpoint: str = "last"
    """last, best, or the step of a checkpoint."""
    episodes: int | None = None
    """How many episodes; default: 128, and 16 with each elite of an archive."""
    archive: bool = True
    """Of an archive: play every elite anew; --no-archive: only the best."""
    stochastic: bool = False
    """Sample actions instead of taking the likeliest."""
    seed: int = 0
    """Seed of the episodes."""
    member: int | None = None
    """Which member of a population; the best when not given."""
    descriptor: str | None = None
    """How an episode's descriptor of behavior is extracted: final or mean; default: the environment's own."""
    tasks: int | None = None
    """Of an environment with a list of tasks: play every one of them (8 episodes each) and show so many that go worst."""
    info: tuple[str, ...] = ()
    """NAME=mean, NAME=sum or NAME=last: a number of the environment's info over an episode; default: as in the run."""
    json: bool = False
    """Print one JSON object for each run and nothing else."""


def evaluate(arguments: list[str], shared: Shared) -> int:
    from rollax.host import compilation_cache
    from rollax.host.reading import find

    rest, eval_env = take(arguments, "--eval-env.")
    given = parse(Evaluate, rest, "rollax eval")
    if not given.runs:
        raise UsageError("eval takes one or more run folders: rollax eval RUN")
    if given.episodes is not None and given.episodes < 1:
        raise UsageError(f"episodes ({given.episodes}) must be at least 1")
    _check(given)
    compilation_cache.use()
    for run in find(given.runs, warn):
        close(of_run(given, run, single(eval_env)), given.json)
    return 0


def of_run(given: Evaluate, run: Path, eval_arguments: dict[str, Any]) -> dict[str, Any]:
    """Plays and shows one run; the numbers as one flat object."""
    import time

    import jax

    from rollax.host import api
    from rollax.host.options import info_choices

    episodes = 128 if given.episodes is None else given.episodes
    policy = api.load(run, checkpoint=given.checkpoint, member=given.member, eval_arguments=eval_arguments)
    for warning in policy.warnings:
        warn(warning)
    how, started = info_choices(given.info, "info"), time.monotonic()
    key = jax.random.key(given.seed)
    numbers, played = policy.evaluate(episodes, key, not given.stochastic, given.descriptor, info=how)
    wall_time = time.monotonic() - started
    frames = int(played.length.sum())
    if not given.json:
        print(of_evaluation(run, policy, numbers, played), flush=True)
    corrected = of_elites(given, policy, key) | of_tasks(given, policy, key)
    first = {
        "run": str(run),
        "steps": policy.step,
        **({} if policy.member is None else {"member": policy.member}),
        "episodes": episodes,
    }
    last = {
        **corrected,
        "any_nan": bool(numbers.pop("return_any_nan")),
        "wall_time": round(wall_time, 3),
        "steps_per_second": round(frames / wall_time, 1),
    }
    # An environment may call a number of its `info` as this command calls one of its own, as "steps".
    return first | {f"info/{name}" if name in first | last else name: value for name, value in numbers.items()} | last


def of_elites(given: Evaluate, policy: Any, key: Any) -> dict[str, Any]:
    """The numbers of the corrected archive, which it prints for a person; none where there is no archive."""
    from rollax.host.corrected import EPISODES, can_be_corrected
    from rollax.host.evaluation import digits
    from rollax.networks.solutions import has_closed_form

    if not given.archive or not can_be_corrected(policy):
        return {}
    episodes = EPISODES if given.episodes is None else given.episodes
    if not given.json and sys.stderr.isatty() and not has_closed_form(policy.environment):
        print(f"playing every elite anew, {episodes} episodes each (--no-archive leaves this out)", file=sys.stderr)
    numbers, _ = policy.corrected(episodes, key)
    if not given.json:
        each, loss = numbers["episodes_per_elite"], numbers["fitness_loss"]
        names = ("coverage", "qd_score", "fitness_best", "fitness_mean")
        coverage, score, best, mean = (digits(numbers[f"corrected_{name}"]) for name in names)
        episodes_each = "a closed form" if has_closed_form(policy.environment) else f"{each} episode{'s' * (each > 1)} each"
        changed = f"{'rose' if loss < 0 else 'fell'} by {digits(abs(loss))}"
        print(
            f"  corrected archive ({numbers['elites']:,} elites, {episodes_each})\n"
            f"           coverage {coverage}  QD score {score}  fitness best {best}, mean {mean}\n"
            f"           fitness {changed} in the mean; {numbers['kept_cell']:.1%} kept their cell"
        )
    return numbers


def of_tasks(given: Evaluate, policy: Any, key: Any) -> dict[str, Any]:
    """The numbers of every task, of which it prints the worst for a person; none where they are not asked for."""
    from rollax.host.tasks import EPISODES, in_words

    if given.tasks is None:
        return {}
    table = policy.by_task(given.episodes or EPISODES, key, not given.stochastic)
    if not given.json:
        print(in_words(table, policy.environment, given.tasks))
    return {f"tasks_{name}": column.tolist() for name, column in table.items()}


def warn(warning: str) -> None:
    beside(f"warning: {warning}")


def beside(words: str) -> None:
    """Beside what a command prints for other programs to read."""
    print(words, file=sys.stderr)


def _check(given: "Evaluate | Render") -> None:
    """Raises UsageError for what no run has, before any is looked for."""
    if not 0 <= given.seed < 2**32:
        raise UsageError(f"seed ({shown(given.seed)}) must be at least 0 and less than 2^32")
    if given.checkpoint is not None and given.checkpoint.isdecimal() and len(given.checkpoint) > LONGEST_STEP:
        raise UsageError(f"checkpoint ({shown(given.checkpoint)}) must be last, best or the number of a step")


def of_evaluation(run: Any, policy: Any, numbers: dict[str, Any], episodes: Any) -> str:
    """An evaluation as a person reads it."""
    from rollax.environments.core import agent_types
    from rollax.host.evaluation import digits, further
    from rollax.networks.solutions import has_closed_form

    is_closed_form = has_closed_form(policy.environment)
    by_agents = ["return_agents", "return_team", *(f"return_{kind}" for kind in dict.fromkeys(agent_types(policy.environment)))]
    iqm, low, high = (digits(numbers[f"return_iqm{end}"]) for end in ("", "_low", "_high"))
    settings = [] if policy.member is None else policy.spec.members()[policy.member].items()
    told = ", ".join(f"{name} {value:g}" for name, value in settings)
    member = "" if policy.member is None else f", member {policy.member} ({told})"
    elsewhere = ", ".join(f"{name} {value}" for name, value in policy.spec.eval_arguments.items())
    figures = "  ".join(
        f"{name} {digits(numbers[f'return_{name}'])}" for name in ("mean", "std", "min", "p20", "median", "max")
    )
    ends = f"{numbers['terminated']:.0%} terminated, {numbers['truncated']:.0%} truncated"
    played = [
        f"  return   {figures}",
        f"           interquartile mean {iqm}, 95 % interval [{low}, {high}]",
        f"  length   mean {numbers['length_mean']:.1f}; {ends}",
    ]
    what = "a closed form, without episodes" if is_closed_form else f"{len(episodes.length)} episodes"
    lines = [
        f"{run} at step {policy.step:,}{member}: {what}{f' (with {elsewhere})' if elsewhere else ''}",
        *([f"  return   {digits(numbers['return_mean'])}"] if is_closed_form else played),
        *(f"  {words}" for words in further([*by_agents, *episodes.info], numbers, MOST_NUMBERS)),
    ]
    if "qd_score" in numbers:
        coverage, score, best, mean = (digits(numbers[x]) for x in ("coverage", "qd_score", "fitness_best", "fitness_mean"))
        lines.append(f"  archive  coverage {coverage}  QD score {score}  fitness best {best}, mean {mean}")
    if "descriptor_mean" in numbers:
        lines.append(f"  descriptor mean [{', '.join(f'{value:.3f}' for value in numbers['descriptor_mean'])}]")
    return "\n".join(lines)


@dataclasses.dataclass(frozen=True)
class Render:
    """Plays an episode with the policy of a run and writes it as a GIF or MP4, or shows it in the terminal.

    With --checkpoint all the same start by every checkpoint in turn: how the policy learnt. With --sheet a contact sheet of
    many elites of its archive.

    After the run, --eval-env.NAME VALUE gives an argument of the environment another value than its evaluations have:
    rollax render RUN --eval-env.opponent agents
    """

    run: tyro.conf.Positional[Path]
    """Folder of the run."""
    out: Path | None = None
    """File to write: .gif, .mp4 (pip install "rollax[video]"), for brax and Playground .html; .png of a sheet;
    default: a GIF, or the sheet, in the run's figures/."""
    checkpoint: str | None = None
    """last, best, the step of a checkpoint, or all of them in turn; default: best where one was evaluated, else last (elites of
    an archive: last)."""
    fps: int | None = None
    """Frames in a second; default: what suits the environment."""
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
    sheet: int | None = None
    """Of an archive: a picture of so many of its elites, spread over their descriptors, in place of an episode (PNG)."""
    text: bool = False
    """Show it in the terminal's characters and write no GIF (environments with a grid)."""


def render(arguments: list[str], shared: Shared) -> int:
    from rollax.host import compilation_cache
    from rollax.view.render import render as draw
    from rollax.view.text import show

    rest, eval_env = take(arguments, "--eval-env.")
    given, eval_arguments = parse(Render, commas_apart(rest), "rollax render"), single(eval_env)
    compilation_cache.use()
    _check(given)
    if not 1 <= given.episodes <= MOST_RENDERED:
        raise UsageError(f"episodes ({shown(given.episodes)}) must be between 1 and {MOST_RENDERED}")
    if given.fps is not None and not 1 <= given.fps <= MOST_FPS:
        raise UsageError(f"fps ({shown(given.fps)}) must be between 1 and {MOST_FPS}")
    if given.text and given.out is not None:
        raise UsageError(f"--text writes nothing to --out ({given.out}): leave one of them out")
    if given.sheet is not None:
        return of_sheet(given, given.sheet, eval_arguments)
    which = {name: getattr(given, name) for name in ("checkpoint", "member", "seed", "episodes", "fps")}
    which["eval_arguments"] = eval_arguments
    if given.text:
        show(given.run, greedy=not given.stochastic, say=beside, **which)
        return 0
    elite = {"descriptor": given.descriptor, "cell": given.cell}
    print(draw(given.run, given.out, greedy=not given.stochastic, tell=warn, say=beside, **elite, **which))
    return 0


def commas_apart(arguments: list[str]) -> list[str]:
    """`--cell 3,4` and `--descriptor 0.5,1` as with blanks."""
    option, apart = "", list[str]()
    for word in arguments:
        option = word if word.startswith("--") else option
        is_list = option in ("--cell", "--descriptor") and NUMBERS.fullmatch(word)
        apart += word.split(",") if is_list else [word]
    return apart


def of_sheet(given: Render, number: int, eval_arguments: dict[str, Any]) -> int:
    """Writes a contact sheet. Raises UsageError for options of a single episode."""
    from rollax.view.sheet import sheet

    others = {name: getattr(given, name) for name in ("text", "descriptor", "cell", "fps")} | {"episodes": given.episodes > 1}
    for name in (name for name, is_given in others.items() if is_given):
        raise UsageError(f"--sheet shows an episode of each of many elites: leave --{name} out")
    which = {"member": given.member, "eval_arguments": eval_arguments, "greedy": not given.stochastic}
    print(sheet(given.run, number, given.out, given.checkpoint or "last", given.seed, **which, tell=warn))
    return 0
