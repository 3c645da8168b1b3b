"""An archive under noise: every elite is played anew, and the corrected archive is what remains of it.

Where scores are noisy an archive keeps who was lucky, so that its fitness is too high and its descriptors are not those of what
its elites do. The corrected archive is an empty one of the same kind to which they are added with their mean fitness and mean
descriptor over fresh episodes (Flageat and Cully 2020, arXiv:2006.14253; 2023, arXiv:2302.00463, corrected QD score).
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rollax.archives.core import Archive
from rollax.environments.core import descriptor_space
from rollax.errors import UsageError
from rollax.host import elites, keys, memory
from rollax.networks.solutions import has_closed_form

EPISODES = 16  # of each elite, where nobody says
AT_ONCE = 4096  # episodes that are played side by side
MOST_BYTES = 1 << 28  # of the solutions that play them


def can_be_corrected(policy: Any) -> bool:
    """Whether a policy's run has an archive with elites that can be added to an empty one, by the environment's descriptor."""
    space = descriptor_space(policy.environment)
    if policy.algorithm.archived is None or space is None:
        return False
    archive, state = elites.archive_of(policy)
    has_cells = archive.empty is not None and archive.cell_of is not None
    return has_cells and space.shape == (len(archive.low),) and int(archive.num_elites(state)) > 0


def archive_with_cells(policy: Any) -> tuple[Archive, Any]:
    """The archive of a policy's run and its state. Raises UsageError when it has none, or one that cannot be emptied."""
    archive, state = elites.archive_of(policy)
    if archive.empty is None or archive.cell_of is None:
        raise UsageError(f"the archive of {policy.spec.algorithm} has no cells that solutions could be added to anew")
    return archive, state


def corrected(policy: Any, num_episodes: int, key: jax.Array) -> tuple[dict[str, Any], Any]:
    """The numbers of the corrected archive, and the policy with that archive, as for `Policy.corrected`."""
    archive, state = archive_with_cells(policy)
    found = elites.of_policy(policy)
    places = np.flatnonzero(found.mask)
    before = jax.tree.map(lambda x: x[places], found.scored)
    fitness, descriptor, extras, number = rescored(policy, before.solution, num_episodes, key)
    if descriptor.shape != before.descriptor.shape:
        raise UsageError(
            f"descriptors of the archive have {before.descriptor.shape[1]} dimensions, but {policy.environment.name} describes "
            f"behavior by {descriptor.shape[1]}: it cannot be scored anew"
        )
    after = added(archive, state, before._replace(fitness=fitness, descriptor=descriptor, extras=extras))
    values = archive.metrics(after, policy.state.config.qd_offset)
    finite = np.isfinite(fitness) & np.isfinite(descriptor).all(axis=1)
    old, new = (cells_of(archive, state, np.where(finite[:, None], x, 0.0)) for x in (before.descriptor, descriptor))
    numbers = {
        "elites": len(places),
        "episodes_per_elite": number,
        **{f"corrected_{name}": float(value) for name, value in values.items()},
        "fitness_loss": float(np.mean((before.fitness - fitness)[finite])) if finite.any() else float("nan"),
        "kept_cell": float(np.mean(finite & (old == new))),
    }
    return numbers, dataclasses.replace(policy, state=policy.algorithm.archived.with_archive(policy.state, after))


def added(archive: Archive, state: Any, batch: Any) -> Any:
    """The state with the elites of `batch` `[N, ...]` and no others, all added at once."""
    assert archive.empty is not None
    empty = archive.empty
    return jax.jit(lambda state, batch: archive.add(empty(state), batch)[0])(state, jax.tree.map(jnp.asarray, batch))


def cells_of(archive: Archive, state: Any, descriptor: Any) -> np.ndarray:
    """The cell of every descriptor `[N, K]`, int32 [N]."""
    assert archive.cell_of is not None
    return np.asarray(jax.jit(archive.cell_of)(state, jnp.asarray(descriptor, jnp.float32)))


def rescored(policy: Any, solutions: Any, num_episodes: int, key: jax.Array) -> tuple[np.ndarray, np.ndarray, Any, int]:
    """Means of fitness `[N]`, descriptor `[N, K]` and extras of solutions `[N]` over fresh episodes, and how many each has
    played.

    A closed form says the same every time, so it is asked once. Episodes are played in blocks, so that what is needed of the
    memory does not grow with the archive.
    """
    each = 1 if has_closed_form(policy.environment) else num_episodes
    number = jax.tree.leaves(solutions)[0].shape[0]
    total, size = number * each, memory.size_of(solutions) // number
    block = min(total, AT_ONCE, max(1, MOST_BYTES // max(size, 1)))
    play = jax.jit(lambda solutions, key: policy.algorithm.archived.score(policy.state, solutions, key)[:3])
    key, parts = keys.of_elites(key), []
    for index in range(-(-total // block)):
        rows = np.arange(index * block, (index + 1) * block) % total // each  # the last block begins again from the first
        parts.append(
            jax.device_get(play(jax.tree.map(lambda x, rows=rows: x[rows], solutions), jax.random.fold_in(key, index)))
        )

    def mean(*rows: np.ndarray) -> np.ndarray:
        of_each = np.concatenate(rows)[:total].reshape(number, each, *rows[0].shape[1:])
        return of_each.mean(axis=1, dtype=np.float64).astype(np.float32)

    return *jax.tree.map(mean, *parts), each
