"""Rendering of a trained policy's episodes as text in a terminal."""

import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.text import Text

from rollax.environments.environment import Environment
from rollax.errors import UsageError
from rollax.loading import load
from rollax.policy import Policy
from rollax.runtime import printing
from rollax.runtime.numerics import standard_numerics
from rollax.training.argument_validation import EPISODE_ARGUMENT_TYPES, POLICY_ARGUMENT_TYPES
from rollax.training.checkpoints import index
from rollax.types import NetworkFn, RunPath, SettingValues
from rollax.user_input.arguments import coerce_arguments
from rollax.visualization.archives.archive_figure import ignore_message
from rollax.visualization.render import drawings
from rollax.visualization.render.animation import frame_durations
from rollax.visualization.render.captions import make_caption
from rollax.visualization.render.recorded_episodes import RecordedEpisode, record_episodes
from rollax.visualization.render.render import ALL_CHECKPOINTS, default_checkpoint


@standard_numerics()
@coerce_arguments(
    folder=Path,
    checkpoint=str | int | None,
    episodes=int,
    fps=float | None,
    **EPISODE_ARGUMENT_TYPES,
    **POLICY_ARGUMENT_TYPES,
)
def print_episodes(
    folder: RunPath,
    checkpoint: str | int | None = None,
    seed: int = 0,
    episodes: int = 1,
    greedy: bool = True,
    fps: float | None = None,
    *,
    member: int | None = None,
    environment: Environment | None = None,
    network: NetworkFn | None = None,
    eval_arguments: SettingValues | None = None,
    console: Console | None = None,
    notify_fn: Callable[[str], object] = ignore_message,
) -> None:
    """Play episodes with the policy of a run and print every step as text.

    In an interactive terminal, the steps are shown as an animation. Otherwise, they are printed one
    below the other.

    Args:
        folder: Run folder.
        checkpoint: `"last"`, `"best"` or a step, as in `render`.
        seed: Seed of the episodes.
        episodes: Number of episodes.
        greedy: Whether the policy takes its most likely action instead of sampling.
        fps: Steps per second in a terminal. Defaults to the rate of the environment's drawing.
        member: Index of the member of a population, as in `load`.
        environment: Environment to play in, as in `load`.
        network: Function that maps a random key to a network, as in `load`.
        eval_arguments: Arguments of the evaluation environment, as in `load`.
        console: Console to print to. Defaults to standard output.
        notify_fn: Function that receives progress messages.

    Raises:
        UsageError: If the run or the checkpoint does not exist, or if the environment has no text
            drawing.
    """
    for name, value in (("episodes", episodes), ("fps", fps or 1)):
        if value < 1:
            raise UsageError(f"{name} must be at least 1, got {value}.")
    if checkpoint == ALL_CHECKPOINTS:
        raise UsageError("--checkpoint all requires a .gif or .mp4. Leave --text out.")
    policy = load(
        folder,
        checkpoint=checkpoint or default_checkpoint(Path(folder)),
        member=member,
        environment=environment,
        network=network,
        eval_arguments=eval_arguments,
    )
    drawing = drawings.find_drawing(policy.environment)
    if drawing.text is None:
        able = ", ".join(
            pattern for pattern, known in drawings.list_drawings().items() if known.text is not None
        )
        raise UsageError(
            f"{policy.environment.name} has no text drawing; only {able} have one. "
            "Leave --text out to get a GIF."
        )
    notify_fn(
        "Using the checkpoint of "
        f"{index.read_checkpoint_index(Path(folder)).describe(policy.step)}."
    )
    (recorded,) = record_episodes([policy], seed, episodes, greedy, max_frames=10**9)
    texts = [text for play in recorded for text in episode_texts(policy, drawing, play)]
    console = Console() if console is None else console
    if console.is_interactive:
        _play_animation(
            console, texts, frame_durations(policy.environment, recorded, fps or drawing.fps)
        )
        return
    for text in texts:
        # rich would exit with an error when the reader closes the pipe.
        printing.print_line(f"{text.plain}\n")


def _play_animation(console: Console, texts: list[Text], milliseconds: list[float]) -> None:
    with Live(console=console, auto_refresh=False) as live:
        for text, duration in zip(texts, milliseconds, strict=True):
            live.update(text, refresh=True)
            time.sleep(duration / 1000)


def episode_texts(
    policy: Policy, drawing: drawings.Drawing, recorded: RecordedEpisode
) -> list[Text]:
    """Return every frame of an episode as text: two header lines, the drawing and the notes."""
    assert drawing.text is not None
    texts = []
    for frame in recorded.frames:
        caption = make_caption(policy.environment, drawing, recorded, frame)
        head = "  ".join(
            part
            for part in (policy.environment.name, caption.trial_text, caption.step_text)
            if part
        )
        picture = drawing.text(policy.environment, frame.state, frame.obs)
        notes = [Text(printing.escape_control_characters(note)) for note in caption.notes]
        lines = [
            Text(printing.escape_control_characters(head), "bold"),
            Text(printing.escape_control_characters(f"{caption.action}   {caption.reward_text}")),
            picture,
        ]
        texts.append(Text("\n", no_wrap=True, overflow="crop").join([*lines, *notes]))
    return texts
