"""Pictures of the games with cards: the deck in the order in which it is dealt, and what is asked for."""

import math
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from rollax.view.scene import CHANNELS, GREY, INK, LIGHT, PAPER, WIDTH, Color, font

RANKS = "A23456789TJQK"
SUITS = "SDCH"
COLORS = "BR"
COLUMNS = 13


def table(environment: Any, state: Any, obs: Any) -> Image.Image:
    """The cards that have been dealt by what is on them, those that have not as outlines.

    The newest has a frame, in `memory/autoencode` the one that is asked for.
    """
    signs = {2: COLORS, 4: SUITS}.get(_symbols(environment), RANKS)
    dealt, words = min(int(state.time), len(state.cards) - 1), _asked(environment, state)
    framed = _place(environment, state) if _place(environment, state) is not None else dealt
    columns = max(COLUMNS, math.ceil(math.sqrt(2 * len(state.cards))))
    edge = (WIDTH - 8) / columns
    rows = math.ceil(len(state.cards) / columns)
    picture = Image.new("RGB", (WIDTH, math.ceil(rows * edge) + 34), PAPER)
    pen = ImageDraw.Draw(picture)
    for place, symbol in enumerate(np.asarray(state.cards).tolist()):
        left, top = 4 + place % columns * edge, 4 + place // columns * edge
        box = (left + 1, top + 1, left + edge - 2, top + edge - 2)
        is_framed = place == framed
        pen.rectangle(box, _color(symbol) if place <= dealt else PAPER, INK if is_framed else LIGHT, 1 + is_framed)
        if place <= dealt and edge >= 14:
            pen.text((left + edge / 2, top + edge / 2), signs[symbol], PAPER, font(edge / 2.2), anchor="mm")
    pen.text((WIDTH / 2, picture.height - 14), words, GREY, font(13), anchor="mm")
    return picture


def _symbols(environment: Any) -> int:
    space = environment.observation_space
    return space.n if hasattr(space, "n") else space.sizes[-1]


def _color(symbol: int) -> Color:
    return CHANNELS[symbol % len(CHANNELS)]


def _place(environment: Any, state: Any) -> int | None:
    """Of `memory/autoencode`, which card is asked for; None while none is."""
    last, time = len(state.cards) - 1, int(state.time)
    is_asked = environment.name.endswith("autoencode") and last <= time <= 2 * last
    return 2 * last - time if is_asked else None


def _asked(environment: Any, state: Any) -> str:
    """What the next action is to say."""
    last, time = len(state.cards) - 1, int(state.time)
    if environment.name.endswith("autoencode"):
        place = _place(environment, state)
        return "the end" if time > 2 * last else "watch" if place is None else f"asked for: the suit of card {place + 1}"
    if hasattr(state, "asked"):
        symbol = int(state.asked[min(time, last)])
        signs = {2: ("black", "red"), 4: ("spades", "diamonds", "clubs", "hearts")}.get(
            _symbols(environment), tuple(f"{rank}s" for rank in RANKS)
        )
        return f"asked for: how many {signs[symbol]} until now"
    return "higher or lower?" if environment.name.endswith("higher-lower") else "asked for: the suit of the first card"
