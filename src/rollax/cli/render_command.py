"""Command `rollax render`."""

import dataclasses
from pathlib import Path

import tyro

from rollax.cli.command_output import print_note, print_warning
from rollax.cli.parsing.dynamic_options import (
    check_checkpoint_name,
    check_seed,
    parse_options,
    split_number_lists,
    take_prefixed_options,
    unwrap_single_values,
)
from rollax.cli.parsing.shared_options import SharedOptions
from rollax.coercion import format_value
from rollax.errors import UsageError
from rollax.runtime.printing import print_line
from rollax.training.compile import cache
from rollax.types import SettingValues

MAX_RENDERED_EPISODES = 1000
MAX_FPS = 240


@dataclasses.dataclass(frozen=True)
class RenderOptions:
    """Render episodes of a run as a GIF or MP4, or in the terminal.

    With --checkpoint all, the same episode is rendered with every checkpoint in turn, which shows
    the progress of training. With --sheet, a contact sheet shows many elites of the archive.

    After the run, --eval-env.NAME VALUE changes an argument of the evaluation environment:
    rollax render RUN --eval-env.opponent agents
    """

    run: tyro.conf.Positional[Path]
    """Folder of the run."""
    out: Path | None = None
    """File to write: .gif, .mp4 (extra video), for brax and Playground .html; .png of a sheet;
    default: a GIF, or the sheet, in the run's figures/."""
    checkpoint: str | None = None
    """Checkpoint: last, best, a step, or all in turn. Defaults to best if known, else last."""
    fps: int | None = None
    """Frames per second. Defaults to the rate of the environment."""
    seed: int = 0
    """Random seed of the episodes."""
    episodes: int = 1
    """Number of episodes to render in sequence."""
    stochastic: bool = False
    """Sample actions instead of taking the most likely ones."""
    member: int | None = None
    """Member of a population. Defaults to the best one."""
    descriptor: tuple[float, ...] | None = None
    """Render the elite of the archive whose descriptor is nearest to this one."""
    cell: tuple[int, ...] | None = None
    """Render the elite in this cell of a grid archive. Indices start at 0."""
    sheet: int | None = None
    """Write a picture (PNG) of N elites, spread over their descriptors, instead of an episode."""
    text: bool = False
    """Show the episode as text in the terminal and write no file (grid environments only)."""


def render(arguments: list[str], shared: SharedOptions) -> int:
    """Run `rollax render` and return its exit code."""
    from rollax.visualization.render.render import render as draw
    from rollax.visualization.render.text_frames import print_episodes

    rest, eval_env = take_prefixed_options(arguments, "--eval-env.")
    given = parse_options(RenderOptions, split_number_lists(rest), "rollax render")
    eval_arguments = unwrap_single_values(eval_env)
    cache.enable()
    check_seed(given.seed)
    check_checkpoint_name(given.checkpoint or "")
    if not 1 <= given.episodes <= MAX_RENDERED_EPISODES:
        raise UsageError(
            f"episodes must be between 1 and {MAX_RENDERED_EPISODES}, "
            f"got {format_value(given.episodes)}."
        )
    if given.fps is not None and not 1 <= given.fps <= MAX_FPS:
        raise UsageError(f"fps must be between 1 and {MAX_FPS}, got {format_value(given.fps)}.")
    if given.text and given.out is not None:
        raise UsageError(f"--text does not write to --out ({given.out}). Remove one of them.")
    if given.sheet is not None:
        return render_sheet(given, given.sheet, eval_arguments)
    which = {
        name: getattr(given, name) for name in ("checkpoint", "member", "seed", "episodes", "fps")
    }
    which["eval_arguments"] = eval_arguments
    if given.text:
        print_episodes(given.run, greedy=not given.stochastic, notify_fn=print_note, **which)
        return 0
    path = draw(
        given.run,
        given.out,
        greedy=not given.stochastic,
        descriptor=given.descriptor,
        cell=given.cell,
        warn_fn=print_warning,
        notify_fn=print_note,
        **which,
    )
    print_line(path)
    return 0


def render_sheet(given: RenderOptions, number: int, eval_arguments: SettingValues) -> int:
    """Write a contact sheet and print its path.

    Args:
        given: Options of `rollax render`.
        number: Number of elites to show.
        eval_arguments: Environment arguments that replace those of the run's evaluations.

    Returns:
        The exit code.

    Raises:
        UsageError: If an option of single episodes is given.
    """
    from rollax.visualization.archives.contact_sheet import write_contact_sheet

    others = {name: getattr(given, name) for name in ("text", "descriptor", "cell", "fps")} | {
        "episodes": given.episodes > 1
    }
    for name in (name for name, is_given in others.items() if is_given):
        raise UsageError(
            f"--sheet renders one episode of each elite, so --{name} has no effect. "
            f"Remove --{name}."
        )
    path = write_contact_sheet(
        given.run,
        number,
        given.out,
        given.checkpoint or "last",
        given.seed,
        member=given.member,
        eval_arguments=eval_arguments,
        greedy=not given.stochastic,
        warn_fn=print_warning,
    )
    print_line(path)
    return 0
