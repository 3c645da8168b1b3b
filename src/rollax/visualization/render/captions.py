"""Captions of rendered frames: a header, the drawing, a legend and notes, without overlaps."""

from typing import Any, NamedTuple

import numpy as np
from PIL import Image, ImageDraw

from rollax.canvas import scene as scenes
from rollax.canvas.drawing import Drawing
from rollax.canvas.scene import LegendEntry, fit_font, load_font, truncate_text
from rollax.environments.capabilities import capabilities
from rollax.environments.wrapper import trial_episode
from rollax.spaces import Ball, Box
from rollax.visualization.render.drawings import draw_episode
from rollax.visualization.render.recorded_episodes import Frame, RecordedEpisode

MAX_AGENTS = 4  # listed individually. More agents are summarized by type.
MAX_LINES = 10  # of agent types, and of notes
ROW_HEIGHT, MARGIN = 18, 8  # pixels
NUMBER_COLUMN_WIDTH = 84  # pixels


class AgentRow(NamedTuple):
    """Table row of one agent, or of the mean over the agents of a type.

    Attributes:
        name: Name of the agent or type.
        action: Description of the action.
        reward: Formatted reward of the step.
        total: Formatted return so far.
    """

    name: str
    action: str
    reward: str
    total: str


TABLE_HEADER = AgentRow("agent", "action", "reward", "return")


class Caption(NamedTuple):
    """Text around the drawing of a frame.

    Attributes:
        when: Step, and how the episode ended.
        action: Description of the action.
        reward_text: Reward and return so far.
        trial: Episode within the trial, or an empty string.
        stride_text: Note that steps are skipped, or an empty string.
        notes: Lines below the drawing.
        agents: One row per agent or agent type, empty without an agent axis.
        title: Title of the whole episode, or an empty string.
        is_end: Whether this is the last frame of an episode.
    """

    when: str
    action: str
    reward_text: str
    trial: str
    stride_text: str
    notes: list[str]
    agents: list[AgentRow]
    title: str
    is_end: bool


def make_caption(
    environment: Any, drawing: Drawing, play: RecordedEpisode, frame: Frame, title: str = ""
) -> Caption:
    """Return the caption of a frame: step, action, reward, return so far, and the drawing's notes.

    Args:
        environment: Environment including its wrappers.
        drawing: Drawing of the environment.
        play: Episode that contains the frame.
        frame: Frame to describe.
        title: Title of the whole episode.
    """
    episode = trial_episode(environment, frame.state)
    lines = agent_rows(environment, drawing, frame)
    if lines:
        action = ""
        gained = ", ".join(
            f"{line.name} reward {line.reward} return {line.total}" for line in lines
        )
    else:
        acted = (
            ""
            if frame.action is None
            else _format_action(environment.action_space, drawing.action_names, frame.action)
        )
        action = f"action {acted}" if acted else "start"
        gained = f"reward {_format_number(frame.reward)}   return {_format_number(frame.total)}"
    ended = frame.end if episode is None else "trial ended"  # regardless of its last episode
    return Caption(
        when=f"{ended} at step {frame.step}" if frame.end else f"step {frame.step}",
        action=action,
        reward_text=gained,
        trial="" if episode is None else f"episode {episode[0]} of {episode[1]}",
        stride_text="" if play.stride == 1 else f"1 step in {play.stride} is shown",
        notes=[] if drawing.notes is None else drawing.notes(environment, frame.state, frame.obs),
        agents=lines,
        title=title,
        is_end=bool(frame.end),
    )


def agent_rows(environment: Any, drawing: Drawing, frame: Frame) -> list[AgentRow]:
    """Return one row per agent, or the means of each type if there are more than `MAX_AGENTS`.

    Args:
        environment: Environment including its wrappers.
        drawing: Drawing of the environment.
        frame: Frame to describe.

    Returns:
        The rows, empty without an agent axis.
    """
    if environment.num_agents is None:
        return []
    if environment.num_agents <= MAX_AGENTS:
        acted = [
            "start"
            if frame.action is None
            else describe_action(environment, drawing, i, frame.action[i])
            for i in range(environment.num_agents)
        ]
        numbers = zip(
            capabilities(environment).agent_names, acted, frame.reward, frame.total, strict=True
        )
        return [
            AgentRow(name, action, _format_number(reward), _format_number(total))
            for name, action, reward, total in numbers
        ]
    types = np.asarray(capabilities(environment).agent_types)
    lines = []
    for kind in list(dict.fromkeys(types.tolist()))[:MAX_LINES]:
        members = types == kind
        name = f"{kind} (mean of {members.sum()})" if members.sum() > 1 else kind
        lines.append(
            AgentRow(
                name,
                "",
                _format_number(frame.reward[members].mean()),
                _format_number(frame.total[members].mean()),
            )
        )
    return lines


def describe_action(environment: Any, drawing: Drawing, agent: int, action: np.ndarray) -> str:
    """Return a description of the action of one agent."""
    if drawing.describe_action_fn is not None:
        return drawing.describe_action_fn(environment, agent, action)
    return _format_action(environment.action_space, drawing.action_names, action)


def compose_frames(
    environment: Any, drawing: Drawing, play: RecordedEpisode, title: str = ""
) -> list[Image.Image]:
    """Draw all frames of an episode with captions, a common view and a common legend.

    Args:
        environment: Environment including its wrappers.
        drawing: Drawing of the environment.
        play: Recorded episode.
        title: Title above every frame.

    Returns:
        One picture per frame.
    """
    first, frames = play.frames[0], play.frames
    signs = [] if drawing.legend is None else drawing.legend(environment, first.state, first.obs)
    scenes_of = draw_episode(
        drawing, environment, [frame.state for frame in frames], [frame.obs for frame in frames]
    )
    said = [make_caption(environment, drawing, play, frame, title) for frame in frames]
    return [
        compose_frame(environment.name, scene, words, signs)
        for scene, words in zip(scenes_of, said, strict=True)
    ]


class RowText(NamedTuple):
    """Text at one end of a row."""

    text: str
    color: scenes.Color
    size: int = 12


class PlacedEntry(NamedTuple):
    """Entry of the legend with its row and its left edge in pixels."""

    row: int
    left: float
    entry: LegendEntry


class FrameLayout(NamedTuple):
    """Sizes of the parts of a frame in pixels, and the content below the drawing.

    Attributes:
        width: Width of the frame.
        header_height: Height above the drawing.
        legend_height: Height of the legend.
        footer_height: Height below the drawing.
        legend: Entries of the legend.
        notes: Lines below the legend.
    """

    width: int
    header_height: int
    legend_height: int
    footer_height: int
    legend: list[PlacedEntry]
    notes: list[str]


def compose_frame(
    name: str, scene: Image.Image, words: Caption, signs: list[LegendEntry]
) -> Image.Image:
    """Draw a frame with its header above and its legend and notes below.

    Args:
        name: Name of the environment.
        scene: Drawing of the state.
        words: Caption of the frame.
        signs: Entries of the legend.

    Returns:
        Picture of the frame.
    """
    layout = _lay_out_frame(max(scene.width, scenes.BOARD_SIZE), words, signs)
    height = layout.header_height + scene.height + layout.footer_height
    frame = Image.new("RGB", (layout.width, height), scenes.BACKGROUND)
    frame.paste(scene, ((layout.width - scene.width) // 2, layout.header_height))
    pen = ImageDraw.Draw(frame)
    _draw_header(pen, layout.width, name, words)
    _draw_footer(pen, layout.header_height + scene.height + 4, layout)
    return frame


def _lay_out_frame(width: int, words: Caption, signs: list[LegendEntry]) -> FrameLayout:
    if words.agents:
        num_rows = 2 + bool(words.stride_text) + len(words.agents)
    else:
        num_rows = 3
    legend = _place_legend(signs, width)
    legend_height = ROW_HEIGHT * (1 + max((placed.row for placed in legend), default=-1))
    notes = [line for note in words.notes for line in _wrap_text(note, width - 2 * MARGIN)]
    notes = notes[:MAX_LINES]
    margin = MARGIN if legend or notes else 0
    return FrameLayout(
        width=width,
        header_height=ROW_HEIGHT * (bool(words.title) + num_rows) + 10,
        legend_height=legend_height,
        footer_height=legend_height + ROW_HEIGHT * len(notes) + margin,
        legend=legend,
        notes=notes,
    )


def _draw_header(pen: ImageDraw.ImageDraw, width: int, name: str, words: Caption) -> None:
    """Draw the title, the name of the environment, and the step with its actions and rewards."""
    top = 6
    if words.title:
        style = fit_font(words.title, 12, width - 2 * MARGIN)
        title = truncate_text(words.title, style, width - 2 * MARGIN)
        pen.text((MARGIN, top), title, scenes.BLUE, style)
        top += ROW_HEIGHT
    when = RowText(words.when, scenes.RED if words.is_end else scenes.GRAY)
    _draw_text_row(pen, top, width, RowText(name, scenes.DARK_GRAY, 13), when)
    top += ROW_HEIGHT
    stride = RowText(words.stride_text, scenes.GRAY)
    if words.agents:
        if words.stride_text:
            _draw_text_row(pen, top, width, RowText("", scenes.DARK_GRAY), stride)
            top += ROW_HEIGHT
        _draw_agent_table(pen, top, width, words.agents)
    else:
        _draw_text_row(pen, top, width, RowText(words.action, scenes.BLUE), stride)
        reward = RowText(words.reward_text, scenes.DARK_GRAY)
        trial = RowText(words.trial, scenes.DARK_GRAY)
        _draw_text_row(pen, top + ROW_HEIGHT, width, reward, trial)


def _draw_footer(pen: ImageDraw.ImageDraw, top: int, layout: FrameLayout) -> None:
    """Draw the legend and the notes below it."""
    for placed in layout.legend:
        _draw_legend_entry(pen, placed.left, top + ROW_HEIGHT * placed.row, placed.entry)
    top += layout.legend_height
    for line, note in enumerate(layout.notes):
        pen.text((MARGIN, top + ROW_HEIGHT * line), note, scenes.DARK_GRAY, load_font(11))


def _draw_text_row(
    pen: ImageDraw.ImageDraw, top: int, width: int, left: RowText, right: RowText
) -> None:
    """Draw text at both ends of a row. The left text is truncated to the remaining width."""
    used = load_font(right.size).getlength(right.text) + MARGIN if right.text else 0
    room = width - 2 * MARGIN - used
    style = fit_font(left.text, left.size, room) if left.size > 12 else load_font(left.size)
    pen.text((MARGIN, top), truncate_text(left.text, style, room), left.color, style)
    pen.text((width - MARGIN, top), right.text, right.color, load_font(right.size), anchor="ra")


def _draw_agent_table(
    pen: ImageDraw.ImageDraw, top: int, width: int, agents: list[AgentRow]
) -> None:
    """Draw a table of agents with the same columns in every frame."""
    style = load_font(12)
    of_return, of_reward = width - MARGIN, width - MARGIN - NUMBER_COLUMN_WIDTH
    room = of_reward - NUMBER_COLUMN_WIDTH - MARGIN  # for names and actions
    has_actions = any(each.action for each in agents)
    longest = max(style.getlength(each.name) for each in (*agents, TABLE_HEADER))
    named = min(longest, 0.5 * room) if has_actions else room
    for row, each in enumerate(
        [TABLE_HEADER if has_actions else TABLE_HEADER._replace(action=""), *agents]
    ):
        color, y = scenes.DARK_GRAY if row else scenes.GRAY, top + ROW_HEIGHT * row
        pen.text((MARGIN, y), truncate_text(each.name, style, named), color, style)
        acted = truncate_text(each.action, style, room - named - MARGIN)
        pen.text((2 * MARGIN + named, y), acted, scenes.BLUE if row else color, style)
        pen.text((of_reward, y), each.reward, color, style, anchor="ra")
        pen.text((of_return, y), each.total, color, style, anchor="ra")


def _place_legend(signs: list[LegendEntry], width: int) -> list[PlacedEntry]:
    """Return the legend entries with their rows and left edges, wrapped to the width."""
    placed, row, left = [], 0, float(MARGIN)
    for sign in signs:
        room = width - 2 * MARGIN - ROW_HEIGHT
        sign = sign._replace(label=truncate_text(sign.label, load_font(11), room))
        long = ROW_HEIGHT + load_font(11).getlength(sign.label) + 12
        if left > MARGIN and left + long - 12 > width - MARGIN:
            row, left = row + 1, float(MARGIN)
        placed.append(PlacedEntry(row, left, sign))
        left += long
    return placed


def _draw_legend_entry(
    pen: ImageDraw.ImageDraw, left: float, top: float, sign: LegendEntry
) -> None:
    box = (left, top + 1, left + 11, top + 12)
    if sign.shape == "line":
        pen.line((left, top + 7, left + 11, top + 7), sign.color, 3)
    elif sign.shape == "ring":
        pen.ellipse(box, scenes.BACKGROUND, sign.color, 3)
    else:
        pen.ellipse(box, sign.color, sign.outline)
    pen.text((left + ROW_HEIGHT - 2, top), sign.label, scenes.DARK_GRAY, load_font(11))


def _wrap_text(words: str, room: float) -> list[str]:
    """Return text split into lines that fit the width."""
    lines, style = [""], load_font(11)
    for word in words.split():
        longer = f"{lines[-1]} {word}".strip()
        if style.getlength(longer) <= room:
            lines[-1] = longer
        else:
            lines.append(word)
    return [truncate_text(line, style, room) for line in lines if line]


def _format_action(space: Any, names: tuple[str, ...], action: np.ndarray) -> str:
    if names:
        return names[int(action)]
    is_real = isinstance(space, Ball | Box)
    shown = [f"{value:+.2f}" if is_real else str(int(value)) for value in np.ravel(action)[:4]]
    return " ".join(shown) + (" ..." if np.size(action) > 4 else "")


def _format_number(value: Any) -> str:
    """Format a number with two decimals, or with few digits if it is very small or large."""
    value = float(value)
    if abs(value) >= 1e6:
        return f"{value:.3g}"
    return f"{value:.2g}" if 0 < abs(value) < 0.1 else f"{value + 0.0:.2f}"
