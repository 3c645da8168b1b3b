"""A trained policy at play, in a terminal's characters."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
from rich.console import Console
from rich.live import Live
from rich.text import Text

from rollax.environments.core import Environment
from rollax.errors import UsageError
from rollax.host import kept
from rollax.host.api import Policy, load
from rollax.view import draw
from rollax.view.animation import times
from rollax.view.archive import silent
from rollax.view.captions import caption
from rollax.view.playing import Play, play_all
from rollax.view.render import ALL, default_checkpoint


def show(
    folder: Path | str,
    checkpoint: str | int | None = None,
    seed: int = 0,
    episodes: int = 1,
    greedy: bool = True,
    fps: float | None = None,
    *,
    member: int | None = None,
    environment: Environment | None = None,
    network: Callable[[jax.Array], Any] | None = None,
    eval_arguments: Mapping[str, Any] | None = None,
    console: Console | None = None,
    say: Callable[[str], object] = silent,
) -> None:
    """Plays episodes with a run's policy and prints every step: in place on a terminal, one after another in a pipe.

    `fps`: steps in a second on a terminal; by default what suits the environment. Other arguments as for `render`.

    Raises UsageError when there is no such run or checkpoint, or for environments that cannot be drawn in characters.
    """
    for name, value in (("episodes", episodes), ("fps", fps or 1)):
        if value < 1:
            raise UsageError(f"{name} ({value}) must be at least 1")
    if checkpoint == ALL:
        raise UsageError("--checkpoint all makes a .gif or .mp4: leave --text out")
    policy = load(
        folder,
        checkpoint=checkpoint or default_checkpoint(Path(folder)),
        member=member,
        environment=environment,
        network=network,
        eval_arguments=eval_arguments,
    )
    drawing = draw.drawing_of(policy.environment)
    if drawing.text is None:
        able = ", ".join(pattern for pattern, drawing in draw.DRAWINGS.items() if drawing.text is not None)
        raise UsageError(f"{policy.environment.name} has no drawing in text, only {able} have: leave --text out to get a GIF")
    say(f"checkpoint of {kept.of_run(Path(folder)).words(policy.step)}")
    (plays,) = play_all([policy], seed, episodes, greedy, max_frames=10**9)
    texts = [text for play in plays for text in texts_of(policy, drawing, play)]
    console = Console() if console is None else console
    if console.is_interactive:
        _animate(console, texts, times(policy.environment, plays, fps or drawing.fps))
        return
    for text in texts:
        # Not by rich, which would exit with an error when the reader of a pipe has enough.
        print(text.plain, end="\n\n")


def _animate(console: Console, texts: list[Text], milliseconds: list[float]) -> None:
    with Live(console=console, auto_refresh=False) as live:
        for text, duration in zip(texts, milliseconds, strict=True):
            live.update(text, refresh=True)
            time.sleep(duration / 1000)


def texts_of(policy: Policy, drawing: draw.Drawing, play: Play) -> list[Text]:
    """Every frame of an episode: a header of two lines, the drawing, and its notes."""
    assert drawing.text is not None
    texts = []
    for frame in play.frames:
        words = caption(policy.environment, drawing, play, frame)
        head = Text("  ".join(part for part in (policy.environment.name, words.trial, words.when) if part), "bold")
        lines = [head, Text(f"{words.action}   {words.gained}"), drawing.text(policy.environment, frame.state, frame.obs)]
        texts.append(Text("\n", no_wrap=True, overflow="crop").join([*lines, *map(Text, words.notes)]))
    return texts
