"""Drawings of Pgx boards."""

from typing import TYPE_CHECKING

import numpy as np
from PIL import Image, ImageDraw

from rollax.canvas.drawing import Drawing
from rollax.canvas.scene import BLUE, BOARD_SIZE, DARK_GRAY, GRAY, ORANGE, LegendEntry
from rollax.environments.observation_images import draw_observation
from rollax.types import Action, Observation, State

if TYPE_CHECKING:
    import rollax.environments.suites.pgx.adapter

_BOARD_COLOR, _STONE_COLORS = (238, 222, 190), (BLUE, ORANGE)


def draw_stones(
    environment: "rollax.environments.suites.pgx.adapter.Pgx", state: State, obs: Observation
) -> Image.Image:
    """Draw a Pgx board with the stones of both players, as the first player observes it."""
    board = np.asarray(obs["observation"])[0][..., :2] > 0
    size = BOARD_SIZE // max(board.shape[:2])
    picture = Image.new("RGB", (size * board.shape[1] + 1, size * board.shape[0] + 1), _BOARD_COLOR)
    pen, gap = ImageDraw.Draw(picture), max(1, size // 12)
    for row, column in np.ndindex(*board.shape[:2]):
        left, top = size * column, size * row
        pen.rectangle((left, top, left + size, top + size), outline=GRAY)
        for player in np.flatnonzero(board[row, column]).tolist():
            pen.ellipse(
                (left + gap, top + gap, left + size - gap, top + size - gap),
                _STONE_COLORS[player],
                DARK_GRAY,
            )
    return picture


def describe_move(
    environment: "rollax.environments.suites.pgx.adapter.Pgx", agent: int, action: Action
) -> str:
    """Describe the move of a player.

    If the player is an opponent that the environment controls, the description is its kind.

    Args:
        environment: Innermost environment.
        agent: Index of the player.
        action: Action of the player.

    Returns:
        The kind of opponent ("random" or "greedy"), "waits", or the index of the move.
    """
    if agent > 0 and environment.opponent != "agents":
        return environment.opponent  # the column has no room for more words
    return "waits" if int(action) == environment.action_space.n - 1 else str(int(action))


def stone_legend(
    environment: "rollax.environments.suites.pgx.adapter.Pgx", state: State, obs: Observation
) -> list[LegendEntry]:
    """Return the legend of `draw_stones`."""
    return [
        LegendEntry(name, color, outline=DARK_GRAY)
        for name, color in zip(environment.agent_types, _STONE_COLORS, strict=True)
    ]


_STONES = Drawing(draw_stones, 2, legend=stone_legend, describe_action_fn=describe_move)

DRAWINGS: dict[str, Drawing] = {
    "connect_four": _STONES,
    "go_*": _STONES,
    "othello": _STONES,
    "tic_tac_toe": _STONES,
    "*": Drawing(draw_observation, 10, describe_action_fn=describe_move),
}
