"""Reproduction of a run: commands and scripts with all settings that differ from the preset."""

import dataclasses
import inspect
import json
import math
import shlex
from collections.abc import Mapping
from typing import Any, NamedTuple

from rollax.config import CUSTOM, DataclassInstance, UserFunction, user_functions
from rollax.environments import registry
from rollax.errors import UsageError
from rollax.training.options import RunOptions
from rollax.training.presets import Preset, load_preset
from rollax.training.spec import DEFAULT_TOTAL_STEPS, Spec, get_algorithm_entry
from rollax.types import SettingValues
from rollax.user_input.settings_validation import resolve_settings, validate_settings

# Output options, which do not affect training or evaluation.
OUTPUT_OPTIONS = ("run_dir", "tensorboard", "wandb", "trackio")
PRESET_OPTIONS = ("total_steps", "eval_stochastic")  # run options that presets may set
ENVIRONMENT_PREFIXES = ("env.", "eval-env.")


class Setting(NamedTuple):
    """Setting of a run, with its preset value and default value.

    Attributes:
        name: Name on the command line, for example `config.gamma`.
        value: Value in the run.
        preset: Value of the preset for this algorithm and environment.
        default: Default without a preset.
    """

    name: str
    value: Any
    preset: Any
    default: Any

    @property
    def is_overridden(self) -> bool:
        """Whether the value differs from the preset."""
        return not _is_same(self.value, self.preset)

    @property
    def is_default(self) -> bool:
        """Whether the value equals the default without a preset."""
        return _is_same(self.value, self.default)

    @property
    def is_tuned(self) -> bool:
        """Whether the value comes from the preset and differs from the default."""
        return not self.is_overridden and not self.is_default


def list_settings(spec: Spec) -> list[Setting]:
    """Return the settings of a run, each with its preset value and default value.

    Environment arguments are included only if the run or the preset sets them. Swept and evolving
    settings have the value from the config, before the sweep or evolution. Presets are read from
    the installed version of rollax.

    Args:
        spec: Specification of the run.

    Returns:
        The settings.
    """
    entry, preset = (
        get_algorithm_entry(spec.algorithm),
        load_preset(spec.algorithm, spec.environment),
    )
    settings = _list_option_settings(spec.options, preset)
    config = resolve_settings("config", entry.config, preset.config, None)
    settings += _list_field_settings(
        "config.", spec.config, validate_settings(config), entry.config()
    )
    if spec.network != CUSTOM:
        network = resolve_settings("network", entry.network_config, preset.network, None)
        settings += _list_field_settings(
            "network.", spec.network, validate_settings(network, "network."), entry.network_config()
        )
    if spec.own_environment:
        return settings
    settings += _list_argument_settings(
        "env.", spec.arguments, preset.arguments, _default_arguments(spec.environment)
    )
    differing = {} if spec.opponents else registry.evaluation_arguments(spec.environment)
    return settings + _list_argument_settings(
        "eval-env.", spec.eval_arguments, differing, spec.arguments | differing
    )


def describe_evolving_settings(spec: Spec) -> dict[str, str]:
    """Return the range and scale of each evolving setting as text, keyed by `config.<name>`."""
    return {
        f"config.{name}": f"evolves from {span.low:g} to {span.high:g} ({span.scale})"
        for name, span in spec.evolve.items()
    }


def _list_option_settings(options: RunOptions, preset: Preset) -> list[Setting]:
    """Return the options of a run that affect training or evaluation, as `Setting` values."""
    total_steps = Setting(
        "total_steps",
        value=options.total_steps,
        preset=preset.total_steps or DEFAULT_TOTAL_STEPS,
        default=DEFAULT_TOTAL_STEPS,
    )
    eval_stochastic = Setting(
        "eval_stochastic",
        value=bool(options.eval_stochastic),
        preset=preset.eval_stochastic,
        default=False,
    )
    defaults = vars(RunOptions())
    others = [
        Setting(name, value=value, preset=defaults[name], default=defaults[name])
        for name, value in vars(options).items()
        if name not in (*PRESET_OPTIONS, *OUTPUT_OPTIONS)
    ]
    return [total_steps, eval_stochastic, *others]


def _list_field_settings(
    prefix: str, settings: DataclassInstance, preset: DataclassInstance, default: DataclassInstance
) -> list[Setting]:
    """Return the fields of a settings dataclass, without the derived field `total_updates`."""
    return [
        Setting(
            f"{prefix}{name}", value=value, preset=vars(preset)[name], default=vars(default)[name]
        )
        for name, value in vars(settings).items()
        if name != "total_updates"
    ]


def _list_argument_settings(
    prefix: str,
    arguments: SettingValues,
    preset: SettingValues,
    defaults: SettingValues,
) -> list[Setting]:
    preset_values = {
        name: preset.get(name, defaults.get(name)) for name in dict.fromkeys([*arguments, *preset])
    }
    return [
        Setting(
            f"{prefix}{name}",
            value=arguments.get(name, preset_value),
            preset=preset_value,
            default=defaults.get(name),
        )
        for name, preset_value in preset_values.items()
    ]


def _default_arguments(environment: str) -> dict[str, Any]:
    """Return the default arguments of an environment. Empty if its suite is not installed."""
    try:
        defaults = registry.default_arguments(environment)
    except UsageError:
        return {}
    return {name: value for name, value in defaults.items() if value is not inspect.Parameter.empty}


def _is_same(first: object, second: object) -> bool:
    """Return whether two values have the same text. Command-line values are text."""
    return str(first) == str(second)


def needs_python(spec: Spec) -> bool:
    """Return whether a run uses Python objects that a command cannot express."""
    return spec.own_environment or spec.network == CUSTOM or bool(user_functions(spec.config))


def format_train_command(spec: Spec, folder: str, rollax: str = "rollax") -> str:
    """Format the command that repeats a run.

    Args:
        spec: Specification of the run.
        folder: Run folder, which contains copies of the opponents' policies.
        rollax: Program name at the start of the command.

    Returns:
        The command with shell quoting.
    """
    spec = _with_stored_opponents(spec, folder)
    arguments = [rollax, "train", spec.algorithm, spec.environment]
    for setting in list_settings(spec):
        if setting.is_overridden:
            arguments += _format_option(setting)
    arguments += [
        argument
        for name, values in spec.sweep.items()
        for argument in (f"--sweep.{_to_dashes(name)}", *map(str, values))
    ]
    for name, span in spec.evolve.items():
        arguments += [f"--evolve.{_to_dashes(name)}", str(span.low), str(span.high), span.scale]
    for name, (low, high) in spec.randomize.items():
        arguments += [f"--randomize.{_to_dashes(name)}", str(low), str(high)]
    for name, points in spec.curriculum.items():
        arguments += [f"--curriculum.{_to_dashes(name)}", *map(str, points)]
    arguments += [
        argument
        for kind, run in spec.opponents.items()
        for argument in (f"--opponents.{kind}", run)
    ]
    arguments += [argument for module in spec.imports for argument in ("--import", module)]
    return shlex.join(arguments)


def _with_stored_opponents(spec: Spec, folder: str) -> Spec:
    """Return the specification with the paths of the copies of opponents in the run folder."""
    runs = tuple(f"{folder}/{run}" for run in spec.options.opponent_pool_runs)
    return dataclasses.replace(
        spec,
        opponents={kind: f"{folder}/{run}" for kind, run in spec.opponents.items()},
        options=dataclasses.replace(spec.options, opponent_pool_runs=runs),
    )


def _format_option(setting: Setting) -> list[str]:
    """Return the words of an option of `rollax train`."""
    prefix, dot, name = setting.name.rpartition(".")
    option, value = f"--{prefix}{dot}{_to_dashes(name)}", setting.value
    if setting.name.startswith(ENVIRONMENT_PREFIXES):
        return [option, value if isinstance(value, str) else json.dumps(value)]
    if isinstance(value, bool):
        return [option if value else f"--{prefix}{dot}no-{_to_dashes(name)}"]
    return [option, *map(str, value if isinstance(value, tuple) else (value,))]


def _to_dashes(name: str) -> str:
    return name.replace("_", "-")


def format_train_script(spec: Spec, folder: str) -> str:
    """Format the Python script that repeats a run.

    Args:
        spec: Specification of the run.
        folder: Run folder, which contains copies of the opponents' policies.

    Returns:
        The script. A custom environment or network appears as a variable.
    """
    spec = _with_stored_opponents(spec, folder)
    groups: dict[str, dict[str, Any]] = {
        "config": {},
        "network": {},
        "arguments": {},
        "eval_arguments": {},
        "options": {},
    }
    group_of = {
        "config": "config",
        "network": "network",
        "env": "arguments",
        "eval-env": "eval_arguments",
        "": "options",
    }
    for setting in list_settings(spec):
        prefix, _, name = setting.name.rpartition(".")
        if setting.is_overridden and not isinstance(setting.value, UserFunction):
            groups[group_of[prefix]][name] = setting.value
    groups["sweep"] = dict(spec.sweep)
    groups["evolve"] = {
        name: (span.low, span.high, span.scale) for name, span in spec.evolve.items()
    }
    groups["randomize"] = dict(spec.randomize)
    groups["curriculum"] = dict(spec.curriculum)
    groups["opponents"] = dict(spec.opponents)
    lines = [
        "import rollax",
        "",
        "result = rollax.train(",
        f"    {_format_literal(spec.algorithm)},",
    ]
    lines += [
        "    environment,  # the one that was passed"
        if spec.own_environment
        else f"    {_format_literal(spec.environment)},"
    ]
    lines += (
        ["    network=network,  # the function that was passed"] if spec.network == CUSTOM else []
    )
    lines += [
        f"    {name}={name},  # the one that was passed" for name in user_functions(spec.config)
    ]
    lines += [f"    {name}={_format_literal(values)}," for name, values in groups.items() if values]
    return "\n".join([*lines, ")"])


def _format_literal(value: object) -> str:
    """Format a plain value as Python code with double quotes."""
    if isinstance(value, Mapping):
        return (
            "{"
            + ", ".join(
                f"{_format_literal(name)}: {_format_literal(part)}" for name, part in value.items()
            )
            + "}"
        )
    if isinstance(value, list | tuple):
        inner = ", ".join(map(_format_literal, value))
        return (
            f"[{inner}]"
            if isinstance(value, list)
            else f"({inner},)"
            if len(value) == 1
            else f"({inner})"
        )
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)
