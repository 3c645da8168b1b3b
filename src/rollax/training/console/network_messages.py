"""Messages about how the networks of a run read observations."""

import functools

import jax

from rollax import spaces
from rollax.environments.capabilities import has_closed_form
from rollax.environments.environment import Environment
from rollax.networks.observation_encoding import (
    describe_observation,
    find_encoders,
    large_layer_warning,
)
from rollax.spaces import Dict, Space, Tuple, list_parts
from rollax.training.spec import Spec, get_algorithm_entry
from rollax.types import NetworkFn

SMALL_OBSERVATION_SIZE = 10_000  # flat observations up to this size never need too large a layer


def describe_inputs(
    spec: Spec, environment: Environment, make_network: NetworkFn | None
) -> list[str]:
    """Return a line on how networks read observations, and a warning if a layer is too large.

    Args:
        spec: Specification of the run.
        environment: Environment of the run, after `wrap_for_networks`.
        make_network: Function that maps a random key to a network, or None if `spec.network`
            describes the network.

    Returns:
        The lines. Empty for a custom network and for tasks without episodes.
    """
    space = environment.observation_space
    if make_network is not None or has_closed_form(environment):
        return []
    if not _has_multiple_axes(space) and spaces.flat_size(space) <= SMALL_OBSERVATION_SIZE:
        return [f"observation: {describe_observation(space)}"]
    make = functools.partial(
        get_algorithm_entry(spec.algorithm).make_network, environment, spec.network
    )
    network = jax.eval_shape(make, jax.eval_shape(lambda: jax.random.key(0)))
    encoders = find_encoders(network)
    if not encoders:  # a solution of a task without episodes, or a custom algorithm
        return []
    convolved = {name for encoder in encoders for name in encoder.convolutions}
    warning = large_layer_warning(network)
    return [
        f"observation: {describe_observation(space, convolved)}",
        *([] if warning is None else [f"warning: {warning}"]),
    ]


def _has_multiple_axes(space: Space) -> bool:
    """Return whether an observation, or an entry of a dictionary observation, has several axes."""
    if isinstance(space, Dict | Tuple):
        parts = list_parts(space).items()
        return any(_has_multiple_axes(part) for name, part in parts if name != "action_mask")
    return len(space.shape) > 1
