"""The commands that train: train, resume."""

import dataclasses
import textwrap
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from rollax import environments
from rollax.cli import flags
from rollax.cli.shared import Shared
from rollax.cli.words import HELP, check_single, close, number, parse, single, take, take_value
from rollax.config import checked, traced_fields
from rollax.environments import registry
from rollax.errors import UsageError


def train(arguments: list[str], shared: Shared) -> int:
    """Parses by hand only what depends on the algorithm and the environment: their names, and options such as --env.NAME."""
    from rollax.host import api
    from rollax.host.progress import display

    rest, names = list(arguments), []
    while rest and not rest[0].startswith("-"):
        names.append(rest.pop(0))
    if any(word in rest for word in HELP):
        return _help(names, "--help-all" in rest)
    if len(names) != 2:
        raise UsageError("train takes an algorithm and an environment: rollax train ppo gymnax/CartPole-v1")
    words, wants_json = given(names, rest)
    result = api.train(*names, **words, imports=shared.imports, show=display(stderr=wants_json))
    _close(result.summary(), wants_json)
    return result.exit_code


def given(names: list[str], words: list[str], evolving: str | None = "--evolve.NAME LOW HIGH") -> tuple[dict[str, Any], bool]:
    """What `rollax.train` is given by the words that follow the names of an algorithm and an environment; and --json.

    `evolving`: what a population that evolves is asked for by; None: it is asked for.
    """
    from rollax.host.presets import preset
    from rollax.host.settings import entry

    algorithm, environment = names
    rest, eval_env = take(words, "--eval-env.")
    rest, sweep = take(rest, "--sweep.")
    rest, evolve = take(rest, "--evolve.")
    rest, opponents = take(rest, "--opponents.")
    kinds = entry(algorithm)
    registry.check_known(environment)
    rest, file = take_value(rest, "--preset")
    rest, env = take(_in_full(rest, kinds, environment), "--env.")
    tuned = preset(algorithm, environment, None if file is None else Path(file))
    command = _command(algorithm, tuned)
    check_single(rest, [name.replace("_", "-") for name in traced_fields(kinds.config)])
    parsed: Any = parse(command, rest, f"rollax train {algorithm} {environment}")
    unused = [word.partition("=")[0] for word in rest if word.startswith(("--evolve-", "--evolve_"))]
    if unused and not evolve and evolving is not None:
        raise UsageError(f"{unused[0]} is for a population that evolves: add {evolving}, or leave it out")
    words_of = {
        "config": parsed.config,
        "network": parsed.network,
        "arguments": tuned.arguments | single(env),
        "eval_arguments": single(eval_env),
        "sweep": {name: [number(name, value) for value in values] for name, values in sweep.items()},
        "opponents": {kind: str(run) for kind, run in single(opponents).items()},
        "evolve": evolve,
        "options": parsed.run,
    }
    return words_of, parsed.json


def _close(summary: dict[str, Any], wanted: bool) -> None:
    from rollax.scale import processes

    if processes.is_first():
        close(summary, wanted)


def _in_full(words: list[str], kinds: Any, environment: str) -> list[str]:
    """The words with every option by its full name, whole numbers in digits and switches without values."""
    from rollax.host.options import RunOptions

    groups = {"config.": kinds.config, "network.": kinds.network_config}
    words = flags.whole_words(words, RunOptions, groups, lambda: environments.arguments(environment))
    groups = {"": RunOptions} | groups
    return flags.switches(flags.counts(words, groups), groups)


def _help(names: list[str], everything: bool) -> int:
    """What there is to set, of a pair or of training at all; an algorithm alone is shown on an environment it is tuned for."""
    from rollax.algorithms import list_algorithms
    from rollax.cli import help as helping
    from rollax.host.options import RunOptions
    from rollax.host.presets import example, preset
    from rollax.host.settings import entry

    if not names:
        print(helping.TRAIN.format(algorithms="\n                ".join(_rows(list(list_algorithms())))))
        return 0
    algorithm, kinds = names[0], entry(names[0])
    environment = names[1] if len(names) > 1 else example(algorithm)
    registry.check_known(environment)
    tuned = preset(algorithm, environment)
    given, config, network = _defaults(algorithm, tuned)
    own = environments.arguments(environment)
    lists = [{field.name for field in dataclasses.fields(kind)} for kind in (RunOptions, kinds.config, kinds.network_config)]
    short = {name for name in set().union(*lists, own) if sum(name in names for names in (*lists, own)) == 1} | lists[0]
    chosen = (None, None, None) if everything else (helping.RUN, helping.foremost(kinds.config), helping.NETWORK)
    groups = [
        helping.group_of("Run", given, "", lists[0], chosen[0]),
        helping.group_of(algorithm if "_" in algorithm else algorithm.upper(), config, "config.", short - lists[0], chosen[1]),
        helping.group_of("Network", network, "network.", short - lists[0], chosen[2]),
    ]
    values = {name: helping.default(value) for name, value in (own | tuned.arguments).items()}
    if everything:
        options = [helping.Option(f"--env.{name.replace('_', '-')}", "", value, "") for name, value in values.items()]
    else:
        listed = ", ".join(f"{name.replace('_', '-')} {value}" for name, value in values.items())
        options = [helping.Option("--env.NAME", "VALUE", "", listed)] if listed else []
    helping.train_help(algorithm, environment, [*groups, helping.Group("Environment", options)], everything)
    return 0


def _rows(names: list[str]) -> list[str]:
    """Names in lines of a screen's width."""
    return textwrap.wrap(", ".join(names), 80)


def _defaults(algorithm: str, tuned: Any) -> tuple[Any, Any, Any]:
    """Options of the host, settings and network, with what is tuned for the pair."""
    from rollax.host.options import RunOptions
    from rollax.host.settings import DEFAULT_TOTAL_STEPS, entry, settings_of

    kinds = entry(algorithm)
    options = RunOptions(total_steps=tuned.total_steps or DEFAULT_TOTAL_STEPS)
    config = checked(settings_of("config", kinds.config, tuned.config, None))
    return options, config, checked(settings_of("network", kinds.network_config, tuned.network, None), "network.")


def _command(algorithm: str, tuned: Any) -> type:
    """The options of train, with what is tuned for the pair as their defaults."""
    options, config, network = _defaults(algorithm, tuned)
    return dataclasses.make_dataclass(
        "Train",
        [
            ("run", tyro.conf.OmitArgPrefixes[type(options)], dataclasses.field(default=options)),
            ("json", Annotated[bool, tyro.conf.arg(help="End with one JSON object; all else goes to standard error.")], False),
            ("config", type(config), dataclasses.field(default=config)),
            ("network", type(network), dataclasses.field(default=network)),
        ],
    )


@dataclasses.dataclass(frozen=True)
class Resume:
    """Goes on with a run from its newest checkpoint, as if it had never stopped."""

    run: tyro.conf.Positional[Path]
    """Folder of the run."""
    total_steps: int | None = None
    """Another end than the one the run was started with; schedules end there."""
    learning_rate: float | None = None
    """Hold this learning rate from here on, in place of its schedule."""
    on_nonfinite: Literal["stop", "rollback"] | None = None
    """What to do when numbers are not finite, if other than before."""
    devices: int | Literal["auto"] | None = None
    """Devices to spread over, if other than before; "auto": all there are."""
    env_workers: int | None = None
    """Processes for simulators on the host, if other than before; 0: this one."""
    env_timeout: float | None = None
    """Seconds that a simulator on the host may take for a step or a start, if other than before."""
    json: bool = False
    """End with one JSON object; all else goes to standard error."""


def resume(arguments: list[str], shared: Shared) -> int:
    from rollax.host import api
    from rollax.host.progress import display

    given = parse(Resume, flags.counts(arguments, {"": Resume}), "rollax resume")
    changes = {name: getattr(given, name) for name in ("on_nonfinite", "devices", "env_workers", "env_timeout")}
    changes = {name: value for name, value in changes.items() if value is not None}
    rate = given.learning_rate
    show = display(stderr=given.json)
    result = api.resume(given.run, total_steps=given.total_steps, learning_rate=rate, show=show, **changes)
    _close(result.summary(), given.json)
    return result.exit_code
