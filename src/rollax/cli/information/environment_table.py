"""Output of `rollax envs`: a list of environments, or the description of one environment."""

import importlib.util
import inspect
import sys

import numpy as np

from rollax import environments
from rollax.acting.episode_metrics import info_shapes
from rollax.cli.parsing.help import format_default
from rollax.environments import registry
from rollax.environments.capabilities import capabilities
from rollax.environments.suites.suite import Suite
from rollax.environments.suites.table import SUITES, missing_python_version
from rollax.networks.observation_encoding import describe_observation
from rollax.runtime.installation import install_command
from rollax.spaces import Ball, Box, Dict, Discrete, Grid, MultiDiscrete, Space, Tuple, list_parts
from rollax.training.presets import list_tuned_algorithms
from rollax.types import Record

LINE_WIDTH = 100


def format_suites(ids: list[str]) -> str:
    """Format ids as one paragraph per suite, with a note if the suite is not installed."""
    suites: dict[str, list[str]] = {}
    for id in ids:
        suites.setdefault(id.split("/", 1)[0], []).append(id.split("/", 1)[1])
    paragraphs = []
    for suite, names in suites.items():
        state = _installation_state(SUITES[suite]) if suite in SUITES else "your own"
        rows = [
            f"{suite}/  ({', '.join(filter(None, [str(len(names)), state]))})",
            *_format_columns(names),
        ]
        paragraphs.append("\n".join(rows))
    end = (
        "rollax envs ID shows one environment, rollax envs WORD lists those whose id contains a "
        "word.\n"
        f"Install an extra with: {install_command('EXTRA')}"
    )
    return "\n\n".join([*paragraphs, end])


def _installation_state(entry: Suite) -> str:
    """Return a note if a suite is not installed or needs a newer Python, otherwise ""."""
    if entry.extra is None:
        return "part of rollax"
    needed = missing_python_version(entry)
    if needed:
        return f"needs Python {needed} or newer"
    is_installed = entry.module is None or importlib.util.find_spec(entry.module) is not None
    return "" if is_installed else f"not installed: extra {entry.extra}"


def _format_columns(names: list[str]) -> list[str]:
    """Format names in as many columns as fit into `LINE_WIDTH` characters."""
    width = max(map(len, names)) + 2
    count = max(1, (LINE_WIDTH - 2) // width)
    rows = [names[i : i + count] for i in range(0, len(names), count)]
    return ["  " + "".join(f"{name:<{width}}" for name in row).rstrip() for row in rows]


def collect_environment_facts(id: str) -> Record:
    """Collect the spaces, agents, limits, info metrics, presets and arguments of an environment."""
    registry.import_package(id)
    arguments, choices = environments.default_arguments(id), registry.argument_choices(id)
    world = environments.make(id)
    declared = capabilities(world)
    types = declared.agent_types
    counted = ", ".join(f"{types.count(kind)} {kind}" for kind in dict.fromkeys(types))
    described = declared.descriptor_space
    return {
        "id": id,
        "about": registry.describe_environment(id)
        or (inspect.getdoc(type(world)) or "").partition("\n\n")[0].replace("\n", " "),
        "observation": format_space(world.observation_space),
        "network_input": describe_observation(world.observation_space),
        "action": format_space(world.action_space),
        "agents": f"{world.num_agents} ({counted})" if types else "1",
        "time_limit": world.time_limit,
        "descriptor": None
        if described is None
        else f"{format_space(described)}, {declared.descriptor_extraction}",
        "info": {name: declared.info_reductions.get(name, "mean") for name in info_shapes(world)},
        "tuned_for": list_tuned_algorithms(id),
        "arguments": arguments,
        "choices": choices,
    }


def format_environment(facts: Record) -> str:
    """Format the result of `collect_environment_facts` as text."""
    limit = "none" if facts["time_limit"] is None else f"{facts['time_limit']:,} steps"
    rows = [
        ("observation", facts["observation"]),
        ("network reads", facts["network_input"]),
        ("action", facts["action"]),
        ("agents", facts["agents"]),
        ("time limit", limit),
        ("descriptor", facts["descriptor"] or "none"),
        ("info", ", ".join(f"{name} ({how})" for name, how in facts["info"].items()) or "none"),
        ("tuned for", ", ".join(facts["tuned_for"]) or "no algorithm (uses defaults)"),
    ]
    lines = [facts["id"], f"  {facts['about']}", ""] if facts["about"] else [facts["id"], ""]
    lines += [f"  {name:<14} {value}" for name, value in rows]
    options = [
        (f"--env.{name.replace('_', '-')}", name, value)
        for name, value in facts["arguments"].items()
    ]
    width = max((len(option) for option, *_ in options), default=0)
    lines += ["", "  arguments" if options else "  takes no arguments"]
    for option, name, value in options:
        words = f"  ({', '.join(facts['choices'][name])})" if name in facts["choices"] else ""
        lines.append(
            f"    {option:<{width}}  default {format_default(value) or repr(value)}{words}"
        )
    return "\n".join(lines)


def format_space(space: Space) -> str:
    """Format a space as one line of text."""
    if isinstance(space, Discrete):
        return f"discrete, {space.n}"
    if isinstance(space, MultiDiscrete):
        return f"several discrete at once, {space}"
    if isinstance(space, Ball):
        return f"{space.size} numbers, norm at most {space.radius:g}"
    if isinstance(space, Grid):
        return f"grid {list(space.cells)} of symbols"
    if isinstance(space, Dict | Tuple):
        return "; ".join(
            f"{name}: {format_space(part)}" for name, part in list_parts(space).items()
        )
    if not isinstance(space, Box):
        return str(space)
    low, high = float(np.min(space.low)), float(np.max(space.high))
    bounds = f", {low:g} to {high:g}" if space.is_bounded else ""
    return f"{space.dtype} {list(space.shape)}{bounds}"


def is_stdout_terminal() -> bool:
    """Return whether standard output is a terminal."""
    return sys.stdout.isatty()
