"""A trained policy at play, as an animated picture."""

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from rollax.environments.core import Environment
from rollax.errors import UsageError
from rollax.host import kept, run_folder
from rollax.host.api import Policy, load
from rollax.host.files import write
from rollax.host.options import check_path
from rollax.networks.solutions import has_closed_form
from rollax.view import animation, captions, draw
from rollax.view.archive import silent
from rollax.view.playing import Play, play_all

ALL = "all"  # every checkpoint in turn
LEAST_FRAMES = 12  # of a checkpoint among all: of more checkpoints some are left out
PATIENCE = 300  # frames that are drawn without a word: more of them take many seconds
PAGE = ".html"
MOST_FPS = 1000 // animation.SHORTEST_MS  # of a GIF


def render(
    folder: Path | str,
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
    network: Callable[[jax.Array], Any] | None = None,
    eval_arguments: Mapping[str, Any] | None = None,
    tell: Callable[[str], object] = silent,
    say: Callable[[str], object] = silent,
) -> Path:
    """Plays episodes with a run's policy and returns the animation, `figures/episode.gif` in the run unless `out` is given; of
    an elite its name says which, as in `episode-cell-3-4.gif`.

    `out` ends in .gif, .mp4 (with the package imageio-ffmpeg), or, for brax and MuJoCo Playground, .html. `checkpoint`:
    "last", "best", a step, or "all": every checkpoint in turn from the same start (`figures/learning.gif`); by default the
    best, or the last where none was evaluated or an elite is asked for. An episode of more than `max_frames / episodes` steps
    shows every second one, every fourth, ..., and says so in the picture. `fps`: frames in a second; by default what suits
    the environment. `member`, `environment`, `network`, `eval_arguments`: as for `load`; `descriptor`, `cell`: as for
    `Policy.elite`; `tell` is called with the warnings of `load`, `say` with what is played.

    Raises UsageError when there is no such run or checkpoint, for an environment without episodes, or when `out` has another
    ending, is a file that is none of this function's, or cannot be written.
    """
    folder, is_elite = Path(folder), descriptor is not None or cell is not None
    target = folder / "figures" / f"{name_of(descriptor, cell, checkpoint, member)}.gif" if out is None else Path(out)
    check_target(target, out is not None)
    for name, value, least in (("episodes", episodes, 1), ("max_frames", max_frames, 2 * episodes), ("fps", fps or 1, 1)):
        if value < least:
            raise UsageError(f"{name} ({value}) must be at least {least}")
    opened = functools.partial(load, folder, environment=environment, network=network, eval_arguments=eval_arguments)
    if checkpoint == ALL:
        require_no_elite(is_elite)
        policies = all_policies(folder, opened, member, max_frames // (episodes * LEAST_FRAMES), say)
    else:
        policies = [opened(checkpoint=checkpoint or default_checkpoint(folder, is_elite), member=member)]
        say(f"checkpoint of {kept.of_run(folder).words(policies[0].step)}")
    for warning in policies[-1].warnings:
        tell(warning)
    require_episodes(policies[-1], folder)
    drawing = draw.drawing_of(policies[-1].environment)
    check_kind(target.suffix.lower(), policies, drawing)
    if is_elite:
        policies = [policies[0].elite(descriptor, cell)]
        drawing = with_note(drawing, policies[0].warnings[-1])  # which elite it is
    if run_folder.is_held(folder):
        say("the run is still being written: later checkpoints may be better")
    plays = play_all(policies, seed, episodes, greedy, max(2, max_frames // (episodes * len(policies))))
    number = sum(len(play.frames) for of_policy in plays for play in of_policy)
    if number > PATIENCE:
        say(f"drawing {number:,} frames")
    shown = Shown(policies, plays, titles_of(folder, policies))
    return write(target, content_of(target.suffix.lower(), shown, drawing, fps, tell), ": choose another --out")


class Shown(NamedTuple):
    """What an animation is made of."""

    policies: list[Policy]
    plays: list[list[Play]]  # of each policy
    titles: list[str]  # "" for none


def name_of(descriptor: Any, cell: Any, checkpoint: str | int | None, member: int | None) -> str:
    """The name of an animation: one for each elite that is asked for, so that none overwrites another."""
    if checkpoint == ALL:
        return "learning"
    which = {"cell": cell, "descriptor": descriptor}
    asked = [name + "".join(f"-{x}".removesuffix(".0") for x in value) for name, value in which.items() if value is not None]
    others = {"checkpoint": None if checkpoint == "last" else checkpoint, "member": member}
    asked += [f"{name}-{value}" for name, value in others.items() if asked and value is not None]
    return "-".join(["episode", *asked])


def check_target(target: Path, is_given: bool) -> None:
    """Raises UsageError for a file that cannot be written, before anything is played, and for one that `render` did not write.

    What it writes into a run's figures/ by default is replaced.
    """
    suffix = target.suffix.lower()
    if suffix not in (*animation.SUFFIXES, PAGE):
        raise UsageError(f"--out ({target}) must end in .gif or .mp4, or for brax and Playground in .html")
    check_path("--out", target)
    if suffix == ".mp4":
        animation.ffmpeg()
    if target.is_dir():
        raise UsageError(f"--out ({target}) is a folder: choose another --out")
    if is_given and target.exists() and not is_own(target):
        raise UsageError(f"--out ({target}) is there already and was not written by rollax render: choose another --out")
    there = next(path for path in target.absolute().parents if path.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        raise UsageError(f"{target} cannot be written ({there} is no folder that you may write to): choose another --out")


def is_own(path: Path) -> bool:
    """Whether a file was written by `render`, as far as it can be read."""
    try:
        return animation.MARK in path.read_bytes()
    except OSError:
        return False


def check_kind(suffix: str, policies: list[Policy], drawing: draw.Drawing) -> None:
    """Raises UsageError for a page of an environment that has none, or of several checkpoints."""
    if suffix != PAGE:
        return
    name = policies[0].environment.name
    if drawing.page is None:
        text = ", and --text shows it in the terminal" if drawing.text else ""
        raise UsageError(f"{name} has no page in HTML, as brax and Playground have: choose an --out in .gif or .mp4{text}")
    if len(policies) > 1:
        raise UsageError("--checkpoint all makes a .gif or .mp4: a page in HTML has no place for what each checkpoint is")


def default_checkpoint(folder: Path, is_elite: bool = False) -> str:
    """The best checkpoint where one was evaluated; for elites the newest, whose archive is the one that is plotted."""
    return "last" if is_elite or kept.of_run(folder).best is None else "best"


def require_no_elite(is_elite: bool) -> None:
    """Raises UsageError for an elite in every checkpoint: not every archive has it."""
    if is_elite:
        raise UsageError("--checkpoint all shows how the policy of a run learnt: leave --cell and --descriptor out")


def all_policies(
    folder: Path, opened: Callable[..., Policy], member: int | None, most: int, say: Callable[[str], object]
) -> list[Policy]:
    """The policy at every checkpoint, by rising steps; of more than `most` so many, evenly spread. Of a population one member.

    Raises UsageError where there are fewer than two.
    """
    found = kept.of_run(folder).all
    more = "of a run trained with --keep-last 20 the newest 20 are kept"
    if len(found) < 2:
        there = f"only that of step {found[0].step:,}" if found else "none"
        raise UsageError(f"--checkpoint all needs two checkpoints or more, and {folder} has {there}: leave it out; {more}")
    places = np.unique(np.linspace(0, len(found) - 1, max(2, min(len(found), most))).round().astype(int))
    if member is None and run_folder.read_spec(folder).num_members > 1:
        member = opened(checkpoint="last").member
    policies, errors = [], []
    for step in (found[place].step for place in places):
        try:
            policies.append(opened(checkpoint=step, member=member))
        except UsageError as error:  # a run that is being written deletes old ones
            errors.append(error)
    if len(policies) < 2:
        raise errors[0]
    gone = f", {len(errors)} left out, such as: {errors[0]}" if errors else ""
    spread = "" if len(places) == len(found) else f" of {len(found)}, evenly spread"
    steps = f"from step {policies[0].step:,} to step {policies[-1].step:,}"
    say(f"{len(policies)} checkpoints{spread} in turn, {steps}{gone} ({more})")
    return policies


def titles_of(folder: Path, policies: list[Policy]) -> list[str]:
    """What is said above the episodes of each of several checkpoints."""
    if len(policies) == 1:
        return [""]
    checkpoints = kept.of_run(folder)
    return [f"checkpoint of {checkpoints.words(policy.step)}" for policy in policies]


def require_episodes(policy: Policy, folder: Path | str) -> None:
    """Raises UsageError for a closed form, of which there is nothing to see."""
    if has_closed_form(policy.environment):
        raise UsageError(
            f"{policy.environment.name} has no picture: its solutions are scored by a closed form and play no episode. Look at "
            f"the archive with: rollax plot {folder}"
        )


def with_note(drawing: draw.Drawing, note: str) -> draw.Drawing:
    """The drawing with one more line beneath."""
    others = drawing.notes or (lambda *seen: [])
    return drawing._replace(notes=lambda *seen: [*others(*seen), note])


def content_of(
    suffix: str,
    shown: Shown,
    drawing: draw.Drawing,
    fps: int | None,
    tell: Callable[[str], object],
) -> bytes:
    """The content of the file."""
    environment, plays = shown.policies[0].environment, [play for each in shown.plays for play in each]
    if suffix == PAGE:
        assert drawing.page is not None
        states = [frame.state for play in plays for frame in play.frames]
        return f"{drawing.page(environment, states, fps, plays[0].stride)}\n<!-- {animation.MARK.decode()} -->\n".encode()
    if suffix == ".gif" and (fps or 0) > MOST_FPS:
        tell(f"a GIF shows {MOST_FPS} frames in a second at most, so --fps {fps} is {MOST_FPS}: an .mp4 has no such limit")
    pictures = [
        picture
        for each, title in zip(shown.plays, shown.titles, strict=True)
        for play in each
        for picture in captions.pictures_of(environment, drawing, play, title)
    ]
    rate = fps or drawing.fps
    return animation.encoded(suffix, pictures, animation.times(environment, plays, rate), rate, drawing.palette())
