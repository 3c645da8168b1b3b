"""Random keys by purpose, so that no two purposes of one seed share random numbers.

A member's training, its evaluations and its children have the keys 0, 1 and 2 of `split(key(seed), 3)`. What plays its policy
later folds a constant of its own into the key that it is given: `rollax eval RUN --seed s` on a run of seed s then shares no
start and no noise with that run. `fold_in(key, n)` is the n-th key of a split, so these constants are large.
"""

import jax

ROLLBACK = int.from_bytes(b"back")
EVALUATE = int.from_bytes(b"eval")
RENDER = int.from_bytes(b"view")
ELITES = int.from_bytes(b"elit")


def training(seed: int) -> jax.Array:
    """Of a member's run: its parameters, environments, actions and minibatches."""
    return jax.random.split(jax.random.key(seed), 3)[0]


def evaluations(seed: int) -> jax.Array:
    """Of all evaluations within a member's run."""
    return jax.random.split(jax.random.key(seed), 3)[1]


def children(seed: int) -> jax.Array:
    """Of the children in a member's place, in a population that evolves."""
    return jax.random.split(jax.random.key(seed), 3)[2]


def rollback(seed: int, updates: int, number: int) -> jax.Array:
    """Of a member's run after its `number`-th rollback to the same update."""
    return jax.random.fold_in(jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), ROLLBACK), updates), number)


def of_evaluate(key: jax.Array) -> jax.Array:
    """Of episodes that are played with a trained policy: `Policy.evaluate`, `rollax eval`."""
    return jax.random.fold_in(key, EVALUATE)


def of_render(key: jax.Array) -> jax.Array:
    """Of episodes that are drawn: `rollax render`."""
    return jax.random.fold_in(key, RENDER)


def of_elites(key: jax.Array) -> jax.Array:
    """Of episodes by which the elites of an archive are scored anew: `Policy.corrected`, `rollax eval`."""
    return jax.random.fold_in(key, ELITES)
