"""Changes of settings at a resume: new specification, new phase, and checks that the state fits."""

import contextlib
import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import jax

from rollax.algorithm import Config
from rollax.config import CUSTOM, MAX_FLOAT32, DataclassInstance, traced_field_names
from rollax.environments import registry
from rollax.environments.capabilities import is_on_host
from rollax.environments.environment import Environment
from rollax.errors import UsageError
from rollax.training import unused_settings
from rollax.training.argument_validation import (
    ARGUMENTS_NEED_ID_MESSAGE,
    split_network_argument,
)
from rollax.training.checkpoints import fingerprints
from rollax.training.checkpoints.leaves import named_leaves
from rollax.training.compile import cache
from rollax.training.compile import program as programs
from rollax.training.run_folder.phases import OPTIMIZER_SETTING, Phase
from rollax.training.spec import Spec, check_varied_settings, get_algorithm_entry, resolve_config
from rollax.training.value_ranges import to_plain_value
from rollax.types import NetworkFn, SettingValues
from rollax.user_input.coercion import coerce, coerce_dict, format_value
from rollax.user_input.settings_validation import resolve_settings, validate_settings

NEW_RUN_REMEDY = "Train a new run with it (--init-from starts it from the policy of this run)"


def with_changes(
    spec: Spec,
    network: NetworkFn | DataclassInstance | SettingValues | None,
    config: Config | SettingValues | None,
    learning_rate: float | None,
    arguments: SettingValues | None,
) -> Spec:
    """Return the specification with the changes that a resume requests.

    Args:
        spec: Specification of the run.
        network: Network function, settings of the network that change, or None.
        config: Complete settings, a dictionary of the settings that change, or None.
        learning_rate: Constant learning rate that replaces the schedule, or None.
        arguments: Arguments of the environment that change, keyed by name, or None.

    Raises:
        UsageError: If a name is unknown, or a value has the wrong type or is out of range.
    """
    old_spec, spec = spec, _with_changed_network(spec, network)
    spec = with_changed_config(spec, config, learning_rate)
    is_changed = (spec.config, spec.network) != (old_spec.config, old_spec.network)
    if is_changed and spec.network != CUSTOM:
        entry = get_algorithm_entry(spec.algorithm)
        check_varied_settings(entry, spec.config, spec.network, spec.sweep, spec.evolve)
    return with_changed_arguments(spec, arguments)


def _with_changed_network(
    spec: Spec, network: NetworkFn | DataclassInstance | SettingValues | None
) -> Spec:
    """Return the specification with changed settings of the network, or with a custom network."""
    make_network, settings = split_network_argument(network, spec.algorithm)
    if make_network is not None:
        return dataclasses.replace(spec, network=CUSTOM)
    if settings is None:
        return spec
    if spec.network == CUSTOM:
        raise UsageError(
            "network must be the network function of this run, got settings. Pass the function, or "
            "train a new run with the settings and init_from=rollax.load(run, network=...)."
        )
    network_class = get_algorithm_entry(spec.algorithm).network_config
    changed = resolve_settings("network", network_class, vars(spec.network), settings)
    return dataclasses.replace(spec, network=validate_settings(changed, "network."))


def with_changed_config(
    spec: Spec, config: Config | SettingValues | None, learning_rate: float | None
) -> Spec:
    """Return the specification with changed settings of the algorithm.

    Args:
        spec: Specification of the run.
        config: Complete settings, a dictionary of the settings that change, or None.
        learning_rate: Constant learning rate that replaces the schedule, or None. Settings
            `*_learning_rate`, for example of a critic, keep their ratio to it.

    Raises:
        UsageError: If a name is unknown, or a value has the wrong type or is out of range. Also if
            a setting is swept or evolves.
    """
    if config is None and learning_rate is None:
        return spec
    has_rate = config is not None and (not isinstance(config, Mapping) or "learning_rate" in config)
    if learning_rate is not None and has_rate:
        raise UsageError("learning_rate is given twice. Remove it from config, or as an argument.")
    entry = get_algorithm_entry(spec.algorithm)
    values = vars(spec.config) | _constant_rate_values(spec, learning_rate)
    changed = resolve_config(entry, values, config)
    names = _differing_fields(spec.config, changed)
    for kind, varied in (("swept", spec.sweep), ("evolving", spec.evolve)):
        for name in names:
            if name in varied:
                raise UsageError(
                    f"config.{name} must not change, because it is {kind} in this run. "
                    f"{NEW_RUN_REMEDY}."
                )
    return dataclasses.replace(spec, config=changed)


def _constant_rate_values(spec: Spec, learning_rate: float | None) -> dict[str, float]:
    """Return the settings for a constant learning rate, or an empty dictionary for None."""
    if learning_rate is None:
        return {}
    traced = traced_field_names(type(spec.config))
    if "learning_rate" not in traced:
        raise UsageError(
            f"{spec.algorithm} has no learning rate that can be held constant, got learning_rate "
            f"{learning_rate}. Remove it."
        )
    value = coerce("learning_rate", learning_rate, float)
    if not 0 < value < MAX_FLOAT32:
        raise UsageError(f"learning_rate must be greater than 0, got {value:g}.")
    values = vars(spec.config)
    ratio = value / values["learning_rate"] if values["learning_rate"] else 1.0
    rates = {name: values[name] * ratio for name in traced if name.endswith("_learning_rate")}
    final = {name: 1.0 for name in traced if name == "learning_rate_final_fraction"}
    return rates | final | {"learning_rate": value}


def with_changed_arguments(spec: Spec, arguments: SettingValues | None) -> Spec:
    """Return the specification with changed arguments of the environment.

    Args:
        spec: Specification of the run.
        arguments: Arguments that change, keyed by name, or None.

    Raises:
        UsageError: If the environment is an object, or results of evaluations would be misleading.
    """
    changes = to_plain_value("arguments", coerce_dict("arguments", arguments))
    if not changes:
        return spec
    if spec.own_environment:
        raise UsageError(ARGUMENTS_NEED_ID_MESSAGE)
    changed = spec.arguments | registry.resolve_arguments(spec.environment, changes)
    registry.check_evaluation(spec.environment, changed, spec.eval_arguments)
    return dataclasses.replace(spec, arguments=changed)


def with_new_phase(
    spec: Spec, old_spec: Spec, folder: Path, step: int, fork: Path | None = None
) -> Spec:
    """Return the specification with a phase for the settings that differ from `old_spec`.

    Args:
        spec: Specification with the changes requested for the resume.
        old_spec: Specification in config.yaml.
        folder: Folder of the run.
        step: Step at which the phase begins.
        fork: Folder of a new run that continues this one, or None.

    Returns:
        The specification, unchanged if no setting differs and `fork` is None.
    """
    names = _differing_fields(old_spec.config, spec.config)
    changes = {
        f"config.{name}": (getattr(old_spec.config, name), getattr(spec.config, name))
        for name in names
    }
    values = {
        "arguments": (old_spec.arguments, spec.arguments),
        "options.eval_seed": (old_spec.options.eval_seed, spec.options.eval_seed),
    }
    changes |= {path: (old, new) for path, (old, new) in values.items() if old != new}
    changes |= _network_changes(old_spec, spec)
    if not changes and fork is None:
        return spec
    phase = Phase(step, changes, None if fork is None else str(folder))
    options = spec.options if fork is None else dataclasses.replace(spec.options, run_dir=fork)
    return dataclasses.replace(spec, options=options, phases=(*old_spec.phases, phase))


def _network_changes(old_spec: Spec, spec: Spec) -> dict[str, tuple[Any, Any]]:
    """Return the old and new value of each changed setting of the network."""
    old, new = old_spec.network, spec.network
    if old == new:
        return {}
    if new == CUSTOM:  # a function replaces the settings
        return {"network": (dataclasses.asdict(old), CUSTOM)}
    return {
        f"network.{name}": (getattr(old, name), getattr(new, name))
        for name in _differing_fields(old, new)
    }


def _differing_fields(old: Config, new: Config) -> list[str]:
    return [name for name, value in vars(old).items() if vars(new)[name] != value]


def check_changes(
    spec: Spec, old_spec: Spec, environment: Environment | None, network: NetworkFn | None
) -> None:
    """Check that a run can continue with changed settings, and that they have an effect.

    Args:
        spec: Specification with the changes requested for the resume.
        old_spec: Specification in config.yaml.
        environment: Environment object with opponents, or None if it is made from its id.
        network: Network function, or None.

    Raises:
        UsageError: If a change affects the shapes of the state, the spaces of the environment, or
            the steps per update. Also if an update does not read a changed setting.
    """
    if len(spec.phases) == len(old_spec.phases):
        return
    _check_state_fits(spec, old_spec, environment, network)
    unused_settings.check_changed_settings(spec, environment, network)


def _check_state_fits(
    spec: Spec, old_spec: Spec, environment: Environment | None, network: NetworkFn | None
) -> None:
    """Raise UsageError if the state of a run cannot continue with changed settings."""
    old_network = network if old_spec.network == CUSTOM else None
    with cache.enable_for_checks():
        if environment is None and spec.arguments != old_spec.arguments:
            _check_same_spaces(spec, old_spec)
        _check_fixed_settings(spec, environment)
        if spec.phases[-1].changes_structure:
            old_shapes = _state_shapes(old_spec, environment, old_network)
            old_spec = _with_structure_of(old_spec, spec)
            _check_structure_fits(old_shapes, old_spec, environment, network)
        changes = _list_single_changes(spec, old_spec)
        before = _state_shapes(old_spec, environment, network)
        for name, changed in changes.items():
            if changed.config.steps_per_update != old_spec.config.steps_per_update:
                _raise_unfit(name, "the number of steps per update")
        if _state_shapes(spec, environment, network) == before:
            return
        unfit = []
        for name, changed in changes.items():
            with contextlib.suppress(UsageError):  # a change alone may be inconsistent
                unfit += [name] * (_state_shapes(changed, environment, network) != before)
    _raise_unfit(", ".join(unfit or changes), "the shapes of the training state")


def _with_structure_of(old_spec: Spec, spec: Spec) -> Spec:
    """Return `old_spec` with the network and the optimizer of `spec`."""
    name, config = OPTIMIZER_SETTING.removeprefix("config."), old_spec.config
    if name in vars(config):
        config = dataclasses.replace(config, **{name: vars(spec.config)[name]})
    return dataclasses.replace(old_spec, network=spec.network, config=config)


def _check_structure_fits(
    old_shapes: dict[str, str],
    spec: Spec,
    environment: Environment | None,
    network: NetworkFn | None,
) -> None:
    """Check that only networks, optimizers and memories differ with a new network or optimizer.

    Args:
        old_shapes: Type and shape of each leaf of the state in the checkpoint.
        spec: Specification with the new network and optimizer.
        environment: Environment object with opponents, or None.
        network: New network function, or None.

    Raises:
        UsageError: If an archive, a replay buffer or a pool of opponents would not fit.
    """
    shapes = _state_shapes(spec, environment, network)
    differing = {path for path in shapes | old_shapes if shapes.get(path) != old_shapes.get(path)}
    if not differing:
        return
    algorithm, _ = programs.build_algorithm_and_environment(spec, environment, network)
    state = programs.abstract_member_state(spec, algorithm)
    paths = [path for path, _ in named_leaves(state)]
    # `parts` only selects nodes, so it also selects the positions of leaves.
    structure = jax.tree.structure(state)
    parts = algorithm.parts(structure.unflatten(range(len(paths))))
    replay = {paths[position] for position in jax.tree.leaves(parts.get("replay"))}
    name = "network and config.optimizer"
    if spec.options.opponent_pool:
        _raise_unfit(name, "the versions in the pool of opponents")
    if not jax.tree.leaves(parts.get("networks")):
        _raise_unfit(name, "the solutions in the archive")
    if replay & differing:
        _raise_unfit(name, "the memory of the policy in the replay buffer")


def _raise_unfit(name: str, what: str) -> NoReturn:
    raise UsageError(
        f"{name} must not change during a run, because it determines {what}. {NEW_RUN_REMEDY}."
    )


def _check_same_spaces(spec: Spec, old_spec: Spec) -> None:
    """Raise UsageError if changed arguments change the spaces or the number of agents."""
    recorded = fingerprints.fingerprint(programs.make_environment(old_spec), is_object=False)
    changed = programs.make_environment(spec)
    try:
        fingerprints.check_fingerprint_fits(recorded, changed)
    except UsageError as error:
        raise UsageError(f"arguments must not change the spaces of a run. {error}") from error


def _check_fixed_settings(spec: Spec, environment: Environment | None) -> None:
    """Raise UsageError for a change of a setting that is fixed with simulators on the host."""
    made = programs.make_environment(spec) if environment is None else environment
    if not is_on_host(made):
        return
    fixed = get_algorithm_entry(spec.algorithm).adapt_to_host(spec.config)
    for name in _differing_fields(spec.config, fixed):
        raise UsageError(
            f"config.{name} must be {getattr(fixed, name)} with simulators on the host, got "
            f"{getattr(spec.config, name)}. Remove it."
        )


def _list_single_changes(spec: Spec, old_spec: Spec) -> dict[str, Spec]:
    """Return one variant of `old_spec` for each changed setting that may affect shapes.

    Each variant has only this change. The keys describe the changes.
    """
    traced = traced_field_names(type(spec.config))
    changes = {}
    for name in _differing_fields(old_spec.config, spec.config):
        if name not in traced:
            value = getattr(spec.config, name)
            config = dataclasses.replace(old_spec.config, **{name: value})
            description = f"config.{name} ({format_value(value)})"
            changes[description] = dataclasses.replace(old_spec, config=config)
    for name, value in spec.arguments.items():
        if name not in old_spec.arguments or old_spec.arguments[name] != value:
            arguments = old_spec.arguments | {name: value}
            description = f"arguments.{name} ({format_value(value)})"
            changes[description] = dataclasses.replace(old_spec, arguments=arguments)
    return changes


def _state_shapes(
    spec: Spec, environment: Environment | None, network: NetworkFn | None
) -> dict[str, str]:
    """Return the type and shape of each leaf of a member's state, keyed by path."""
    algorithm, _ = programs.build_algorithm_and_environment(spec, environment, network)
    state = programs.abstract_member_state(spec, algorithm)
    return {path: f"{leaf.dtype}{list(leaf.shape)}" for path, leaf in named_leaves(state)}
