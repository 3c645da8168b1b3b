"""Descriptions of how networks encode observations, and warnings about large layers."""

import math
from collections.abc import Iterable

import jax
import numpy as np

from rollax import spaces
from rollax.environments.image_layouts import describe_layout, image_layout, image_shape
from rollax.networks.layers import Encoder, encoded_parts
from rollax.spaces import Box, Dict, Discrete, Grid, MultiDiscrete, Space, Tuple
from rollax.types import Parameters

MAX_DENSE_WEIGHTS = 5_000_000  # number of weights above which a dense layer causes a warning
_EXAMPLE_LAYOUTS = {2: "HW", 3: "HWC", 4: "NHWC"}  # example layouts by number of axes
_MIN_CONVOLVED_SIDE = 3  # minimum side of an image for convolutions


def describe_observation(space: Space, convolved: Iterable[str] | None = None) -> str:
    """Describe how encoders process an observation.

    Args:
        space: Observation space.
        convolved: Keys of the dictionary entries that are encoded by convolutions, or `("",)` for
            an observation that is not a dictionary. None describes the default encoder.

    Returns:
        One line of text.
    """
    if not isinstance(space, Dict):
        return _describe_part(space, None if convolved is None else "" in convolved)
    descriptions = []
    for name, part in space.items:
        if name == "action_mask":
            descriptions.append(f"{name}: legal actions")
        else:
            descriptions.append(
                f"{name}: {_describe_part(part, None if convolved is None else name in convolved)}"
            )
    return "; ".join(descriptions)


def _describe_part(space: Space, is_convolved: bool | None) -> str:
    if isinstance(space, Discrete):
        return f"one of {space.n}, one-hot"
    if isinstance(space, MultiDiscrete):
        return f"{len(space.sizes)} choices, one-hot"
    if isinstance(space, Grid):
        return f"grid {space.cells[0]} x {space.cells[1]} of symbols, embedded"
    layout = image_layout(space) if isinstance(space, Box) else None
    if layout is None or not isinstance(space, Box):
        size, shape = (
            spaces.flat_size(space),
            () if isinstance(space, Dict | Tuple) else space.shape,
        )
        return f"{size:,} number{'s' if size != 1 else ''}" + (
            f" of {list(shape)}" if len(shape) > 1 else ""
        )
    if is_convolved is None:
        is_convolved = min((image_shape(space) or (0, 0, 0))[:2]) >= _MIN_CONVOLVED_SIDE
    ending = (
        "through convolutions"
        if is_convolved
        else f"flattened to {spaces.flat_size(space):,} numbers"
    )
    return f"{describe_layout(space, layout)}, {ending}"


def find_encoders(network: Parameters) -> list[Encoder]:
    """Return all encoders in a network. Its leaves may be arrays or `jax.ShapeDtypeStruct`s."""

    def is_encoder(part):
        return isinstance(part, Encoder)

    return [part for part in jax.tree.leaves(network, is_leaf=is_encoder) if is_encoder(part)]


def large_layer_warning(network: Parameters) -> str | None:
    """Return a warning if a dense layer has more than `MAX_DENSE_WEIGHTS` weights, else None.

    Args:
        network: Network, or its shapes as returned by `jax.eval_shape`.

    Returns:
        Text with the size of the layer, its cause and a remedy, or None.
    """
    matrices = [leaf.shape for leaf in jax.tree.leaves(network) if len(leaf.shape) == 2]
    largest = max(matrices, key=np.prod, default=(0, 0))
    encoders = find_encoders(network)
    if np.prod(largest) <= MAX_DENSE_WEIGHTS or not encoders:
        return None
    features = [
        (math.prod(feature_shape(encoder, name, part)), name, part, encoder)
        for encoder in encoders
        for name, part in encoded_parts(encoder.space).items()
    ]
    num_features, name, part, encoder = max(features, key=lambda row: row[0])
    part_name = f"the part {name!r} of the observation" if name else "the observation"
    remedy = "Make it smaller."
    if name in encoder.convolutions:
        remedy = "Choose network.filters with larger strides, or make the picture smaller."
    elif len(part.shape) in _EXAMPLE_LAYOUTS:
        layout = _EXAMPLE_LAYOUTS[len(part.shape)]
        remedy = (
            f'If it is a picture, state its layout (layout="{layout}" in rollax.from_gymnasium '
            "or in its Box, with C for channels and N for stacked frames). Otherwise make it "
            "smaller."
        )
    shape = ", ".join(map(str, part.shape))
    return (
        f"a dense layer has {largest[0]:,} x {largest[1]:,} weights, because {part_name} [{shape}] "
        f"gives {num_features:,} features. {remedy}"
    )


def feature_shape(encoder: Encoder, name: str, part: Space) -> tuple[int, ...]:
    """Return the shape of the features that an encoder computes from an observation entry.

    The encoder flattens the features.

    Args:
        encoder: Encoder. Its arrays may have additional leading axes.
        name: Key of the entry, or "" for an observation that is not a dictionary.
        part: Space of the entry.
    """
    if name in encoder.convolutions:
        shape = image_shape(part) if isinstance(part, Box) else None
        sides = part.cells if isinstance(part, Grid) else (shape or (0, 0, 0))[:2]
        layers = encoder.convolutions[name].layers
        for layer in layers:
            sides = tuple((side - layer.kernel) // layer.stride + 1 for side in sides)
        return (*sides, layers[-1].weight.shape[-2])
    if name in encoder.embeddings and isinstance(part, Grid):
        width = encoder.embeddings[name].tables[0].shape[-1]
        return (*part.cells, len(part.sizes) * width)
    if isinstance(part, Discrete):
        return (part.n,)
    if isinstance(part, MultiDiscrete):
        return (sum(part.sizes),)
    return (spaces.flat_size(part),) if isinstance(part, Dict | Tuple) else part.shape
