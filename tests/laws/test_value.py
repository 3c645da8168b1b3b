"""Values of a probe with reward 1 per step, discount 0.9 and time limit 8.

With truncation the value of every state is 1 / (1 - 0.9) = 10. With termination the value at the
start is (1 - 0.9^8) / (1 - 0.9) = 5.70.
"""

import jax.numpy as jnp
import pytest

from laws.learning import trained, values
from laws.table import BY_NAME, NAMES, first

UPDATES = 150
# A bootstrapped value approaches 10 step by step. This rate is high enough, with two exceptions:
# normalized residual blocks overshoot and need hundreds of updates to recover, and a critic with a
# separate, smaller rate does not reach the value in time.
RATES = {"learning_rate": 5e-2}
OTHER_RATES = {
    "ppo-blocks": {"learning_rate": 1e-2},
    "ppo-separate-epochs": RATES | {"critic_learning_rate": 5e-2},
}
ROWS = first(
    "ppo-gru", "dqn", "pqn", among=[name for name in NAMES if "two-steps" in BY_NAME[name].probes]
)


@pytest.mark.parametrize("name", ROWS)
def test_value_with_truncation(name: str) -> None:
    state = trained(name, "truncation", UPDATES, **OTHER_RATES.get(name, RATES))
    assert values(BY_NAME[name], state, [jnp.zeros(1)] * 8) == pytest.approx([10.0] * 8, rel=0.03)


@pytest.mark.parametrize("name", ROWS)
def test_value_with_termination(name: str) -> None:
    state = trained(
        name, "truncation", UPDATES, (("terminate", True),), **OTHER_RATES.get(name, RATES)
    )
    expected = [(1 - 0.9 ** (8 - t)) / 0.1 for t in range(8)]
    assert values(BY_NAME[name], state, list(jnp.eye(8))) == pytest.approx(expected, rel=0.03)
