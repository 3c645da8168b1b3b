"""A contact sheet: some elites of an archive, as different as can be, with a picture of what each one does."""

import functools
import io
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from PIL import Image, ImageDraw

from rollax.archives.core import Elites
from rollax.environments.core import Environment
from rollax.errors import UsageError
from rollax.host import elites
from rollax.host.api import Policy, load
from rollax.host.files import write
from rollax.view import draw
from rollax.view import scene as scenes
from rollax.view.archive import bounds_of, shape_of, silent
from rollax.view.cells import of_elites
from rollax.view.playing import Frame, play_from, play_keys, player, start
from rollax.view.render import ALL, require_episodes

MOST = 144  # tiles
TILE, GAP, HEAD, FOOT = 232, 12, 34, 50  # pixels: width of a picture, between tiles, above all, beneath each
FRAMES = 64  # of an episode that the one to show is chosen from


class Tile(NamedTuple):
    """An elite on the sheet."""

    picture: Image.Image
    where: str  # its descriptor
    fitness: float  # in the archive
    total: float  # return of the episode that is shown


def sheet(
    folder: Path | str,
    number: int,
    out: Path | str | None = None,
    checkpoint: str | int = "last",
    seed: int = 0,
    greedy: bool = True,
    *,
    member: int | None = None,
    environment: Environment | None = None,
    network: Callable[[jax.Array], Any] | None = None,
    eval_arguments: Mapping[str, Any] | None = None,
    tell: Callable[[str], object] = silent,
) -> Path:
    """Writes a contact sheet of `number` elites spread over a run's archive: `figures/sheet.png` in the run, or `out`.

    All episodes begin from one start. A tile shows the last frame where the descriptor is of an episode's end, else the middle
    one, and beneath it the descriptor, the fitness in the archive and the return of this episode. Arguments as for `render`.

    Raises UsageError when there is no such run or archive, for an environment without a picture, or when `out` is no .png.
    """
    target = Path(folder) / "figures" / "sheet.png" if out is None else Path(out)
    if target.suffix.lower() != ".png":
        raise UsageError(f"--out ({target}) must end in .png")
    if checkpoint == ALL:
        raise UsageError("--checkpoint all makes a .gif or .mp4: leave --sheet out")
    if not 1 <= number <= MOST:
        raise UsageError(f"sheet ({number}) must be between 1 and {MOST} elites")
    opened = functools.partial(load, folder, environment=environment, network=network, eval_arguments=eval_arguments)
    policy = opened(checkpoint=checkpoint, member=member)
    for warning in policy.warnings:
        tell(warning)
    found = elites.of_policy(policy)
    require_episodes(policy, folder)
    places = in_reading_order(found, spread(found, number, bounds_of(policy)))
    tiles = [
        tile(policy, found, place, *shown) for place, shown in zip(places, frames(policy, places, seed, greedy), strict=True)
    ]
    count = f"{len(tiles)} of {int(found.mask.sum()):,} elites"
    title = f"{policy.spec.algorithm} on {policy.spec.environment}, {policy.step:,} evaluations: {count}"
    return write(target, png(joined(tiles, title)))


def spread(found: Elites, number: int, bounds: tuple[Any, Any] | None = None) -> list[int]:
    """Places of up to `number` elites, each as far as can be from those before it, the best first (farthest-point sampling).

    Distances are of descriptors in units of their bounds. Of equally far ones the first.
    """
    layout = of_elites(found, None, bounds)
    span = np.where(layout.high > layout.low, layout.high - layout.low, 1.0)
    at = np.asarray(found.scored.descriptor, float) / span
    chosen = [int(np.argmax(np.where(found.mask, found.scored.fitness, -np.inf)))]
    away = np.where(found.mask, np.inf, -np.inf)
    while len(chosen) < min(number, int(found.mask.sum())):
        away = np.minimum(away, np.sum((at - at[chosen[-1]]) ** 2, axis=1))
        away[chosen[-1]] = -np.inf  # so that elites of one descriptor are different ones
        chosen.append(int(np.argmax(away)))
    return chosen


def columns_of(number: int) -> int:
    """How many tiles there are in a row."""
    return math.ceil(math.sqrt(number))


def in_reading_order(found: Elites, places: list[int]) -> list[int]:
    """Like a map where descriptors have two dimensions: rows from the top by the second, in each from the left by the first.

    By the only dimension of one, the fittest first of more.
    """
    at = np.asarray(found.scored.descriptor)[places]
    if at.shape[1] == 1:
        return [places[i] for i in np.argsort(at[:, 0], kind="stable")]
    if at.shape[1] > 2:
        return [places[i] for i in np.argsort(-found.scored.fitness[places], kind="stable")]
    downwards, columns = np.argsort(-at[:, 1], kind="stable"), columns_of(len(places))
    rows = [downwards[first : first + columns] for first in range(0, len(places), columns)]
    return [places[i] for row in rows for i in row[np.argsort(at[row, 0], kind="stable")]]


def frames(policy: Policy, places: list[int], seed: int, greedy: bool) -> list[tuple[Frame, float]]:
    """The frame to show of an episode of each elite, and the return of the episode. All begin from one start."""
    reset_key, run_key = jax.random.split(play_keys(seed, 1)[0])
    run, first = player(policy, greedy), start(policy, reset_key)
    is_end = getattr(policy.environment, "descriptor_extraction", "final") == "final"
    shown = []
    for place in places:
        elite = elites.with_elite(policy, place)
        played = play_from(elite, run, first, run_key, FRAMES).frames
        shown.append((played[-1 if is_end else len(played) // 2], float(np.mean(played[-1].total))))
    return shown


def tile(policy: Policy, found: Elites, place: int, frame: Frame, total: float) -> Tile:
    """The picture of a frame, as wide as tiles are, and what is said of its elite."""
    scene = draw.drawing_of(policy.environment).draw(policy.environment, frame.state, frame.obs)
    picture = scene.resize((TILE, max(1, round(scene.height * TILE / scene.width))), Image.Resampling.LANCZOS)
    where = " ".join(f"{x:.2f}" for x in found.scored.descriptor[place])
    shape = shape_of(policy, found)
    cell = "" if shape is None else f"   cell {' '.join(str(i) for i in np.unravel_index(place // int(found.per_cell), shape))}"
    return Tile(picture, f"{where}{cell}", float(found.scored.fitness[place]), total)


def joined(tiles: list[Tile], title: str) -> Image.Image:
    """All tiles in rows on one sheet."""
    columns = columns_of(len(tiles))
    height = max(each.picture.height for each in tiles) + FOOT
    rows = -(-len(tiles) // columns)
    size = max(columns * (TILE + GAP) + GAP, 2 * TILE), rows * (height + GAP) + HEAD
    whole = Image.new("RGB", size, scenes.PAPER)
    pen = ImageDraw.Draw(whole)
    pen.text((GAP, 10), title, scenes.INK, scenes.fitting(title, 14, size[0] - 2 * GAP))
    for index, each in enumerate(tiles):
        left, top = GAP + index % columns * (TILE + GAP), HEAD + index // columns * (height + GAP)
        whole.paste(each.picture, (left, top))
        below = top + each.picture.height + 4
        gained = f"fitness {each.fitness:.4g}   return here {each.total:.4g}"
        for line, (words, color) in enumerate(((each.where, scenes.BLUE), (gained, scenes.INK))):
            style = scenes.fitting(words, 12, TILE)
            pen.text((left, below + 17 * line), scenes.shortened(words, style, TILE), color, style)
    return whole


def png(image: Image.Image) -> bytes:
    """The file's content."""
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()
