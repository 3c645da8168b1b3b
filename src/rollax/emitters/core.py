"""The contract of emitters: what asks for solutions to be scored, and is told what became of them."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rollax import tree
from rollax.archives.core import Added, Archive, Scored
from rollax.errors import UsageError, multiples_near


class Told(NamedTuple):
    """What an emitter is told of the solutions that it gave, in the order in which it gave them."""

    scored: Scored  # [B]
    added: Added  # [B]
    experience: Any = ()  # Step [T, B], bool [T, B]: what the policies experienced and which rows there are; () if not recorded


class Emitter(NamedTuple):
    """Pure functions. An emitter is told of its own solutions only."""

    init: Callable[[jax.Array, Any], Any]  # (key, solutions [B] to begin with) -> state
    ask: Callable[[Any, Any, jax.Array, int], tuple[Any, Any]]  # (state, archive's state, key, B) -> (state, solutions [B])
    tell: Callable[[Any, Any, Told, jax.Array], Any]  # (state, archive's state after the addition, told, key) -> state
    metrics: Callable[[Any], dict[str, jax.Array]] = lambda state: {}  # numbers by name
    refresh: Callable[[Any], Any] = lambda state: state  # what is done once an update, before its iterations


def check_floats(solution: Any, emitter: str) -> None:
    """Raises UsageError when solutions, arrays or their shapes, are not all floats."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(solution):
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            name = jax.tree_util.keystr(path) or "a solution"
            raise UsageError(
                f"{emitter} changes floats, but {name} of solutions is {leaf.dtype}: give solutions of floats only"
            )


def check_shares(solutions: Any, num_emitters: int, least: int) -> int:
    """The share of each of `num_emitters` searches in a batch `[B]`. Raises UsageError when it is no whole `least` or more."""
    total = jax.tree.leaves(solutions)[0].shape[0]
    if total % num_emitters or total < least * num_emitters:
        near = multiples_near(max(total, least * num_emitters), num_emitters)
        raise UsageError(
            f"batch_size ({total}) must be a multiple of num_emitters ({num_emitters}), {least} solutions or more for each: "
            f"try {near}"
        )
    return total // num_emitters


def parents(archive: Archive, archive_state: Any, initial: Any, key: jax.Array, number: int) -> Any:
    """Solutions `[n]` of elites of the archive; while it is empty, of those to begin with, in turn."""
    return or_initial(archive, archive_state, initial, archive.sample(archive_state, key, number).solution)


def or_initial(archive: Archive, archive_state: Any, initial: Any, solutions: Any) -> Any:
    """These solutions `[n]`; while the archive is empty, those to begin with, in turn."""
    number = jax.tree.leaves(solutions)[0].shape[0]
    first = jax.tree.map(lambda x: jnp.resize(x, (number, *x.shape[1:])), initial)
    return tree.where(jnp.broadcast_to(archive.num_elites(archive_state) == 0, (number,)), first, solutions)


def together(emitters: dict[str, Emitter], sizes: dict[str, int]) -> Emitter:
    """Several emitters side by side, each of which has its share of every batch: `sizes` solutions."""
    names = list(emitters)
    bounds = {name: sum(sizes[other] for other in names[:i]) for i, name in enumerate(names)}

    def share(name: str, batch: Any) -> Any:
        return jax.tree.map(lambda x: x[bounds[name] : bounds[name] + sizes[name]], batch)

    def keys(key: jax.Array) -> dict[str, jax.Array]:
        return dict(zip(names, jax.random.split(key, len(names)), strict=True))

    def init(key: jax.Array, solutions: Any) -> Any:
        each = keys(key)
        return {name: emitter.init(each[name], share(name, solutions)) for name, emitter in emitters.items()}

    def ask(state: Any, archive_state: Any, key: jax.Array, number: int) -> tuple[Any, Any]:
        each = keys(key)
        asked = {name: emitter.ask(state[name], archive_state, each[name], sizes[name]) for name, emitter in emitters.items()}
        solutions = jax.tree.map(lambda *parts: jnp.concatenate(parts), *(asked[name][1] for name in names))
        return {name: asked[name][0] for name in names}, solutions

    def tell(state: Any, archive_state: Any, told: Told, key: jax.Array) -> Any:
        each = keys(key)
        experience = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), told.experience)

        def of(name: str) -> Told:
            mine = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), share(name, experience))
            return Told(share(name, told.scored), share(name, told.added), mine)

        return {name: emitter.tell(state[name], archive_state, of(name), each[name]) for name, emitter in emitters.items()}

    def metrics(state: Any) -> dict[str, jax.Array]:
        return {f"{name}/{k}": v for name, emitter in emitters.items() for k, v in emitter.metrics(state[name]).items()}

    def refresh(state: Any) -> Any:
        return {name: emitter.refresh(state[name]) for name, emitter in emitters.items()}

    return Emitter(init, ask, tell, metrics, refresh)
