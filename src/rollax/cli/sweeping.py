"""The command that compares settings: sweep."""

import dataclasses
import re
from pathlib import Path
from typing import Any, Literal

import tyro

from rollax.cli import flags, training
from rollax.cli.shared import Shared
from rollax.cli.words import close, parse, single, take
from rollax.errors import UnknownNameError, UsageError, near

HELP = """\
usage: rollax sweep ALGORITHM ENVIRONMENT --sweep.NAME VALUES --range.NAME LOW HIGH [log|linear] [options]
       rollax sweep FILE.yaml             the same, written down
       rollax sweep FOLDER                go on with a study, or help with it from another machine

Trains many settings and says which is the best. Settings that shape no program train together in one, all their seeds too;
every group of them is a run folder like any other.

  rollax sweep ppo gymnax/CartPole-v1 --seeds 4 --range.learning-rate 1e-5 1e-1 --sweep.num-epochs 4 10 --trials 16

What differs
  --sweep.NAME VALUES    Values to choose from, of any setting of `rollax train`: learning-rate, num-envs,
                         network.hidden, env.gravity, ... A value of several numbers: 64,64.
  --range.NAME LOW HIGH [log|linear]
                         A range; by default log where it spans a factor of a hundred.
  --when.NAME.OTHER VALUES
                         NAME is set only where OTHER has one of these values.
  All options of `rollax train ALGORITHM ENVIRONMENT` hold for every setting, --seeds and --total-steps too.

How to search
{search}

How to run it
{launch}
  --resources.NAME VALUE
                         Of a job of Slurm as submitit names them (slurm-partition, timeout-min), or of a worker of Ray
                         (num-cpus, num-gpus).
"""

TWO_SETTINGS = re.compile(r"((?:(?:config|network|env)\.)?[^.]+)\.(.+)")  # each perhaps with its group
WORKER = "--worker"  # what a process is given that is one of several that a launcher began: it ends without a table


@dataclasses.dataclass(frozen=True)
class Launch:
    """Where a study is worked on, and what it leaves."""

    study_dir: Path | None = None
    """Folder of the study; default: studies/<environment>/<algorithm>-<date>-<id>."""
    launcher: Literal["local", "slurm", "ray"] = "local"
    """Processes of this machine, jobs of Slurm (by submitit), or workers of a Ray cluster (RAY_ADDRESS, or this machine)."""
    workers: int = 1
    """How many of them; local: 1 is this process."""
    hours: float | None = None
    """Stop after so many hours; what is under way is saved, and goes on with `rollax sweep FOLDER`."""
    export_preset: Path | None = None
    """Write the best setting to this file, which `rollax train` takes with --preset."""
    picture: bool = True
    """Draw curves by setting, parallel coordinates and the importance of settings, at the end."""
    json: bool = False
    """End with one JSON object; all else goes to standard error."""


def sweep(arguments: list[str], shared: Shared) -> int:
    from rollax.studies.spec import Search

    if any(word in training.HELP for word in arguments) or not arguments:
        print(HELP.format(search=_options(Search), launch=_options(Launch)), end="")
        return 0
    from rollax.studies import launchers

    is_worker = WORKER in arguments
    rest, resources = take([word for word in arguments if word != WORKER], "--resources.")
    own, rest = _split(rest, (Search, Launch))
    own = flags.counts(flags.counts(own, {"": Search}), {"": Launch})
    names = []
    while rest and not rest[0].startswith("-"):
        names.append(rest.pop(0))
    written = _written(names)
    kind = dataclasses.make_dataclass(
        "Sweep",
        [
            (
                "search",
                tyro.conf.OmitArgPrefixes[Search],
                dataclasses.field(default=Search() if written is None else written.search),
            ),
            ("launch", tyro.conf.OmitArgPrefixes[Launch], dataclasses.field(default=Launch())),
        ],
    )
    given: Any = parse(kind, own, "rollax sweep")
    launch, needs = given.launch, {name: _value(value) for name, value in single(resources).items()}
    launchers.check(launch.launcher, launch.workers, launch.hours, needs)
    folder = _folder(names, rest, given, shared, written)
    if is_worker:
        return 0 if launchers.worker(str(folder), launch.hours) is None else 143
    return _run(folder, launch, needs, shared)


def _written(names: list[str]) -> Any:
    """The study in the file or the folder that is named; None where neither is."""
    from rollax.host.run_folder import STUDY
    from rollax.studies import study

    path = Path(names[0] if len(names) == 1 else "")
    file = path / STUDY if path.is_dir() else path
    return study.read(file) if len(names) == 1 and file.is_file() else None


def _folder(names: list[str], rest: list[str], given: Any, shared: Shared, written: Any) -> Path:
    """The folder of the study that is meant, made where it is a new one. `written`: the study that the one name names."""
    from rollax.studies import study

    trains_here = given.launch.launcher == "local" and given.launch.workers == 1
    if written is not None and Path(names[0]).is_dir():
        if rest or given.search != written.search or given.launch.study_dir is not None:
            raise UsageError(
                f"{names[0]} is a study, which keeps its settings: only --workers, --launcher, --hours and the like"
            )
        return Path(names[0])
    if written is not None:
        if rest:
            raise UsageError(f"{rest[0]}: what a study in a file compares stands in the file")
        imports = tuple(dict.fromkeys((*written.imports, *shared.imports)))
        spec = dataclasses.replace(written, search=given.search, imports=imports)
        return study.create(spec, given.launch.study_dir, trains_here)
    if len(names) != 2:
        what = f"{names[0]} is no study, nor a file of one: " if len(names) == 1 else ""
        raise UsageError(
            f"{what}sweep takes an algorithm and an environment, or the file or folder of a study: see rollax sweep --help"
        )
    return study.create(_spec(names, rest, given.search, shared), given.launch.study_dir, trains_here)


def _spec(names: list[str], rest: list[str], search: Any, shared: Shared) -> Any:
    """The study that the words describe."""
    from rollax.host.settings import entry
    from rollax.studies.space import words
    from rollax.studies.spec import StudySpec

    rest, swept = take(rest, "--sweep.")
    rest, ranges = take(rest, "--range.")
    rest, conditions = take(rest, "--when.")
    try:
        given, _ = training.given(names, rest, None if search.method == "evolve" else "--method evolve")
    except UnknownNameError as error:
        raise _of_sweep(error, rest) from None
    if given["sweep"] or given["evolve"] or given["opponents"]:
        raise UsageError("--evolve.NAME and --opponents.TYPE are for `rollax train`: leave them out of a sweep")
    kinds = entry(names[0])
    of_choice = lambda name: words(kinds, names[1], name)  # noqa: E731
    spelled = lambda name, values: [value if value in of_choice(name) else _value(value) for value in values]  # noqa: E731
    when: dict[str, dict[str, Any]] = {}
    for name, values in conditions.items():
        two = TWO_SETTINGS.fullmatch(name)
        if two is None:
            raise UsageError(f"--when.{name} needs two settings: --when.NAME.OTHER VALUES")
        when.setdefault(two[1], {})[two[2]] = spelled(two[2], values)
    defaults = type(given["options"])()
    options = {name: value for name, value in vars(given["options"]).items() if value != getattr(defaults, name)}
    config = {name: value for name, value in dataclasses.asdict(given["config"]).items() if name != "total_updates"}
    return StudySpec(
        *names,
        sweep={name: spelled(name, values) for name, values in swept.items()},
        range={name: [_value(value) for value in values] for name, values in ranges.items()},
        when=when,
        config=config,
        network=dataclasses.asdict(given["network"]),
        arguments=dict(given["arguments"]),
        eval_arguments=dict(given["eval_arguments"]),
        options=options,
        imports=shared.imports,
        search=search,
    )


def _of_sweep(error: UnknownNameError, words: list[str]) -> UsageError:
    """The error, or where an unknown option is like one of a sweep, which training does not know, that."""
    from rollax.studies.spec import Search

    options = [f"--{field.name.replace('_', '-')}" for kind in (Search, Launch) for field in dataclasses.fields(kind)]
    meant = {word: near(word, options) for word in words if word.startswith("--") and f"unknown option {word!r}" in str(error)}
    word = next((word for word, close in meant.items() if close), None)
    return error if word is None else UnknownNameError("option", word, options)


def _value(text: str) -> Any:
    """A word as the value that it spells: true, false, none, a number (also 1e6 or 100k), several with commas between them, or
    itself."""
    plain = {"true": True, "false": False, "none": None}
    if text.lower() in plain:
        return plain[text.lower()]
    if "," in text:
        return [_value(part) for part in text.split(",") if part]
    for kind in (int, float):
        try:
            return kind(flags.written_out(text) if kind is int else text)
        except ValueError:
            continue
    return text


def _split(words: list[str], kinds: tuple[type, ...]) -> tuple[list[str], list[str]]:
    """Options of these kinds with their values, and all other words."""
    types = {field.name: field.type for kind in kinds for field in dataclasses.fields(kind)}
    own: list[str] = []
    rest: list[str] = []
    position = 0
    while position < len(words):
        word = words[position]
        position += 1
        option, equals, _ = word.removeprefix("--").partition("=")
        name = option.replace("-", "_")
        known = name if name in types else name.removeprefix("no_")
        if not word.startswith("--") or known not in types:
            rest.append(word)
            continue
        own.append(word)
        is_flag = "bool" in str(types[known])
        if not equals and not is_flag and position < len(words):
            own.append(words[position])
            position += 1
    return own, rest


def _options(kind: type) -> str:
    """The options of a kind and what they do, a paragraph each."""
    from rollax.cli import help as helping

    return helping.text_of(kind)


def _run(folder: Path, launch: Launch, resources: dict[str, Any], shared: Shared) -> int:
    from rollax.host.progress import display
    from rollax.studies import launchers, pictures, results
    from rollax.studies.study import Study

    show = display(stderr=launch.json)
    try:
        show.message(f"study {folder}")
        stopped = launchers.launch(folder, launch.launcher, launch.workers, show, launch.hours, resources, shared.imports)
    finally:
        show.close()
    study = Study(folder)
    for line in results.table(study):
        show.message(line)
    summary = results.summary(study)
    is_done = study.is_done()
    if not is_done:
        show.message(f"not all settings have a result; to go on: rollax sweep {folder}")
    if "best" in summary:
        if launch.picture:
            show.message(f"  {pictures.draw(study) or 'no picture: a single setting has a result'}")
        if launch.export_preset is not None:
            from rollax.host.files import write

            write(launch.export_preset, results.preset(study).encode(), ": choose another --export-preset")
            preset = f"rollax train {study.spec.algorithm} {study.spec.environment} --preset {launch.export_preset}"
            show.message(f"  the best as a preset: {preset}")
    close(summary, launch.json)
    if stopped is not None:
        return 128 + stopped
    if is_done and "best" not in summary:
        results.best(study)  # says why there is none
    return 0 if is_done else 1
