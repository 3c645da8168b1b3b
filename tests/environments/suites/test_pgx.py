"""Tests of the Pgx adapter: rules of the games, players as agents, and waiting players."""

from typing import Any, get_args

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("pgx")

import pgx

from rollax.environments import make
from rollax.environments.registry import evaluation_arguments
from rollax.environments.suites.table import SUITES
from rollax.errors import UsageError
from rollax.spaces import Discrete
from rollax.training.spec import RunOptions, make_spec
from rollax.visualization.render.drawings import find_drawing

pytestmark = pytest.mark.usefixtures("as_free_with_keys_as_the_suite", "as_strict_as_the_suite")

KEY = jax.random.key
PASS = 7  # of connect_four, whose columns are 0 ... 6


def played(env: Any, columns: tuple[int, ...], waits: int = PASS) -> tuple[int, list[Any]]:
    """Return the first player and the transitions of a game in turns.

    The waiting player takes the action `waits`.
    """
    state, _ = env.reset(KEY(1))
    first, transitions = int(state.current_player), []
    for time, column in enumerate(columns):
        turn = (first + time) % 2
        actions = jnp.full(2, waits).at[turn].set(column)
        transitions.append(env.step(KEY(time), state, actions))
        state = transitions[-1].state
    return first, transitions


def test_games_equal_those_of_the_suite() -> None:
    env, suite = make("pgx/connect_four"), pgx.make("connect_four")
    columns = (3, 3, 2, 2, 1, 1, 0)  # the first player has four in the lowest row
    first, transitions = played(env, columns)
    raw, step = suite.init(KEY(1)), jax.jit(suite.step)
    for column, after in zip(columns, transitions, strict=True):
        raw = step(raw, jnp.asarray(column))
        np.testing.assert_array_equal(after.obs["observation"][raw.current_player], raw.observation)
        np.testing.assert_array_equal(after.reward, raw.rewards)
        assert after.terminated.tolist() == [bool(raw.terminated)] * 2 and not after.truncated.any()
        assert (
            after.state.observation.size == 0
        )  # no third copy of the observations, which would be moved in every step
    assert transitions[-1].terminated.all()
    assert transitions[-1].reward[first] == 1 and transitions[-1].reward[1 - first] == -1


def test_a_waiting_player_can_only_pass_and_has_no_effect() -> None:
    env = make("pgx/connect_four")
    assert (
        env.action_space == Discrete(8)
        and env.num_agents == 2
        and env.agent_types == ("player_0", "player_1")
    )
    first, transitions = played(env, (3, 3, 3, 3, 3, 3))
    masks = transitions[0].obs["action_mask"]
    np.testing.assert_array_equal(masks[1 - first], [True] * 7 + [False])
    np.testing.assert_array_equal(masks[first], [False] * 7 + [True])
    full = transitions[-1].obs["action_mask"][first]
    np.testing.assert_array_equal(full, [True] * 3 + [False] + [True] * 3 + [False])
    other = played(env, (3, 3, 3, 3, 3, 3), waits=0)[1]
    jax.tree.map(np.testing.assert_array_equal, transitions[-1].obs, other[-1].obs)


def test_each_player_observes_the_board_from_its_own_side() -> None:
    _, transitions = played(make("pgx/connect_four"), (3, 2, 2))
    mine, others = transitions[-1].obs["observation"]
    assert mine.any() and np.array_equal(mine, others[..., ::-1])


def test_cards_of_other_players_are_hidden() -> None:
    env = make("pgx/kuhn_poker")
    for seed in range(4):
        state, obs = env.reset(KEY(seed))
        for player in (0, 1):
            assert obs["observation"][player, :3].tolist() == [
                card == int(state._cards[player]) for card in range(3)
            ]


def test_a_random_opponent_selects_its_own_actions() -> None:
    """Actions of the second player have no effect. Evaluations have this opponent by default."""
    env = make("pgx/connect_four", opponent="random")

    def game(key: jax.Array, column: int) -> jax.Array:
        def move(state: Any, key: jax.Array) -> tuple[Any, jax.Array]:
            after = env.step(key, state, jnp.asarray([column, column]))
            return after.state, after.obs["observation"][0, ..., 1]

        return jax.lax.scan(
            move, env.reset(key)[0].replace(current_player=jnp.int32(1)), jax.random.split(key, 1)
        )[1][0]

    boards = jax.jit(jax.vmap(game, (0, None)))(jax.random.split(KEY(0), 64), 3)
    assert set(np.nonzero(boards)[2].tolist()) == set(range(7))
    turns = [env.reset(KEY(seed)) for seed in range(8)]
    assert {int(state.current_player) for state, _ in turns} == {0, 1}
    for state, obs in turns:  # the opponent can only pass, so nothing is learned from its actions
        passes = obs["action_mask"][:, -1]
        assert passes[1] and passes[0] == (state.current_player == 1)
    assert evaluation_arguments("pgx/connect_four") == {"opponent": "random"}
    with pytest.raises(UsageError, match="agents, random"):
        make("pgx/connect_four", opponent="randm")


@pytest.mark.parametrize(
    ("before", "answers"),
    [
        (
            (0, 6, 0, 6, 0, 5),
            {0},
        ),  # three in a column: it wins instead of blocking
        ((6, 0, 5, 0, 3, 0), {4}),  # three with a gap: it wins, although the other would
        ((6, 0, 5, 0, 1, 0), {0}),  # three of the other player in a column
        ((0, 1), set(range(7))),
    ],
)
def test_a_greedy_opponent_wins_or_blocks_a_win(before: tuple[int, ...], answers: set[int]) -> None:
    """It moves after `before`, whose first move was its own."""
    free = make("pgx/connect_four")
    state, _ = free.reset(KEY(1))
    state = state.replace(current_player=jnp.int32(1))
    for time, column in enumerate(before):
        state = free.step(KEY(time), state, jnp.full(2, column)).state
    assert int(state.current_player) == 1 and not state.terminated
    env = make("pgx/connect_four", opponent="greedy")

    def answer(key: jax.Array) -> jax.Array:
        after = env.step(key, state, jnp.full(2, PASS))
        return jnp.argmax((after.state._x.board != state._x.board).reshape(6, 7).any(axis=0))

    found = set(np.asarray(jax.jit(jax.vmap(answer))(jax.random.split(KEY(0), 64))).tolist())
    assert found == answers


def test_a_greedy_opponent_needs_full_observations() -> None:
    with pytest.raises(
        UsageError, match="opponent greedy is available only for connect_four, go_9x9"
    ):
        make("pgx/kuhn_poker", opponent="greedy")


def test_the_best_checkpoint_is_that_of_the_evaluated_player() -> None:
    spec = make_spec("ppo", "pgx/tic_tac_toe", {}, None, None, RunOptions(), {})
    assert (
        spec.options.best_metric == "return_player_0"
        and spec.eval_arguments["opponent"] == "random"
    )
    other = make_spec(
        "ppo", "pgx/tic_tac_toe", {}, None, None, RunOptions(best_metric="length_mean"), {}
    )
    assert other.options.best_metric == "length_mean"


def test_every_game_of_the_suite_is_offered_or_explained() -> None:
    entry = SUITES["pgx"]
    assert sorted((*entry.names, *entry.unavailable_reasons)) == sorted(get_args(pgx.EnvId))


def test_the_drawing_shows_the_stones_of_both_players() -> None:
    env = make("pgx/connect_four")
    _, transitions = played(env, (3, 3, 3))
    drawing = find_drawing(env)
    picture = np.asarray(drawing.draw(env, transitions[-1].state, transitions[-1].obs))
    assert drawing.legend is not None
    for sign in drawing.legend(env, None, None):
        assert (picture == sign.color).all(axis=-1).sum() > 200
    lower = (picture[-40:] == (0, 114, 178)).all(-1) | (picture[-40:] == (230, 159, 0)).all(-1)
    assert lower.any(), "the first disc lies in the lowest row"
