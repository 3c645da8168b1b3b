"""What is said of a frame, and where it stands: a header, the drawing, a legend, notes. No words lie over others."""

from typing import Any, NamedTuple

import numpy as np
from PIL import Image, ImageDraw

from rollax.environments.core import agent_names, agent_types
from rollax.environments.view_base import trial_episode
from rollax.spaces import Ball, Box
from rollax.view import scene as scenes
from rollax.view.draw import Drawing
from rollax.view.playing import Frame, Play
from rollax.view.scene import Sign, fitting, font, shortened

MOST_AGENTS = 4  # that are named one by one; of more there are means by type
MOST_LINES = 10  # of types, and of notes
ROW, EDGE = 18, 8  # pixels
REWARD = 84  # pixels of a column of numbers


class AgentLine(NamedTuple):
    """What is said of an agent, or of those of a type in the mean."""

    name: str
    action: str
    reward: str
    total: str


COLUMNS = AgentLine("agent", "action", "reward", "return")


class Caption(NamedTuple):
    """What is said of a frame, in words."""

    when: str
    action: str
    gained: str
    trial: str  # "" where episodes are no trials
    thinned: str  # "" where every step is shown
    notes: list[str]
    agents: list[AgentLine]  # empty where there is no axis of agents
    title: str  # of the whole episode, "" for none
    is_end: bool


def caption(environment: Any, drawing: Drawing, play: Play, frame: Frame, title: str = "") -> Caption:
    """Of one frame: step, action, reward and return so far, and what the environment's drawing has to add."""
    episode = trial_episode(environment, frame.state)
    lines = agent_lines(environment, drawing, frame)
    if lines:
        action, gained = "", ", ".join(f"{line.name} reward {line.reward} return {line.total}" for line in lines)
    else:
        acted = "" if frame.action is None else _words(environment.action_space, drawing.actions, frame.action)
        action = f"action {acted}" if acted else "start"
        gained = f"reward {_number(frame.reward)}   return {_number(frame.total)}"
    return Caption(
        when=f"{frame.end} at step {frame.step}" if frame.end else f"step {frame.step}",
        action=action,
        gained=gained,
        trial="" if episode is None else f"episode {episode[0]} of {episode[1]}",
        thinned="" if play.stride == 1 else f"1 step in {play.stride} is shown",
        notes=[] if drawing.notes is None else drawing.notes(environment, frame.state, frame.obs),
        agents=lines,
        title=title,
        is_end=bool(frame.end),
    )


def agent_lines(environment: Any, drawing: Drawing, frame: Frame) -> list[AgentLine]:
    """A line of each agent by its name, or of each type where there are many: its means. None without an axis of agents."""
    if environment.num_agents is None:
        return []
    if environment.num_agents <= MOST_AGENTS:
        acted = [
            "start" if frame.action is None else action_words(environment, drawing, i, frame.action[i])
            for i in range(environment.num_agents)
        ]
        numbers = zip(agent_names(environment), acted, frame.reward, frame.total, strict=True)
        return [AgentLine(name, action, _number(reward), _number(total)) for name, action, reward, total in numbers]
    types = np.asarray(agent_types(environment))
    lines = []
    for kind in list(dict.fromkeys(types.tolist()))[:MOST_LINES]:
        members = types == kind
        name = f"{kind} (mean of {members.sum()})" if members.sum() > 1 else kind
        lines.append(AgentLine(name, "", _number(frame.reward[members].mean()), _number(frame.total[members].mean())))
    return lines


def action_words(environment: Any, drawing: Drawing, agent: int, action: np.ndarray) -> str:
    """What an agent did."""
    if drawing.acted is not None:
        return drawing.acted(environment, agent, action)
    return _words(environment.action_space, drawing.actions, action)


def pictures_of(environment: Any, drawing: Drawing, play: Play, title: str = "") -> list[Image.Image]:
    """Every frame of an episode, in one view and with one legend."""
    first, frames = play.frames[0], play.frames
    signs = [] if drawing.legend is None else drawing.legend(environment, first.state, first.obs)
    scenes_of = drawing.drawn(environment, [frame.state for frame in frames], [frame.obs for frame in frames])
    said = [caption(environment, drawing, play, frame, title) for frame in frames]
    return [picture(environment.name, scene, words, signs) for scene, words in zip(scenes_of, said, strict=True)]


def picture(name: str, scene: Image.Image, words: Caption, signs: list[Sign]) -> Image.Image:
    """A drawing between a header (environment, step, action, reward and return so far) and its legend and notes."""
    width = max(scene.width, scenes.BOARD)
    rows = [words.title] if words.title else []
    header = ROW * (len(rows) + (2 + bool(words.thinned) + len(words.agents) if words.agents else 3)) + 10
    legend = _placed(signs, width)
    notes = [line for note in words.notes for line in _wrapped(note, width - 2 * EDGE)][:MOST_LINES]
    foot = ROW * (1 + max((row for row, *_ in legend), default=-1)) + ROW * len(notes) + (EDGE if legend or notes else 0)
    whole = Image.new("RGB", (width, header + scene.height + foot), scenes.PAPER)
    whole.paste(scene, ((width - scene.width) // 2, header))
    pen = ImageDraw.Draw(whole)
    top = 6
    if words.title:
        style = fitting(words.title, 12, width - 2 * EDGE)
        pen.text((EDGE, top), shortened(words.title, style, width - 2 * EDGE), scenes.BLUE, style)
        top += ROW
    _pair(pen, top, width, (name, scenes.INK, 13), (words.when, scenes.RED if words.is_end else scenes.GREY))
    if words.agents:
        if words.thinned:
            top += ROW
            _pair(pen, top, width, ("", scenes.INK, 12), (words.thinned, scenes.GREY))
        _table(pen, top + ROW, width, words.agents)
    else:
        _pair(pen, top + ROW, width, (words.action, scenes.BLUE, 12), (words.thinned, scenes.GREY))
        _pair(pen, top + 2 * ROW, width, (words.gained, scenes.INK, 12), (words.trial, scenes.INK))
    top = header + scene.height + 4
    for row, left, sign in legend:
        _sign(pen, left, top + ROW * row, sign)
    top += ROW * (1 + max((row for row, *_ in legend), default=-1))
    for line, note in enumerate(notes):
        pen.text((EDGE, top + ROW * line), note, scenes.INK, font(11))
    return whole


def _pair(pen: Any, top: int, width: int, left: tuple[str, Any, int], right: tuple[str, Any]) -> None:
    """Words at both ends of a row; those on the left have the room that is left to them."""
    words, color, size = left
    room = width - 2 * EDGE - (font(12).getlength(right[0]) + EDGE if right[0] else 0)
    style = fitting(words, size, room) if size > 12 else font(size)
    pen.text((EDGE, top), shortened(words, style, room), color, style)
    pen.text((width - EDGE, top), right[0], right[1], font(12), anchor="ra")


def _table(pen: Any, top: int, width: int, agents: list[AgentLine]) -> None:
    """Agents, one in a row: name, action, reward and return. Columns stand where they do in every frame."""
    style = font(12)
    of_return, of_reward = width - EDGE, width - EDGE - REWARD
    room = of_reward - REWARD - EDGE  # of names and actions
    has_actions = any(each.action for each in agents)
    longest = max(style.getlength(each.name) for each in (*agents, COLUMNS))
    named = min(longest, 0.5 * room) if has_actions else room
    for row, each in enumerate([COLUMNS if has_actions else COLUMNS._replace(action=""), *agents]):
        color, y = scenes.INK if row else scenes.GREY, top + ROW * row
        pen.text((EDGE, y), shortened(each.name, style, named), color, style)
        acted = shortened(each.action, style, room - named - EDGE)
        pen.text((2 * EDGE + named, y), acted, scenes.BLUE if row else color, style)
        pen.text((of_reward, y), each.reward, color, style, anchor="ra")
        pen.text((of_return, y), each.total, color, style, anchor="ra")


def _placed(signs: list[Sign], width: int) -> list[tuple[int, float, Sign]]:
    """Row and left edge of every entry of a legend, in as many rows as they need."""
    placed, row, left = [], 0, float(EDGE)
    for sign in signs:
        room = width - 2 * EDGE - ROW
        sign = sign._replace(label=shortened(sign.label, font(11), room))
        long = ROW + font(11).getlength(sign.label) + 12
        if left > EDGE and left + long - 12 > width - EDGE:
            row, left = row + 1, float(EDGE)
        placed.append((row, left, sign))
        left += long
    return placed


def _sign(pen: Any, left: float, top: float, sign: Sign) -> None:
    box = (left, top + 1, left + 11, top + 12)
    if sign.shape == "line":
        pen.line((left, top + 7, left + 11, top + 7), sign.color, 3)
    elif sign.shape == "ring":
        pen.ellipse(box, scenes.PAPER, sign.color, 3)
    else:
        pen.ellipse(box, sign.color, sign.outline)
    pen.text((left + ROW - 2, top), sign.label, scenes.INK, font(11))


def _wrapped(words: str, room: float) -> list[str]:
    """Words in as many lines as they need."""
    lines, style = [""], font(11)
    for word in words.split():
        longer = f"{lines[-1]} {word}".strip()
        if style.getlength(longer) <= room:
            lines[-1] = longer
        else:
            lines.append(word)
    return [shortened(line, style, room) for line in lines if line]


def _words(space: Any, names: tuple[str, ...], action: np.ndarray) -> str:
    if names:
        return names[int(action)]
    is_real = isinstance(space, Ball | Box)
    shown = [f"{value:+.2f}" if is_real else str(int(value)) for value in np.ravel(action)[:4]]
    return " ".join(shown) + (" ..." if np.size(action) > 4 else "")


def _number(value: Any) -> str:
    """Two decimals, or two digits where those would show nothing, or few where there would be many."""
    value = float(value)
    if abs(value) >= 1e6:
        return f"{value:.3g}"
    return f"{value:.2g}" if 0 < abs(value) < 0.1 else f"{value + 0.0:.2f}"
