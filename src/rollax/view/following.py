"""Where to look while a body moves: at one place for a whole episode where that shows it all, else along a smooth path."""

import numpy as np
from scipy.ndimage import gaussian_filter1d

SMOOTHER = (4, 6, 9, 13, 20, 32, 50, 80)  # the width of the filter as a part of the episode, the smoothest first


def followed(path: np.ndarray, seen: np.ndarray, room: np.ndarray) -> np.ndarray:
    """The places `[F, 2]` on the ground to look at, of the path `[F, 2]` of a body.

    `seen`: the rows by which directions of the ground become those of the picture, `[2, 2]`; `room`: how far from the middle
    of the picture the body may be, to the right and upwards. Of a Gaussian filter's paths that keep it so near the smoothest
    is taken.
    """
    path = np.nan_to_num(path)
    middle = np.broadcast_to((path.min(axis=0) + path.max(axis=0)) / 2, path.shape)
    if _is_near(path, middle, seen, room):
        return middle
    for part in SMOOTHER:
        smooth = gaussian_filter1d(path, max(len(path) / part, 1.0), axis=0, mode="nearest")
        if _is_near(path, smooth, seen, room):
            return smooth
    return gaussian_filter1d(path, 1.0, axis=0, mode="nearest")


def _is_near(path: np.ndarray, looked_at: np.ndarray, seen: np.ndarray, room: np.ndarray) -> bool:
    return bool(np.all(np.abs((path - looked_at) @ seen.T) <= room))
