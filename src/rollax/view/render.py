"""A trained policy at play, as an animated picture."""

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from PIL import Image, ImageDraw

from rollax.acting.evaluate import Playing, begin_episodes, policy_of
from rollax.acting.evaluate import play as play_step
from rollax.environments.core import Environment
from rollax.environments.view_base import shown_state, trial_episode
from rollax.errors import UsageError
from rollax.host import keys
from rollax.host.api import Policy, load
from rollax.host.files import write_atomically
from rollax.host.program import eval_steps
from rollax.networks.solutions import has_closed_form
from rollax.spaces import Ball, Box
from rollax.view import draw
from rollax.view import scene as scenes
from rollax.view.archive import silent

CHUNK = 64  # steps in one call of the device
COLORS = 128
LAST_FRAME_MS = 1200
PAUSE_MS = 600  # at the end of an episode within a trial


class Frame(NamedTuple):
    """What is shown at once: the state after a step (`View.shown_state`) and the action that led to it, None at the start."""

    step: int
    state: Any
    obs: Any
    action: np.ndarray | None
    reward: np.ndarray  # float [] or [A]
    total: np.ndarray  # float [] or [A]: return so far
    end: str  # "", "terminated" or "truncated"


class Play(NamedTuple):
    """One episode, thinned to every `stride`-th step and the last."""

    frames: list[Frame]
    stride: int


class Caption(NamedTuple):
    """What is said of a frame, in words."""

    when: str
    action: str
    gained: str
    trial: str  # "" where episodes are no trials
    thinned: str  # "" where every step is shown
    notes: list[str]


def render(
    folder: Path | str,
    out: Path | str | None = None,
    checkpoint: str | int = "last",
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
    tell: Callable[[str], object] = silent,
) -> Path:
    """Plays episodes with a run's policy and returns the animation, `figures/episode.gif` in the run unless `out` is given; of
    an elite its name says which, as in `episode-cell-3-4.gif`.

    An episode of more than `max_frames / episodes` steps shows every second one, every fourth, ..., and says so in the picture.
    `fps`: frames in a second; by default what suits the environment. `member`, `environment`, `network`: as for `load`;
    `descriptor`, `cell`: as for `Policy.elite`; `tell` is called with the warnings of `load`.

    Raises UsageError when there is no such run or checkpoint, for an environment without episodes, or when `out`
    is no .gif or cannot be written.
    """
    target = Path(folder) / "figures" / f"{name_of(descriptor, cell, checkpoint, member)}.gif" if out is None else Path(out)
    if target.suffix.lower() != ".gif":
        raise UsageError(f"--out ({target}) must end in .gif")
    for name, value, least in (("episodes", episodes, 1), ("max_frames", max_frames, 2 * episodes), ("fps", fps or 1, 1)):
        if value < least:
            raise UsageError(f"{name} ({value}) must be at least {least}")
    policy = load(folder, checkpoint=checkpoint, member=member, environment=environment, network=network)
    for warning in policy.warnings:
        tell(warning)
    require_episodes(policy, folder)
    drawing = draw.drawing_of(policy.environment)
    if descriptor is not None or cell is not None:
        policy = policy.elite(descriptor, cell)
        drawing = with_note(drawing, policy.warnings[-1])  # which elite it is
    plays = play_all(policy, seed, episodes, greedy, max_frames // episodes)
    pictures = [picture(policy, drawing, play, frame) for play in plays for frame in play.frames]
    # Browsers show anything shorter than 20 ms as 100 ms.
    durations = [max(20, time) for time in times(policy, plays, fps or drawing.fps)]
    content = gif(same_size(pictures), durations, drawing.palette())
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(target, content)
    except OSError as error:
        raise UsageError(f"{target} cannot be written ({error}): choose another --out") from error
    return target


def name_of(descriptor: Any, cell: Any, checkpoint: str | int, member: int | None) -> str:
    """The name of an animation: one for each elite that is asked for, so that none overwrites another."""
    which = {"cell": cell, "descriptor": descriptor}
    asked = [name + "".join(f"-{x}".removesuffix(".0") for x in value) for name, value in which.items() if value is not None]
    others = {"checkpoint": None if checkpoint == "last" else checkpoint, "member": member}
    asked += [f"{name}-{value}" for name, value in others.items() if asked and value is not None]
    return "-".join(["episode", *asked])


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


def play_keys(seed: int, episodes: int) -> jax.Array:
    """A key of each episode; they share no random numbers with a run of that seed."""
    return jax.random.split(keys.of_render(jax.random.key(seed)), episodes)


def play_all(policy: Policy, seed: int, episodes: int, greedy: bool, max_frames: int) -> list[Play]:
    """Several episodes, each of no more than `max_frames` frames."""
    run = player(policy, greedy)
    return [play(policy, run, key, max_frames) for key in play_keys(seed, episodes)]


def times(policy: Policy, plays: list[Play], fps: float) -> list[int]:
    """How long each frame of all plays is shown, in milliseconds: ends are held, those within a trial for a shorter time."""
    shown = []
    for frames in (play.frames for play in plays):
        trials = [trial_episode(policy.environment, frame.state) for frame in frames]
        is_pause = [now != after for now, after in zip(trials, trials[1:], strict=False)]
        shown += [PAUSE_MS if pause else round(1000 / fps) for pause in is_pause] + [LAST_FRAME_MS]
    return shown


def player(policy: Policy, greedy: bool) -> Callable[[Any, Playing, jax.Array], tuple[Playing, Any]]:
    """`(algorithm's state, playing, keys [n]) -> (playing, steps [n, ...])`, compiled: n steps, none after the end.

    A step is the state to show, the episode after it, the action, the reward, and whether the episode still went on.
    """
    environment = policy.environment

    def step(state: Any, playing: Playing, key: jax.Array) -> tuple[Playing, Any]:
        before, keys = playing, key[None]
        playing, (experience, after) = play_step(environment, policy_of(policy.algorithm, state, greedy), before, keys)
        env_key = jax.random.split(key)[1]  # as the step splits it
        first = lambda values: jax.tree.map(lambda x: x[0], values)  # noqa: E731
        seen = first((before.actor.env_state, experience.action, after.state))
        shown = shown_state(environment, env_key, *seen)
        return playing, (shown, *first((playing, experience.action, experience.reward, before.alive)))

    with_keys = lambda state, playing, keys: jax.lax.scan(lambda p, key: step(state, p, key), playing, keys)  # noqa: E731
    return jax.jit(with_keys)


def start(policy: Policy, key: jax.Array) -> Playing:
    """The beginning of an episode."""
    first = jax.tree.map(lambda x: jnp.asarray(x)[None], policy.initial_carry())
    begin = jax.jit(lambda key: begin_episodes(policy.environment, key[None], first))
    return begin(key)


def play(policy: Policy, run: Callable[..., Any], key: jax.Array, max_frames: int) -> Play:
    """One episode to its end, or to the most steps that an evaluation would take."""
    reset_key, run_key = jax.random.split(key)
    return play_from(policy, run, start(policy, reset_key), run_key, max_frames)


def play_from(policy: Policy, run: Callable[..., Any], playing: Playing, run_key: jax.Array, max_frames: int) -> Play:
    """One episode from its beginning, as for `play`."""
    limit = eval_steps(policy.environment, policy.spec)
    zero = np.zeros(() if policy.environment.num_agents is None else policy.environment.num_agents)
    env_state, obs = jax.tree.map(lambda x: x[0], jax.device_get((playing.actor.env_state, playing.actor.obs)))
    last = Frame(0, env_state, obs, None, zero, zero, "")
    frames, stride = [last], 1
    for first in range(0, limit, CHUNK):
        keys = jax.vmap(jax.random.fold_in, (None, 0))(run_key, first + jnp.arange(CHUNK))
        playing, steps = run(policy.state, playing, keys)
        new = _frames(jax.device_get(steps), first, limit, last.total)
        last = new[-1]
        frames += [frame for frame in new if frame.step % stride == 0]
        # Thinned while it is played, so that a long episode of large states does not fill the memory.
        while len(frames) >= max_frames:
            stride *= 2
            frames = [frame for frame in frames if frame.step % stride == 0]
        if last.end:
            break
    return Play(frames if frames[-1] is last else [*frames, last], stride)


def _frames(steps: Any, first: int, limit: int, total: np.ndarray) -> list[Frame]:
    """The frames of one chunk, those after the end left out. `first`: steps before it; `total`: return before it."""
    shown, playing, action, reward, alive = steps
    count = min(int(np.sum(alive)), limit - first)
    totals = total + np.cumsum(reward, axis=0)
    at = lambda values, i: jax.tree.map(lambda x: x[i], values)  # noqa: E731
    return [
        Frame(
            first + i + 1,
            at(shown, i),
            at(playing.actor.obs, i),
            np.asarray(action[i]),
            reward[i],
            totals[i],
            "terminated" if playing.terminated[i] else "truncated" if playing.truncated[i] else "",
        )
        for i in range(count)
    ]


def caption(policy: Policy, drawing: draw.Drawing, play: Play, frame: Frame) -> Caption:
    """Of one frame: step, action, reward and return so far, and what the environment's drawing has to add."""
    environment = policy.environment
    episode = trial_episode(environment, frame.state)
    return Caption(
        when=f"{frame.end} at step {frame.step}" if frame.end else f"step {frame.step}",
        action="start" if frame.action is None else f"action {_words(environment.action_space, drawing.actions, frame.action)}",
        gained=f"reward {_numbers(frame.reward)}   return {_numbers(frame.total)}",
        trial="" if episode is None else f"episode {episode[0]} of {episode[1]}",
        thinned="" if play.stride == 1 else f"1 step in {play.stride} is shown",
        notes=[] if drawing.notes is None else drawing.notes(environment, frame.state, frame.obs),
    )


def picture(policy: Policy, drawing: draw.Drawing, play: Play, frame: Frame) -> Image.Image:
    """A frame's drawing between a header (environment, step, action, reward and return so far) and its notes."""
    scene, words = drawing.draw(policy.environment, frame.state, frame.obs), caption(policy, drawing, play, frame)
    has_third_line = bool(words.trial or words.thinned)
    width, header = max(scene.width, scenes.BOARD), 66 if has_third_line else 46
    foot = 16 * len(words.notes) + 8 if words.notes else 0
    whole = Image.new("RGB", (width, header + scene.height + foot), scenes.PAPER)
    whole.paste(scene, ((width - scene.width) // 2, header))
    pen, name = ImageDraw.Draw(whole), policy.environment.name
    room = width - 24 - scenes.font(12).getlength(words.when)
    pen.text((8, 6), name, scenes.INK, scenes.fitting(name, 13, room))
    pen.text((width - 8, 6), words.when, scenes.RED if frame.end else scenes.GREY, scenes.font(12), anchor="ra")
    pen.text((8, 26), words.action, scenes.BLUE, scenes.font(12))
    pen.text((width - 8, 26), words.gained, scenes.INK, scenes.font(12), anchor="ra")
    pen.text((8, 46), words.trial, scenes.INK, scenes.font(12))
    pen.text((width - 8, 46), words.thinned, scenes.GREY, scenes.font(12), anchor="ra")
    note_font = scenes.fitting(max(words.notes, key=len, default=""), 11, width - 16)
    for line, note in enumerate(words.notes):
        pen.text((8, header + scene.height + 6 + 16 * line), note, scenes.INK, note_font)
    return whole


def same_size(pictures: list[Image.Image]) -> list[Image.Image]:
    """All as large as the largest, with paper below: one episode may have more notes than the next."""
    size = max(image.width for image in pictures), max(image.height for image in pictures)
    canvases = [Image.new("RGB", size, scenes.PAPER) for _ in pictures]
    for canvas, image in zip(canvases, pictures, strict=True):
        canvas.paste(image)
    return canvases


def _words(space: Any, names: tuple[str, ...], action: np.ndarray) -> str:
    if names:
        return names[int(action)]
    is_real = isinstance(space, Ball | Box)
    shown = [f"{value:+.2f}" if is_real else str(int(value)) for value in np.ravel(action)[:4]]
    return " ".join(shown) + (" ..." if np.size(action) > 4 else "")


def _numbers(values: np.ndarray) -> str:
    """One number, those of a few agents, or the mean of many."""
    numbers = np.ravel(values)
    if numbers.size > 4:
        return f"{_number(float(numbers.mean()))} (mean)"
    return " ".join(_number(float(number)) for number in numbers)


def _number(value: float) -> str:
    """Two decimals, or two digits where those would show nothing."""
    return f"{value:.2g}" if 0 < abs(value) < 0.1 else f"{value + 0.0:.2f}"


def gif(pictures: list[Image.Image], durations: list[int], colors: Sequence[scenes.Color] = ()) -> bytes:
    """An endless animation. All frames share one palette, taken from some of them, so that nothing flickers.

    `colors`: those that are in it in any case.
    """
    some = pictures[:: max(1, len(pictures) // 8)][:8] + pictures[-1:]
    strip = Image.new("RGB", (pictures[0].width, sum(image.height for image in some)))
    top = 0
    for image in some:
        strip.paste(image, (0, top))
        top += image.height
    # Colors of small things would be lost in a palette by area, so those in use are set first.
    certain = dict.fromkeys((*scenes.PALETTE, *colors))
    fixed = [level for color in certain for level in color]
    found = strip.quantize(COLORS - len(certain), Image.Quantize.MEDIANCUT).getpalette() or []
    palette = Image.new("P", (1, 1))
    palette.putpalette((fixed + found)[: 3 * COLORS])
    frames = [image.quantize(palette=palette, dither=Image.Dither.NONE) for image in pictures]
    buffer = io.BytesIO()
    frames[0].save(
        buffer, "GIF", save_all=True, append_images=frames[1:], duration=durations, loop=0, optimize=False, disposal=1
    )
    return buffer.getvalue()
