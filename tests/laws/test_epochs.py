"""Tests of the number of gradient steps of PPO and IMPALA, which Adam counts."""

import dataclasses
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from laws.programs import assert_close, differs, fresh, gradient_steps, plain
from laws.table import BY_NAME
from rollax.learning.minibatches import make_layout
from rollax.populations import population
from support.parameters import mark_quick

MINIBATCHES = 2


@cache
def program(name: str, num_epochs: int, critic_epochs: int) -> Any:
    """Return the initial state and the compiled step."""
    row = BY_NAME[name]
    algorithm = row.make(row.environment)
    counts = {
        "num_epochs": num_epochs,
        "critic_epochs": critic_epochs,
        "num_minibatches": MINIBATCHES,
    }
    config = dataclasses.replace(row.config, **counts, target_kl=float("inf"))
    return jax.jit(lambda key: algorithm.init(key, config))(jax.random.key(0)), jax.jit(
        algorithm.step
    )


def updated(
    name: str, num_epochs: int, critic_epochs: int, updates: int = 1, **settings: float
) -> tuple[Any, Any, Any]:
    """Return the state before, the state after and the last metrics, with changed settings."""
    state, step = program(name, num_epochs, critic_epochs)
    numbers = {field: jnp.float32(value) for field, value in settings.items()}
    state = before = state._replace(config=dataclasses.replace(state.config, **numbers))
    for _ in range(updates):
        state, metrics = step(fresh(state))
    return before, state, metrics


@pytest.mark.parametrize(
    ("name", "epochs", "critic_epochs", "critic"),
    mark_quick(
        [
            ("ppo", 1, 0, 1),
            ("ppo", 3, 0, 3),
            ("ppo", 1, 3, 3),
            ("ppo", 3, 1, 1),
            ("impala", 3, 0, 3),
            ("impala", 1, 3, 3),
        ],
        ("ppo", 1, 3, 3),
    ),
)
def test_number_of_gradient_steps(name: str, epochs: int, critic_epochs: int, critic: int) -> None:
    """The critic may have more or fewer epochs than the policy.

    The counts grow with each update.
    """
    before, after, metrics = updated(name, epochs, critic_epochs, updates=2)
    assert gradient_steps(before) == {"actor": 0, "critic": 0}
    assert gradient_steps(after) == {
        "actor": 2 * epochs * MINIBATCHES,
        "critic": 2 * critic * MINIBATCHES,
    }
    assert float(metrics.values["epochs"]) == epochs
    assert differs(before.train.network.actor, after.train.network.actor)
    assert differs(before.train.network.critic, after.train.network.critic)


def test_a_shared_network_has_one_optimizer() -> None:
    _, after, _ = updated("ppo-shared", 3, 0)
    assert gradient_steps(after) == {"actor": 3 * MINIBATCHES}


@pytest.mark.parametrize("name", mark_quick(["ppo", "impala"], "ppo"))
def test_target_kl_stops_only_the_policy(name: str) -> None:
    """With a tiny target the policy stops after one epoch, and a separate critic continues."""
    _, after, metrics = updated(name, 3, 0, target_kl=1e-9, learning_rate=1e-2)
    assert gradient_steps(after) == {"actor": MINIBATCHES, "critic": 3 * MINIBATCHES}
    assert float(metrics.values["epochs"]) == 1
    before, still, _ = updated(
        name, 3, 0, target_kl=1e-9, learning_rate=0.0, critic_learning_rate=1e-2
    )
    assert gradient_steps(still)["actor"] == 3 * MINIBATCHES, (
        "a policy that does not move is not stopped"
    )
    assert not differs(plain(before.train.network.actor), plain(still.train.network.actor))
    assert differs(plain(before.train.network.critic), plain(still.train.network.critic))


def test_target_kl_stops_a_shared_network() -> None:
    """All epochs end, because no other network is left to train."""
    _, after, metrics = updated("ppo-shared", 3, 0, target_kl=1e-9)
    assert gradient_steps(after) == {"actor": MINIBATCHES}
    assert float(metrics.values["epochs"]) == 1


@pytest.mark.parametrize("name", ["ppo", "ppo-shared"])
def test_each_member_stops_independently(name: str) -> None:
    """The loop runs until the last member stops. Each member has the result that it has alone.

    This includes the metrics of its last epoch.
    """
    alone = [
        updated(name, 3, 0, target_kl=kl, learning_rate=1e-2)[1:] for kl in (1e-9, float("inf"))
    ]
    state, _ = program(name, 3, 0)
    states = fresh(jax.tree.map(lambda x: jnp.stack([x, x]), state))
    numbers = {
        "learning_rate": jnp.array([1e-2, 1e-2]),
        "target_kl": jnp.array([1e-9, float("inf")]),
    }
    many = population(BY_NAME[name].make(BY_NAME[name].environment))
    together = fresh(
        jax.jit(many.step)(states._replace(config=dataclasses.replace(states.config, **numbers)))
    )
    for place, one in enumerate(alone):
        assert_close(fresh(one), jax.tree.map(lambda x: x[place], together), 1e-4)  # noqa: B023 - called here
    assert together[1].values["epochs"].tolist() == [1, 3]


def test_an_infinite_target_kl_never_stops() -> None:
    _, after, _ = updated("ppo", 3, 0, target_kl=float("inf"), learning_rate=10.0)
    assert gradient_steps(after)["actor"] == 3 * MINIBATCHES


def test_a_stopped_policy_does_not_move() -> None:
    """The critic continues, but the policy is that of a run with one epoch."""
    _, stopped, _ = updated("ppo", 3, 0, target_kl=1e-9)
    _, once, _ = updated("ppo", 1, 3)
    for a, b in zip(
        jax.tree.leaves(stopped.train.network), jax.tree.leaves(once.train.network), strict=True
    ):
        assert jnp.allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.quick
def test_learning_rate_schedule() -> None:
    """The rate is linear in updates, from the full rate to the final fraction, where it stays."""
    _, _, first = updated(
        "ppo",
        1,
        0,
        updates=1,
        total_updates=4,
        learning_rate_final_fraction=0.2,
        learning_rate=1e-2,
    )
    _, _, third = updated(
        "ppo",
        1,
        0,
        updates=3,
        total_updates=4,
        learning_rate_final_fraction=0.2,
        learning_rate=1e-2,
    )
    _, _, beyond = updated(
        "ppo",
        1,
        0,
        updates=7,
        total_updates=4,
        learning_rate_final_fraction=0.2,
        learning_rate=1e-2,
    )
    assert float(first.values["learning_rate"]) == pytest.approx(1e-2)
    assert float(third.values["learning_rate"]) == pytest.approx(1e-2 * (1 - 0.8 * 2 / 4))
    assert float(beyond.values["learning_rate"]) == pytest.approx(0.2e-2)


def test_learning_rates_adapt_to_the_divergence() -> None:
    """The factor changes once per minibatch, except for the first one, whose divergence is 0."""
    row = BY_NAME["ppo"]
    algorithm = row.make(row.environment)
    sizes = {"num_epochs": 3, "num_minibatches": MINIBATCHES, "learning_rate": 1e-3}
    config = dataclasses.replace(row.config, **sizes, learning_rate_schedule="kl")
    state = jax.jit(lambda key: algorithm.init(key, config))(jax.random.key(0))
    step = jax.jit(algorithm.step)
    changes = 3 * MINIBATCHES - 1

    def rate_after(target: float) -> float:
        settings = dataclasses.replace(state.config, learning_rate_kl=jnp.float32(target))
        after, metrics = step(fresh(state._replace(config=settings)))
        rate = float(metrics.values["learning_rate"])
        assert rate == pytest.approx(1e-3 * float(after.train.rate_scale))
        return rate

    assert rate_after(1e-9) == pytest.approx(1e-3 / 1.5**changes)
    assert rate_after(1e3) == pytest.approx(min(1e-3 * 1.5**changes, 1e-2))


@pytest.mark.parametrize("name", mark_quick(["ppo", "ppo-lstm", "impala", "pqn"], "ppo"))
def test_accumulated_gradients_are_those_of_the_minibatch(name: str) -> None:
    """The parameters after one update are equal up to rounding."""
    row = BY_NAME[name]
    algorithm = row.make(row.environment)

    def result(num_parts: int) -> Any:
        sizes = {"num_epochs": 1, "num_minibatches": 1, "gradient_accumulation": num_parts}
        config = dataclasses.replace(row.config, **sizes, optimizer="sgd")
        state = jax.jit(lambda key: algorithm.init(key, config))(jax.random.key(0))
        state, metrics = jax.jit(algorithm.step)(state)
        return state.train.network, metrics.values["loss"]

    assert_close(result(1), result(4), 1e-5)


@pytest.mark.quick
def test_parts_of_a_minibatch_have_equal_sizes() -> None:
    sizes = {"num_steps": 8, "num_streams": 8, "sequence_length": 1, "num_minibatches": 2}
    make_layout(**sizes, gradient_accumulation=8)
    with pytest.raises(ValueError, match="must divide the 32 sequences of a minibatch. Use 2 or 4"):
        make_layout(**sizes, gradient_accumulation=5)
