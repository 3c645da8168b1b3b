"""Tests of grids as images and text: positions of agents, and all episodes of a trial."""

import io
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from PIL import Image
from rich.console import Console
from rich.text import Text

import rollax
from rollax.cli.main import main
from rollax.environments.suites.xminigrid import drawing as xminigrid
from rollax.environments.suites.xminigrid import rulesets
from rollax.environments.wrapper import trial_episode, unwrap
from rollax.visualization.render import animation, captions, drawings, recorded_episodes
from rollax.visualization.render import render as renders
from rollax.visualization.render import text_frames as texts

LIMIT, EPISODES = 8, 3  # of the run in conftest.py


@pytest.fixture(autouse=True)
def _less_strict():
    with jax.numpy_rank_promotion("allow"):
        yield


@pytest.fixture(scope="module")
def policy(trials):
    with jax.numpy_rank_promotion("allow"):
        return rollax.load(trials)


@pytest.fixture(scope="module")
def played(policy):
    """Return a trial with sampled actions, so that the agent moves."""
    with jax.numpy_rank_promotion("allow"):
        return recorded_episodes.record_episodes(
            [policy], seed=0, episodes=1, greedy=False, max_frames=1000
        )[0][0]


@pytest.fixture(scope="module")
def states(policy, played):
    """Return the state of the inner grid for each frame."""
    return [unwrap(policy.environment, frame.state, frame.obs)[1] for frame in played.frames]


def state_of(cells, position, direction=0, **more):
    agent = SimpleNamespace(
        position=np.array(position), direction=np.array(direction), pocket=np.array([0, 0])
    )
    task = {"goal_encoding": np.zeros(5, np.uint8), "rule_encoding": np.zeros((1, 7), np.uint8)}
    return SimpleNamespace(**{"grid": np.asarray(cells, np.uint8), "agent": agent, **task, **more})


def test_every_episode_of_a_trial_is_shown_to_its_end(policy, played, states):
    numbers = [trial_episode(policy.environment, frame.state) for frame in played.frames]
    assert numbers == sorted(numbers) and set(numbers) == {
        (k + 1, EPISODES) for k in range(EPISODES)
    }
    steps = [int(state.step_num) for state in states]
    assert steps[0] == 0
    for frame in played.frames[1:]:
        index, is_last = (
            frame.step,
            frame.step == len(states) - 1 or numbers[frame.step + 1] != numbers[frame.step],
        )
        assert steps[index] == (steps[index - 1] + 1 if numbers[index] == numbers[index - 1] else 1)
        assert is_last == (steps[index] == LIMIT or frame.reward > 0)


def test_ends_of_episodes_are_shown_longer(policy, played):
    times = animation.frame_durations(policy.environment, [played], fps=10)
    assert len(times) == len(played.frames)
    assert times[-1] == animation.LAST_FRAME_MS and times.count(animation.PAUSE_MS) == EPISODES - 1
    assert times.count(100) == len(times) - EPISODES


@pytest.fixture
def as_played(monkeypatch, played):
    """Replace recording by that trial, so that its program is compiled once."""
    for module in (renders, texts):
        monkeypatch.setattr(module, "record_episodes", lambda *_, **__: [[played]])


def test_a_trial_becomes_an_animation(as_played, trials, played, tmp_path):
    with Image.open(renders.render(trials, tmp_path / "trial.gif")) as image:
        assert image.n_frames == len(played.frames) and 320 <= image.width <= 400


def test_captions_name_actions_and_episodes(policy, played):
    drawing = drawings.find_drawing(policy.environment)
    said = [
        captions.make_caption(policy.environment, drawing, played, frame) for frame in played.frames
    ]
    assert said[0].action == "start" and said[0].trial_text == "episode 1 of 3"
    for frame, caption in list(zip(played.frames, said, strict=True))[1:]:
        assert caption.action == f"action {xminigrid.ACTION_NAMES[int(frame.action)]}"
    assert all(
        caption.notes[0].startswith("goal: ") and caption.notes[-1].startswith("holds ")
        for caption in said
    )


def test_the_agent_is_framed_in_its_cell(policy, played, states):
    drawing, size = drawings.find_drawing(policy.environment), 40
    for frame, state in zip(played.frames, states, strict=True):
        picture = np.asarray(drawing.draw(policy.environment, frame.state, frame.obs))
        corners = np.argwhere((picture[::size, ::size] == 255).all(axis=-1))
        assert corners.tolist() == [state.agent.position.tolist()]


def test_changes_of_the_grid_change_the_image(policy, played, states):
    drawing = drawings.find_drawing(policy.environment)
    pictures = [
        drawing.draw(policy.environment, frame.state, frame.obs).tobytes()
        for frame in played.frames
    ]
    looks = [
        (state.grid.tobytes(), state.agent.position.tobytes(), int(state.agent.direction))
        for state in states
    ]
    assert [a == b for a, b in zip(pictures, pictures[1:], strict=False)] == [
        a == b for a, b in zip(looks, looks[1:], strict=False)
    ]
    assert len(set(pictures)) > 3


def test_tiles_equal_those_of_the_suite(states, monkeypatch):
    from xminigrid.rendering.rgb_render import render

    monkeypatch.setattr(xminigrid, "IMAGE_WIDTH", 9 * 12)
    state = states[0]
    ours = xminigrid.draw_xminigrid(
        rollax.make("xminigrid/MiniGrid-Empty-5x5", view_size=5, previous=False), state, None
    )
    difference = np.abs(np.asarray(ours, float) - render(state.grid, state.agent, 5, 12))
    row, column = state.agent.position * 12
    difference[row : row + 12, column : column + 12] = 0  # except the frame around the agent
    assert difference.mean() < 3


def test_text_equals_that_of_the_suite_with_the_agent(policy, played, states):
    from xminigrid.rendering.text_render import PLAYER_STR, render

    drawing = drawings.find_drawing(policy.environment)
    for frame, state in zip(played.frames, states, strict=True):
        lines = drawing.text(policy.environment, frame.state, frame.obs).plain.splitlines()
        row, column = state.agent.position
        assert lines[row][2 * column] == PLAYER_STR[int(state.agent.direction)]
    suite = (
        Text.from_markup(render(state.grid, state.agent)).plain.replace("☰", "█").replace("⏺", "●")
    )
    assert [line[::2] for line in lines] == suite.splitlines()


@pytest.mark.parametrize("place", [(3, 0), (3, 64), (3, 127)])
def test_a_wide_grid_shows_the_surroundings_of_the_agent(place):
    cells = np.broadcast_to(np.array([1, 7]), (7, 128, 2))
    state = state_of(cells, place, direction=1)
    rows, columns = xminigrid.visible_window(state)
    assert len(rows) == 7 and len(columns) == xminigrid.MAX_CELLS and place[1] in columns
    picture = xminigrid.draw_xminigrid(
        rollax.make("xminigrid/MiniGrid-Empty-5x5", view_size=3, previous=False), state, None
    )
    assert picture.size == (xminigrid.IMAGE_WIDTH, xminigrid.IMAGE_WIDTH // xminigrid.MAX_CELLS * 7)
    assert (
        xminigrid.grid_text(None, state, None).plain.splitlines()[3][2 * (place[1] - columns.start)]
        == ">"
    )


def test_the_window_moves_only_near_its_edge():
    cells, way = (
        np.broadcast_to(np.array([1, 7]), (7, 128, 2)),
        [*range(60, 100), *range(99, 20, -1)],
    )
    shown = [
        columns
        for _, columns in xminigrid.camera_windows(
            None, [state_of(cells, (3, place)) for place in way]
        )
    ]
    moved = [now != before for before, now in zip(shown, shown[1:], strict=False)]
    assert all(len(columns) == xminigrid.MAX_CELLS for columns in shown)
    assert all(
        min(place - columns.start, columns[-1] - place) >= xminigrid.MARGIN_CELLS
        for place, columns in zip(way, shown, strict=True)
    )
    assert (
        not any(moved[: xminigrid.MAX_CELLS // 2 - xminigrid.MARGIN_CELLS - 1])
        and 0 < sum(moved) <= len(way) - xminigrid.MAX_CELLS
    )
    edge = [
        columns
        for _, columns in xminigrid.camera_windows(
            None, [state_of(cells, (3, place)) for place in range(120, 128)]
        )
    ]
    assert edge[-1] == range(128 - xminigrid.MAX_CELLS, 128)


def test_notes_have_the_task_and_the_held_object():
    tile, color = rulesets.TILE_NAMES.index, rulesets.COLOR_NAMES.index
    state = state_of(np.ones((5, 5, 2)), (1, 1))
    assert xminigrid.task_notes(None, state, None) == ["holds nothing"]
    state.agent.pocket = np.array([tile("key"), color("yellow")])
    state.goal_encoding[:3] = rulesets.GOAL_NAMES.index("AgentNear"), tile("ball"), color("red")
    rule = [
        rulesets.RULE_NAMES.index("AgentHold"),
        tile("hex"),
        color("blue"),
        tile("star"),
        color("pink"),
        0,
        0,
    ]
    state.rule_encoding = np.array([rule] * (xminigrid.MAX_RULES + 2), np.uint8)
    goal, *rules, more, held = xminigrid.task_notes(None, state, None)
    assert goal == "goal: stand next to the red ball" and held == "holds the yellow key"
    assert (
        rules == ["rule: pick up the blue hex -> pink star"] * xminigrid.MAX_RULES
        and more == "and 2 more rules"
    )


@pytest.mark.quick
def test_colors_of_objects_are_in_the_palette():
    assert {(255, 0, 0), (255, 51, 51), (112, 39, 195)} <= set(xminigrid.object_colors())


def test_text_in_a_pipe_has_all_frames(as_played, trials, played, capsys):
    assert main(["render", str(trials), "--text"]) == 0
    frames = capsys.readouterr().out.removesuffix("\n\n").split("\n\n")
    assert len(frames) == len(played.frames) and "\x1b" not in "".join(frames)
    for frame, shown in zip(played.frames, frames, strict=True):
        head, second, *board = shown.splitlines()
        assert head.endswith(f"step {frame.step}") and f"reward {frame.reward:.2f}" in second
        assert len([line for line in board if line.startswith("██")]) == 9
    assert not (trials / "figures" / "episode.gif").exists()


def test_text_on_a_terminal_is_replaced(as_played, trials, monkeypatch):
    sleeps, file = [], io.StringIO()
    monkeypatch.setattr(texts.time, "sleep", sleeps.append)
    texts.print_episodes(
        trials,
        fps=20,
        console=Console(file=file, force_terminal=True, width=80, height=40, _environ={}),
    )
    assert (
        sleeps.count(0.05) == len(sleeps) - EPISODES
        and sleeps[-1] == animation.LAST_FRAME_MS / 1000
    )
    assert file.getvalue().count("\x1b[1A") > len(sleeps)  # the cursor moves up for each frame


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--text"], ["no text drawing", "xminigrid/*, rl2/*", "Leave --text out"]),
        (["--text", "--out", "a.gif"], ["--out"]),
    ],
)
def test_text_of_other_environments_raises_usage_error(run, capsys, options, words):
    assert main(["render", str(run), *options]) == 2
    error = capsys.readouterr().err
    assert [word for word in words if word not in error] == []
