"""Layouts of image observations, which declare the meaning of each axis.

A layout is a string with one letter per axis: H (height), W (width), C (channels) and N (stacked
frames), such as "HWC", "CHW" or "NHWC". Each letter occurs at most once. FLAT marks an array that
is not an image.
"""

from typing import TypeVar

import jax
import numpy as np

from rollax.spaces import Box
from rollax.types import Setting

Array = TypeVar("Array", np.ndarray, jax.Array)

FLAT = "flat"
MAX_RECOGNIZED_CHANNELS = 32  # limit for pictures whose layout is recognized rather than declared
# If the other axes have at least this many pixels, a smaller first axis is not the height.
_MIN_IMAGE_SIDE = 24


def image_layout(space: Box) -> str | None:
    """Return the declared or recognized layout of a box, or None if it is not an image."""
    layout = recognize_layout(space) if space.layout is None else space.layout
    return None if layout == FLAT else layout


def recognize_layout(space: Box) -> str:
    """Guess the layout of a box from its shape, bounds and dtype. FLAT means no image.

    A box with three axes is an image with its channels last, unless the first axis is clearly the
    smallest. A box with four axes is a stack of images if two neighboring axes are clearly larger
    than the others. A box with two axes is an image only if it holds 8-bit pixels.
    """
    shape, is_pictorial = space.shape, _has_pixel_values(space)
    if len(shape) == 2:
        is_picture = space.dtype == "uint8" and is_pictorial and min(shape) >= _MIN_IMAGE_SIDE
        return "HW" if is_picture else FLAT
    if len(shape) == 3:
        return "CHW" if is_pictorial and _has_channels_first(shape) else "HWC"
    if len(shape) == 4 and is_pictorial:
        for layout in ("NHWC", "NCHW", "HWNC"):
            sides = [size for size, letter in zip(shape, layout, strict=True) if letter in "HW"]
            others = [
                size for size, letter in zip(shape, layout, strict=True) if letter not in "HW"
            ]
            if max(others) <= MAX_RECOGNIZED_CHANNELS and 2 * max(others) <= min(sides):
                return layout
    return FLAT


def layout_fault(shape: tuple[int, ...], layout: Setting) -> str | None:
    """Return an error message if a layout does not fit the shape, otherwise None."""
    if layout is None or layout == FLAT:
        return None
    is_layout = (
        isinstance(layout, str)
        and set("HW") <= set(layout) <= set("HWCN")
        and len(set(layout)) == len(layout)
    )
    if not is_layout:
        return (
            f"layout must be {FLAT!r} or one letter per axis (H, W, C for channels, "
            f"N for stacked frames), got {layout!r}. Write for example 'HWC', 'CHW' or 'NHWC'."
        )
    if len(layout) != len(shape):
        return (
            f"layout {layout!r} must have as many letters as the observation has axes "
            f"({len(shape)}: {list(shape)}), got {len(layout)}. Name every axis."
        )
    return None


def move_channels_last(value: Array, layout: str) -> Array:
    """Transpose images from `[..., *layout]` to `[..., H, W, channels]`.

    Stacked frames and channels share the last axis.
    """
    if layout == "HWC":
        return value
    num_leading = value.ndim - len(layout)
    order = [
        num_leading + layout.index(axis_letter)
        for axis_letter in ("H", "W", *(x for x in "NC" if x in layout))
    ]
    transposed = value.transpose(*range(num_leading), *order)
    return transposed.reshape(*transposed.shape[: num_leading + 2], -1)


def arrange_image(space: Box, value: Array) -> Array:
    """Move the channels of an image to the last axis. Return other values unchanged."""
    layout = image_layout(space)
    return value if layout is None else move_channels_last(value, layout)


def image_shape(space: Box) -> tuple[int, int, int] | None:
    """Return `(height, width, channels)` of an image, or None if the box is not an image."""
    layout = image_layout(space)
    if layout is None:
        return None
    sizes = dict(zip(layout, space.shape, strict=True))
    return sizes["H"], sizes["W"], sizes.get("N", 1) * sizes.get("C", 1)


def describe_layout(space: Box, layout: str) -> str:
    """Return a text such as `picture 84 x 84 with 12 channels (NHWC [4, 84, 84, 3])`."""
    height, width, channels = image_shape(space) or (0, 0, 0)
    axes = "" if layout == "HWC" else f" ({layout} {list(space.shape)})"
    return f"picture {height} x {width} with {channels} channel{'s' if channels > 1 else ''}{axes}"


def _has_pixel_values(space: Box) -> bool:
    """Return whether the values of a box can be pixels or binary features of a board.

    These are floats, booleans, and integers with an upper bound of 1 or 255. Other integers are
    treated as category codes.
    """
    high = float(np.max(space.high)) if np.size(space.high) else 0.0
    return not np.issubdtype(np.dtype(space.dtype), np.integer) or high in (1.0, 255.0)


def _has_channels_first(shape: tuple[int, ...]) -> bool:
    channels, height, width = shape
    smallest = min(height, width)
    if channels > MAX_RECOGNIZED_CHANNELS or channels >= smallest:
        return False
    return height == width or 2 * channels <= smallest or smallest >= _MIN_IMAGE_SIDE
