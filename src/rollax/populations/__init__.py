"""Populations, which run many copies of an algorithm in one program."""

import jax

from rollax.algorithm import Algorithm
from rollax.errors import UsageError
from rollax.user_input.coercion import format_value


def check_is_algorithm(algorithm: Algorithm) -> None:
    """Check that an argument is an `Algorithm`.

    Raises:
        UsageError: If it is not an `Algorithm`.
    """
    if not isinstance(algorithm, Algorithm):
        raise UsageError(
            f"algorithm ({format_value(algorithm)}) must be an Algorithm, such as "
            "rollax.ppo(environment, make_network)."
        )


def population(algorithm: Algorithm) -> Algorithm:
    """Build a population of members that run the same algorithm.

    Members are initialized sequentially. Batched orthogonal decompositions, which initialize
    networks, can deadlock on CPUs with few cores (jaxlib 0.10.2: two concurrent calls each hold a
    thread that the other needs).

    Args:
        algorithm: Algorithm of each member.

    Returns:
        The population as an algorithm. All leaves of its states, keys and configs have a leading
        axis `[P]` of members.

    Raises:
        UsageError: If `algorithm` is not an `Algorithm`.
    """
    check_is_algorithm(algorithm)
    return Algorithm(
        init=lambda keys, configs: jax.lax.map(
            lambda member: algorithm.init(*member), (keys, configs)
        ),
        step=jax.vmap(algorithm.step),
        act=jax.vmap(algorithm.act, in_axes=(0, 0, 0, 0, None)),
        initial_carry=jax.vmap(algorithm.initial_carry),
        acting_state=jax.vmap(algorithm.acting_state),
        reseed=jax.vmap(algorithm.reseed),
        config=algorithm.config,
        with_config=jax.vmap(algorithm.with_config),
        state_metrics=jax.vmap(algorithm.state_metrics),
        learn=None if algorithm.learn is None else jax.vmap(algorithm.learn),
        parts=algorithm.parts,
        with_parameters=algorithm.with_parameters
        and jax.vmap(algorithm.with_parameters, in_axes=(0, None)),
    )
