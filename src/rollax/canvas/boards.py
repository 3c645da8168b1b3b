"""Drawing of grids of colored cells."""

import numpy as np
from PIL import Image

from rollax.canvas.scene import BOARD_SIZE, CELL_BORDER


def draw_cell_board(colors: np.ndarray, gap: bool = True) -> Image.Image:
    """Draw a grid of colored square cells.

    Cells have the largest integer size with which the grid fits into `BOARD_SIZE` pixels.

    Args:
        colors: RGB color of each cell, from 0 to 255, `[H, W, 3]`.
        gap: Whether to draw thin lines between cells of at least 12 pixels.

    Returns:
        RGB image.
    """
    size = max(1, BOARD_SIZE // max(colors.shape[:2]))
    board = np.repeat(np.repeat(colors.astype(np.uint8), size, axis=0), size, axis=1)
    if gap and size >= 12:
        board[::size] = board[:, ::size] = CELL_BORDER
    return Image.fromarray(board)
