"""Camera paths that keep a moving body in view, fixed if possible and smooth otherwise."""

import numpy as np
from scipy.ndimage import gaussian_filter1d

# Filter widths as fractions of the episode length, the smoothest first.
FILTER_WIDTH_DIVISORS = (4, 6, 9, 13, 20, 32, 50, 80)


def smooth_camera_path(
    path: np.ndarray, projection: np.ndarray, max_offset: np.ndarray
) -> np.ndarray:
    """Return camera positions on the ground that follow a body.

    The position is constant if the body stays in view. Otherwise the positions are the path of the
    body, smoothed with the widest Gaussian filter that keeps the body in view. If no filter does,
    the standard deviation of the filter is one frame.

    Args:
        path: Position of the body on the ground in F frames, `[F, 2]`.
        projection: Matrix that projects ground directions to image axes, `[2, 2]`.
        max_offset: Largest allowed distance of the body from the center of the image, to the
            right and upward, `[2]`.

    Returns:
        Camera positions, `[F, 2]`.
    """
    path = np.nan_to_num(path)
    middle = np.broadcast_to((path.min(axis=0) + path.max(axis=0)) / 2, path.shape)
    if _is_in_view(path, middle, projection, max_offset):
        return middle
    for divisor in FILTER_WIDTH_DIVISORS:
        smooth = gaussian_filter1d(path, max(len(path) / divisor, 1.0), axis=0, mode="nearest")
        if _is_in_view(path, smooth, projection, max_offset):
            return smooth
    return gaussian_filter1d(path, 1.0, axis=0, mode="nearest")


def _is_in_view(
    path: np.ndarray, targets: np.ndarray, projection: np.ndarray, max_offset: np.ndarray
) -> bool:
    return bool(np.all(np.abs((path - targets) @ projection.T) <= max_offset))
