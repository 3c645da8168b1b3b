"""What `rollax envs` shows: environments by suite, and one of them in detail."""

import importlib.util
import inspect
import sys
from typing import Any

import numpy as np

from rollax import environments
from rollax.cli.help import default
from rollax.environments import registry
from rollax.environments.core import agent_types, descriptor_space, info_reductions
from rollax.environments.suites.about import about
from rollax.environments.suites.table import SUITES, missing_python
from rollax.errors import UnknownNameError, near
from rollax.spaces import Ball, Box, Dict, Discrete, Grid, MultiDiscrete

WIDTH = 100
MODULES = {
    "xland": "xminigrid",
    "granular": "jax_md",
    "playground": "mujoco_playground",
}  # what is imported, where it is not named as the extra


def found(words: str | None) -> list[str]:
    """The ids of a suite, or that hold the words in any case; all for None. Raises UnknownNameError where there is none."""
    everything = environments.list_environments()
    if words is None:
        return everything
    suites = list(dict.fromkeys(id.split("/", 1)[0] for id in everything))
    ids = [id for id in everything if id.split("/", 1)[0] == words] or [id for id in everything if words.lower() in id.lower()]
    if ids:
        return ids
    known = everything if near(words, everything) and not near(words, suites) else suites
    raise UnknownNameError("suite of environments", words, known)


def by_suite(ids: list[str]) -> str:
    """Ids for a person: a paragraph for each suite, which says whether it is installed."""
    suites: dict[str, list[str]] = {}
    for id in ids:
        suites.setdefault(id.split("/", 1)[0], []).append(id.split("/", 1)[1])
    paragraphs = []
    for suite, names in suites.items():
        extra = SUITES[suite].extra if suite in SUITES else None
        needed = missing_python(SUITES[suite]) if suite in SUITES else ""
        missing = extra is not None and importlib.util.find_spec(MODULES.get(extra, extra)) is None
        state = f'not installed: pip install "rollax[{extra}]"' if missing else "" if extra else "part of rollax"
        state = f"needs Python {needed} or newer" if needed else state if suite in SUITES else "your own"
        rows = [f"{suite}/  ({', '.join(filter(None, [str(len(names)), state]))})", *_columns(names)]
        paragraphs.append("\n".join(rows))
    end = "rollax envs ID shows one, rollax envs WORD those that hold a word, rollax envs SUITE a suite"
    return "\n\n".join([*paragraphs, end])


def _columns(names: list[str]) -> list[str]:
    """Names in as many columns as fit."""
    width = max(map(len, names)) + 2
    count = max(1, (WIDTH - 2) // width)
    rows = [names[i : i + count] for i in range(0, len(names), count)]
    return ["  " + "".join(f"{name:<{width}}" for name in row).rstrip() for row in rows]


def in_detail(id: str) -> dict[str, Any]:
    """What there is to know of one environment, as a flat object."""
    from rollax.acting.info import info_shapes
    from rollax.host.presets import tuned_for

    arguments, choices = environments.arguments(id), registry.choices(id)
    world = environments.make(id)
    types = agent_types(world)
    counted = ", ".join(f"{types.count(kind)} {kind}" for kind in dict.fromkeys(types))
    described = descriptor_space(world)
    return {
        "id": id,
        "about": about(id) or (inspect.getdoc(type(world)) or "").partition("\n\n")[0].replace("\n", " "),
        "observation": in_words(world.observation_space),
        "action": in_words(world.action_space),
        "agents": f"{world.num_agents} ({counted})" if types else "1",
        "time_limit": world.time_limit,
        "descriptor": None if described is None else f"{in_words(described)}, {world.descriptor_extraction}",  # pyright: ignore
        "info": {name: info_reductions(world).get(name, "mean") for name in info_shapes(world)},
        "tuned_for": tuned_for(id),
        "arguments": arguments,
        "choices": choices,
    }


def shown(one: dict[str, Any]) -> str:
    """One environment for a person."""
    limit = "none of its own" if one["time_limit"] is None else f"{one['time_limit']:,} steps"
    rows = [
        ("observation", one["observation"]),
        ("action", one["action"]),
        ("agents", one["agents"]),
        ("time limit", limit),
        ("descriptor", one["descriptor"] or "none"),
        ("info", ", ".join(f"{name} ({how})" for name, how in one["info"].items()) or "none"),
        ("tuned for", ", ".join(one["tuned_for"]) or "no algorithm; defaults of each"),
    ]
    lines = [one["id"], f"  {one['about']}", ""] if one["about"] else [one["id"], ""]
    lines += [f"  {name:<12} {value}" for name, value in rows]
    options = [(f"--env.{name.replace('_', '-')}", name, value) for name, value in one["arguments"].items()]
    width = max((len(option) for option, *_ in options), default=0)
    lines += ["", "  arguments" if options else "  takes no arguments"]
    for option, name, value in options:
        words = f"  ({', '.join(one['choices'][name])})" if name in one["choices"] else ""
        lines.append(f"    {option:<{width}}  default {default(value) or repr(value)}{words}")
    return "\n".join(lines)


def in_words(space: Any) -> str:
    """A space for a person."""
    if isinstance(space, Discrete):
        return f"discrete, {space.n}"
    if isinstance(space, MultiDiscrete):
        return f"several discrete at once, {space}"
    if isinstance(space, Ball):
        return f"{space.size} numbers, at most {space.radius:g} long"
    if isinstance(space, Grid):
        return f"grid {list(space.cells)} of symbols"
    if isinstance(space, Dict):
        return "; ".join(f"{name}: {in_words(part)}" for name, part in space.items)
    if not isinstance(space, Box):
        return str(space)
    low, high = float(np.min(space.low)), float(np.max(space.high))
    bounds = f", {low:g} to {high:g}" if space.is_bounded else ""
    return f"{space.dtype} {list(space.shape)}{bounds}"


def is_read_by_a_person() -> bool:
    """Whether standard output is a terminal; elsewhere lists have a line for each, as other programs read them."""
    return sys.stdout.isatty()
