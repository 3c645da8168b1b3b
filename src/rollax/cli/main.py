"""The command line: train, resume, eval, plot, render, envs, algorithms, doctor."""

import dataclasses
import json
import math
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from rollax import startup
from rollax.cli.words import number, of_evaluation, single, take
from rollax.errors import UnknownNameError, UsageError

OVERVIEW = """\
rollax: reinforcement learning trained end to end in JAX

  rollax train ppo gymnax/CartPole-v1     train, and leave a run folder
  rollax resume RUN                       go on with a run, bit for bit
  rollax eval RUN                         play whole episodes with its policy
  rollax plot RUN...                      draw learning curves, of several runs together
  rollax render RUN                       an episode as a GIF, or with --text in the terminal
  rollax envs [SUITE]                     list the environments
  rollax algorithms                       list the algorithms
  rollax doctor                           versions, devices, what is installed and what is not

rollax COMMAND --help says more; `rollax train ALGORITHM ENVIRONMENT --help` shows every setting with its tuned value.
"""

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
agents of a type follow the policy of another run instead of learning. The defaults below are tuned for this pair."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command. Returns the exit code: 0 done, 1 failed, 2 bad usage, 3 not finite, 130 or 143 stopped by a signal."""
    startup.imported()
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(OVERVIEW, end="")
        return 0
    if arguments[0] == "--version":
        from rollax.version import __version__

        print(__version__)
        return 0
    try:
        if arguments[0] not in COMMANDS:
            raise UnknownNameError("command", arguments[0], COMMANDS)
        return COMMANDS[arguments[0]](arguments[1:])
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        # Whoever read our output has enough; Python would complain once more while closing it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141 if arguments[0] in ("train", "resume") else 0  # a run that was cut short is no success
    except KeyboardInterrupt:
        print("error: interrupted at once; a run goes on from its last checkpoint", file=sys.stderr)
        return 130
    except (OSError, RuntimeError) as error:
        if os.environ.get("ROLLAX_TRACEBACK"):
            raise
        print(f"error: {error}\n(ROLLAX_TRACEBACK=1 shows where)", file=sys.stderr)
        return 1


def train(arguments: list[str]) -> int:
    """Parses by hand only what depends on the algorithm and the environment: their names, and options such as --env.NAME."""
    from rollax.host import api
    from rollax.host.settings import DEFAULT_TOTAL_STEPS, RunOptions, entry, example, preset, settings_of

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
    kinds = entry(algorithm)
    environment = names[1] if len(names) > 1 else example(algorithm)
    tuned = preset(algorithm, environment)
    _check_environment(environment)
    default_options = RunOptions(total_steps=tuned.total_steps or DEFAULT_TOTAL_STEPS)
    command = dataclasses.make_dataclass(
        "Train",
        [
            ("options", tyro.conf.OmitArgPrefixes[RunOptions], dataclasses.field(default=default_options)),
            ("json", Annotated[bool, tyro.conf.arg(help="End with one JSON object also on a terminal.")], False),
            ("config", kinds.config, dataclasses.field(default=settings_of(kinds.config, tuned.config, None))),
            (
                "network",
                kinds.network_config,
                dataclasses.field(default=settings_of(kinds.network_config, tuned.network, None)),
            ),
        ],
    )
    parsed: Any = _parse(command, rest, f"rollax train {algorithm} {environment}", TRAIN_HELP)
    if parsed.config.total_updates != kinds.config.total_updates:
        raise UsageError("total_updates follows from --total-steps: set that instead")
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
        options=parsed.options,
    )
    _closing_object(result.summary(), parsed.json)
    return result.exit_code


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


def resume(arguments: list[str]) -> int:
    from rollax.host import api

    given = _parse(Resume, arguments, "rollax resume")
    changes = {name: getattr(given, name) for name in ("on_nonfinite", "devices")}
    changes = {name: value for name, value in changes.items() if value is not None}
    result = api.resume(given.run, total_steps=given.total_steps, **changes)
    _closing_object(result.summary(), given.json)
    return result.exit_code


@dataclasses.dataclass(frozen=True)
class Evaluate:
    """Plays whole episodes with the policy of a run, other ones than its training and its own evaluations had.

    After RUN, --eval-env.NAME VALUE gives an argument of the environment another value than the run's own evaluations have:
    rollax eval RUN --eval-env.episodes 10
    """

    run: tyro.conf.Positional[Path]
    """Folder of the run."""
    checkpoint: str = "last"
    """last, best, or the step of a checkpoint."""
    episodes: int = 128
    """How many episodes."""
    stochastic: bool = False
    """Sample actions instead of taking the likeliest."""
    seed: int = 0
    """Seed of the episodes."""
    member: int | None = None
    """Which member of a population; the best when not given."""
    descriptor: str | None = None
    """How an episode's descriptor of behavior is extracted: final or mean; default: the environment's own."""
    json: bool = False
    """Print one JSON object and nothing else."""


def evaluate(arguments: list[str]) -> int:
    import time

    import jax

    from rollax.host import api

    rest, eval_env = take(arguments, "--eval-env.")
    given = _parse(Evaluate, rest, "rollax eval")
    if given.episodes < 1:
        raise UsageError(f"episodes ({given.episodes}) must be at least 1")
    policy = api.load(given.run, checkpoint=given.checkpoint, member=given.member, eval_arguments=single(eval_env))
    for warning in policy.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    started = time.monotonic()
    numbers, episodes = policy.evaluate(given.episodes, jax.random.key(given.seed), not given.stochastic, given.descriptor)
    wall_time = time.monotonic() - started
    frames = int(episodes.length.sum())
    if not given.json:
        print(of_evaluation(given, policy, numbers, episodes))
    summary = {
        "run": str(given.run),
        "steps": policy.step,
        **({} if policy.member is None else {"member": policy.member}),
        "episodes": given.episodes,
        **{name: value for name, value in numbers.items() if name != "return_any_nan"},
        "any_nan": bool(numbers["return_any_nan"]),
        "wall_time": round(wall_time, 3),
        "steps_per_second": round(frames / wall_time, 1),
    }
    _closing_object(summary, given.json)
    return 0


@dataclasses.dataclass(frozen=True)
class Plot:
    """Draws the learning curves of one run, or of several together."""

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Folders of runs."""
    out: Path | None = None
    """Picture to write (png, pdf or svg); default: in the run's figures/."""


def plot(arguments: list[str]) -> int:
    from rollax.view.plot import plot as draw

    given = _parse(Plot, arguments, "rollax plot")
    if not given.runs:
        raise UsageError("plot takes one or more run folders: rollax plot RUN")
    print(draw(list(given.runs), given.out))
    return 0


@dataclasses.dataclass(frozen=True)
class Render:
    """Plays an episode with the policy of a run and writes it as a GIF, or shows it in the terminal."""

    run: tyro.conf.Positional[Path]
    """Folder of the run."""
    out: Path | None = None
    """GIF to write; default: in the run's figures/."""
    checkpoint: str = "last"
    """last, best, or the step of a checkpoint."""
    seed: int = 0
    """Seed of the episode."""
    episodes: int = 1
    """How many episodes, one after the other."""
    stochastic: bool = False
    """Sample actions instead of taking the likeliest."""
    text: bool = False
    """Show it in the terminal's characters and write no GIF (environments with a grid)."""


def render(arguments: list[str]) -> int:
    from rollax.view.render import render as draw
    from rollax.view.text import show

    given = _parse(Render, arguments, "rollax render")
    if given.text and given.out is not None:
        raise UsageError(f"--text writes nothing to --out ({given.out}): leave one of them out")
    if given.text:
        show(given.run, given.checkpoint, seed=given.seed, episodes=given.episodes, greedy=not given.stochastic)
        return 0
    path = draw(given.run, given.out, given.checkpoint, seed=given.seed, episodes=given.episodes, greedy=not given.stochastic)
    print(path)
    return 0


@dataclasses.dataclass(frozen=True)
class Environments:
    """Lists the environments, or the arguments of one; with --env.NAME VALUE its tasks in words, where it has several."""

    suite: tyro.conf.Positional[str | None] = None
    """A suite (gymnax), or an environment (gymnax/CartPole-v1) to see its arguments."""
    json: bool = False
    """As JSON."""


def envs(arguments: list[str]) -> int:
    from rollax import environments

    rest, env = take(arguments, "--env.")
    given = _parse(Environments, rest, "rollax envs")
    if env:
        describe = getattr(environments.make(given.suite or "", **single(env)), "describe", None)
        if describe is None:
            raise UsageError(f"{given.suite} has no tasks to put in words: leave --env. out to list its arguments")
        found: Any = describe()
        lines = [found]
    elif given.suite is not None and "/" in given.suite:
        found = environments.arguments(given.suite)
        lines = [f"--env.{name:<28} default {value!r}" for name, value in found.items()] or ["takes no arguments"]
    else:
        found = environments.list_environments(given.suite)
        lines = found
    print(json.dumps(found, default=str) if given.json else "\n".join(lines))
    return 0


@dataclasses.dataclass(frozen=True)
class Algorithms:
    """Lists the algorithms."""

    json: bool = False
    """As JSON."""


def algorithms(arguments: list[str]) -> int:
    from rollax.algorithms import ALGORITHMS

    given = _parse(Algorithms, arguments, "rollax algorithms")
    found = {name: kinds.summary for name, kinds in ALGORITHMS.items()}
    print(json.dumps(found) if given.json else "\n".join(f"{name:<8} {summary}" for name, summary in found.items()))
    return 0


@dataclasses.dataclass(frozen=True)
class Doctor:
    """Says what this machine has for rollax, and what it lacks."""

    json: bool = False
    """As JSON."""


def doctor(arguments: list[str]) -> int:
    from rollax.cli import doctor as machine

    given = _parse(Doctor, arguments, "rollax doctor")
    found = machine.report()
    print(json.dumps(found) if given.json else machine.shown(found))
    return 0


COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "train": train,
    "resume": resume,
    "eval": evaluate,
    "plot": plot,
    "render": render,
    "envs": envs,
    "algorithms": algorithms,
    "doctor": doctor,
}


def _parse(kind: Any, arguments: list[str], program: str, description: str | None = None) -> Any:
    return tyro.cli(kind, args=arguments, prog=program, description=description)


def _check_environment(environment: str) -> None:
    """An unknown id is refused before its suite is imported."""
    from rollax.environments import list_environments

    known = list_environments()
    if environment not in known:
        raise UnknownNameError("environment", environment, known)


def _closing_object(summary: dict[str, Any], wanted: bool) -> None:
    if wanted or not sys.stdout.isatty():
        print(json.dumps({name: _json_value(value) for name, value in summary.items()}), flush=True)


def _json_value(value: Any) -> Any:
    if isinstance(value, list):
        return [_json_value(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


if __name__ == "__main__":
    sys.exit(main())
