"""Labels of the array axes of a network that belong to observations and actions.

A label identifies an entry of an axis independently of its position, such as the third number of
the observation entry "position". Two networks for different spaces are aligned by equal labels.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np

from rollax.networks import layers
from rollax.networks.action_values.q_networks import ActionValuesHead, FeatureExtractor
from rollax.networks.critics import (
    Actor,
    ChoiceCritic,
    ChoiceValues,
    ContinuousCritic,
    TanhGaussianHead,
    TanhHead,
    std_shape,
)
from rollax.networks.observation_encoding import feature_shape
from rollax.networks.policy_heads import BallHead, CategoricalHead, GaussianHead
from rollax.spaces import Ball, Box, Dict, Discrete, MultiDiscrete, Space
from rollax.types import Parameters, PyTree

Label = tuple[Any, ...]


class AxisLabels(NamedTuple):
    """Labels of one axis of an array.

    Attributes:
        axis: Index of the axis from the end, such as -1. Leading axes of members or agents do not
            change it.
        labels: Label of each entry along the axis.
        is_input: Whether the axis belongs to inputs of the network, such as observations, instead
            of outputs.
    """

    axis: int
    labels: tuple[Label, ...]
    is_input: bool


LabeledArrays = dict[str, tuple[AxisLabels, ...]]


def label_axes(parameters: Parameters) -> LabeledArrays:
    """Return the labels of arrays that depend on the spaces of observations and actions.

    Args:
        parameters: Network, or another pytree that contains modules of rollax, such as an optimizer
            state. Its arrays may have leading axes.

    Returns:
        Labels, keyed by the path of the array. Arrays of unknown modules are not included.
    """
    return dict(_label_tree(parameters, ""))


def _label_tree(tree: PyTree, prefix: str) -> Iterator[tuple[str, tuple[AxisLabels, ...]]]:
    """Yield the path and the labels of each array below `tree`."""

    def is_nested_module(part: PyTree) -> bool:
        return part is not tree and isinstance(part, eqx.Module)

    for suffix, labels in _label_module(tree).items():
        yield prefix + suffix, labels
    for path, part in jax.tree_util.tree_leaves_with_path(tree, is_leaf=is_nested_module):
        if isinstance(part, eqx.Module):
            yield from _label_tree(part, prefix + jax.tree_util.keystr(path))


def _label_module(module: PyTree) -> LabeledArrays:
    """Return the labels of the arrays of one module, keyed by their path in the module."""
    if not jax.tree.leaves(module):  # in the state of an optimizer that does not train the module
        return {}
    match module:
        case layers.Encoder():
            return _label_encoder(module)
        case layers.Embedding():
            return {
                f".tables[{index}]": (AxisLabels(-2, _indices(table.shape[-2]), True),)
                for index, table in enumerate(module.tables)
            }
        case Actor() | FeatureExtractor():
            return _label_dense(module.dense, _label_features(module.encoder))
        case ContinuousCritic() | ChoiceValues():
            return _label_critic(module)
        case ChoiceCritic(network=ChoiceValues()):
            return _label_outputs(_label_numbers("choices", module.sizes), -1, ".network.head")
        case CategoricalHead():
            return _label_outputs(_label_choices(module.space), -2)
        case GaussianHead():
            shape = module.space.shape
            labels = _label_normal(module.space, "mean", module.std == "state")
            return _label_outputs(labels, -2) | {".log_std": _label_actions(shape)}
        case BallHead():
            return _label_outputs(_label_normal(module.space, "ball", module.std == "state"), -2)
        case TanhHead():
            name = "ball" if isinstance(module.space, Ball) else "tanh"
            return _label_outputs(_label_numbers(name, module.space.shape), -1)
        case TanhGaussianHead():
            name = "ball" if isinstance(module.space, Ball) else "mean"
            labels = _label_normal(module.space, name, module.std == "state")
            log_std = (
                {}
                if module.log_std is None
                else {".log_std": _label_actions(std_shape(module.space))}
            )
            return _label_outputs(labels, -1) | log_std
        case ActionValuesHead():
            name = "value" if module.advantage is None else "advantage"
            layer = module.value if module.advantage is None else module.advantage
            number, size = layer.bias.shape[-1], module.size
            shape = (number,) if size is None else (number // size, size)
            return _label_outputs(_label_numbers(name, shape), -1, f".{name}")
        case _:
            return {}


def _label_encoder(encoder: layers.Encoder) -> LabeledArrays:
    """Return the input labels of the first dense layer and the first convolutions of an encoder."""
    found = _label_dense(encoder.dense, _label_features(encoder))
    for name, network in encoder.convolutions.items():
        first = network.layers[0]
        channels = first.weight.shape[-1] // first.kernel**2
        kind = _value_kind(layers.encoded_parts(encoder.space)[name])
        patch = _label_numbers(f"patch of {kind}", (first.kernel, first.kernel, channels))
        path = f".convolutions[{name!r}].layers[0].weight"
        found[path] = (AxisLabels(-1, patch, True),)
    return found


def _label_critic(critic: ContinuousCritic | ChoiceValues) -> LabeledArrays:
    """Return the input labels of the first dense layer of a critic: features, then actions."""
    if not critic.dense.layers:
        return {}
    features = _label_features(critic.encoder)
    num_actions = critic.dense.layers[0].weight.shape[-2] - len(features)
    return _label_dense(critic.dense, (*features, *_indices(num_actions, "action")))


def _label_dense(dense: layers.MLP, inputs: tuple[Label, ...]) -> LabeledArrays:
    """Return `inputs` as the input labels of the first of several dense layers."""
    if not dense.layers:
        return {}
    return {".dense.layers[0].weight": (AxisLabels(-2, inputs, True),)}


def _label_outputs(
    labels: tuple[Label, ...], weight_axis: int, layer: str = ".layer"
) -> LabeledArrays:
    """Return `labels` as the output labels of a dense layer.

    Outputs are along axis `weight_axis` of the weights, and along the only axis of the bias.
    """
    return {
        f"{layer}.weight": (AxisLabels(weight_axis, labels, False),),
        f"{layer}.bias": (AxisLabels(-1, labels, False),),
    }


def _label_features(encoder: layers.Encoder) -> tuple[Label, ...]:
    """Return a label for each feature that an encoder passes to its dense layers."""
    parts = layers.encoded_parts(encoder.space).items()
    return tuple(
        label for name, part in parts for label in _label_part(encoder, name, part, (name,))
    )


def _label_part(
    encoder: layers.Encoder, name: str, part: Space, prefix: Label
) -> Iterator[tuple[Any, ...]]:
    """Yield a label for each feature of an observation entry."""
    if isinstance(part, Dict):
        for key, nested in part.items:
            if key != "action_mask":
                yield from _label_part(encoder, "", nested, (*prefix, key))
    elif isinstance(part, MultiDiscrete):
        yield from ((*prefix, d, i) for d, size in enumerate(part.sizes) for i in range(size))
    else:
        for index in np.ndindex(*feature_shape(encoder, name, part)):
            yield (*prefix, _value_kind(part), *index)


def _value_kind(space: Space) -> str:
    """Return "pixels" for 8-bit images, which encoders divide by 255, or the type of the space."""
    is_pixels = isinstance(space, Box) and space.dtype == "uint8"
    return "pixels" if is_pixels else type(space).__name__


def _label_choices(space: Discrete | MultiDiscrete) -> tuple[Label, ...]:
    """Return a label for each logit of a categorical distribution over a space."""
    if isinstance(space, Discrete):
        return _indices(space.n, "choice")
    return _label_numbers("choices", (len(space.sizes), max(space.sizes)))


def _label_numbers(name: str, shape: tuple[int, ...]) -> tuple[Label, ...]:
    """Return a label for each element of an array, in row-major order."""
    return tuple((name, *index) for index in np.ndindex(*shape))


def _label_actions(shape: tuple[int, ...]) -> tuple[AxisLabels, ...]:
    """Return the labels of the last axes of an array, which are those of an action."""
    return tuple(AxisLabels(axis, _indices(shape[axis]), False) for axis in range(-len(shape), 0))


def _label_normal(space: Box | Ball, name: str, has_log_std: bool) -> tuple[Label, ...]:
    """Return a label for each output of a layer that computes a normal distribution.

    Args:
        space: Space of the actions.
        name: First component of the labels of the mean.
        has_log_std: Whether the layer also computes the log standard deviation.
    """
    log_std = _label_numbers("log_std", std_shape(space)) if has_log_std else ()
    return (*_label_numbers(name, space.shape), *log_std)


def _indices(size: int, name: str = "index") -> tuple[Label, ...]:
    return _label_numbers(name, (size,))
