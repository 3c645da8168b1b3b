"""config.yaml as a specification. What was changed by hand is read like anything that a user writes: by type, range and name.

Nothing in the file is executed, and no module is imported because the file names it.
"""

import dataclasses
from pathlib import Path
from typing import Any

import yaml

from rollax.config import checked, traced_fields
from rollax.errors import UnknownNameError, UsageError
from rollax.host.settings import (
    CUSTOM,
    MOST_FRAMES_PER_LINE,
    MOST_UPDATES_PER_LINE,
    RunOptions,
    Spec,
    check_members,
    check_sizes,
    entry,
    from_yaml,
    naming_imports,
    ranges_of,
    settings_of,
    swept_values,
)
from rollax.typed import hints, shown, typed

MOST_BYTES = 10_000_000
LATER = {"sweep_paired": False}  # options that a run folder of an earlier version lacks
MOST_NODES, DEEPEST = 100_000, 20  # of the values in it
REMEDY = "mend it, bring an earlier version back, or train a new run"


def document_of(path: Path) -> dict[str, Any]:
    """The values of the file: dictionaries, lists, texts and numbers. Raises UsageError for anything else."""
    try:
        if path.stat().st_size > MOST_BYTES:
            raise UsageError(f"{path} has more than {MOST_BYTES:,} bytes, more than a run writes: {REMEDY}")
        text = path.read_text(encoding="utf-8")
        _check_keys(path, yaml.compose(text, yaml.SafeLoader))
        document = yaml.safe_load(text)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error}") from error
    except (yaml.YAMLError, ValueError, RecursionError, OverflowError) as error:  # the last from dates and long numbers
        if isinstance(error, UsageError):
            raise
        raise UsageError(f"{path} is not valid YAML: {error}: {REMEDY}") from error
    if not isinstance(document, dict):
        raise UsageError(f"{path} must be a dictionary, not {shown(document)}: {REMEDY}")
    _check_plain(path, document)
    return document


def _check_keys(path: Path, root: yaml.Node | None) -> None:
    """Raises UsageError for a key that a dictionary has twice, of which YAML would take the last."""
    nodes, seen = [root], set()
    while nodes:
        node = nodes.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, yaml.MappingNode):
            keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
            twice = sorted({key for key in keys if keys.count(key) > 1})
            if twice:
                raise UsageError(f"{path}: the key {shown(twice[0])} is there twice: remove one")
            nodes += [value for _, value in node.value]
        elif isinstance(node, yaml.SequenceNode):
            nodes += node.value


def _check_plain(path: Path, document: Any) -> None:
    """Raises UsageError for values that no run writes, and for those that go round in circles."""
    left, count = [("", document, 0)], 0
    while left:
        name, value, depth = left.pop()
        count += 1
        if count > MOST_NODES or depth > DEEPEST:
            raise UsageError(f"{path}: {name} holds more than a run writes, or itself: {REMEDY}")
        if isinstance(value, dict):
            left += [(f"{name}.{key}".lstrip("."), part, depth + 1) for key, part in value.items()]
        elif isinstance(value, list):
            left += [(f"{name}[{i}]", part, depth + 1) for i, part in enumerate(value)]
        elif not isinstance(value, str | int | float | None):
            kind = type(value).__name__
            raise UsageError(f"{path}: {name} ({shown(value)}) is a {kind}: it must be a text, a number, true, false or null")


def spec_of(document: dict[str, Any]) -> Spec:
    """The specification. Raises UsageError that names the key of what is missing, unknown, of another type or out of range."""
    fields = [field.name for field in dataclasses.fields(Spec)]
    _check_names("", document, ["rollax", "format", *fields])
    wanted = hints(Spec)
    values = {name: typed(name, document[name], wanted[name]) for name in fields if name not in _PARTS}
    with naming_imports(values["imports"]):
        kinds = entry(values["algorithm"])
    config = checked(_part("config", kinds.config, document["config"]), "config.")
    network = document["network"]
    if network != CUSTOM:
        network = checked(_part("network", kinds.network_config, network), "network.")
        kinds.check(config, network)
    options = _part("options", RunOptions, LATER | typed("options", document["options"], dict[str, Any]))
    options.check()
    if options.total_steps is None:
        raise UsageError("options.total_steps (None) must be a whole number")
    known = [name for name in traced_fields(kinds.config) if name != "total_updates"]
    values["sweep"] = swept_values(values["sweep"], kinds.config, known)
    evolve = ranges_of(document["evolve"], kinds.config, known)
    check_members(values["sweep"], evolve, options)
    spec = Spec(**values, config=config, network=network, options=options, evolve=evolve)
    check_sizes(spec)
    _check_rhythm(spec)
    return spec


_PARTS = ("config", "network", "options", "evolve")  # with checks of their own


def _part(name: str, kind: type, values: Any) -> Any:
    """Settings of which every one must be there."""
    values = from_yaml(kind, typed(name, values, dict[str, Any]))
    fields = [field.name for field in dataclasses.fields(kind)]
    _check_names(f"{name}.", values, fields)
    wanted = hints(kind)
    return settings_of(name, kind, {}, {field: typed(f"{name}.{field}", values[field], wanted[field]) for field in fields})


def _check_names(prefix: str, values: dict[str, Any], known: list[str]) -> None:
    for name in values:
        if name not in known:
            raise UnknownNameError("key", f"{prefix}{name}", [f"{prefix}{name}" for name in known])
    missing = [name for name in known if name not in values]
    if missing:
        raise UsageError(f"the key {prefix}{missing[0]} is missing: {REMEDY}")


def _check_rhythm(spec: Spec) -> None:
    """Raises UsageError for a rhythm of lines, evaluations and generations that no run has."""
    line = spec.updates_per_line
    most = max(MOST_UPDATES_PER_LINE, MOST_FRAMES_PER_LINE)  # the latter with one environment on the host
    if not 1 <= line <= most:
        raise UsageError(f"updates_per_line ({shown(line)}) must be between 1 and {most}")
    for name in ("updates_per_evaluation", "updates_per_generation"):
        updates = getattr(spec, name)
        if updates < 0 or updates % line:
            raise UsageError(f"{name} ({shown(updates)}) must be a multiple of updates_per_line ({line}), or 0 for none")
