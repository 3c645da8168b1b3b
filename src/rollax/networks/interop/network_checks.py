"""Checks that a network returns what its algorithm needs. Nothing is compiled."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from rollax.action_spaces import (
    check_discrete,
    discrete_sizes,
    make_normalized_zeros,
    normalize_space,
)
from rollax.environments.environment import Environment
from rollax.errors import UsageError, describe_error
from rollax.networks.critics import ActorCritics
from rollax.networks.distributions import transform_noise
from rollax.networks.interop.output_checks import check_shape
from rollax.networks.network import Network
from rollax.spaces import SimpleActionSpace, make_zeros, map_space
from rollax.types import NetworkFn, Observation, PyTree

EXAMPLE_SIZE = 51  # number of outputs per action in errors about arrays without that axis


def check_actor_critic(
    algorithm: str, environment: Environment, make_network: NetworkFn
) -> NetworkFn:
    """Return `make_network` with a check of each network that it makes.

    The network must map `(carry, obs)` to `(carry, output)`, and the output must have a policy and
    a value `[]`. Otherwise the returned function raises a UsageError that states the output of the
    network and the output that the algorithm needs. Nothing is compiled.

    Args:
        algorithm: Name of the algorithm in error messages.
        environment: Environment with the spaces.
        make_network: Function from a random key to a network.
    """

    def check(network: Network) -> None:
        def apply(network: Network, obs: Observation) -> Any:
            output = network(network.initial_carry(), obs)[1]
            return output.policy, output.value

        _, value = jax.eval_shape(apply, network, make_zeros(environment.observation_space))
        check_shape(type(network).__name__, "value", value, ((),))

    return _add_check(algorithm, "an ActorCriticOutput", make_network, check)


def check_q_network(algorithm: str, environment: Environment, make_network: NetworkFn) -> NetworkFn:
    """Return `make_network` with a check that its networks map `obs` to action values `[n]`."""

    def check(network: Callable[[Observation], jax.Array]) -> None:
        values = jax.eval_shape(
            lambda network, obs: network(obs), network, make_zeros(environment.observation_space)
        )
        _check_action_values(network, values, environment)

    return _add_check(algorithm, "action values", make_network, check)


def check_distributional_network(
    algorithm: str, output: str, environment: Environment, make_network: NetworkFn
) -> NetworkFn:
    """Return `make_network` with a check that its networks map `obs` to an array `[n, m]`.

    Args:
        algorithm: Name of the algorithm in error messages.
        output: Description of the m outputs per action in error messages, such as "quantiles".
        environment: Environment with a `Discrete` action space.
        make_network: Function from a random key to a network.
    """

    def check(network: Callable[[Observation], jax.Array]) -> None:
        outputs = jax.eval_shape(
            lambda network, obs: network(obs), network, make_zeros(environment.observation_space)
        )
        _check_outputs_by_action(network, outputs, output, environment)

    return _add_check(algorithm, f"{output} of all actions", make_network, check)


def check_implicit_quantile_network(
    algorithm: str, environment: Environment, make_network: NetworkFn
) -> NetworkFn:
    """Return `make_network` with a check of `(obs, fractions [k]) -> quantiles [n, k]`."""

    def check(network: Callable[[Observation, jax.Array], jax.Array]) -> None:
        obs, fractions = make_zeros(environment.observation_space), jnp.zeros(3)
        outputs = jax.eval_shape(lambda net, *inputs: net(*inputs), network, obs, fractions)
        _check_outputs_by_action(network, outputs, "quantiles of 3 fractions", environment, 3)

    return _add_check(algorithm, "quantiles of all actions", make_network, check)


def check_recurrent_q_network(
    algorithm: str, environment: Environment, make_network: NetworkFn
) -> NetworkFn:
    """Return `make_network` with a check of networks with memory that return action values `[n]`.

    The networks must map `(carry, obs)` to `(carry, values)`.
    """

    def check(network: Network) -> None:
        def apply(network: Network, obs: Observation) -> Any:
            return network(network.initial_carry(), obs)[1]

        values = jax.eval_shape(apply, network, make_zeros(environment.observation_space))
        _check_action_values(network, values, environment)

    return _add_check(algorithm, "a carry and action values", make_network, check)


def check_deterministic_actor_critics(
    algorithm: str, environment: Environment, make_network: NetworkFn
) -> NetworkFn:
    """Return `make_network` with a check of its policies `obs -> action` and its critics."""
    normalize_space(environment.action_space)  # raises the error of a space with discrete parts

    def act(actor: Callable[[Observation], Any], obs: Observation, noise: jax.Array) -> Any:
        return actor(obs)

    return _check_actor_critics(algorithm, "an action", environment, make_network, act)


def check_stochastic_actor_critics(
    algorithm: str, environment: Environment, make_network: NetworkFn
) -> NetworkFn:
    """Return `make_network` with a check of its policies `obs -> distribution` and its critics."""
    discrete_sizes(environment.action_space)  # raises the error of too many joint choices

    def act(actor: Callable[[Observation], Any], obs: Observation, noise: PyTree) -> Any:
        policy = actor(obs)
        return policy.action(transform_noise(policy, noise, jax.random.key(0)))

    return _check_actor_critics(
        algorithm, "a distribution of actions", environment, make_network, act
    )


def _check_actor_critics(
    algorithm: str,
    output: str,
    environment: Environment,
    make_network: NetworkFn,
    act: Callable[..., Any],
) -> NetworkFn:
    action = make_normalized_zeros(environment.action_space)

    def check(network: ActorCritics) -> None:
        obs, name = make_zeros(environment.observation_space), type(network.actor).__name__

        def check_part(space: SimpleActionSpace, part: PyTree) -> None:
            if not isinstance(part, jax.ShapeDtypeStruct):
                raise TypeError(f"the policy returns a {type(part).__name__}")
            check_shape(name, "action", part, (space.shape,), f" for {space}")

        found = jax.eval_shape(act, network.actor, obs, action)
        map_space(check_part, environment.action_space, found)
        for critic in network.critic:
            value = jax.eval_shape(lambda critic, *x: critic(*x), critic, obs, action)
            check_shape(type(critic).__name__, "value of an action", value, ((),))

    return _add_check(algorithm, output, make_network, check)


def _check_action_values(network: object, values: Any, environment: Environment) -> None:
    space = check_discrete(environment.action_space)
    name = type(network).__name__
    check_shape(name, "array of action values", values, ((space.n,),), f" for {space}")


def _check_outputs_by_action(
    network: object, outputs: Any, output: str, environment: Environment, size: int | None = None
) -> None:
    """Raise UsageError unless a network returned an array `[n, size]`, of any size for None."""
    space = check_discrete(environment.action_space)
    shape = getattr(outputs, "shape", ())
    number = size or (shape[1] if len(shape) == 2 else EXAMPLE_SIZE)
    reason = f" for {space} and {number} of them per action"
    name = type(network).__name__
    check_shape(name, f"array of {output}", outputs, ((space.n, number),), reason)


def _add_check(
    algorithm: str, output: str, make_network: NetworkFn, check: Callable[[Any], None]
) -> NetworkFn:
    """Return `make_network` with a call of `check` for each network that it makes."""

    def make(key: jax.Array) -> Any:
        network = make_network(key)
        try:
            check(network)
        except UsageError:
            raise
        except Exception as error:  # A custom network may raise any error.
            first = describe_error(error).split("\n")[0].rstrip(".")
            raise UsageError(
                f"A network of {algorithm} must return {output}, but {type(network).__name__} "
                f"fails with {first}. Wrap it with rollax.from_equinox, from_linen, from_nnx or "
                f"from_function, with algorithm={algorithm!r}."
            ) from error
        return network

    return make
