"""Command `rollax render`."""

import dataclasses
from pathlib import Path

import tyro

from rollax.cli.parsing.dynamic_options import (
    check_checkpoint_name,
    check_seed,
    parse_options,
    split_number_lists,
    take_prefixed_options,
    unwrap_single_values,
)
from rollax.cli.parsing.shared_options import SharedOptions
from rollax.errors import UsageError
from rollax.runtime.printing import print_line, print_note
from rollax.training.compile import cache
from rollax.user_input.coercion import format_value

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
    from rollax.visualization import run_views
    from rollax.visualization.render.text_frames import print_episodes

    rest, eval_env = take_prefixed_options(arguments, "--eval-env.")
    options = parse_options(RenderOptions, split_number_lists(rest), "rollax render")
    _check_options(options)
    shown = {
        **{name: getattr(options, name) for name in ("checkpoint", "member", "seed", "episodes")},
        "fps": options.fps,
        "greedy": not options.stochastic,
        "eval_arguments": unwrap_single_values(eval_env),
    }
    if options.text:
        cache.enable()
        print_episodes(options.run, notify_fn=print_note, **shown)
        return 0
    chosen = {name: getattr(options, name) for name in ("descriptor", "cell", "sheet")}
    print_line(run_views.render(options.run, path=options.out, **chosen, **shown).path)
    return 0


def _check_options(options: RenderOptions) -> None:
    """Raise UsageError if an option is out of range, or has no effect with `--text`."""
    check_seed(options.seed)
    check_checkpoint_name(options.checkpoint or "")
    if not 1 <= options.episodes <= MAX_RENDERED_EPISODES:
        raise UsageError(
            f"episodes must be between 1 and {MAX_RENDERED_EPISODES}, "
            f"got {format_value(options.episodes)}."
        )
    if options.fps is not None and not 1 <= options.fps <= MAX_FPS:
        raise UsageError(f"fps must be between 1 and {MAX_FPS}, got {format_value(options.fps)}.")
    if options.text and options.out is not None:
        raise UsageError(f"--text does not write to --out ({options.out}). Remove one of them.")
    if options.text and options.sheet is not None:
        raise UsageError("--text shows an episode, and --sheet shows elites. Remove --text.")
