"""Functions that the user passes to settings: optimizers and schedules of learning rates.

The settings of a run contain them as `rollax.config.UserFunction`. A run folder does not store
functions, so a resume receives them again. Evaluations do not need them.
"""

import dataclasses
from typing import cast

from rollax.algorithm import Config
from rollax.coercion import coerce_dict
from rollax.config import user_functions
from rollax.errors import UnknownNameError, UsageError
from rollax.training.spec import Spec
from rollax.types import SettingValues


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
        UsageError: If a function of the run is missing, or a setting of the run is not a function.
    """
    stored = user_functions(spec.config)
    for name, value in functions.items():
        if name in stored and value is None:
            raise UsageError(f"This run used a custom {name}. Pass it again as {name}=...")
        if name not in stored and value is not None:
            raise UsageError(
                f"The {name} of this run is a setting. Remove {name}=..., or train a new run."
            )
    return dataclasses.replace(
        spec, config=dataclasses.replace(spec.config, **{n: functions[n] for n in stored})
    )
