"""Before the first gradient step of an update, every importance ratio is 1.

This includes recurrent networks, with resets inside of sequences. It holds within rounding (1e-5 in
single precision), because acting and learning multiply batches of different sizes.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from laws.programs import begun, fresh, programs
from laws.table import BY_NAME, ROWS, first
from rollax.algorithms import ppo
from rollax.learning import losses

PPO = [row.name for row in ROWS if isinstance(row.config, ppo.PPOConfig)]
RECURRENT = [row for row in ROWS if isinstance(row.config, ppo.PPOConfig) and row.memory]
# Rows for which only the longest sequence is tested by default.
LONGEST = ("ppo-lstm", "ppo-mingru", "ppo-bfloat16", "ppo-blocks", "ppo-gtrxl")
MARKS = {("ppo-gru", 4): pytest.mark.quick} | {
    (name, length): pytest.mark.slow for name in LONGEST for length in (1, 4)
}
LENGTHS = [
    pytest.param(row.name, length, marks=MARKS.get((row.name, length), ()))
    for row in RECURRENT
    for length in (1, 4, 8)
]


def frozen(state: Any) -> Any:
    """Return the state with learning rates of zero, so that an update changes no parameter."""
    still = dataclasses.replace(
        state.config, learning_rate=jnp.float32(0), critic_learning_rate=jnp.float32(0)
    )
    return state._replace(config=still)


@pytest.fixture
def _largest_log_ratio(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the estimate of the divergence by max |log ratio|, to see it in the metrics."""
    monkeypatch.setattr(
        losses,
        "estimate_kl",
        lambda log_ratio: jnp.full(log_ratio.shape, jnp.max(jnp.abs(log_ratio))),
    )


@pytest.mark.parametrize(
    "name", first("ppo-gru", "ppo-squashed", "ppo-normalized", "ppo-types", "ppo-apart", among=PPO)
)
def test_no_ratio_is_clipped(name: str) -> None:
    """Without learning the divergence is 0 within its precision. With learning it is positive."""
    state = begun(name)
    _, metrics = programs(name).step(frozen(state))
    assert float(metrics.episodes.number) > state.config.num_envs, "episodes end inside the rollout"
    assert abs(float(metrics.values["approx_kl"])) < max(2e-7, BY_NAME[name].rounding ** 2 / 2)
    assert float(metrics.values["clip_fraction"]) == 0
    _, learning = programs(name).step(state)
    assert float(learning.values["approx_kl"]) > 1e-5, "the measure sees a change of the policy"


@pytest.mark.usefixtures("_largest_log_ratio")
@pytest.mark.parametrize("name", first("ppo-squashed", "ppo-normalized", among=PPO))
def test_ratio_is_one(name: str) -> None:
    assert largest_log_ratio(name) < BY_NAME[name].rounding


@pytest.mark.usefixtures("_largest_log_ratio")
@pytest.mark.parametrize(("name", "length"), LENGTHS)
def test_ratio_is_one_for_every_sequence_length(name: str, length: int) -> None:
    """Apart from its config, a state does not depend on the sequence length.

    One state is therefore enough for all lengths.
    """
    memory = jax.tree.leaves(begun(name).actor.carry)
    assert all(bool(jnp.any(jnp.abs(x) > 0.1)) for x in memory), "the memory holds something"
    assert largest_log_ratio(name, length) < BY_NAME[name].rounding


def largest_log_ratio(name: str, length: int = 1) -> float:
    """Return the largest log ratio in an update with learning rates of zero."""
    row = BY_NAME[name]
    state = frozen(begun(name))
    config = dataclasses.replace(
        state.config, sequence_length=length, num_epochs=1, critic_epochs=0, num_minibatches=1
    )
    _, metrics = jax.jit(row.make(row.environment).step)(fresh(state)._replace(config=config))
    return float(metrics.values["approx_kl"])
