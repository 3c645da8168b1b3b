"""Tests of captions: agents by name, colors in a legend, and text that never overlaps."""

import fnmatch

import jax
import numpy as np
import pytest
from PIL import Image

import rollax
from pythons import skip_where_too_old
from rollax.canvas.drawing import Drawing
from rollax.canvas.scene import BLUE, LegendEntry, load_font, truncate_text
from rollax.environments.capabilities import capabilities
from rollax.environments.observation_images import draw_observation
from rollax.environments.wrapper import innermost_environment
from rollax.spaces import make_zeros
from rollax.visualization.render import captions, drawings
from rollax.visualization.render.captions import (
    AgentRow,
    Caption,
    compose_frame,
    compose_frames,
    make_caption,
)
from rollax.visualization.render.recorded_episodes import Frame, RecordedEpisode
from text_boxes import boxes_on, check_words, recorded

LIGHT = ("gymnax", "probe", "memory", "hunting", "control", "granular")
# Suites that take longer, with one environment per drawing, and some drawn by observations.
HEAVY = [pattern for pattern in drawings.list_drawings() if not pattern.startswith(LIGHT)]
IDS = {
    *(id for suite in LIGHT for id in rollax.list_environments(suite)),
    *(
        next(id for id in rollax.list_environments() if fnmatch.fnmatchcase(id, pattern))
        for pattern in HEAVY
    ),
    *(
        "jaxmarl/MPE_simple_world_comm_v3",
        "jaxmarl/HeuristicEnemySMAX",
        "jaxmarl/switch_riddle",
        "jaxmarl/coin_game",
    ),
}
LONG = "step 123,456,789,000 (the best and the last, return_state_metric_of_a_long_name -123,456)"


def played(environment, is_stepped):
    """Return an episode with the first state and the next one, and long words and numbers.

    Args:
        environment: Environment of the episode.
        is_stepped: Whether to take a step. Otherwise the first state is repeated, because a
            step may take long to compile.
    """

    def two_states(key):
        state, obs = environment.reset(key)
        if not is_stepped:
            return (state, obs), (state, obs)
        after = environment.step(key, state, actions)
        return (state, obs), (after.state, after.obs)

    agents = () if environment.num_agents is None else (environment.num_agents,)
    actions = jax.tree.map(
        lambda x: np.zeros((*agents, *x.shape), x.dtype), make_zeros(environment.action_space)
    )
    (state, obs), (after, obs_after) = jax.device_get(jax.jit(two_states)(jax.random.key(0)))
    reward = np.full(agents, -123456.78)
    start = Frame(0, state, obs, None, 0 * reward, 0 * reward, "")
    return RecordedEpisode(
        [start, Frame(9_999_999, after, obs_after, actions, reward, 10 * reward, "terminated")],
        1024,
    )


@pytest.mark.parametrize("id", sorted(IDS))
def test_captions_of_every_environment_do_not_overlap(id):
    skip_where_too_old(id)
    with jax.numpy_rank_promotion("allow"):  # some environments need rank promotion
        environment = rollax.make(id)
        play = played(environment, id.startswith(LIGHT))
        drawing = drawings.find_drawing(environment)
        with recorded():
            pictures = [
                each
                for title in ("", LONG)
                for each in compose_frames(environment, drawing, play, title)
            ]
        for frame in play.frames:
            check_picture(drawing.draw(environment, frame.state, frame.obs))
    sizes = {image.size for image in pictures[:2]}
    for image in pictures:
        check_words(image)
    written = {words for *_, words in boxes_on(pictures[-1])}
    assert environment.name in written or any(words.endswith("...") for words in written)
    # the layout does not change within an episode
    assert len(sizes) == 1 or drawing.notes is not None
    if environment.num_agents is not None:
        check_named(environment, drawing, play, written)


def check_picture(drawn):
    assert drawn.mode == "RGB" and 40 <= drawn.height <= 450 and 40 <= drawn.width <= 700
    assert len(drawn.getcolors(maxcolors=1_000_000)) > 1


def check_named(environment, drawing, play, written):
    """Check that every agent or agent type has a line, and a color if agents are drawn."""
    lines = make_caption(environment, drawing, play, play.frames[-1]).agents
    if environment.num_agents <= captions.MAX_AGENTS:
        assert [line.name for line in lines] == list(capabilities(environment).agent_names)
    else:
        assert [line.name.split(" (mean of ")[0] for line in lines] == list(
            dict.fromkeys(environment.agent_types)
        )
    assert {line.name for line in lines} <= written
    if drawing.legend is not None:
        signs = {
            sign.label
            for sign in drawing.legend(environment, play.frames[0].state, play.frames[0].obs)
        }
        named = [
            innermost_environment(environment).agent_types,
            capabilities(environment).agent_names,
        ]
        assert any(set(names) <= signs for names in named) and signs <= written


@pytest.mark.parametrize("width", [100, 320, 400, 664])
@pytest.mark.parametrize("number", [0, 1, 4, 10])
def test_captions_of_any_size_do_not_overlap(width, number):
    long = "a very long name of something that nobody would call it so, " * 3
    lines = [AgentRow(f"{long}{i}", long, "-123456.78", "-1.23e+08") for i in range(number)]
    words = Caption(
        "truncated at step 9999999",
        long,
        long,
        "episode 10 of 10",
        "1 step in 128",
        [long] * 20,
        lines,
        long,
        True,
    )
    signs = [
        LegendEntry(label, BLUE, shape)
        for label in (long, "short")
        for shape in ("disc", "ring", "line")
    ] * (number + 1)
    with recorded():
        image = compose_frame(long, Image.new("RGB", (width, 50)), words, signs)
    check_words(image)
    assert image.width == max(width, 320)


@pytest.mark.quick
def test_long_text_is_truncated():
    style = load_font(12)
    assert truncate_text("some words", style, 200) == "some words"
    short = truncate_text("some words that are long", style, 80)
    assert short.endswith("...") and short.startswith("some") and style.getlength(short) <= 80
    assert truncate_text("some", style, 2) == ""


def test_means_by_type_are_over_agents_of_that_type():
    class Environment:
        name, num_agents, agent_types = "mine/Many", 5, ("fox", "hen", "hen", "hen", "dog")

    frame = Frame(
        3,
        None,
        None,
        np.zeros(5),
        np.array([1.0, 2, 3, 4, 5]),
        np.array([10.0, 20, 30, 40, 50]),
        "",
    )
    assert captions.agent_rows(Environment, Drawing(draw_observation, 10), frame) == [
        AgentRow("fox", "", "1.00", "10.00"),
        AgentRow("hen (mean of 3)", "", "3.00", "30.00"),
        AgentRow("dog", "", "5.00", "50.00"),
    ]
    assert capabilities(Environment).agent_names == ("fox", "hen_0", "hen_1", "hen_2", "dog")


@pytest.mark.parametrize(
    ("opponent", "theirs"),
    [("agents", ["3", "waits"]), ("random", ["random"] * 2), ("greedy", ["greedy"] * 2)],
)
def test_moves_of_a_player_that_the_environment_controls(opponent: str, theirs: list[str]) -> None:
    """They are not shown, because the policy only passes."""
    pytest.importorskip("pgx")
    environment = rollax.make("pgx/connect_four", opponent=opponent)
    drawing = drawings.find_drawing(environment)
    told = [
        captions.describe_action(environment, drawing, agent, np.asarray(move))
        for agent, move in ((0, 2), (1, 3), (1, 7))
    ]
    assert told == ["2", *theirs]
