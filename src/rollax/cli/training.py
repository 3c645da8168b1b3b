"""The commands that train: train, resume."""

import dataclasses
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from rollax.cli.shared import Shared
from rollax.cli.words import check_single, close, number, parse, single, take
from rollax.config import checked, traced_fields
from rollax.errors import UnknownNameError, UsageError
from rollax.typed import shown

TRAIN_HELP = """\
Trains ALGORITHM on ENVIRONMENT and leaves a run folder.

  rollax train ppo gymnax/CartPole-v1 --total-steps 100000 --seeds 8
  rollax train ppo gymnax/CartPole-v1 --config.learning-rate 3e-4 --env.gravity 5
  rollax train ppo gymnax/Pendulum-v1 --sweep.learning-rate 1e-4 3e-4 1e-3
  rollax train ppo gymnax/Acrobot-v1 --seeds 16 --evolve.learning-rate 1e-4 1e-2 --evolve.entropy-coefficient 1e-4 0.1

--env.NAME VALUE sets an argument of the environment (`rollax envs ENVIRONMENT` lists them), --eval-env.NAME VALUE another value
of it for evaluations (tasks that are held out, other physics); --sweep.NAME VALUES trains one
member for each value of a setting, and each seed, in one compiled program; --evolve.NAME LOW HIGH [log|linear] moves a
setting within a range by population-based training over the members that --seeds counts; --opponents.TYPE RUN lets the
agents of a type follow the policy of another run instead of learning; --import MODULE imports a module that registers
environments of your own. The defaults below are tuned for this pair."""


def train(arguments: list[str], shared: Shared) -> int:
    """Parses by hand only what depends on the algorithm and the environment: their names, and options such as --env.NAME."""
    from rollax.host import api
    from rollax.host.settings import entry, example, preset

    rest, env = take(arguments, "--env.")
    rest, eval_env = take(rest, "--eval-env.")
    rest, sweep = take(rest, "--sweep.")
    rest, evolve = take(rest, "--evolve.")
    rest, opponents = take(rest, "--opponents.")
    names = []
    while rest and not rest[0].startswith("-"):
        names.append(rest.pop(0))
    wants_help = "-h" in rest or "--help" in rest
    if len(names) != 2 and not wants_help:
        raise UsageError("train takes an algorithm and an environment: rollax train ppo gymnax/CartPole-v1")
    algorithm = names[0] if names else "ppo"
    entry(algorithm)
    environment = names[1] if len(names) > 1 else example(algorithm)
    _check_environment(environment)
    tuned = preset(algorithm, environment)
    command = _command(algorithm, tuned)
    check_single(rest, [name.replace("_", "-") for name in traced_fields(entry(algorithm).config)])
    given = " ".join(f"--env.{name.replace('_', '-')} {shown(value)}" for name, value in tuned.arguments.items())
    text = f"{TRAIN_HELP[:-1]}, with {given}." if given else TRAIN_HELP
    parsed: Any = parse(command, rest, f"rollax train {algorithm} {environment}", text)
    unused = [word.partition("=")[0] for word in rest if word.startswith(("--evolve-", "--evolve_"))]
    if unused and not evolve:
        raise UsageError(f"{unused[0]} is for a population that evolves: add --evolve.NAME LOW HIGH, or leave it out")
    result = api.train(
        algorithm,
        environment,
        config=parsed.config,
        network=parsed.network,
        arguments=single(env),
        eval_arguments=single(eval_env),
        sweep={name: [number(name, value) for value in values] for name, values in sweep.items()},
        opponents={kind: str(run) for kind, run in single(opponents).items()},
        evolve=evolve,
        options=parsed.run,
        imports=shared.imports,
    )
    close(result.summary(), parsed.json)
    return result.exit_code


def _command(algorithm: str, tuned: Any) -> type:
    """The options of train, with what is tuned for the pair as their defaults."""
    from rollax.host.options import RunOptions
    from rollax.host.settings import DEFAULT_TOTAL_STEPS, entry, settings_of

    kinds = entry(algorithm)
    options = RunOptions(total_steps=tuned.total_steps or DEFAULT_TOTAL_STEPS)
    config = checked(settings_of("config", kinds.config, tuned.config, None))
    network = checked(settings_of("network", kinds.network_config, tuned.network, None), "network.")
    return dataclasses.make_dataclass(
        "Train",
        [
            ("run", tyro.conf.OmitArgPrefixes[RunOptions], dataclasses.field(default=options)),
            ("json", Annotated[bool, tyro.conf.arg(help="End with one JSON object also on a terminal.")], False),
            ("config", kinds.config, dataclasses.field(default=config)),
            ("network", kinds.network_config, dataclasses.field(default=network)),
        ],
    )


def _check_environment(environment: str) -> None:
    """An unknown id is refused before its suite is imported."""
    from rollax.environments import list_environments

    known = list_environments()
    if environment not in known:
        raise UnknownNameError("environment", environment, known)


@dataclasses.dataclass(frozen=True)
class Resume:
    """Goes on with a run from its newest checkpoint, as if it had never stopped."""

    run: tyro.conf.Positional[Path]
    """Folder of the run."""
    total_steps: int | None = None
    """Another end than the one the run was started with; schedules end there."""
    on_nonfinite: Literal["stop", "rollback"] | None = None
    """What to do when numbers are not finite, if other than before."""
    devices: int | None = None
    """Devices to spread over, if other than before."""
    json: bool = False
    """End with one JSON object also on a terminal."""


def resume(arguments: list[str], shared: Shared) -> int:
    from rollax.host import api

    given = parse(Resume, arguments, "rollax resume")
    changes = {name: getattr(given, name) for name in ("on_nonfinite", "devices")}
    changes = {name: value for name, value in changes.items() if value is not None}
    result = api.resume(given.run, total_steps=given.total_steps, **changes)
    close(result.summary(), given.json)
    return result.exit_code
