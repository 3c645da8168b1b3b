"""Command `rollax sweep`."""

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

import tyro

from rollax.cli import train_command
from rollax.cli.command_output import print_run_summary
from rollax.cli.parsing import flags
from rollax.cli.parsing import help as helping
from rollax.cli.parsing.dynamic_options import (
    parse_known_options,
    take_prefixed_options,
    unwrap_single_values,
)
from rollax.cli.parsing.shared_options import SharedOptions
from rollax.errors import UnknownNameError, UsageError, find_similar_names
from rollax.runtime.shell import format_command_line
from rollax.sweeps import launchers, optuna_study, results
from rollax.sweeps.search_space import literal_values
from rollax.sweeps.study import Study, create_study, list_study_modules, read_study_spec
from rollax.sweeps.sweep_session import run_study
from rollax.sweeps.sweep_spec import SearchOptions, StudySpec
from rollax.training.console.progress import ResilientDisplay, make_display
from rollax.training.options import RunOptions
from rollax.training.run_folder.layout import STUDY_FILE
from rollax.training.spec import get_algorithm_entry
from rollax.types import Setting, SettingValues

HELP_TEXT = """\
usage: rollax sweep ALGORITHM ENVIRONMENT --sweep.NAME VALUES
                    --range.NAME LOW HIGH [log|linear] [options]
       rollax sweep FILE.yaml             start the study described in a file
       rollax sweep FOLDER                continue a study, or work on it from another machine

Trains with many settings and ranks them. Trials that differ only in traced settings train in one
compiled program, with all their seeds. Each such batch has its own run folder.

  rollax sweep ppo gymnax/CartPole-v1 --seeds 4 --range.learning-rate 1e-5 1e-1 \\
      --sweep.num-epochs 4 10 --trials 16

Search space
  --sweep.NAME VALUES    Values of any setting of `rollax train`: learning-rate, num-envs,
                         network.hidden, env.gravity, ... Write tuples with commas: 64,64.
  --range.NAME LOW HIGH [log|linear]
                         A range. The default is log if HIGH is at least 100 times LOW.
  --when.NAME.OTHER VALUES
                         Set NAME only if OTHER has one of these values.
  All options of `rollax train ALGORITHM ENVIRONMENT` apply to every trial, including --seeds and
  --total-steps.

Search
{search}

Execution
{launch}
  --resources.NAME VALUE
                         Resources of a Slurm job with the names of submitit (slurm-partition,
                         timeout-min), or of a Ray worker (num-cpus, num-gpus).
"""

# NAME.OTHER, each optionally with its group.
CONDITION_PATTERN = re.compile(r"((?:(?:config|network|env)\.)?[^.]+)\.(.+)")
# Flag of worker processes, which do not print the table of results.
WORKER_FLAG = "--worker"


@dataclasses.dataclass(frozen=True)
class LaunchOptions:
    """Workers and output of a study."""

    study_dir: Path | None = None
    """Folder of the study. Defaults to studies/<environment>/<algorithm>-<date>-<id>."""
    launcher: Literal["local", "slurm", "ray"] = "local"
    """Workers: local processes, Slurm jobs, or Ray workers (RAY_ADDRESS, or this machine)."""
    workers: int = 1
    """Number of workers. With the local launcher, 1 trains in this process."""
    hours: float | None = None
    """Time limit in hours. Running trials are saved, and `rollax sweep FOLDER` continues them."""
    export_preset: Path | None = None
    """File to write the best settings to, for `rollax train --preset`."""
    picture: bool = True
    """Draw learning curves, parallel coordinates and setting importance at the end."""
    json: bool = False
    """End with one JSON object. Everything else goes to standard error."""


@runtime_checkable
class SweepCommandOptions(Protocol):
    """Interface of the options class that `_make_options_class` builds for `rollax sweep`."""

    @property
    def search(self) -> SearchOptions: ...
    @property
    def launch(self) -> LaunchOptions: ...


def sweep(arguments: list[str], shared: SharedOptions) -> int:
    """Run `rollax sweep` and return its exit code."""
    if any(word in train_command.HELP_FLAGS for word in arguments) or not arguments:
        print(
            HELP_TEXT.format(
                search=helping.format_options(SearchOptions),
                launch=helping.format_options(LaunchOptions),
            ),
            end="",
        )
        return 0
    is_worker = WORKER_FLAG in arguments
    words = [word for word in arguments if word != WORKER_FLAG]
    words, resources = take_prefixed_options(words, "--resources.")
    given, rest = parse_known_options(_make_options_class(SearchOptions()), words, "rollax sweep")
    names: list[str] = []
    while rest and not rest[0].startswith("-"):
        names.append(rest.pop(0))
    written = _read_named_study(names)
    if written is not None:
        kind = _make_options_class(written.search)
        given, _ = parse_known_options(kind, words, "rollax sweep")
    launch = given.launch
    needs = {name: _parse_value(value) for name, value in unwrap_single_values(resources).items()}
    launchers.check_launcher(launch.launcher, launch.workers, launch.hours, needs)
    folder = _find_or_create_study(names, rest, given, shared, written)
    if is_worker:
        return (
            0
            if launchers.run_worker(str(folder), launch.hours, trust=shared.trust) is None
            else 143
        )
    return _run_study(folder, launch, needs, shared)


def _make_options_class(search: SearchOptions) -> type:
    """Build the options class of `rollax sweep` with these search options as defaults."""
    kinds = {"search": type(search), "launch": LaunchOptions}
    defaults = {"search": search, "launch": LaunchOptions()}
    return dataclasses.make_dataclass(
        "Sweep",
        [
            (name, tyro.conf.OmitArgPrefixes[kind], dataclasses.field(default=defaults[name]))
            for name, kind in kinds.items()
        ],
    )


def _read_named_study(names: list[str]) -> StudySpec | None:
    """Read the study if `names` is a single path of a study file or folder, else return None."""
    path = Path(names[0] if len(names) == 1 else "")
    file = (
        path / STUDY_FILE if path.is_dir() else path.resolve()
    )  # a file named by the user may be a link
    return read_study_spec(file) if len(names) == 1 and file.is_file() else None


def _find_or_create_study(
    names: list[str],
    rest: list[str],
    options: SweepCommandOptions,
    shared: SharedOptions,
    named_spec: StudySpec | None,
) -> Path:
    """Return the folder of an existing study, or create a study and return its folder.

    `named_spec` is the result of `_read_named_study`.
    """
    is_trained_here = options.launch.launcher == "local" and options.launch.workers == 1
    if named_spec is not None and Path(names[0]).is_dir():
        if rest or options.search != named_spec.search or options.launch.study_dir is not None:
            raise UsageError(
                f"{names[0]} is an existing study, whose settings cannot change. Pass only options "
                "such as --workers, --launcher and --hours."
            )
        return Path(names[0])
    if named_spec is not None:
        if rest:
            raise UsageError(
                f"{rest[0]} cannot be combined with a study file. Set it in the file instead."
            )
        launchers.check_modules_imported(list_study_modules(named_spec))
        if (
            named_spec.search.storage is not None
            and options.search.storage == named_spec.search.storage
        ):
            optuna_study.check_storage_trusted(named_spec.search.storage)
        imports = tuple(dict.fromkeys((*named_spec.imports, *shared.imports)))
        spec = dataclasses.replace(named_spec, search=options.search, imports=imports)
        return create_study(spec, options.launch.study_dir, is_trained_here)
    if len(names) != 2:
        what = f"{names[0]} is not a study or a study file. " if len(names) == 1 else ""
        raise UsageError(
            f"{what}sweep needs an algorithm and an environment, or the file or folder of a study. "
            "Run `rollax sweep --help` for examples."
        )
    return create_study(
        _parse_study_words(names, rest, options.search, shared),
        options.launch.study_dir,
        is_trained_here,
    )


def _parse_study_words(
    names: list[str], rest: list[str], search: SearchOptions, shared: SharedOptions
) -> StudySpec:
    """Build the specification of a study from command-line arguments."""
    rest, swept = take_prefixed_options(rest, "--sweep.")
    rest, ranges = take_prefixed_options(rest, "--range.")
    rest, conditions = take_prefixed_options(rest, "--when.")
    try:
        given, _ = train_command.parse_train_words(
            names, rest, None if search.method == "evolve" else "--method evolve"
        )
    except UnknownNameError as error:
        raise _suggest_sweep_option(error, rest) from None
    if any(given[name] for name in ("sweep", "evolve", "opponents", "randomize", "curriculum")):
        raise UsageError(
            "--evolve.NAME, --opponents.TYPE, --randomize.NAME and --curriculum.NAME are options "
            "of `rollax train`. Remove them from the sweep."
        )
    kinds = get_algorithm_entry(names[0])

    def parse_values(name: str, texts: list[str]) -> list[Setting]:
        choices = literal_values(kinds, names[1], name)
        return [text if text in choices else _parse_value(text) for text in texts]

    config = dataclasses.asdict(given["config"])
    del config["total_updates"]
    return StudySpec(
        *names,
        sweep={name: parse_values(name, texts) for name, texts in swept.items()},
        range={name: [_parse_value(text) for text in texts] for name, texts in ranges.items()},
        when=_parse_conditions(conditions, parse_values),
        config=config,
        network=dataclasses.asdict(given["network"]),
        arguments=dict(given["arguments"]),
        eval_arguments=dict(given["eval_arguments"]),
        options=_given_run_options(given["options"], rest),
        imports=shared.imports,
        search=search,
    )


def _parse_conditions(
    conditions: dict[str, list[str]], parse_values: Callable[[str, list[str]], list[Setting]]
) -> dict[str, dict[str, list[Setting]]]:
    """Return the values of `--when.NAME.OTHER VALUES` as a dictionary `{NAME: {OTHER: values}}`."""
    when: dict[str, dict[str, list[Setting]]] = {}
    for name, texts in conditions.items():
        settings = CONDITION_PATTERN.fullmatch(name)
        if settings is None:
            raise UsageError(f"--when.{name} needs two settings. Write --when.NAME.OTHER VALUES.")
        setting, other = settings.groups()
        when.setdefault(setting, {})[other] = parse_values(other, texts)
    return when


def _given_run_options(options: RunOptions, words: list[str]) -> dict[str, Setting]:
    """Return the run options that differ from their defaults.

    An explicit `--best-metric` is always included, because its default differs for studies of
    archives.
    """
    given = {word.partition("=")[0].replace("_", "-") for word in words}
    defaults = vars(type(options)())
    return {
        name: value
        for name, value in vars(options).items()
        if value != defaults[name] or (name == "best_metric" and "--best-metric" in given)
    }


def _suggest_sweep_option(error: UnknownNameError, words: list[str]) -> UsageError:
    """Return an error that suggests a sweep option with a name similar to the unknown option.

    Return `error` unchanged without a similar option, and for names of other libraries.
    """
    if "rollax calls it" in str(error):
        return error
    options = [
        f"--{field.name.replace('_', '-')}"
        for kind in (SearchOptions, LaunchOptions)
        for field in dataclasses.fields(kind)
    ]
    meant = {
        word: find_similar_names(word, options)
        for word in words
        if word.startswith("--") and f"unknown option {word!r}" in str(error)
    }
    word = next((word for word, close in meant.items() if close), None)
    return error if word is None else UnknownNameError("option", word, options)


def _parse_value(text: str) -> Setting:
    """Convert text to a bool, None, a number (for example 100k), or a list of these values.

    Elements of a list are separated by commas. Any other text is returned unchanged.
    """
    plain = {"true": True, "false": False, "none": None}
    if text.lower() in plain:
        return plain[text.lower()]
    if "," in text:
        return [_parse_value(part) for part in text.split(",") if part]
    for kind in (int, float):
        try:
            return kind(flags.expand_count(text) if kind is int else text)
        except ValueError:
            continue
    return text


def _run_study(
    folder: Path, launch: LaunchOptions, resources: SettingValues, shared: SharedOptions
) -> int:
    """Run the study, print its summary and return the exit code."""
    show = ResilientDisplay(make_display(stderr=launch.json))
    where = {
        "hours": launch.hours,
        "resources": resources,
        "imports": shared.imports,
        "draws_picture": launch.picture,
    }
    stopped = run_study(folder, launch.launcher, launch.workers, show, **where)
    study = Study(folder)
    summary = results.summarize_study(study)
    is_done = study.is_done()
    if "best" in summary and launch.export_preset is not None:
        from rollax.training.run_folder.files import write_output_file

        write_output_file(
            launch.export_preset,
            results.format_preset(study).encode(),
            ". Choose another --export-preset.",
        )
        run = "train", study.spec.algorithm, study.spec.environment
        preset = format_command_line("rollax", *run, "--preset", launch.export_preset)
        show.message(f"  Train with the best settings: {preset}")
    print_run_summary(summary, launch.json)
    if stopped is not None:
        return 128 + stopped
    if is_done and "best" not in summary:
        results.find_best_trial(study)  # raises an error with the reasons
    return 0 if is_done else 1
