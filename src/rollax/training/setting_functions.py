"""Functions that the user passes to settings: optimizers and schedules of learning rates.

The settings of a run contain them as `rollax.config.UserFunction`. A run folder does not store
functions, so a resume receives them again. Evaluations do not need them.
"""

import dataclasses
from typing import cast

from rollax.algorithm import Config
from rollax.config import user_functions
from rollax.errors import UnknownNameError, UsageError
from rollax.training.spec import Spec
from rollax.types import SettingValues
from rollax.user_input.coercion import coerce_dict


def add_functions(
    config: Config | SettingValues | None, **functions: object
) -> Config | SettingValues | None:
    """Return the settings of the algorithm with arguments of `rollax.train` that are settings too.

    Args:
        config: Settings, a dictionary of settings, or None.
        **functions: Optimizer and schedule, keyed by the name of the setting. None is omitted.

    Raises:
        UsageError: If a setting is passed twice.
    """
    passed = {name: value for name, value in functions.items() if value is not None}
    if not passed:
        return config
    if dataclasses.is_dataclass(config) and not isinstance(config, type):
        unknown = [name for name in passed if name not in vars(config)]
        if unknown:
            raise UnknownNameError("setting", unknown[0], list(vars(config)))
        return dataclasses.replace(config, **passed)
    settings = coerce_dict("config", cast("SettingValues | None", config))
    for name in passed:
        if name in settings:
            raise UsageError(f"{name} is given twice. Remove it from config, or as an argument.")
    return settings | passed


def restore_functions(spec: Spec, **functions: object) -> Spec:
    """Return the specification of a stored run with the functions that the user passes again.

    Args:
        spec: Specification from config.yaml.
        **functions: Optimizer and schedule, keyed by the name of the setting, or None.

    Raises:
        UsageError: If a function of the run is missing, or is replaced by the name of a choice.
    """
    stored = user_functions(spec.config)
    for name in stored:
        if functions[name] is None:
            raise UsageError(f"This run used a custom {name}. Pass it again as {name}=...")
        if isinstance(functions[name], str):
            raise UsageError(
                f"{name} must be the object that this run was started with, got "
                f"{functions[name]!r}. To change it, train a new run with init_from=RUN."
            )
    return dataclasses.replace(
        spec, config=dataclasses.replace(spec.config, **{n: functions[n] for n in stored})
    )


def add_known_functions(spec: Spec, **functions: object) -> Spec:
    """Return the specification of a run that is only read, with the functions that are known.

    Args:
        spec: Specification from config.yaml.
        **functions: Optimizer and schedule, keyed by the name of the setting, or None.
    """
    known = {n: functions[n] for n in user_functions(spec.config) if functions.get(n) is not None}
    return dataclasses.replace(spec, config=dataclasses.replace(spec.config, **known))


def add_new_functions(
    spec: Spec, config: Config | SettingValues | None, **functions: object
) -> Config | SettingValues | None:
    """Return the changed settings of a resume with the functions that replace settings of the run.

    Args:
        spec: Specification of the run, from `restore_functions`.
        config: Settings that change, or None.
        **functions: Optimizer and schedule, keyed by the name of the setting, or None.

    Raises:
        UsageError: If a setting is passed twice.
    """
    stored = user_functions(spec.config)
    return add_functions(config, **{n: v for n, v in functions.items() if n not in stored})
