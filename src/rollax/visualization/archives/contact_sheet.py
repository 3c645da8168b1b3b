"""Contact sheets: images of diverse elites of an archive on one page."""

import io
import math
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
from PIL import Image, ImageDraw

from rollax.archives.archive import Elites
from rollax.canvas import scene as scenes
from rollax.environments.capabilities import capabilities
from rollax.environments.environment import Environment
from rollax.errors import UsageError
from rollax.loading import load
from rollax.policy import Policy
from rollax.runtime.numerics import standard_numerics
from rollax.training.argument_validation import EPISODE_ARGUMENT_TYPES, POLICY_ARGUMENT_TYPES
from rollax.training.elites import selection
from rollax.training.run_folder.files import write_output_file
from rollax.training.run_folder.layout import figures_folder
from rollax.training.run_folder.tables import ignore_message
from rollax.types import NetworkFn, RunPath, SettingValues
from rollax.user_input.arguments import coerce_arguments
from rollax.visualization.archives.archive_figure import descriptor_bounds, grid_shape
from rollax.visualization.archives.cell_charts import Bounds, make_layout
from rollax.visualization.render import drawings
from rollax.visualization.render.recorded_episodes import (
    Frame,
    episode_keys,
    init_episode,
    make_episode_runner,
    record_from_start,
)
from rollax.visualization.render.render import ALL_CHECKPOINTS, require_episodes

MAX_TILES = 144
# Pixels: image width, gap between tiles, height above all tiles, height below an image.
TILE_WIDTH, TILE_GAP, HEADER_HEIGHT, FOOTER_HEIGHT = (232, 12, 34, 50)
MAX_FRAMES = 64  # recorded per episode, one of which is shown


class Tile(NamedTuple):
    """One elite on a contact sheet.

    Attributes:
        picture: Image of one frame of an episode.
        location: Descriptor and, for a grid, cell indices as text.
        fitness: Fitness in the archive.
        total: Return of the rendered episode.
    """

    picture: Image.Image
    location: str
    fitness: float
    total: float


@standard_numerics()
@coerce_arguments(
    folder=Path,
    num_elites=int,
    out=Path | None,
    checkpoint=str | int,
    **EPISODE_ARGUMENT_TYPES,
    **POLICY_ARGUMENT_TYPES,
)
def write_contact_sheet(
    folder: RunPath,
    num_elites: int,
    out: Path | str | None = None,
    checkpoint: str | int = "last",
    seed: int = 0,
    greedy: bool = True,
    *,
    member: int | None = None,
    environment: Environment | None = None,
    network: NetworkFn | None = None,
    eval_arguments: SettingValues | None = None,
    warn_fn: Callable[[str], object] = ignore_message,
) -> Path:
    """Write a contact sheet of elites that are spread over the archive of a run.

    All episodes start from the same initial state. A tile shows the last frame if the descriptor
    is computed at the end of episodes, and the middle frame otherwise. The text below the frame
    states the descriptor, the fitness in the archive and the return of the episode.

    Args:
        folder: Run folder.
        num_elites: Number of elites, from 1 to 144.
        out: Output file ending in .png. Defaults to `figures/sheet.png` in the run folder.
        checkpoint: `"last"`, `"best"` or a step, as in `load`.
        seed: Seed of the episodes.
        greedy: Whether the policy takes its most likely action instead of sampling.
        member: Index of the member of a population, as in `load`.
        environment: Environment to play in, as in `load`.
        network: Function that maps a random key to a network, as in `load`.
        eval_arguments: Arguments of the evaluation environment, as in `load`.
        warn_fn: Function that receives each warning from loading the policy.

    Returns:
        Path of the contact sheet.

    Raises:
        UsageError: If the run, the checkpoint or the archive does not exist, or the environment has
            no episodes. Also if `num_elites` is out of range, or `out` does not end in .png or
            cannot be written.
    """
    target = figures_folder(Path(folder)) / "sheet.png" if out is None else Path(out)
    if target.suffix.lower() != ".png":
        raise UsageError(f"The output file must end in .png, got {target}.")
    if checkpoint == ALL_CHECKPOINTS:
        raise UsageError("--checkpoint all requires a .gif or .mp4. Leave --sheet out.")
    if not 1 <= num_elites <= MAX_TILES:
        raise UsageError(f"sheet must be between 1 and {MAX_TILES} elites, got {num_elites}.")
    policy = load(
        folder,
        checkpoint=checkpoint,
        member=member,
        environment=environment,
        network=network,
        eval_arguments=eval_arguments,
    )
    for warning in policy.warnings:
        warn_fn(warning)
    elites = selection.get_elites(policy)
    require_episodes(policy, folder)
    sampled = farthest_point_sample(elites, num_elites, descriptor_bounds(policy))
    places = sort_in_reading_order(elites, sampled)
    frames = select_frames(policy, places, seed, greedy)
    tiles = [
        make_tile(policy, elites, place, frame, total)
        for place, (frame, total) in zip(places, frames, strict=True)
    ]
    count = f"{len(tiles)} of {int(elites.mask.sum()):,} elites"
    title = (
        f"{policy.spec.algorithm} on {policy.spec.environment}, "
        f"{policy.step:,} evaluations: {count}"
    )
    return write_output_file(target, encode_png(join_tiles(tiles, title)))


def farthest_point_sample(
    elites: Elites, max_elites: int, bounds: Bounds | None = None
) -> list[int]:
    """Select elites by farthest-point sampling of descriptors, starting with the fittest.

    Args:
        elites: Elites of the archive.
        max_elites: Maximum number of elites.
        bounds: Lower and upper bounds of the descriptors. Distances are divided by the difference
            of the bounds in each dimension. None uses the range of the archive's cell centers.

    Returns:
        Indices of up to `max_elites` elites. Ties are resolved in favor of the lowest index.
    """
    layout = make_layout(elites, None, bounds)
    span = np.where(layout.high > layout.low, layout.high - layout.low, 1.0)
    positions = np.asarray(elites.solutions.descriptor, float) / span
    selected = [int(np.argmax(np.where(elites.mask, elites.solutions.fitness, -np.inf)))]
    distance = np.where(elites.mask, np.inf, -np.inf)
    while len(selected) < min(max_elites, int(elites.mask.sum())):
        newest = selected[-1]
        distance = np.minimum(distance, np.sum((positions - positions[newest]) ** 2, axis=1))
        distance[newest] = -np.inf  # selects distinct elites even if their descriptors are equal
        selected.append(int(np.argmax(distance)))
    return selected


def num_sheet_columns(num_tiles: int) -> int:
    """Return the number of tiles in a row of an approximately square sheet."""
    return math.ceil(math.sqrt(num_tiles))


def sort_in_reading_order(elites: Elites, indices: list[int]) -> list[int]:
    """Sort selected elites in the order of their tiles, row by row.

    With two descriptor dimensions, tiles are arranged like a map: the first dimension increases to
    the right and the second upward. With one dimension, elites are sorted by descriptor in
    ascending order. With more dimensions, they are sorted by descending fitness.

    Args:
        elites: Elites of the archive.
        indices: Indices of the selected elites.

    Returns:
        The sorted indices.
    """
    descriptors = np.asarray(elites.solutions.descriptor)[indices]
    if descriptors.shape[1] == 1:
        return [indices[position] for position in np.argsort(descriptors[:, 0], kind="stable")]
    if descriptors.shape[1] > 2:
        return [
            indices[position]
            for position in np.argsort(-elites.solutions.fitness[indices], kind="stable")
        ]
    downward = np.argsort(-descriptors[:, 1], kind="stable")
    columns = num_sheet_columns(len(indices))
    rows = [downward[first : first + columns] for first in range(0, len(indices), columns)]
    return [
        indices[position]
        for row in rows
        for position in row[np.argsort(descriptors[row, 0], kind="stable")]
    ]


def select_frames(
    policy: Policy, indices: list[int], seed: int, greedy: bool
) -> list[tuple[Frame, float]]:
    """Play one episode with each elite from the same initial state, and select one frame of each.

    The frame is the last one if the descriptor is computed at the end of episodes, and the middle
    one otherwise.

    Args:
        policy: Policy of a quality-diversity run.
        indices: Indices of the elites.
        seed: Seed of the episode.
        greedy: Whether the policy takes its most likely action instead of sampling.

    Returns:
        Frame and episode return of each elite.
    """
    reset_key, run_key = jax.random.split(episode_keys(seed, 1)[0])
    run, first = make_episode_runner(policy, greedy), init_episode(policy, reset_key)
    is_end = capabilities(policy.environment).descriptor_extraction == "final"
    selected = []
    for index in indices:
        elite = selection.with_elite(policy, index)
        frames = record_from_start(elite, run, first, run_key, MAX_FRAMES).frames
        frame = frames[-1] if is_end else frames[len(frames) // 2]
        selected.append((frame, float(np.mean(frames[-1].total))))
    return selected


def make_tile(
    policy: Policy, elites: Elites, index: int, frame: Frame, episode_return: float
) -> Tile:
    """Build the tile of an elite.

    Args:
        policy: Policy of a quality-diversity run.
        elites: Elites of the archive.
        index: Index of the elite.
        frame: Frame to draw.
        episode_return: Return of the episode.

    Returns:
        Tile with the scaled image, the location and the scores of the elite.
    """
    scene = drawings.find_drawing(policy.environment).draw(
        policy.environment, frame.state, frame.obs
    )
    picture = scene.resize(
        (TILE_WIDTH, max(1, round(scene.height * TILE_WIDTH / scene.width))),
        Image.Resampling.LANCZOS,
    )
    location = " ".join(f"{x:.2f}" for x in elites.solutions.descriptor[index])
    shape = grid_shape(policy, elites)
    if shape is not None:
        cell = np.unravel_index(index // int(elites.num_per_cell), shape)
        location += f"   cell {' '.join(map(str, cell))}"
    return Tile(picture, location, float(elites.solutions.fitness[index]), episode_return)


def join_tiles(tiles: list[Tile], title: str) -> Image.Image:
    """Return one image with the tiles arranged in rows below a title."""
    columns = num_sheet_columns(len(tiles))
    height = max(tile.picture.height for tile in tiles) + FOOTER_HEIGHT
    rows = -(-len(tiles) // columns)
    size = (
        max(columns * (TILE_WIDTH + TILE_GAP) + TILE_GAP, 2 * TILE_WIDTH),
        rows * (height + TILE_GAP) + HEADER_HEIGHT,
    )
    sheet = Image.new("RGB", size, scenes.BACKGROUND)
    draw = ImageDraw.Draw(sheet)
    draw.text(
        (TILE_GAP, 10), title, scenes.DARK_GRAY, scenes.fit_font(title, 14, size[0] - 2 * TILE_GAP)
    )
    for index, tile in enumerate(tiles):
        left_edge = TILE_GAP + index % columns * (TILE_WIDTH + TILE_GAP)
        top = HEADER_HEIGHT + index // columns * (height + TILE_GAP)
        sheet.paste(tile.picture, (left_edge, top))
        bottom = top + tile.picture.height + 4
        scores = f"fitness {tile.fitness:.4g}   return here {tile.total:.4g}"
        for line, (text, color) in enumerate(
            ((tile.location, scenes.BLUE), (scores, scenes.DARK_GRAY))
        ):
            font = scenes.fit_font(text, 12, TILE_WIDTH)
            draw.text(
                (left_edge, bottom + 17 * line),
                scenes.truncate_text(text, font, TILE_WIDTH),
                color,
                font,
            )
    return sheet


def encode_png(image: Image.Image) -> bytes:
    """Encode an image as PNG."""
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()
