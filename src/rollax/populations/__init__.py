"""Many runs in one program: `population`, and what evolves it."""

import jax

from rollax.algorithm import Algorithm


def population(algorithm: Algorithm) -> Algorithm:
    """Many runs at once: every leaf of the state, the key and the config leads with an axis of members.

    Members are begun one after the other: a batch of orthogonal decompositions, which networks are made of, can wait for
    itself without end on a CPU with few cores (jaxlib 0.10.2: two such calls at once each hold a thread that the other needs).
    """
    return Algorithm(
        init=lambda keys, configs: jax.lax.map(lambda member: algorithm.init(*member), (keys, configs)),
        step=jax.vmap(algorithm.step),
        act=jax.vmap(algorithm.act, in_axes=(0, 0, 0, 0, None)),
        initial_carry=jax.vmap(algorithm.initial_carry),
        acting_state=jax.vmap(algorithm.acting_state),
        reseed=jax.vmap(algorithm.reseed),
        config=algorithm.config,
        with_config=jax.vmap(algorithm.with_config),
    )
