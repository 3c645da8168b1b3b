"""What a run was given besides its preset, and how it is trained again: as a command, or in Python where no command can."""

import dataclasses
import inspect
import json
import math
import shlex
from collections.abc import Mapping
from typing import Any, NamedTuple

from rollax.config import checked
from rollax.environments import registry
from rollax.errors import UsageError
from rollax.host.options import RunOptions
from rollax.host.presets import preset
from rollax.host.settings import CUSTOM, DEFAULT_TOTAL_STEPS, Spec, entry, settings_of

ELSEWHERE = ("run_dir", "tensorboard", "wandb", "trackio")  # where things go says nothing of what is learnt or measured
ENVIRONMENTS = ("env.", "eval-env.")


class Setting(NamedTuple):
    """A setting of a run by its name on the command line, such as "config.gamma"."""

    name: str
    value: Any
    preset: Any  # what the pair of algorithm and environment is tuned with
    default: Any  # what any other has

    @property
    def is_given(self) -> bool:
        """Whether the run was given it: it is not what the preset has."""
        return not _is_same(self.value, self.preset)

    @property
    def is_tuned(self) -> bool:
        """Whether it is the preset's, which is not the default."""
        return not self.is_given and not _is_same(self.value, self.default)


def settings(spec: Spec) -> list[Setting]:
    """All settings of a run, those of its environment only as far as they are given or tuned.

    Swept and evolving ones have the value that the run would have without. Presets are those of this version.
    """
    kinds, tuned = entry(spec.algorithm), preset(spec.algorithm, spec.environment)
    options, plain = spec.options, RunOptions()
    found = [Setting("total_steps", options.total_steps, tuned.total_steps or DEFAULT_TOTAL_STEPS, DEFAULT_TOTAL_STEPS)]
    names = [field.name for field in dataclasses.fields(RunOptions) if field.name not in ("total_steps", *ELSEWHERE)]
    found += [Setting(name, getattr(options, name), getattr(plain, name), getattr(plain, name)) for name in names]
    config = settings_of("config", kinds.config, tuned.config, None)
    found += _fields("config.", spec.config, checked(config), kinds.config())
    if spec.network != CUSTOM:
        network = settings_of("network", kinds.network_config, tuned.network, None)
        found += _fields("network.", spec.network, checked(network, "network."), kinds.network_config())
    if spec.own_environment:
        return found
    found += _arguments("env.", spec.arguments, tuned.arguments, _defaults(spec.environment))
    differing = {} if spec.opponents else registry.evaluation_arguments(spec.environment)
    return found + _arguments("eval-env.", spec.eval_arguments, differing, spec.arguments | differing)


def _fields(prefix: str, given: Any, tuned: Any, default: Any) -> list[Setting]:
    """How long training is, the total steps say."""
    names = [field.name for field in dataclasses.fields(given) if field.name != "total_updates"]
    return [Setting(prefix + name, *(getattr(each, name) for each in (given, tuned, default))) for name in names]


def _arguments(prefix: str, given: Mapping, tuned: Mapping, defaults: Mapping) -> list[Setting]:
    names = dict.fromkeys([*given, *tuned])
    of = lambda values, name: values.get(name, tuned.get(name, defaults.get(name)))  # noqa: E731
    return [Setting(prefix + n, of(given, n), tuned.get(n, defaults.get(n)), defaults.get(n)) for n in names]


def _defaults(environment: str) -> dict[str, Any]:
    """The arguments of an environment; none where its suite is not installed."""
    try:
        known = registry.arguments(environment)
    except UsageError:
        return {}
    return {name: value for name, value in known.items() if value is not inspect.Parameter.empty}


def _is_same(a: Any, b: Any) -> bool:
    """Also of texts, as a command line gives arguments of environments, and of arrays."""
    return str(a) == str(b)


def needs_python(spec: Spec) -> bool:
    """Whether no command has what the run was given: objects of the user's own."""
    return spec.own_environment or spec.network == CUSTOM


def command(spec: Spec, folder: str, rollax: str = "rollax") -> str:
    """The command that trains the run again. `folder`: of the run, which has copies of its opponents' policies."""
    words = [rollax, "train", spec.algorithm, spec.environment]
    for setting in settings(spec):
        if setting.is_given:
            words += _option(setting)
    words += [word for name, values in spec.sweep.items() for word in (f"--sweep.{_dashed(name)}", *map(str, values))]
    for name, span in spec.evolve.items():
        words += [f"--evolve.{_dashed(name)}", str(span.low), str(span.high), span.scale]
    words += [word for kind, run in spec.opponents.items() for word in (f"--opponents.{kind}", f"{folder}/{run}")]
    words += [word for module in spec.imports for word in ("--import", module)]
    return shlex.join(words)


def _option(setting: Setting) -> list[str]:
    """The words of an option, as `rollax train` takes them."""
    prefix, dot, name = setting.name.rpartition(".")
    option, value = f"--{prefix}{dot}{_dashed(name)}", setting.value
    if setting.name.startswith(ENVIRONMENTS):
        return [option, value if isinstance(value, str) else json.dumps(value)]
    if isinstance(value, bool):
        return [option if value else f"--{prefix}{dot}no-{_dashed(name)}"]
    return [option, *map(str, value if isinstance(value, tuple) else (value,))]


def _dashed(name: str) -> str:
    return name.replace("_", "-")


def program(spec: Spec, folder: str) -> str:
    """The lines of Python that train the run again; what is no plain value is passed by a name."""
    groups: dict[str, dict[str, Any]] = {"config": {}, "network": {}, "arguments": {}, "eval_arguments": {}, "options": {}}
    group_of = {"config": "config", "network": "network", "env": "arguments", "eval-env": "eval_arguments", "": "options"}
    for setting in settings(spec):
        prefix, _, name = setting.name.rpartition(".")
        if setting.is_given:
            groups[group_of[prefix]][name] = setting.value
    groups["sweep"] = dict(spec.sweep)
    groups["evolve"] = {name: (span.low, span.high, span.scale) for name, span in spec.evolve.items()}
    groups["opponents"] = {kind: f"{folder}/{run}" for kind, run in spec.opponents.items()}
    lines = ["import rollax", "", "result = rollax.train(", f"    {_literal(spec.algorithm)},"]
    lines += ["    environment,  # the one that was passed" if spec.own_environment else f"    {_literal(spec.environment)},"]
    lines += ["    network=network,  # the function that was passed"] if spec.network == CUSTOM else []
    lines += [f"    {name}={_literal(values)}," for name, values in groups.items() if values]
    return "\n".join([*lines, ")"])


def _literal(value: Any) -> str:
    """A plain value as Python has it, with double quotes; what is not finite by its name."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_literal(name)}: {_literal(part)}" for name, part in value.items()) + "}"
    if isinstance(value, list | tuple):
        inner = ", ".join(map(_literal, value))
        return f"[{inner}]" if isinstance(value, list) else f"({inner},)" if len(value) == 1 else f"({inner})"
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)
