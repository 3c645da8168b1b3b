"""Tests of the matrix games: rules, equilibrium and exploitability in closed form."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rollax import UsageError, make
from rollax.environments.native.matrix.rock_paper_scissors import (
    PAPER,
    ROCK,
    SCISSORS,
    RockPaperScissors,
)


@pytest.mark.quick
def test_the_winner_receives_the_payoff_of_its_choice() -> None:
    game = make("matrix/rock-paper-scissors", payoffs=(1.0, 2.0, 3.0))
    state, _ = game.reset(jax.random.key(0))
    for first, second, reward in (
        (ROCK, SCISSORS, 1.0),
        (PAPER, ROCK, 2.0),
        (SCISSORS, PAPER, 3.0),
        (ROCK, PAPER, -2.0),
        (ROCK, ROCK, 0.0),
    ):
        after = game.step(jax.random.key(1), state, jnp.asarray([first, second]))
        np.testing.assert_allclose(after.reward, [reward, -reward])
        assert bool(after.terminated.all()) and not bool(after.truncated.any())


def test_the_equilibrium_is_not_exploitable() -> None:
    game = RockPaperScissors(payoffs=(1.0, 2.0, 3.0))
    np.testing.assert_allclose(game.equilibrium, [3 / 6, 1 / 6, 2 / 6], atol=1e-6)
    assert float(game.exploitability(game.equilibrium)) == pytest.approx(0.0, abs=1e-6)
    # A pure policy loses the payoff of the choice that beats it.
    np.testing.assert_allclose(game.exploitability(jnp.eye(3)), [2.0, 3.0, 1.0])
    assert float(RockPaperScissors().exploitability(jnp.full(3, 1 / 3))) == 0.0


def test_players_observe_the_last_round() -> None:
    game = RockPaperScissors(rounds=2)
    state, obs = game.reset(jax.random.key(0))
    np.testing.assert_array_equal(obs, np.eye(1, 7).repeat(2, axis=0))
    after = game.step(jax.random.key(1), state, jnp.asarray([ROCK, SCISSORS]))
    np.testing.assert_array_equal(after.obs, [[0, 1, 0, 0, 0, 0, 1], [0, 0, 0, 1, 1, 0, 0]])
    assert not bool(after.terminated.any()) and game.time_limit == 2
    assert bool(game.step(jax.random.key(1), after.state, jnp.asarray([0, 0])).terminated.all())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"payoffs": (1.0, 0.0, 1.0)}, "payoffs .* must be three positive numbers"),
        ({"rounds": 0}, "rounds .0. must be at least 1"),
    ],
)
def test_invalid_arguments(arguments: dict, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make("matrix/rock-paper-scissors", **arguments)
