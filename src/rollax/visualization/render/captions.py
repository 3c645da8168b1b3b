"""Composition of rendered frames: header, drawing, legend and notes."""

from typing import Any, NamedTuple

import jax
import numpy as np
from PIL import Image, ImageDraw

from rollax.canvas import scene as scenes
from rollax.canvas.drawing import Drawing
from rollax.canvas.scene import LegendEntry, fit_font, load_font, truncate_text
from rollax.environments.capabilities import capabilities
from rollax.environments.wrapper import trial_episode
from rollax.spaces import Ball, Box, Dict, Tuple, list_parts, list_values
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
        total: Formatted return since the start of the episode.
    """

    name: str
    action: str
    reward: str
    total: str


TABLE_HEADER = AgentRow("agent", "action", "reward", "return")


class Caption(NamedTuple):
    """Text around the drawing of a frame.

    Attributes:
        step_text: Step and, in the last frame, how the episode ended.
        action: Description of the action. Empty for several agents.
        reward_text: Reward of the step and return since the start of the episode.
        trial_text: Position of the episode within the trial. Empty without trials.
        stride_text: Note that steps are skipped. Empty if every step is shown.
        notes: Lines below the drawing.
        agents: One row per agent or agent type. Empty for an environment without an agent axis.
        title: Title above every frame of the episode, or an empty string.
        is_end: Whether this is the last frame of an episode.
    """

    step_text: str
    action: str
    reward_text: str
    trial_text: str
    stride_text: str
    notes: list[str]
    agents: list[AgentRow]
    title: str
    is_end: bool


def make_caption(
    environment: Any, drawing: Drawing, recorded: RecordedEpisode, frame: Frame, title: str = ""
) -> Caption:
    """Return the caption of a frame: step, action, reward, return, and notes of the drawing.

    Args:
        environment: Environment including its wrappers.
        drawing: Drawing of the environment.
        recorded: Episode that contains the frame.
        frame: Frame to describe.
        title: Title above every frame of the episode, or an empty string.
    """
    trial_position = trial_episode(environment, frame.state)
    lines = agent_rows(environment, drawing, frame)
    if lines:
        action = ""
        reward_text = ", ".join(
            f"{line.name} reward {line.reward} return {line.total}" for line in lines
        )
    else:
        action_text = (
            ""
            if frame.action is None
            else _format_action(environment.action_space, drawing.action_names, frame.action)
        )
        action = f"action {action_text}" if action_text else "start"
        reward_text = (
            f"reward {_format_number(frame.reward)}   return {_format_number(frame.total)}"
        )
    end_text = (
        frame.end if trial_position is None else "trial ended"
    )  # regardless of its last episode
    return Caption(
        step_text=f"{end_text} at step {frame.step}" if frame.end else f"step {frame.step}",
        action=action,
        reward_text=reward_text,
        trial_text=""
        if trial_position is None
        else f"episode {trial_position[0]} of {trial_position[1]}",
        stride_text="" if recorded.stride == 1 else f"1 step in {recorded.stride} is shown",
        notes=[] if drawing.notes is None else drawing.notes(environment, frame.state, frame.obs),
        agents=lines,
        title=title,
        is_end=bool(frame.end),
    )


def agent_rows(environment: Any, drawing: Drawing, frame: Frame) -> list[AgentRow]:
    """Return one row per agent, or one row of means per agent type for more than `MAX_AGENTS`.

    Args:
        environment: Environment including its wrappers.
        drawing: Drawing of the environment.
        frame: Frame to describe.

    Returns:
        The rows. Empty for an environment without an agent axis.
    """
    if environment.num_agents is None:
        return []
    if environment.num_agents <= MAX_AGENTS:
        action_texts = [
            "start"
            if frame.action is None
            else describe_action(
                environment, drawing, i, jax.tree.map(lambda x, i=i: x[i], frame.action)
            )
            for i in range(environment.num_agents)
        ]
        numbers = zip(
            capabilities(environment).agent_names,
            action_texts,
            frame.reward,
            frame.total,
            strict=True,
        )
        return [
            AgentRow(name, action, _format_number(reward), _format_number(total))
            for name, action, reward, total in numbers
        ]
    types = np.asarray(capabilities(environment).agent_types)
    lines = []
    for kind in list(dict.fromkeys(types.tolist()))[:MAX_LINES]:
        is_member = types == kind
        name = f"{kind} (mean of {is_member.sum()})" if is_member.sum() > 1 else kind
        lines.append(
            AgentRow(
                name,
                "",
                _format_number(frame.reward[is_member].mean()),
                _format_number(frame.total[is_member].mean()),
            )
        )
    return lines


def describe_action(environment: Any, drawing: Drawing, agent: int, action: Any) -> str:
    """Return text that describes the action of one agent.

    Args:
        environment: Environment including its wrappers.
        drawing: Drawing of the environment.
        agent: Index of the agent.
        action: Action of the agent.
    """
    if drawing.describe_action_fn is not None:
        return drawing.describe_action_fn(environment, agent, action)
    return _format_action(environment.action_space, drawing.action_names, action)


def compose_frames(
    environment: Any, drawing: Drawing, recorded: RecordedEpisode, title: str = ""
) -> list[Image.Image]:
    """Draw all frames of an episode with captions, a common view and a common legend.

    Args:
        environment: Environment including its wrappers.
        drawing: Drawing of the environment.
        recorded: Recorded episode.
        title: Title above every frame, or an empty string.

    Returns:
        One image per frame.
    """
    first, frames = recorded.frames[0], recorded.frames
    legend = [] if drawing.legend is None else drawing.legend(environment, first.state, first.obs)
    pictures = draw_episode(
        drawing, environment, [frame.state for frame in frames], [frame.obs for frame in frames]
    )
    texts = [make_caption(environment, drawing, recorded, frame, title) for frame in frames]
    return [
        compose_frame(environment.name, picture, caption, legend)
        for picture, caption in zip(pictures, texts, strict=True)
    ]


class RowText(NamedTuple):
    """Text at the left or right end of a header row, with color and font size."""

    text: str
    color: scenes.Color
    size: int = 12


class PlacedEntry(NamedTuple):
    """Legend entry with its row index and its left edge in pixels."""

    row: int
    left: float
    entry: LegendEntry


class FrameLayout(NamedTuple):
    """Sizes of header, legend and footer of a frame in pixels, and the content below the drawing.

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
    name: str, scene: Image.Image, caption: Caption, legend: list[LegendEntry]
) -> Image.Image:
    """Compose a frame: header above the drawing, legend and notes below it.

    Args:
        name: Name of the environment.
        scene: Drawing of the state.
        caption: Caption of the frame.
        legend: Entries of the legend.

    Returns:
        Image of the frame.
    """
    layout = _lay_out_frame(max(scene.width, scenes.BOARD_SIZE), caption, legend)
    height = layout.header_height + scene.height + layout.footer_height
    frame = Image.new("RGB", (layout.width, height), scenes.BACKGROUND)
    frame.paste(scene, ((layout.width - scene.width) // 2, layout.header_height))
    draw = ImageDraw.Draw(frame)
    _draw_header(draw, layout.width, name, caption)
    _draw_footer(draw, layout.header_height + scene.height + 4, layout)
    return frame


def _lay_out_frame(width: int, caption: Caption, legend: list[LegendEntry]) -> FrameLayout:
    """Return the layout of a frame with a width of `width` pixels."""
    if caption.agents:
        num_rows = 2 + bool(caption.stride_text) + len(caption.agents)
    else:
        num_rows = 3
    placed_legend = _place_legend(legend, width)
    legend_height = ROW_HEIGHT * (1 + max((entry.row for entry in placed_legend), default=-1))
    notes = [line for note in caption.notes for line in _wrap_text(note, width - 2 * MARGIN)]
    notes = notes[:MAX_LINES]
    margin = MARGIN if placed_legend or notes else 0
    return FrameLayout(
        width=width,
        header_height=ROW_HEIGHT * (bool(caption.title) + num_rows) + 10,
        legend_height=legend_height,
        footer_height=legend_height + ROW_HEIGHT * len(notes) + margin,
        legend=placed_legend,
        notes=notes,
    )


def _draw_header(draw: ImageDraw.ImageDraw, width: int, name: str, caption: Caption) -> None:
    """Draw the title, the name of the environment, and the step with its actions and rewards."""
    top = 6
    if caption.title:
        style = fit_font(caption.title, 12, width - 2 * MARGIN)
        title = truncate_text(caption.title, style, width - 2 * MARGIN)
        draw.text((MARGIN, top), title, scenes.BLUE, style)
        top += ROW_HEIGHT
    step_text = RowText(caption.step_text, scenes.RED if caption.is_end else scenes.GRAY)
    _draw_text_row(draw, top, width, RowText(name, scenes.DARK_GRAY, 13), step_text)
    top += ROW_HEIGHT
    stride = RowText(caption.stride_text, scenes.GRAY)
    if caption.agents:
        if caption.stride_text:
            _draw_text_row(draw, top, width, RowText("", scenes.DARK_GRAY), stride)
            top += ROW_HEIGHT
        _draw_agent_table(draw, top, width, caption.agents)
    else:
        _draw_text_row(draw, top, width, RowText(caption.action, scenes.BLUE), stride)
        reward = RowText(caption.reward_text, scenes.DARK_GRAY)
        trial = RowText(caption.trial_text, scenes.DARK_GRAY)
        _draw_text_row(draw, top + ROW_HEIGHT, width, reward, trial)


def _draw_footer(draw: ImageDraw.ImageDraw, top: int, layout: FrameLayout) -> None:
    """Draw the legend and the notes below it."""
    for entry in layout.legend:
        _draw_legend_entry(draw, entry.left, top + ROW_HEIGHT * entry.row, entry.entry)
    top += layout.legend_height
    for line, note in enumerate(layout.notes):
        draw.text((MARGIN, top + ROW_HEIGHT * line), note, scenes.DARK_GRAY, load_font(11))


def _draw_text_row(
    draw: ImageDraw.ImageDraw, top: int, width: int, left_text: RowText, right_text: RowText
) -> None:
    """Draw text at both ends of a row. The left text is truncated to the remaining width."""
    used_width = (
        load_font(right_text.size).getlength(right_text.text) + MARGIN if right_text.text else 0
    )
    max_width = width - 2 * MARGIN - used_width
    style = (
        fit_font(left_text.text, left_text.size, max_width)
        if left_text.size > 12
        else load_font(left_text.size)
    )
    draw.text(
        (MARGIN, top), truncate_text(left_text.text, style, max_width), left_text.color, style
    )
    draw.text(
        (width - MARGIN, top),
        right_text.text,
        right_text.color,
        load_font(right_text.size),
        anchor="ra",
    )


def _draw_agent_table(
    draw: ImageDraw.ImageDraw, top: int, width: int, agents: list[AgentRow]
) -> None:
    """Draw a table of agents with the same columns in every frame."""
    style = load_font(12)
    return_edge, reward_edge = width - MARGIN, width - MARGIN - NUMBER_COLUMN_WIDTH
    max_width = reward_edge - NUMBER_COLUMN_WIDTH - MARGIN  # for names and actions
    has_actions = any(agent.action for agent in agents)
    longest_name = max(style.getlength(agent.name) for agent in (*agents, TABLE_HEADER))
    name_width = min(longest_name, 0.5 * max_width) if has_actions else max_width
    for row, agent in enumerate(
        [TABLE_HEADER if has_actions else TABLE_HEADER._replace(action=""), *agents]
    ):
        color, y = scenes.DARK_GRAY if row else scenes.GRAY, top + ROW_HEIGHT * row
        draw.text((MARGIN, y), truncate_text(agent.name, style, name_width), color, style)
        action_text = truncate_text(agent.action, style, max_width - name_width - MARGIN)
        draw.text((2 * MARGIN + name_width, y), action_text, scenes.BLUE if row else color, style)
        draw.text((reward_edge, y), agent.reward, color, style, anchor="ra")
        draw.text((return_edge, y), agent.total, color, style, anchor="ra")


def _place_legend(legend: list[LegendEntry], width: int) -> list[PlacedEntry]:
    """Assign each legend entry a row and a left edge, so that rows fit into `width` pixels."""
    placed, row, left_edge = [], 0, float(MARGIN)
    for entry in legend:
        max_width = width - 2 * MARGIN - ROW_HEIGHT
        entry = entry._replace(label=truncate_text(entry.label, load_font(11), max_width))
        entry_width = ROW_HEIGHT + load_font(11).getlength(entry.label) + 12
        if left_edge > MARGIN and left_edge + entry_width - 12 > width - MARGIN:
            row, left_edge = row + 1, float(MARGIN)
        placed.append(PlacedEntry(row, left_edge, entry))
        left_edge += entry_width
    return placed


def _draw_legend_entry(
    draw: ImageDraw.ImageDraw, left_edge: float, top: float, entry: LegendEntry
) -> None:
    box = (left_edge, top + 1, left_edge + 11, top + 12)
    if entry.shape == "line":
        draw.line((left_edge, top + 7, left_edge + 11, top + 7), entry.color, 3)
    elif entry.shape == "ring":
        draw.ellipse(box, scenes.BACKGROUND, entry.color, 3)
    else:
        draw.ellipse(box, entry.color, entry.outline)
    draw.text((left_edge + ROW_HEIGHT - 2, top), entry.label, scenes.DARK_GRAY, load_font(11))


def _wrap_text(text: str, max_width: float) -> list[str]:
    """Split text into lines of at most `max_width` pixels."""
    lines, style = [""], load_font(11)
    for word in text.split():
        extended = f"{lines[-1]} {word}".strip()
        if style.getlength(extended) <= max_width:
            lines[-1] = extended
        else:
            lines.append(word)
    return [truncate_text(line, style, max_width) for line in lines if line]


def _format_action(space: Any, names: tuple[str, ...], action: Any) -> str:
    if isinstance(space, Dict | Tuple):
        values = list_values(space, action)
        return ", ".join(
            f"{name} {_format_action(part, (), values[name])}"
            for name, part in list_parts(space).items()
        )
    if names:
        return names[int(action)]
    is_real = isinstance(space, Ball | Box)
    shown_values = [
        f"{value:+.2f}" if is_real else str(int(value)) for value in np.ravel(action)[:4]
    ]
    return " ".join(shown_values) + (" ..." if np.size(action) > 4 else "")


def _format_number(value: Any) -> str:
    """Format a number with two decimals.

    Magnitudes below 0.1 have two significant digits, and magnitudes of 1e6 or more have three.
    """
    value = float(value)
    if abs(value) >= 1e6:
        return f"{value:.3g}"
    return f"{value:.2g}" if 0 < abs(value) < 0.1 else f"{value + 0.0:.2f}"
