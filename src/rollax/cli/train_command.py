"""Commands `rollax train` and `rollax resume`."""

import collections
import dataclasses
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import tyro

from rollax import api, environments
from rollax.algorithms.registry import AlgorithmEntry, list_algorithms
from rollax.cli.command_output import print_run_summary
from rollax.cli.parsing import flags
from rollax.cli.parsing import help as helping
from rollax.cli.parsing.dynamic_options import (
    HELP_FLAGS,
    check_single_values,
    parse_number,
    parse_options,
    take_option_value,
    take_prefixed_options,
    unwrap_single_values,
)
from rollax.cli.parsing.shared_options import SharedOptions
from rollax.config import CUSTOM, traced_field_names
from rollax.distributed import processes
from rollax.environments import registry
from rollax.errors import UsageError
from rollax.training.console.progress import make_display
from rollax.training.console.signals import get_interrupt_result
from rollax.training.options import RunOptions
from rollax.training.presets import Preset, example_environment, load_preset
from rollax.training.result import Result
from rollax.training.run_folder import layout
from rollax.training.spec import DEFAULT_TOTAL_STEPS, get_algorithm_entry
from rollax.types import Record, SettingValues
from rollax.user_input.coercion import field_types
from rollax.user_input.settings_validation import resolve_settings, validate_settings


def train(arguments: list[str], shared: SharedOptions) -> int:
    """Run `rollax train` and return its exit code.

    Options that depend on the algorithm and the environment, such as `--env.NAME`, are parsed
    first. tyro parses all other options.
    """
    rest, names = list(arguments), []
    while rest and not rest[0].startswith("-"):
        names.append(rest.pop(0))
    if any(word in rest for word in HELP_FLAGS):
        return _print_help(names, "--help-all" in rest)
    if len(names) != 2:
        raise UsageError(
            "train needs an algorithm and an environment. "
            "Run, for example, `rollax train ppo gymnax/CartPole-v1`."
        )
    words, wants_json = parse_train_words(names, rest)
    show = make_display(stderr=wants_json)
    result = _result_or_interrupted(
        lambda: api.train(*names, **words, imports=shared.imports, show=show)
    )
    _print_result(result.summary(), wants_json)
    return result.exit_code


def parse_train_words(
    names: list[str], words: list[str], evolving: str | None = "--evolve.NAME LOW HIGH"
) -> tuple[dict[str, Any], bool]:
    """Parse the arguments of `rollax train` after the algorithm and the environment.

    Args:
        names: Algorithm and environment id.
        words: Remaining command-line arguments.
        evolving: Option that the error message suggests if an `--evolve-...` option is given
            although no setting evolves. None disables this check.

    Returns:
        The keyword arguments of `rollax.train`, and whether `--json` is given.

    Raises:
        UsageError: If an option is invalid, or unused because no setting evolves.
        UnknownNameError: If the algorithm, the environment or an option does not exist.
    """
    algorithm, environment = names
    rest, eval_env = take_prefixed_options(words, "--eval-env.")
    rest, sweep = take_prefixed_options(rest, "--sweep.")
    rest, evolve = take_prefixed_options(rest, "--evolve.")
    rest, opponents = take_prefixed_options(rest, "--opponents.")
    rest, randomize = take_prefixed_options(rest, "--randomize.")
    rest, curriculum = take_prefixed_options(rest, "--curriculum.")
    kinds = get_algorithm_entry(algorithm)
    registry.check_environment_id(environment)
    rest, file = take_option_value(rest, "--preset")
    rest, env = take_prefixed_options(_expand_options(rest, kinds, environment), "--env.")
    tuned = load_preset(algorithm, environment, None if file is None else Path(file))
    command = _make_options_class(algorithm, tuned)
    check_single_values(rest, [name.replace("_", "-") for name in traced_field_names(kinds.config)])
    parsed: Any = parse_options(command, rest, f"rollax train {algorithm} {environment}")
    unused = [
        word.partition("=")[0] for word in rest if word.startswith(("--evolve-", "--evolve_"))
    ]
    if unused and not evolve and evolving is not None:
        raise UsageError(
            f"{unused[0]} has no effect because no setting evolves. Add {evolving}, or remove it."
        )
    words_of = {
        "config": parsed.config,
        "network": parsed.network,
        "arguments": tuned.arguments | unwrap_single_values(env),
        "eval_arguments": unwrap_single_values(eval_env),
        "sweep": _parse_numbers("--sweep.", sweep),
        "opponents": {kind: str(run) for kind, run in unwrap_single_values(opponents).items()},
        "evolve": evolve,
        "randomize": randomize,
        "curriculum": _parse_numbers("--curriculum.", curriculum),
        "options": parsed.run,
    }
    return words_of, parsed.json


def _parse_numbers(prefix: str, options: dict[str, list[str]]) -> dict[str, list[float]]:
    """Return the values of options with a prefix as numbers, keyed by the name after the prefix."""
    return {
        name: [parse_number(f"{prefix}{name}", value) for value in values]
        for name, values in options.items()
    }


def _result_or_interrupted(run: Callable[[], Result]) -> Result:
    """Call `run`, and return its result or the result attached to its `KeyboardInterrupt`."""
    try:
        return run()
    except KeyboardInterrupt as interrupt:
        return get_interrupt_result(interrupt)


def _print_result(summary: Record, is_requested: bool) -> None:
    if processes.is_first_process():
        print_run_summary(summary, is_requested)


def _expand_options(words: list[str], entry: AlgorithmEntry, environment: str) -> list[str]:
    """Return the arguments with full option names, and with switches in the form without values."""
    groups = {"config.": entry.config, "network.": entry.network_config}
    words = flags.expand_option_names(
        words, RunOptions, groups, lambda: environments.default_arguments(environment)
    )
    groups = {"": RunOptions} | groups
    return flags.normalize_switches(words, groups)


def _print_help(names: list[str], has_all_options: bool) -> int:
    """Print the help of `rollax train`, or of an algorithm and an environment.

    If `names` contains only an algorithm, the help uses an environment with a preset for it.
    """
    if not names:
        lines = textwrap.wrap(", ".join(list_algorithms()), 80)
        print(helping.TRAIN_HELP.format(algorithms="\n                ".join(lines)))
        return 0
    algorithm = names[0]
    get_algorithm_entry(algorithm)  # raises UnknownNameError
    environment = names[1] if len(names) > 1 else example_environment(algorithm)
    registry.check_environment_id(environment)
    own = environments.default_arguments(environment)
    tuned = load_preset(algorithm, environment)
    groups = _option_groups(algorithm, tuned, set(own), has_all_options)
    own_group = _environment_group(own | tuned.arguments, has_all_options)
    helping.print_train_help(algorithm, environment, [*groups, own_group], has_all_options)
    return 0


def _option_groups(
    algorithm: str, preset: Preset, arguments: set[str], has_all_options: bool
) -> list[helping.OptionGroup]:
    """Return the option groups of the help: run options, algorithm settings, network settings.

    An option is shown without its prefix if its name is unique among all groups and environment
    arguments.
    """
    defaults = _tuned_defaults(algorithm, preset)
    names = [{field.name for field in dataclasses.fields(group)} for group in defaults]
    counts = collections.Counter(name for group in (*names, arguments) for name in group)
    short = {name for name, count in counts.items() if count == 1}
    title = algorithm if "_" in algorithm else algorithm.upper()
    main = helping.main_settings(type(defaults.config))
    return [
        helping.make_option_group(
            "Run",
            defaults.run,
            prefix="",
            unprefixed_names=names[0],
            shown_names=None if has_all_options else helping.MAIN_RUN_OPTIONS,
        ),
        helping.make_option_group(
            title,
            defaults.config,
            prefix="config.",
            unprefixed_names=short,
            shown_names=None if has_all_options else main,
        ),
        helping.make_option_group(
            "Network",
            defaults.network,
            prefix="network.",
            unprefixed_names=short,
            shown_names=None if has_all_options else helping.MAIN_NETWORK_SETTINGS,
        ),
    ]


def _environment_group(arguments: SettingValues, has_all_options: bool) -> helping.OptionGroup:
    """Return the option group of the environment arguments.

    It has one entry per argument if `has_all_options` is True, and otherwise one entry for all.
    """
    values = {
        name.replace("_", "-"): helping.format_default(value) for name, value in arguments.items()
    }
    listed = ", ".join(f"{name} {value}" for name, value in values.items())
    options = [helping.OptionHelp("--env.NAME", "VALUE", "", listed)] if listed else []
    if has_all_options:
        options = [
            helping.OptionHelp(f"--env.{name}", "", value, "") for name, value in values.items()
        ]
    return helping.OptionGroup("Environment", options)


class TrainDefaults(NamedTuple):
    """Run options, algorithm settings and network settings with the tuned values of a preset."""

    run: RunOptions
    config: Any
    network: Any


def _tuned_defaults(algorithm: str, preset: Preset) -> TrainDefaults:
    """Return the defaults of `rollax train` for an algorithm and a preset."""
    kinds = get_algorithm_entry(algorithm)
    config = resolve_settings("config", kinds.config, preset.config, None)
    network = resolve_settings("network", kinds.network_config, preset.network, None)
    return TrainDefaults(
        RunOptions(
            total_steps=preset.total_steps or DEFAULT_TOTAL_STEPS,
            eval_stochastic=preset.eval_stochastic,
        ),
        validate_settings(config),
        validate_settings(network, "network."),
    )


def _make_options_class(algorithm: str, preset: Preset) -> type:
    """Build the options class of `rollax train` with the tuned values as defaults."""
    defaults = _tuned_defaults(algorithm, preset)
    help_text = "End with one JSON object. Everything else goes to standard error."
    json_type = Annotated[bool, tyro.conf.arg(help=help_text)]
    return dataclasses.make_dataclass(
        "Train",
        [
            (
                "run",
                tyro.conf.OmitArgPrefixes[RunOptions],
                dataclasses.field(default=defaults.run),
            ),
            ("json", json_type, False),
            ("config", type(defaults.config), dataclasses.field(default=defaults.config)),
            ("network", type(defaults.network), dataclasses.field(default=defaults.network)),
        ],
    )


@dataclasses.dataclass(frozen=True)
class ResumeOptions:
    """Continue a run from its newest checkpoint, bit for bit if nothing changes.

    Settings of the algorithm, --network.NAME and --env.NAME, as in rollax train, begin a new phase
    of the run: rollax resume RUN --total-steps 2M --entropy-coefficient 0 --env.gravity 15
    """

    run: tyro.conf.Positional[Path]
    """Folder of the run."""
    total_steps: int | None = None
    """New total number of steps. Schedules end there."""
    learning_rate: float | None = None
    """Constant learning rate from here on, instead of the schedule."""
    fork: Path | None = None
    """New folder for a run that continues this one. This run stays unchanged."""
    checkpoint: str | None = None
    """First checkpoint of --fork: "last", "best" or a step. The newest by default."""
    stop_when: str | None = None
    """Condition that stops the run after an evaluation, such as "return_mean>=195". "off" removes
    the condition of the run. Unchanged by default."""
    eval_seed: int | None = None
    """Seed of the evaluation episodes, the same for all members. Unchanged by default."""
    on_nonfinite: Literal["stop", "rollback"] | None = None
    """Action on values that are not finite. Unchanged by default."""
    devices: int | Literal["auto"] | None = None
    """Number of devices to use, or "auto" for all available devices. Unchanged by default."""
    env_workers: int | str | None = None
    """Number of simulator worker processes. 0 uses the main process, "ray:N" N workers on a Ray
    cluster. Unchanged by default."""
    env_timeout: float | None = None
    """Time limit in seconds for one reset or step of a host simulator. Unchanged by default."""
    env_restarts: int | None = None
    """Maximum number of consecutive restarts of a failing host simulator. Unchanged by default."""
    json: bool = False
    """End with one JSON object. Everything else goes to standard error."""


def resume(arguments: list[str], shared: SharedOptions) -> int:
    """Run `rollax resume` and return its exit code."""
    given, config, network, env = _parse_resume_words(arguments)
    changes = {
        name: getattr(given, name)
        for name in (
            "eval_seed",
            "on_nonfinite",
            "devices",
            "env_workers",
            "env_timeout",
            "env_restarts",
        )
    }
    changes = {name: value for name, value in changes.items() if value is not None}
    show = make_display(stderr=given.json)
    result = _result_or_interrupted(
        lambda: api.resume(
            given.run,
            total_steps=given.total_steps,
            config=config,
            network=network or None,
            arguments=env,
            fork=given.fork,
            checkpoint=given.checkpoint,
            learning_rate=given.learning_rate,
            stop_when=given.stop_when,
            show=show,
            **changes,
        )
    )
    _print_result(result.summary(), given.json)
    return result.exit_code


class _ResumeWords(NamedTuple):
    """Parsed arguments of `rollax resume`: options, changed settings, and changed arguments."""

    options: ResumeOptions
    config: dict[str, Any]
    network: dict[str, Any]
    arguments: dict[str, Any]


def _parse_resume_words(words: list[str]) -> _ResumeWords:
    """Parse the arguments of `rollax resume`.

    The names of settings depend on the run, so its folder is read if an option is not one of
    `ResumeOptions`.
    """
    options = field_types(ResumeOptions)
    given = [word[2:].partition("=")[0].replace("-", "_") for word in words if word[:2] == "--"]
    if set(given) <= {*options, "help", "no_json"} or words[0].startswith("-"):
        return _ResumeWords(parse_options(ResumeOptions, words, "rollax resume"), {}, {}, {})
    spec = layout.read_spec(Path(words[0]))
    stored = {"config": spec.config}
    if spec.network != CUSTOM:
        stored["network"] = spec.network
    groups = {f"{name}.": type(settings) for name, settings in stored.items()}
    rest = flags.expand_option_names(
        words, ResumeOptions, groups, lambda: environments.default_arguments(spec.environment)
    )
    rest, env = take_prefixed_options(flags.normalize_switches(rest, groups), "--env.")
    command = dataclasses.make_dataclass(
        "Resume",
        [
            ("options", tyro.conf.OmitArgPrefixes[ResumeOptions]),
            *(
                (name, type(settings), dataclasses.field(default=settings))
                for name, settings in stored.items()
            ),
        ],
    )
    parsed: Any = parse_options(command, rest, "rollax resume")
    changed = {
        name: {
            field: value
            for field, value in vars(vars(parsed)[name]).items()
            if value != getattr(settings, field)
        }
        for name, settings in stored.items()
    }
    env_values = unwrap_single_values(env)
    return _ResumeWords(parsed.options, changed["config"], changed.get("network", {}), env_values)
