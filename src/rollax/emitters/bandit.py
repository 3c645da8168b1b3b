"""A bandit that gives every part of a batch to the emitter that promises most (ME-MAP-Elites).

Cully 2021, arXiv:2007.05352, with the upper confidence bound UCB1 of Auer et al. 2002, doi:10.1023/A:1013689704352.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rollax.archives.core import REJECTED
from rollax.emitters.core import Emitter, Told, check_shares


class BanditState(NamedTuple):
    """S slots of the batch and E emitters."""

    states: dict[str, Any]  # of each emitter by name, [S, ...]: one for every slot, whether or not the slot is its own
    active: jax.Array  # int32 [S]: which emitter each slot has
    given: jax.Array  # float32 [W, E]: how many solutions each emitter gave in each of the last W iterations
    taken: jax.Array  # float32 [W, E]: how many of these the archive took
    iteration: jax.Array  # int32 []


def bandit(emitters: dict[str, Emitter], num_slots: int, window: int, zeta: Any) -> Emitter:
    """A batch in `num_slots` equal parts, each of which has one of the emitters until that is at its end.

    Then it gets the one with the highest s / n + zeta sqrt(ln N / n), where s of its n solutions in the last `window`
    iterations (0: in all) entered the archive, and N is the sum of all n; first those that gave none. Solutions to come of
    slots that have their emitter already count in n, so that one iteration does not give all slots to the same. An emitter is
    at its end when its metric "restarts" has grown, and after every iteration if it has none.

    `init` raises UsageError when the batch does not divide among the slots.
    """
    names = list(emitters)

    def init(key: jax.Array, solutions: Any) -> BanditState:
        share = check_shares(solutions, num_slots, 2)
        slots = jax.tree.map(lambda x: x.reshape(num_slots, share, *x.shape[1:]), solutions)
        keys = jax.random.split(key, (len(names), num_slots))
        states = {name: jax.vmap(emitters[name].init)(keys[i], slots) for i, name in enumerate(names)}
        none, yes = jnp.zeros((max(window, 1), len(names))), jnp.ones(num_slots, bool)
        active = chosen(jnp.zeros(num_slots, jnp.int32), yes, none.sum(axis=0), none.sum(axis=0), share, zeta)
        return BanditState(states, active, none, none, jnp.zeros((), jnp.int32))

    def ask(state: BanditState, archive_state: Any, key: jax.Array, number: int) -> tuple[BanditState, Any]:
        def of_slot(name: str, mine: Any, key: jax.Array) -> tuple[Any, Any]:
            return emitters[name].ask(mine, archive_state, key, number // num_slots)

        states, solutions = by_slot(names, of_slot, state, jax.random.split(key, num_slots))
        return state._replace(states=states), jax.tree.map(lambda x: x.reshape(number, *x.shape[2:]), solutions)

    def tell(state: BanditState, archive_state: Any, told: Told, key: jax.Array) -> BanditState:
        def of_slot(name: str, mine: Any, key: jax.Array, told: Told) -> tuple[Any, jax.Array]:
            after = emitters[name].tell(mine, archive_state, told, key)
            return after, is_at_its_end(emitters[name], mine, after)

        states, over = by_slot(names, of_slot, state, jax.random.split(key, num_slots), in_slots(told, num_slots))
        state = counted(state._replace(states=states), told, window)
        share = told.scored.fitness.shape[0] // num_slots
        active = chosen(state.active, over, state.given.sum(axis=0), state.taken.sum(axis=0), share, zeta)
        return state._replace(active=active)

    def metrics(state: BanditState) -> dict[str, jax.Array]:
        return {f"{name}/slots": jnp.sum(state.active == i).astype(jnp.float32) for i, name in enumerate(names)}

    def refresh(state: BanditState) -> BanditState:
        of_slot = lambda name, mine, _: (emitters[name].refresh(mine), ())  # noqa: E731
        return state._replace(states=by_slot(names, of_slot, state, None)[0])

    return Emitter(init, ask, tell, metrics, refresh)


def by_slot(names: list[str], call: Callable[..., tuple[Any, Any]], state: BanditState, keys: Any, *more: Any) -> Any:
    """The states of all emitters, and results `[S, ...]`, after `call(name, its state, key, *more)` of each slot's emitter.

    One slot comes after the other, so that no other emitter is computed.

    `keys`: one for each slot, or None; `more`: trees that lead with `[S]`.
    """

    def of_slot(slot: Any) -> tuple[Any, Any]:
        states, active, key, more = slot
        # As numbers, which the check against reuse of keys does not follow: `vmap` hands a key to all branches.
        data = None if key is None else (jax.random.key_data(key), jax.random.key_impl(key))

        def branch(name: str) -> tuple[Any, Any]:
            mine, result = call(name, states[name], data and jax.random.wrap_key_data(data[0], impl=data[1]), *more)
            return states | {name: mine}, result

        return jax.lax.switch(active, [lambda name=name: branch(name) for name in names])

    return jax.lax.map(of_slot, (state.states, state.active, keys, more))


def in_slots(told: Told, number: int) -> Told:
    """What each slot is told, `[S, ...]`."""
    experience = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), told.experience)
    scored, added, experience = jax.tree.map(
        lambda x: x.reshape(number, -1, *x.shape[1:]), (told.scored, told.added, experience)
    )
    return Told(scored, added, jax.tree.map(lambda x: jnp.swapaxes(x, 1, 2), experience))


def is_at_its_end(emitter: Emitter, before: Any, after: Any) -> jax.Array:
    """Whether an emitter has begun again, or every time if it does not say so, bool []."""
    restarts = emitter.metrics(after).get("restarts")
    return jnp.ones((), bool) if restarts is None else restarts > emitter.metrics(before)["restarts"]


def counted(state: BanditState, told: Told, window: int) -> BanditState:
    """The state with what the emitters of all slots gave, and what of it was taken, in place of the oldest counts."""
    number, size = state.active.shape[0], state.given.shape[1]
    entered = (told.added.status > REJECTED).reshape(number, -1)
    of_slots = jnp.full(number, float(entered.shape[1])), jnp.sum(entered, axis=1, dtype=jnp.float32)
    given, taken = (jax.ops.segment_sum(x, state.active, size) for x in of_slots)
    row = state.iteration % state.given.shape[0]
    old = jnp.where(window > 0, 0.0, 1.0)  # without a window there is one row, of all iterations
    return state._replace(
        given=state.given.at[row].set(old * state.given[row] + given),
        taken=state.taken.at[row].set(old * state.taken[row] + taken),
        iteration=state.iteration + 1,
    )


def chosen(active: jax.Array, over: jax.Array, given: jax.Array, taken: jax.Array, share: int, zeta: Any) -> jax.Array:
    """The emitter of each slot: as before, and by the rule of `bandit` where `over`, int32 [S].

    `given`, `taken`: n and s, `[E]`; `share`: solutions of a slot in an iteration.
    """
    size = given.shape[0]
    staying = jax.ops.segment_sum(jnp.where(over, 0.0, float(share)), active, size)
    rate = taken / jnp.maximum(given, 1.0)

    def choose(number: jax.Array, slot: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        before, is_over = slot
        bonus = zeta * jnp.sqrt(jnp.log(jnp.maximum(jnp.sum(number), 1.0)) / jnp.maximum(number, 1.0))
        best = jnp.argmax(jnp.where(number > 0, rate + bonus, jnp.inf)).astype(jnp.int32)
        return number.at[best].add(jnp.where(is_over, float(share), 0.0)), jnp.where(is_over, best, before)

    return jax.lax.scan(choose, given + staying, (active, over))[1]
