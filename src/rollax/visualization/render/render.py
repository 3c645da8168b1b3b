"""Animations of episodes played by a trained policy."""

import functools
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rollax.canvas.drawing import Drawing
from rollax.environments.capabilities import has_closed_form
from rollax.environments.environment import Environment
from rollax.errors import UsageError
from rollax.loading import load
from rollax.policy import Policy
from rollax.runtime.numerics import standard_numerics
from rollax.runtime.shell import format_command_line
from rollax.training.argument_validation import (
    ELITE_ARGUMENT_TYPES,
    EPISODE_ARGUMENT_TYPES,
    POLICY_ARGUMENT_TYPES,
)
from rollax.training.checkpoints import index
from rollax.training.options import check_path
from rollax.training.run_folder import layout
from rollax.training.run_folder.files import write_output_file
from rollax.types import NetworkFn, RunPath, SettingValues
from rollax.user_input.arguments import coerce_arguments
from rollax.user_input.coercion import format_value
from rollax.visualization.archives.archive_figure import ignore_message
from rollax.visualization.render import animation, bodies_page, captions, drawings
from rollax.visualization.render.recorded_episodes import RecordedEpisode, record_episodes

ALL_CHECKPOINTS = "all"
MIN_FRAMES_PER_CHECKPOINT = 12  # with "all". Checkpoints are skipped if there are too many.
MAX_SILENT_FRAMES = 300  # drawing more frames takes many seconds and is announced
PAGE_SUFFIX = ".html"
MAX_COUNT = 10**9
COUNT_TYPES = {"episodes": int, "max_frames": int, "fps": int | None}
MAX_GIF_FPS = 1000 // animation.MIN_FRAME_MS


@standard_numerics()
@coerce_arguments(
    folder=Path,
    out=Path | None,
    checkpoint=str | int | None,
    **EPISODE_ARGUMENT_TYPES,
    **COUNT_TYPES,
    **POLICY_ARGUMENT_TYPES,
    **ELITE_ARGUMENT_TYPES,
)
def render(
    folder: RunPath,
    out: Path | str | None = None,
    checkpoint: str | int | None = None,
    seed: int = 0,
    episodes: int = 1,
    greedy: bool = True,
    max_frames: int = 600,
    fps: int | None = None,
    *,
    member: int | None = None,
    descriptor: Sequence[float] | None = None,
    cell: Sequence[int] | None = None,
    environment: Environment | None = None,
    network: NetworkFn | None = None,
    eval_arguments: SettingValues | None = None,
    warn_fn: Callable[[str], object] = ignore_message,
    notify_fn: Callable[[str], object] = ignore_message,
) -> Path:
    """Play episodes with the policy of a run and write an animation of them.

    Args:
        folder: Run folder.
        out: Output file ending in .gif, .mp4 (requires the package imageio-ffmpeg) or, for brax and
            MuJoCo Playground, .html. Defaults to `figures/episode.gif` in the run folder. For an
            elite, the default name contains its cell or descriptor, as in `episode-cell-3-4.gif`.
        checkpoint: `"last"`, `"best"`, a step, or `"all"`, which shows every checkpoint in turn
            from the same initial states (`figures/learning.gif`). Defaults to the best checkpoint,
            or to the last one if none was evaluated or an elite is selected.
        seed: Seed of the episodes.
        episodes: Number of episodes per checkpoint.
        greedy: Whether the policy takes its most likely action instead of sampling.
        max_frames: Maximum number of frames of the animation. Longer episodes show only every
            second step, every fourth step, and so on. The frames then state the interval between
            shown steps.
        fps: Frames per second. Defaults to the rate of the environment's drawing.
        member: Index of the member of a population, as in `load`.
        descriptor: Descriptor that selects an elite, as in `Policy.elite`.
        cell: Cell that selects an elite, as in `Policy.elite`.
        environment: Environment to play in, as in `load`.
        network: Function that maps a random key to a network, as in `load`.
        eval_arguments: Arguments of the evaluation environment, as in `load`.
        warn_fn: Function that receives each warning.
        notify_fn: Function that receives progress messages.

    Returns:
        Path of the animation.

    Raises:
        UsageError: If the run or the checkpoint does not exist, or the environment has no episodes.
            Also if `out` has an unknown suffix, cannot be written, or exists and was not written
            by this function.
    """
    folder, is_elite = Path(folder), descriptor is not None or cell is not None
    target = (
        layout.figures_folder(folder)
        / f"{animation_name(descriptor, cell, checkpoint, member)}.gif"
        if out is None
        else Path(out)
    )
    check_output_path(target, out is not None)
    check_count("episodes", episodes, 1)
    check_count("max_frames", max_frames, 2 * episodes)
    check_count("fps", fps or 1, 1)
    load_policy = functools.partial(
        load, folder, environment=environment, network=network, eval_arguments=eval_arguments
    )
    if checkpoint == ALL_CHECKPOINTS:
        require_no_elite(is_elite)
        max_policies = max_frames // (episodes * MIN_FRAMES_PER_CHECKPOINT)
        policies = load_all_checkpoints(folder, load_policy, member, max_policies, notify_fn)
    else:
        checkpoint = checkpoint or default_checkpoint(folder, is_elite)
        policies = [load_policy(checkpoint=checkpoint, member=member)]
        checkpoints = index.read_checkpoint_index(folder)
        notify_fn(f"Using the checkpoint of {checkpoints.describe(policies[0].step)}.")
    for warning in policies[-1].warnings:
        warn_fn(warning)
    require_episodes(policies[-1], folder)
    drawing = drawings.find_drawing(policies[-1].environment)
    check_page_support(target.suffix.lower(), policies, drawing)
    if is_elite:
        policies = [policies[0].elite(descriptor, cell)]
        drawing = add_note(drawing, policies[0].warnings[-1])  # identifies the elite
    if layout.is_folder_locked(folder):
        notify_fn("The run is still being written. Later checkpoints may be better.")
    recorded = record_episodes(
        policies, seed, episodes, greedy, max(2, max_frames // (episodes * len(policies)))
    )
    num_frames = sum(
        len(episode.frames) for policy_episodes in recorded for episode in policy_episodes
    )
    if num_frames > MAX_SILENT_FRAMES:
        notify_fn(f"Drawing {num_frames:,} frames.")
    animation_content = AnimationContent(policies, recorded, checkpoint_titles(folder, policies))
    content = encode_content(target.suffix.lower(), animation_content, drawing, fps, warn_fn)
    return write_output_file(target, content, ". Choose another output file.")


class AnimationContent(NamedTuple):
    """Policies, recorded episodes and titles of an animation.

    Attributes:
        policies: One policy per checkpoint.
        episodes: Recorded episodes of each policy.
        titles: Title above the episodes of each policy, or an empty string.
    """

    policies: list[Policy]
    episodes: list[list[RecordedEpisode]]
    titles: list[str]


def check_count(name: str, value: int, minimum: int) -> None:
    """Raise UsageError if a count is below `minimum` or too large."""
    if not minimum <= value <= MAX_COUNT:
        raise UsageError(
            f"{name} must be between {minimum} and {MAX_COUNT}, got {format_value(value)}."
        )


def animation_name(
    descriptor: Any, cell: Any, checkpoint: str | int | None, member: int | None
) -> str:
    """Return the default file name without suffix. Each selected elite has a distinct name.

    Args:
        descriptor: Descriptor that selects an elite, or None.
        cell: Grid coordinates that select an elite, or None.
        checkpoint: Checkpoint, or "all".
        member: Index of the selected member of a population, or None.
    """
    if checkpoint == ALL_CHECKPOINTS:
        return "learning"
    selection = {"cell": cell, "descriptor": descriptor}
    selected = [
        name + "".join(f"-{x}".removesuffix(".0") for x in value)
        for name, value in selection.items()
        if value is not None
    ]
    others = {"checkpoint": None if checkpoint == "last" else checkpoint, "member": member}
    selected += [
        f"{name}-{value}" for name, value in others.items() if selected and value is not None
    ]
    return "-".join(["episode", *selected])


def check_output_path(target: Path, is_chosen_by_user: bool) -> None:
    """Check that the output file can be written and does not replace a file of the user.

    The check runs before any episode is played. Default output files are replaced without a check.

    Args:
        target: Output file.
        is_chosen_by_user: Whether the user chose the file.

    Raises:
        UsageError: If the suffix is unknown, ffmpeg is missing, the file cannot be written, or the
            user chose an existing file that `render` did not write.
    """
    suffix = target.suffix.lower()
    if suffix not in (*animation.SUFFIXES, PAGE_SUFFIX):
        raise UsageError(
            "The output file must end in .gif or .mp4, or for brax and Playground in .html, "
            f"got {target}."
        )
    check_path("the output file", target)
    if suffix == ".mp4":
        animation.find_ffmpeg()
    if target.is_dir():
        raise UsageError(
            f"The output file must not be a folder, got {target}. Choose another output file."
        )
    if is_chosen_by_user and target.exists() and not is_render_output(target):
        raise UsageError(
            f"The output file ({target}) already exists and was not written by rollax render. "
            "Choose another output file."
        )
    existing_parent = next(path for path in target.absolute().parents if path.exists())
    if not existing_parent.is_dir() or not os.access(existing_parent, os.W_OK):
        raise UsageError(
            f"{target} cannot be written, because {existing_parent} is not a writable folder. "
            "Choose another output file."
        )


def is_render_output(path: Path) -> bool:
    """Return whether a file is readable and was written by `render`."""
    try:
        return animation.FILE_MARKER in path.read_bytes()
    except OSError:
        return False


def check_page_support(suffix: str, policies: list[Policy], drawing: Drawing) -> None:
    """Raise UsageError if an HTML page is requested but not supported.

    The environment's drawing must support pages, and a page shows only one checkpoint.
    """
    if suffix != PAGE_SUFFIX:
        return
    name = policies[0].environment.name
    if drawing.page_data_fn is None:
        text = " Use --text to show it in the terminal." if drawing.text else ""
        raise UsageError(
            f"{name} has no HTML page; only brax and Playground have one. "
            f"Choose an output file that ends in .gif or .mp4.{text}"
        )
    if len(policies) > 1:
        raise UsageError(
            "--checkpoint all cannot be shown in an HTML page. "
            "Choose an output file that ends in .gif or .mp4."
        )


def default_checkpoint(folder: Path, is_elite: bool = False) -> str:
    """Return "last" for an elite or if no checkpoint was evaluated, and "best" otherwise.

    Elites come from the last checkpoint, because plots show its archive.
    """
    return "last" if is_elite or index.read_checkpoint_index(folder).best is None else "best"


def require_no_elite(is_elite: bool) -> None:
    """Raise UsageError if an elite is selected. Not every checkpoint contains the elite."""
    if is_elite:
        raise UsageError(
            "--checkpoint all cannot be combined with an elite. Leave --cell and --descriptor out."
        )


def load_all_checkpoints(
    folder: Path,
    load_policy: Callable[..., Policy],
    member: int | None,
    max_policies: int,
    notify_fn: Callable[[str], object],
) -> list[Policy]:
    """Load the policies of all checkpoints in the order of their steps.

    Args:
        folder: Run folder.
        load_policy: Function that loads the policy of a checkpoint and a member.
        member: Index of the member of a population. None selects the best member of the last
            checkpoint.
        max_policies: Maximum number of policies. If there are more checkpoints, evenly spaced
            checkpoints are loaded.
        notify_fn: Function that receives a summary of the loaded checkpoints.

    Returns:
        At least two policies.

    Raises:
        UsageError: If the run has fewer than two readable checkpoints.
    """
    checkpoints = index.read_checkpoint_index(folder).all
    hint = "Train with --keep-last 20 to keep the newest 20 checkpoints."
    if len(checkpoints) < 2:
        available = (
            f"only the checkpoint of step {checkpoints[0].step:,}" if checkpoints else "none"
        )
        raise UsageError(
            f"--checkpoint all requires at least two checkpoints, but {folder} has {available}. "
            f"Leave --checkpoint out. {hint}"
        )
    indices = np.unique(
        np.linspace(0, len(checkpoints) - 1, max(2, min(len(checkpoints), max_policies)))
        .round()
        .astype(int)
    )
    if member is None and layout.read_spec(folder).num_members > 1:
        member = load_policy(checkpoint="last").member
    policies, errors = [], []
    for step in (checkpoints[position].step for position in indices):
        try:
            policies.append(load_policy(checkpoint=step, member=member))
        except UsageError as error:  # a running training deletes old checkpoints
            errors.append(error)
    if len(policies) < 2:
        raise errors[0]
    skipped_text = (
        f" Skipped {len(errors)} that cannot be read, for example: {errors[0]}" if errors else ""
    )
    spacing_text = (
        "" if len(indices) == len(checkpoints) else f" (evenly spaced, of {len(checkpoints)})"
    )
    steps = f"from step {policies[0].step:,} to step {policies[-1].step:,}"
    notify_fn(f"Showing {len(policies)} checkpoints{spacing_text} {steps}. {hint}{skipped_text}")
    return policies


def checkpoint_titles(folder: Path, policies: list[Policy]) -> list[str]:
    """Return the title above the episodes of each checkpoint, or [""] for a single checkpoint."""
    if len(policies) == 1:
        return [""]
    checkpoints = index.read_checkpoint_index(folder)
    return [f"checkpoint of {checkpoints.describe(policy.step)}" for policy in policies]


def require_episodes(policy: Policy, folder: RunPath) -> None:
    """Raise UsageError if the environment is a task without episodes (`task/...`)."""
    if has_closed_form(policy.environment):
        raise UsageError(
            f"{policy.environment.name} cannot be drawn, because it scores solutions in closed form"
            " without episodes. "
            f"Plot the archive with: {format_command_line('rollax', 'plot', folder)}"
        )


def add_note(drawing: Drawing, note: str) -> Drawing:
    """Return the drawing with an additional note below each frame."""
    other_notes = drawing.notes or (lambda *arguments: [])
    return drawing._replace(notes=lambda *arguments: [*other_notes(*arguments), note])


def encode_content(
    suffix: str,
    content: AnimationContent,
    drawing: Drawing,
    fps: int | None,
    warn_fn: Callable[[str], object],
) -> bytes:
    """Render the episodes and encode them in the format of `suffix`.

    Args:
        suffix: Suffix of the output file: .gif, .mp4 or .html.
        content: Policies, recorded episodes and titles.
        drawing: Drawing of the environment.
        fps: Frames per second. None uses the rate of the drawing.
        warn_fn: Function that receives a warning if a GIF cannot have this rate.

    Returns:
        Content of the file.

    Raises:
        UsageError: If ffmpeg is missing or fails.
    """
    environment = content.policies[0].environment
    recorded = [episode for policy_episodes in content.episodes for episode in policy_episodes]
    if suffix == PAGE_SUFFIX:
        assert drawing.page_data_fn is not None
        states = [frame.state for episode in recorded for frame in episode.frames]
        data = drawing.page_data_fn(environment, states, fps, recorded[0].stride)
        page = bodies_page.build_bodies_page(environment.name, data)
        return f"{page}\n<!-- {animation.FILE_MARKER.decode()} -->\n".encode()
    if suffix == ".gif" and (fps or 0) > MAX_GIF_FPS:
        warn_fn(
            f"A GIF shows at most {MAX_GIF_FPS} frames per second, so --fps {fps} is reduced to "
            f"{MAX_GIF_FPS}. Choose an output file that ends in .mp4 for a higher rate."
        )
    pictures = [
        picture
        for policy_episodes, title in zip(content.episodes, content.titles, strict=True)
        for episode in policy_episodes
        for picture in captions.compose_frames(environment, drawing, episode, title)
    ]
    rate = fps or drawing.fps
    return animation.encode_animation(
        suffix,
        pictures,
        animation.frame_durations(environment, recorded, rate),
        rate,
        drawing.palette(),
    )
