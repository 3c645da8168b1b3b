"""Drawings of memory tasks: the symbols shown so far, or the dealt cards and the current query."""

import math
from typing import cast

import numpy as np
from PIL import Image, ImageDraw

from rollax.canvas.drawing import Drawing
from rollax.canvas.scene import (
    BACKGROUND,
    CHANNEL_COLORS,
    DARK_GRAY,
    GRAY,
    LIGHT_GRAY,
    SCENE_WIDTH,
    load_font,
)
from rollax.environments.environment import Environment
from rollax.environments.native.memory.cards import DealState, QueryState
from rollax.environments.native.memory.repetition import RepeatPrevious, RepeatPreviousState
from rollax.spaces import Discrete, MultiDiscrete
from rollax.types import Observation

RANK_SYMBOLS = "A23456789TJQK"
SUIT_SYMBOLS = "SDCH"
COLOR_SYMBOLS = "BR"
MIN_COLUMNS = 13


def draw_symbols(
    environment: RepeatPrevious, state: RepeatPreviousState, obs: Observation
) -> Image.Image:
    """Draw the symbols shown so far, the newest on the right.

    The correct next action repeats the leftmost symbol.
    """
    edge, gap = min(64, (SCENE_WIDTH - 16) // len(state.recent)), 4
    picture = Image.new("RGB", (SCENE_WIDTH, 120), BACKGROUND)
    pen = ImageDraw.Draw(picture)
    left_edge, top = (SCENE_WIDTH - edge * len(state.recent)) / 2, 60 - edge / 2
    num_shown = min(int(state.time) + 1, len(state.recent))
    for index, symbol in enumerate(np.asarray(state.recent).tolist()):
        is_shown = index >= len(state.recent) - num_shown
        corner = left_edge + index * edge
        box = (corner + gap / 2, top, corner + edge - gap / 2, top + edge - gap)
        pen.rectangle(
            box,
            CHANNEL_COLORS[symbol % len(CHANNEL_COLORS)] if is_shown else BACKGROUND,
            LIGHT_GRAY,
        )
        if is_shown and edge >= 20:
            pen.text(
                (corner + edge / 2, 60 - gap / 2),
                str(symbol),
                BACKGROUND,
                load_font(edge / 2.5),
                anchor="mm",
            )
    middle = 32  # minimum distance of centered text from the edges of the picture
    if int(state.time) < environment.time_limit:
        pen.text(
            (max(left_edge + edge / 2, middle), top - 6),
            "asked next",
            DARK_GRAY,
            load_font(11),
            anchor="md",
        )
    newest = min(left_edge + edge * (len(state.recent) - 0.5), SCENE_WIDTH - middle)
    pen.text((newest, top + edge + 2), "on show", GRAY, load_font(11), anchor="ma")
    return picture


def draw_cards(
    environment: Environment, state: DealState | QueryState, obs: Observation
) -> Image.Image:
    """Draw the dealt cards with their symbols and the remaining cards as outlines.

    A frame marks the newest card, or the queried card in `memory/autoencode`.
    """
    card_symbols = {2: COLOR_SYMBOLS, 4: SUIT_SYMBOLS}.get(_num_symbols(environment), RANK_SYMBOLS)
    dealt, request = (
        min(int(state.time), len(state.cards) - 1),
        _describe_request(environment, state),
    )
    framed = (
        _requested_card(environment, state)
        if _requested_card(environment, state) is not None
        else dealt
    )
    columns = max(MIN_COLUMNS, math.ceil(math.sqrt(2 * len(state.cards))))
    edge = (SCENE_WIDTH - 8) / columns
    rows = math.ceil(len(state.cards) / columns)
    picture = Image.new("RGB", (SCENE_WIDTH, math.ceil(rows * edge) + 34), BACKGROUND)
    pen = ImageDraw.Draw(picture)
    for index, symbol in enumerate(np.asarray(state.cards).tolist()):
        left_edge, top = 4 + index % columns * edge, 4 + index // columns * edge
        box = (left_edge + 1, top + 1, left_edge + edge - 2, top + edge - 2)
        is_framed = index == framed
        pen.rectangle(
            box,
            CHANNEL_COLORS[symbol % len(CHANNEL_COLORS)] if index <= dealt else BACKGROUND,
            DARK_GRAY if is_framed else LIGHT_GRAY,
            1 + is_framed,
        )
        if index <= dealt and edge >= 14:
            pen.text(
                (left_edge + edge / 2, top + edge / 2),
                card_symbols[symbol],
                BACKGROUND,
                load_font(edge / 2.2),
                anchor="mm",
            )
    pen.text((SCENE_WIDTH / 2, picture.height - 14), request, GRAY, load_font(13), anchor="mm")
    return picture


def _num_symbols(environment: Environment) -> int:
    space = environment.observation_space
    return space.n if isinstance(space, Discrete) else cast(MultiDiscrete, space).sizes[-1]


def _requested_card(environment: Environment, state: DealState | QueryState) -> int | None:
    """Return the index of the queried card in `memory/autoencode`, or None without a query."""
    last, time = len(state.cards) - 1, int(state.time)
    is_asked = environment.name.endswith("autoencode") and last <= time <= 2 * last
    return 2 * last - time if is_asked else None


def _describe_request(environment: Environment, state: DealState | QueryState) -> str:
    """Return a caption that describes the correct next action."""
    last, time = len(state.cards) - 1, int(state.time)
    if environment.name.endswith("autoencode"):
        card = _requested_card(environment, state)
        return (
            "the end"
            if time > 2 * last
            else "watch"
            if card is None
            else f"asked for: the suit of card {card + 1}"
        )
    if isinstance(state, QueryState):
        symbol = int(state.queried_cards[min(time, last)])
        symbol_names = {2: ("black", "red"), 4: ("spades", "diamonds", "clubs", "hearts")}.get(
            _num_symbols(environment), tuple(f"{rank}s" for rank in RANK_SYMBOLS)
        )
        return f"asked for: how many {symbol_names[symbol]} until now"
    return (
        "higher or lower?"
        if environment.name.endswith("higher-lower")
        else "asked for: the suit of the first card"
    )


DRAWINGS: dict[str, Drawing] = {
    "repeat-previous": Drawing(draw_symbols, 3),
    "repeat-first": Drawing(draw_cards, 5),
    "autoencode": Drawing(draw_cards, 5),
    "count-recall": Drawing(draw_cards, 5),
    "higher-lower": Drawing(draw_cards, 5),
}
