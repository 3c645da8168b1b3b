"""Bandit that selects among several emitters by their success (ME-MAP-Elites).

Cully 2021, arXiv:2007.05352, with the upper confidence bound UCB1 of Auer et al. 2002,
doi:10.1023/A:1013689704352. Every batch is divided into S equal shares, called slots. Each slot has
one active emitter, which creates the solutions of this share.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rollax.archives.archive import STATUS_REJECTED
from rollax.emitters.emitter import Emitter, EvaluatedBatch, compute_share
from rollax.types import PyTree, Scalar, Solution, State


class Bandit(NamedTuple):
    """Emitters and settings of a bandit.

    Attributes:
        emitters: Emitters, keyed by name.
        num_slots: Number of slots S.
        window: Number of recent iterations in the success statistics. 0 includes all iterations.
        zeta: Exploration coefficient.
    """

    emitters: dict[str, Emitter]
    num_slots: int
    window: int
    zeta: Scalar


class BanditState(NamedTuple):
    """State of a bandit with S slots and E emitters.

    Attributes:
        emitter_states: States of the emitters, keyed by name, `[S, ...]` each. Every slot has a
            state of every emitter, including inactive emitters.
        active_emitter: Index of the active emitter of each slot, int32 `[S]`.
        num_proposed: Number of solutions of each emitter in each of the last W iterations, float32
            `[W, E]`. If `window` is 0, W is 1 and the counts are over all iterations.
        num_accepted: Number of these solutions that the archive accepted, float32 `[W, E]`.
        iteration: Number of iterations, int32 `[]`.
    """

    emitter_states: dict[str, Any]
    active_emitter: jax.Array
    num_proposed: jax.Array
    num_accepted: jax.Array
    iteration: jax.Array


def bandit_emitter(
    emitters: dict[str, Emitter], num_slots: int, window: int, zeta: Scalar
) -> Emitter:
    """Build an emitter that divides a batch into slots and assigns an emitter to each slot.

    A slot keeps its emitter until the emitter has finished. The slot is then assigned the emitter
    with the highest s / n + zeta sqrt(ln N / n). Here n is the number of solutions of an emitter in
    the last `window` iterations, s is the number of these solutions that entered the archive, and N
    is the sum of n over all emitters. Emitters with n = 0 come first. The solutions that slots will
    create in the next iteration count toward n in the second term, so that one iteration does not
    assign all slots to the same emitter. An emitter has finished when its metric "restarts"
    increases, or after every iteration if it does not report this metric.

    Args:
        emitters: Emitters, keyed by name.
        num_slots: Number of slots S.
        window: Number of recent iterations in the success statistics. 0 includes all iterations.
        zeta: Exploration coefficient.

    Returns:
        The emitter. Its `init` raises a `UsageError` if the batch size is not a multiple of the
        number of slots, or if a slot would have fewer than two solutions.
    """
    bandit = Bandit(emitters=emitters, num_slots=num_slots, window=window, zeta=zeta)

    def metrics(state: BanditState) -> dict[str, jax.Array]:
        return {
            f"{name}/slots": jnp.sum(state.active_emitter == i).astype(jnp.float32)
            for i, name in enumerate(emitters)
        }

    def refresh(state: BanditState) -> BanditState:
        def refresh_slot(name: str, emitter_state: State, key: None, data: None) -> SlotResult:
            return SlotResult(emitters[name].refresh(emitter_state), ())

        results = call_slot_emitters(list(emitters), refresh_slot, state, None, None)
        return state._replace(emitter_states=results.emitter_states)

    return Emitter(
        init=functools.partial(init_slots, bandit),
        ask=functools.partial(ask_emitters, bandit),
        tell=functools.partial(tell_emitters, bandit),
        metrics=metrics,
        refresh=refresh,
    )


def init_slots(bandit: Bandit, key: jax.Array, solutions: Solution) -> BanditState:
    """Return the initial state, with a state of every emitter in every slot.

    Args:
        bandit: Emitters and settings.
        key: Random key.
        solutions: Initial solutions `[B, ...]`, which are divided among the slots.

    Returns:
        The state.
    """
    names, num_slots = list(bandit.emitters), bandit.num_slots
    share = compute_share(solutions, num_slots, 2)
    slots = jax.tree.map(lambda x: x.reshape(num_slots, share, *x.shape[1:]), solutions)
    keys = jax.random.split(key, (len(names), num_slots))
    states = {
        name: jax.vmap(bandit.emitters[name].init)(keys[i], slots) for i, name in enumerate(names)
    }
    counts = jnp.zeros((max(bandit.window, 1), len(names)))
    active = choose_emitters(
        active=jnp.zeros(num_slots, jnp.int32),
        is_finished=jnp.ones(num_slots, bool),
        num_proposed=counts.sum(axis=0),
        num_accepted=counts.sum(axis=0),
        slot_size=share,
        zeta=bandit.zeta,
    )
    return BanditState(
        emitter_states=states,
        active_emitter=active,
        num_proposed=counts,
        num_accepted=counts,
        iteration=jnp.zeros((), jnp.int32),
    )


def ask_emitters(
    bandit: Bandit, state: BanditState, archive_state: State, key: jax.Array, batch_size: int
) -> tuple[BanditState, Any]:
    """Request B / S solutions from the active emitter of every slot.

    Args:
        bandit: Emitters and settings.
        state: State of the bandit.
        archive_state: State of the archive.
        key: Random key.
        batch_size: Number of solutions B.

    Returns:
        The state, and the solutions of all slots, `[B, ...]`.
    """

    def ask_slot(name: str, emitter_state: State, key: jax.Array, data: None) -> SlotResult:
        share = batch_size // bandit.num_slots
        return SlotResult(*bandit.emitters[name].ask(emitter_state, archive_state, key, share))

    keys = jax.random.split(key, bandit.num_slots)
    results = call_slot_emitters(list(bandit.emitters), ask_slot, state, keys, None)
    solutions = jax.tree.map(lambda x: x.reshape(batch_size, *x.shape[2:]), results.result)
    return state._replace(emitter_states=results.emitter_states), solutions


def tell_emitters(
    bandit: Bandit,
    state: BanditState,
    archive_state: State,
    evaluated: EvaluatedBatch,
    key: jax.Array,
) -> BanditState:
    """Update the active emitter of every slot, and reassign slots whose emitter has finished.

    Args:
        bandit: Emitters and settings.
        state: State of the bandit.
        archive_state: State of the archive after the insertion.
        evaluated: Evaluated batch.
        key: Random key.

    Returns:
        The updated state.
    """

    def tell_slot(
        name: str, emitter_state: State, key: jax.Array, evaluated: EvaluatedBatch
    ) -> SlotResult:
        emitter = bandit.emitters[name]
        after = emitter.tell(emitter_state, archive_state, evaluated, key)
        return SlotResult(after, has_restarted(emitter, emitter_state, after))

    keys = jax.random.split(key, bandit.num_slots)
    slots = split_by_slot(evaluated, bandit.num_slots)
    results = call_slot_emitters(list(bandit.emitters), tell_slot, state, keys, slots)
    state = state._replace(emitter_states=results.emitter_states)
    state = update_counts(state, evaluated, bandit.window)
    active = choose_emitters(
        active=state.active_emitter,
        is_finished=results.result,
        num_proposed=state.num_proposed.sum(axis=0),
        num_accepted=state.num_accepted.sum(axis=0),
        slot_size=evaluated.solutions.fitness.shape[0] // bandit.num_slots,
        zeta=bandit.zeta,
    )
    return state._replace(active_emitter=active)


class SlotResult(NamedTuple):
    """Result of a call of the active emitter of one slot, or of all slots with an axis `[S]`.

    Attributes:
        emitter_states: State of the called emitter as returned by the call, or the states of all
            emitters, keyed by name, as returned by `call_slot_emitters`.
        result: Second result of the call.
    """

    emitter_states: Any
    result: Any


class SlotCall(NamedTuple):
    """Arguments for calling the active emitter of one slot.

    Attributes:
        emitter_states: States of all emitters, keyed by name.
        active_emitter: Index of the active emitter, int32 `[]`.
        key: Random key, or None if the call needs no key.
        data: Further argument of the call, such as the evaluated batch of the slot.
    """

    emitter_states: dict[str, Any]
    active_emitter: jax.Array
    key: jax.Array | None
    data: Any


def call_slot_emitters(
    names: list[str],
    call: Callable[..., SlotResult],
    state: BanditState,
    keys: jax.Array | None,
    data: PyTree,
) -> SlotResult:
    """Call the active emitter of every slot.

    Slots are processed sequentially, so that only the active emitter of each slot is computed.

    Args:
        names: Names of the emitters, in the order of their indices.
        call: Function `(name, emitter_state, key, data)` that returns the new state of the emitter
            and a result.
        state: State of the bandit.
        keys: One random key per slot, or None.
        data: Argument of `call` for each slot, a pytree with leaves `[S, ...]`, or None.

    Returns:
        The states of all emitters, keyed by name, and the results, `[S, ...]` each.
    """

    def call_slot(slot: SlotCall) -> SlotResult:
        # Keys are passed as data, because `vmap` hands a key to all branches and the check against
        # key reuse would report it.
        key_data, impl = None, None
        if slot.key is not None:
            key_data, impl = jax.random.key_data(slot.key), jax.random.key_impl(slot.key)

        def branch(name: str) -> SlotResult:
            key = None if key_data is None else jax.random.wrap_key_data(key_data, impl=impl)
            new_state, result = call(name, slot.emitter_states[name], key, slot.data)
            return SlotResult(slot.emitter_states | {name: new_state}, result)

        branches = [functools.partial(branch, name) for name in names]
        return jax.lax.switch(slot.active_emitter, branches)

    slots = SlotCall(
        emitter_states=state.emitter_states,
        active_emitter=state.active_emitter,
        key=keys,
        data=data,
    )
    return jax.lax.map(call_slot, slots)


def split_by_slot(evaluated: EvaluatedBatch, num_slots: int) -> EvaluatedBatch:
    """Split an evaluated batch into `num_slots` equal shares `[S, ...]`, one per slot."""
    experience = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), evaluated.experience)
    slots = jax.tree.map(
        lambda x: x.reshape(num_slots, -1, *x.shape[1:]), evaluated._replace(experience=experience)
    )
    return slots._replace(
        experience=jax.tree.map(lambda x: jnp.swapaxes(x, 1, 2), slots.experience)
    )


def has_restarted(emitter: Emitter, before: State, after: State) -> jax.Array:
    """Return whether the metric "restarts" of an emitter increased between two states, bool `[]`.

    The result is true for emitters without this metric.
    """
    restarts = emitter.metrics(after).get("restarts")
    return (
        jnp.ones((), bool) if restarts is None else restarts > emitter.metrics(before)["restarts"]
    )


def update_counts(state: BanditState, evaluated: EvaluatedBatch, window: int) -> BanditState:
    """Return the state with the numbers of proposed and accepted solutions of a batch.

    Args:
        state: State of the emitter.
        evaluated: Evaluated batch.
        window: Number of iterations with separate counts. The new counts replace those of the
            oldest iteration. 0 adds them to the total counts.
    """
    num_slots, num_emitters = state.active_emitter.shape[0], state.num_proposed.shape[1]
    is_accepted = (evaluated.insertion.status > STATUS_REJECTED).reshape(num_slots, -1)

    def sum_by_emitter(values: jax.Array) -> jax.Array:
        return jax.ops.segment_sum(values, state.active_emitter, num_emitters)

    proposed = sum_by_emitter(jnp.full(num_slots, float(is_accepted.shape[1])))
    accepted = sum_by_emitter(jnp.sum(is_accepted, axis=1, dtype=jnp.float32))
    row = state.iteration % state.num_proposed.shape[0]
    decay = jnp.where(window > 0, 0.0, 1.0)  # Without a window, one row counts all iterations.
    return state._replace(
        num_proposed=state.num_proposed.at[row].set(decay * state.num_proposed[row] + proposed),
        num_accepted=state.num_accepted.at[row].set(decay * state.num_accepted[row] + accepted),
        iteration=state.iteration + 1,
    )


def choose_emitters(
    active: jax.Array,
    is_finished: jax.Array,
    num_proposed: jax.Array,
    num_accepted: jax.Array,
    slot_size: int,
    zeta: Scalar,
) -> jax.Array:
    """Choose the emitter of each slot. A slot keeps its emitter if the emitter has not finished.

    Args:
        active: Index of the current emitter of each slot, int32 `[S]`.
        is_finished: Whether the current emitter of each slot has finished, bool `[S]`.
        num_proposed: Number of solutions n of each emitter, float32 `[E]`.
        num_accepted: Number of accepted solutions s of each emitter, float32 `[E]`.
        slot_size: Number of solutions per slot and iteration.
        zeta: Exploration coefficient.

    Returns:
        Index of the emitter of each slot, int32 `[S]`.
    """
    num_emitters = num_proposed.shape[0]
    num_continuing = jax.ops.segment_sum(
        jnp.where(is_finished, 0.0, float(slot_size)), active, num_emitters
    )
    rate = num_accepted / jnp.maximum(num_proposed, 1.0)

    def choose(
        num_solutions: jax.Array, slot: tuple[jax.Array, jax.Array]
    ) -> tuple[jax.Array, jax.Array]:
        current, is_finished = slot
        bonus = zeta * jnp.sqrt(
            jnp.log(jnp.maximum(jnp.sum(num_solutions), 1.0)) / jnp.maximum(num_solutions, 1.0)
        )
        best = jnp.argmax(jnp.where(num_solutions > 0, rate + bonus, jnp.inf)).astype(jnp.int32)
        return num_solutions.at[best].add(jnp.where(is_finished, float(slot_size), 0.0)), jnp.where(
            is_finished, best, current
        )

    return jax.lax.scan(choose, num_proposed + num_continuing, (active, is_finished))[1]
