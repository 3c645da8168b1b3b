"""Parsing of config.yaml into a specification, with the same checks as for user input.

The content of the file is never executed, and modules that it names are not imported here.
"""

import collections
import dataclasses
from pathlib import Path
from typing import Any

import yaml

from rollax.algorithms.registry import AlgorithmEntry
from rollax.config import CUSTOM, UserFunction, coerce_setting, traced_field_names
from rollax.errors import UsageError
from rollax.replay.demonstrations import RunDemonstrations
from rollax.runtime.printing import escape_control_characters, escape_to_one_line
from rollax.synonyms.lookup import UnknownSettingError
from rollax.training.run_folder.files import read_regular_file
from rollax.training.run_folder.phases import parse_phases
from rollax.training.spec import (
    MAX_FRAMES_PER_LINE,
    MAX_UPDATES_PER_LINE,
    RunOptions,
    Spec,
    check_population,
    check_step_counts,
    explain_missing_imports,
    get_algorithm_entry,
)
from rollax.training.value_ranges import (
    check_curriculum,
    parse_curriculum,
    parse_evolve_ranges,
    parse_randomized_ranges,
    parse_sweep_values,
)
from rollax.types import Record, SettingValues
from rollax.user_input.coercion import coerce, field_types, format_value
from rollax.user_input.settings_validation import (
    parse_yaml_values,
    resolve_settings,
    validate_settings,
)

MAX_FILE_BYTES = 1_000_000
MAX_NUMBER_LENGTH = 500  # characters
# Defaults of options and settings that run folders of earlier versions lack.
NEW_OPTION_DEFAULTS = {
    "sweep_paired": False,
    "evolve_metric": None,
    "stop_when": None,
    "eval_seed": None,
    "env_restarts": 0,
    "init_from": None,
    "init_checkpoint": "best",
    "init_parts": [],
    "init_strict": False,
    "opponent_pool": 0,
    "opponent_pool_every": None,
    "opponent_pool_fraction": 0.5,
    "opponent_pool_sampling": "uniform",
    "opponent_pool_power": 2.0,
    "opponent_pool_types": [],
    "opponent_pool_runs": [],
    "curriculum_returns": [],
    "demonstrations": None,
}
NEW_CONFIG_DEFAULTS = {
    "frozen": [],
    "frozen_fraction": 1.0,
    "optimizer": "adam",
    "weight_decay": 0.0,
    "learning_rate_schedule": "linear",
    "learning_rate_warmup_fraction": 0.0,
    "discrete_target_entropy": 0.5,
    "learning_rate_kl": 0.01,
    "gradient_accumulation": 1,
    "sde_sample_freq": 0.0,
}
# Settings of networks that run folders of earlier versions may lack. They have their defaults.
NEW_NETWORK_SETTINGS = ("std", "initial_std", "noisy")
# Defaults of keys that run folders of earlier versions lack.
NEW_KEY_DEFAULTS: Record = {
    "phases": [],
    "randomize": {},
    "curriculum": {},
    "updates_per_version": 0,
    "demonstrations": {},
}
MAX_VALUES = 256  # values of one setting, such as layer sizes
MAX_NODES, MAX_DEPTH = 100_000, 20  # of the values in the file
# The C loader is ten times as fast.
YAML_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
INVALID_FILE_REMEDY = "Correct it, restore an earlier version, or train a new run."


def read_yaml_document(path: Path) -> dict[str, Any]:
    """Read a YAML file into dictionaries, lists, strings and numbers.

    Args:
        path: Path of the file.

    Returns:
        The dictionary in the file.

    Raises:
        UsageError: If the file cannot be read, or contains values of other types.
    """
    try:
        text = read_regular_file(path, MAX_FILE_BYTES).decode("utf-8")
        _check_document_size(path, text)
        loader = YAML_LOADER(text)
        root = loader.get_single_node()
        _check_nodes(path, root)
        document = None if root is None else loader.construct_document(root)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error}.") from error
    # Dates and long numbers raise OverflowError.
    except (yaml.YAMLError, ValueError, RecursionError, OverflowError) as error:
        if isinstance(error, UsageError):
            raise
        raise UsageError(f"{path} is not valid YAML: {error}. {INVALID_FILE_REMEDY}") from error
    if not isinstance(document, dict):
        raise UsageError(
            f"{path} must be a dictionary, got {format_value(document)}. {INVALID_FILE_REMEDY}"
        )
    _check_plain_values(path, document)
    return document


def _check_document_size(path: Path, text: str) -> None:
    """Raise UsageError for more values, or deeper nesting, than a run writes.

    Deep nesting could crash the recursive YAML loader. This check reads parser events instead,
    which is not recursive.
    """
    count, depth = 0, 0
    for event in yaml.parse(text, Loader=YAML_LOADER):
        count += isinstance(event, yaml.NodeEvent)
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(
            event, yaml.CollectionEndEvent
        )
        if count > MAX_NODES or depth > MAX_DEPTH:
            raise UsageError(
                f"{path} contains more values than a run writes, or itself. {INVALID_FILE_REMEDY}"
            )


def _check_nodes(path: Path, root: yaml.Node | None) -> None:
    """Raise UsageError for duplicate keys, merged dictionaries and very long numbers.

    YAML would silently use the last of several duplicate keys. Merged dictionaries, which may grow
    without limit, and very long numbers take long to build.
    """
    nodes, seen = [root], set()
    while nodes:
        node = nodes.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, yaml.MappingNode):
            keys = collections.Counter(
                key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)
            )
            duplicates = sorted(key for key, number in keys.items() if number > 1)
            if duplicates:
                raise UsageError(
                    f"{path}: the key {format_value(duplicates[0])} occurs twice. Remove one."
                )
            if any(key.tag == "tag:yaml.org,2002:merge" for key, _ in node.value):
                raise UsageError(
                    f"{path}: the key '<<' of YAML is not supported. Write all settings explicitly."
                )
            nodes += [part for pair in node.value for part in pair]
        elif isinstance(node, yaml.ScalarNode):
            if node.tag != "tag:yaml.org,2002:str" and len(node.value) > MAX_NUMBER_LENGTH:
                raise UsageError(
                    f"{path}: a number must have at most {MAX_NUMBER_LENGTH} characters, got "
                    f"{len(node.value):,}. Shorten it."
                )
        elif isinstance(node, yaml.SequenceNode):
            nodes += node.value


def _check_plain_values(path: Path, document: object) -> None:
    """Raise UsageError for values that a run never writes, and for circular references."""
    pending, count = [("", document, 0)], 0
    while pending:
        name, value, depth = pending.pop()
        count += 1
        if count > MAX_NODES or depth > MAX_DEPTH:
            raise UsageError(
                f"{path}: {name} contains more values than a run writes, or itself. "
                f"{INVALID_FILE_REMEDY}"
            )
        if isinstance(value, dict):
            unprintable = [
                key for key in value if isinstance(key, str) and escape_to_one_line(key) != key
            ]
            if unprintable:
                raise UsageError(
                    f"{path}: the key {format_value(unprintable[0])} must have no control "
                    f"characters. {INVALID_FILE_REMEDY}"
                )
            pending += [
                (f"{name}.{_format_key(key)}".lstrip("."), part, depth + 1)
                for key, part in value.items()
            ]
        elif isinstance(value, list):
            pending += [(f"{name}[{i}]", part, depth + 1) for i, part in enumerate(value)]
        elif isinstance(value, str) and _escape_value(name, value) != value:
            raise UsageError(
                f"{path}: {name} ({format_value(value)}) must have no control characters. "
                f"{INVALID_FILE_REMEDY}"
            )
        elif not isinstance(value, str | int | float | None):
            kind = type(value).__name__
            raise UsageError(
                f"{path}: {name} must be a string, a number, true, false or null, got "
                f"{format_value(value)} ({kind})."
            )


def _escape_value(name: str, value: str) -> str:
    """Return a string of the file with escapes. Only environment arguments have several lines."""
    has_lines = name.startswith(("arguments.", "eval_arguments.", "sweep.", "when."))
    return escape_control_characters(value) if has_lines else escape_to_one_line(value)


def _format_key(key: object) -> str:
    """Format a key for messages."""
    return escape_to_one_line(str(key)) if isinstance(key, str) else format_value(key)


def parse_spec(document: Record) -> Spec:
    """Convert the values of config.yaml to a specification.

    Args:
        document: Values of the file.

    Returns:
        The specification.

    Raises:
        UsageError: If a key is missing or unknown, or a value has the wrong type or is out of
            range.
    """
    document = NEW_KEY_DEFAULTS | document
    fields = [field.name for field in dataclasses.fields(Spec)]
    _check_keys("", document, ["rollax", "format", *fields])
    types = field_types(Spec)
    values = {
        name: coerce(name, document[name], types[name]) for name in fields if name not in _SECTIONS
    }
    with explain_missing_imports(values["imports"]):
        entry = get_algorithm_entry(values["algorithm"])
    known = [field.name for field in dataclasses.fields(entry.config)]
    defaults = {name: value for name, value in NEW_CONFIG_DEFAULTS.items() if name in known}
    section = defaults | coerce("config", document["config"], dict[str, Any])
    config = validate_settings(parse_section("config", entry.config, section), "config.")
    network = document["network"]
    if network != CUSTOM:
        section = new_network_defaults(entry) | coerce("network", network, dict[str, Any])
        network = validate_settings(
            parse_section("network", entry.network_config, section), "network."
        )
        entry.check(config, network)
    options = parse_section(
        "options",
        RunOptions,
        NEW_OPTION_DEFAULTS | coerce("options", document["options"], dict[str, Any]),
    )
    options.check()
    if options.total_steps is None:
        raise UsageError("options.total_steps must be an integer, got None.")
    traced = [name for name in traced_field_names(entry.config) if name != "total_updates"]
    values["sweep"] = parse_sweep_values(values["sweep"], entry.config, traced)
    values["randomize"] = parse_randomized_ranges(values["randomize"])
    values["curriculum"] = parse_curriculum(values["curriculum"])
    check_curriculum(values["curriculum"], values["randomize"], options)
    evolve = parse_evolve_ranges(document["evolve"], entry.config, traced)
    check_population(values["sweep"], evolve, options)
    spec = Spec(
        **values,
        config=config,
        network=network,
        options=options,
        evolve=evolve,
        phases=parse_phases(document["phases"]),
        demonstrations=_parse_demonstrations(document["demonstrations"]),
    )
    check_step_counts(spec)
    _check_intervals(spec)
    return spec


def new_network_defaults(entry: AlgorithmEntry) -> dict[str, Any]:
    """Return the defaults of the settings of a network that earlier versions lack."""
    return {
        field.name: field.default
        for field in dataclasses.fields(entry.network_config)
        if field.name in NEW_NETWORK_SETTINGS
    }


# Sections with separate checks.
_SECTIONS = ("config", "network", "options", "evolve", "phases", "demonstrations")


def _parse_demonstrations(section: object) -> RunDemonstrations:
    """Convert the section of demonstrations, whose arrays are in another file."""
    values = coerce("demonstrations", section, dict[str, str])
    _check_keys("demonstrations.", {"sha256": ""} | values, ["sha256"])
    return RunDemonstrations(**values)


def parse_section(name: str, settings_class: type, section: object) -> Any:
    """Convert a section of config.yaml to settings.

    Args:
        name: Name of the section.
        settings_class: Class of the settings.
        section: Values of the section, which must contain every setting.

    Returns:
        The settings.

    Raises:
        UsageError: If a key is missing or unknown, or a value has the wrong type.
    """
    values = parse_yaml_values(settings_class, coerce(name, section, dict[str, Any]))
    for field, value in values.items():
        if isinstance(value, list) and len(value) > MAX_VALUES:
            raise UsageError(
                f"{name}.{field} must have at most {MAX_VALUES} values, got {len(value):,}. "
                f"{INVALID_FILE_REMEDY}"
            )
    fields = [field.name for field in dataclasses.fields(settings_class)]
    _check_keys(f"{name}.", values, fields)
    converted = {}
    for field in dataclasses.fields(settings_class):
        takes_function = field.metadata.get("takes_function")
        is_custom = takes_function and values[field.name] == CUSTOM
        value = UserFunction() if is_custom else values[field.name]
        converted[field.name] = coerce_setting(f"{name}.{field.name}", value, settings_class, field)
    return resolve_settings(name, settings_class, {}, converted)


def _check_keys(prefix: str, values: SettingValues, known: list[str]) -> None:
    for name in values:
        if name not in known:
            raise UnknownSettingError(
                "key", f"{prefix}{name}", [f"{prefix}{name}" for name in known]
            )
    missing = [name for name in known if name not in values]
    if missing:
        raise UsageError(f"the key {prefix}{missing[0]} is missing. {INVALID_FILE_REMEDY}")


def _check_intervals(spec: Spec) -> None:
    """Raise UsageError for invalid intervals of metric lines, evaluations or generations."""
    line = spec.updates_per_line
    # MAX_FRAMES_PER_LINE is reached with one environment on the host.
    longest = max(MAX_UPDATES_PER_LINE, MAX_FRAMES_PER_LINE)
    if not 1 <= line <= longest:
        raise UsageError(
            f"updates_per_line must be between 1 and {longest}, got {format_value(line)}."
        )
    intervals = {
        "updates_per_evaluation": spec.updates_per_evaluation,
        "updates_per_generation": spec.updates_per_generation,
    }
    if (spec.updates_per_version > 0) != (spec.options.opponent_pool > 0):
        raise UsageError(
            "updates_per_version must be positive with a pool of opponents and 0 without one, got "
            f"{format_value(spec.updates_per_version)}."
        )
    for name, updates in intervals.items():
        if updates < 0 or updates % line:
            raise UsageError(
                f"{name} must be 0 or a multiple of updates_per_line ({line}), got "
                f"{format_value(updates)}."
            )
