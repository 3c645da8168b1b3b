"""Tests of the replay of PGA-ME and DCRL-ME: one queue of the transitions of all policies."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rollax import make
from rollax.algorithms.dcrl_me import DCRLMEConfig, make_dcrl_emitter
from rollax.algorithms.pga_me import PGAMEConfig, make_pga_emitter
from rollax.archives.archive import InsertionResult, ScoredSolutions
from rollax.archives.grid import grid_archive
from rollax.emitters.emitter import EvaluatedBatch
from rollax.networks.solutions import PolicyConfig, make_solution
from rollax.replay.ring import ReplayStep

WORLD: Any = make("control/point-maze", time_limit=10)
BATCH, STEPS, CAPACITY = 4, 10, 30
SIZES = {
    "batch_size": BATCH,
    "critic_updates": 1,
    "policy_updates": 1,
    "samples": 4,
    "critic_hidden": (4,),
}
EMITTERS: Any = {
    "pga_me": (make_pga_emitter, PGAMEConfig),
    "dcrl_me": (make_dcrl_emitter, DCRLMEConfig),
}


def batch_of_lengths(
    lengths: list[int], generation: int, solutions: Any
) -> tuple[EvaluatedBatch, list[int]]:
    """Return experience whose reward numbers each transition, and the numbers in order of time."""
    number = 1000 * generation + 10 * jnp.arange(STEPS)[:, None] + jnp.arange(BATCH)[None]
    mask = jnp.arange(STEPS)[:, None] < jnp.asarray(lengths)[None]
    obs, no = jnp.zeros((STEPS, BATCH, 4)), jnp.zeros((STEPS, BATCH), bool)
    steps = ReplayStep(
        obs, jnp.zeros((STEPS, BATCH, 2)), number.astype(jnp.float32), no, no, obs, no, ()
    )
    scored = ScoredSolutions(solutions, jnp.zeros(BATCH), jnp.zeros((BATCH, 2)))
    told = EvaluatedBatch(
        scored, InsertionResult(jnp.zeros(BATCH, jnp.int32), jnp.zeros(BATCH)), (steps, mask)
    )
    return told, np.asarray(number)[np.asarray(mask)].tolist()


@pytest.mark.parametrize("name", ["pga_me", "dcrl_me"])
def test_the_oldest_transitions_of_all_policies_leave_first(name: str) -> None:
    """With episodes of 1, 3, 7 and 10 steps, short ones do not remain longer than long ones."""
    make_emitter, settings = EMITTERS[name]
    emitter = make_emitter(
        WORLD, settings(capacity=CAPACITY, **SIZES), grid_archive((5, 5), (0.0, 0.0), (1.0, 1.0))
    )
    keys = jax.random.split(jax.random.key(0), BATCH)
    solutions = jax.lax.map(lambda key: make_solution(WORLD, PolicyConfig(hidden=(8,)), key), keys)
    state, tell = emitter.init(jax.random.key(1), solutions), jax.jit(emitter.tell)
    expected: list[int] = []
    for generation in range(4):
        told, numbers = batch_of_lengths([1, 3, 7, 10], generation, solutions)
        state = tell(state, None, told, jax.random.key(generation))
        expected = (expected + numbers)[-CAPACITY:]
        replay = getattr(state, "learner", state).replay
        assert int(replay.size[0]) == len(expected), "masked rows take no place"
        places = (int(replay.cursor[0]) - len(expected) + np.arange(len(expected))) % CAPACITY
        assert np.asarray(replay.data.reward)[0, places].astype(int).tolist() == expected
    told, numbers = batch_of_lengths(
        [10] * BATCH, 9, solutions
    )  # more than the queue can store: the last ones remain
    state = tell(state, None, told, jax.random.key(9))
    replay = getattr(state, "learner", state).replay
    places = (int(replay.cursor[0]) + np.arange(CAPACITY)) % CAPACITY
    assert np.asarray(replay.data.reward)[0, places].astype(int).tolist() == numbers[-CAPACITY:]
