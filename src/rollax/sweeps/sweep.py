"""Python interface of studies: `rollax.sweep`."""

import dataclasses
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rollax.algorithm import Config
from rollax.config import DataclassInstance
from rollax.environments.registry import import_package
from rollax.errors import UsageError
from rollax.runtime.notebook import format_html_table
from rollax.runtime.numerics import standard_numerics
from rollax.sweeps import results
from rollax.sweeps.launchers import Launcher, check_launcher
from rollax.sweeps.results import TrialResult
from rollax.sweeps.study import Study, create_study
from rollax.sweeps.sweep_session import run_study
from rollax.sweeps.sweep_spec import BEST_METRIC_OPTION, SearchOptions, parse_study_spec
from rollax.training import user_imports
from rollax.training.argument_validation import check_display, check_keywords
from rollax.training.console.progress import Display, make_display
from rollax.training.console.signals import make_interrupt
from rollax.training.options import RunOptions
from rollax.types import SettingValues
from rollax.user_input.arguments import coerce_arguments
from rollax.user_input.coercion import coerce, format_repr


class Swept(NamedTuple):
    """Results of a study.

    Functions that take several runs, such as `rollax.plot`, also take the results of a study.

    Attributes:
        folder: Folder of the study.
        rows: Results of the trials. Complete trials are first, from best to worst.
        importance: Importance of each setting, keyed by full name. The values sum to 1. Empty if
            unknown.
    """

    folder: Path
    rows: list[TrialResult]
    importance: dict[str, float]

    def __repr__(self) -> str:
        return format_repr("Swept", **self._facts())

    def _repr_html_(self) -> str:
        complete = [row for row in self.rows if row.state == "COMPLETE"]
        settings = complete[0].settings if complete else {}
        return format_html_table("Swept", self._facts() | dict(settings))

    def __fspath__(self) -> str:
        return str(self.folder)

    def _facts(self) -> dict[str, Any]:
        """Return the values that `__repr__` and `_repr_html_` show, keyed by label."""
        complete = [row for row in self.rows if row.state == "COMPLETE"]
        return {
            "folder": self.folder,
            "trials": len(self.rows),
            "complete": len(complete),
            "best": complete[0].value if complete else None,
        }

    @property
    def best(self) -> TrialResult:
        """Best complete trial.

        Raises:
            UsageError: If no trial is complete.
        """
        return results.find_best_trial(Study(self.folder))

    def preset(self) -> str:
        """Return the best settings as YAML text for `rollax train ... --preset FILE`.

        Raises:
            UsageError: If no trial is complete.
        """
        return results.format_preset(Study(self.folder))


@check_keywords(search=SearchOptions)
@user_imports.accept_trust_keyword
@standard_numerics()
@coerce_arguments(
    workers=int,
    hours=float | None,
    resources=dict[str, Any] | None,
    folder=Path | None,
    imports=tuple[str, ...],
    picture=bool,
    quiet=bool,
)
def sweep(
    algorithm: str | os.PathLike[str],
    environment: str | None = None,
    *,
    sweep: SettingValues | None = None,
    range: SettingValues | None = None,
    when: SettingValues | None = None,
    config: Config | SettingValues | None = None,
    network: DataclassInstance | SettingValues | None = None,
    arguments: SettingValues | None = None,
    eval_arguments: SettingValues | None = None,
    options: RunOptions | SettingValues | None = None,
    search: SearchOptions | SettingValues | None = None,
    imports: Sequence[str] = (),
    folder: str | Path | None = None,
    launcher: Launcher = "local",
    workers: int = 1,
    hours: float | None = None,
    resources: SettingValues | None = None,
    picture: bool = True,
    quiet: bool = False,
    show: Display | None = None,
    trust: bool = False,
) -> Swept:
    """Train many settings and rank them by the mean of the option `best_metric` over seeds.

    Trials that differ only in traced settings train together in one program.

    Args:
        algorithm: Name of an algorithm. To continue a study, pass its folder or its results. The
            settings of an existing study cannot change.
        environment: Id of an environment, or None to continue a study.
        sweep: Values of each setting, keyed by a name such as `learning_rate`, `network.hidden` or
            `env.gravity`.
        range: Ranges `(low, high)` or `(low, high, "log" or "linear")`, keyed by setting name.
        when: Conditions, keyed by setting name. A condition maps names of other settings to their
            required values.
        config: Settings of the algorithm, as in `rollax.train`.
        network: Settings of the network.
        arguments: Arguments of the environment.
        eval_arguments: Arguments of the environment that differ in evaluations.
        options: Options of the runs, such as `seeds` and `total_steps`.
        search: Options of the search: `trials`, `method`, `pruner`, `batch`, `search_seed` and
            `storage`.
        imports: Modules that register custom environments or algorithms of the study.
        folder: Folder of a new study. None creates one in `studies/`.
        launcher: Kind of workers: "local", "slurm" or "ray".
        workers: Number of workers.
        hours: Time limit in hours, or None. The study can be continued later.
        resources: Resources of a worker, as named by submitit (`slurm_partition`, ...) or Ray
            (`num_gpus`, ...).
        picture: Whether to draw `study.png` into the folder.
        quiet: Whether to print only warnings and errors, without the table of results.
        show: Display that replaces the default one.
        trust: Whether to import the modules and open the database that the folder names. Use it
            only for folders from trusted sources.

    Returns:
        The folder, the ranked trials and the importance of settings.

    Raises:
        UsageError: If an argument is invalid or a package is missing.
        KeyboardInterrupt: After an interrupt (Ctrl-C), once the study is saved. Its attribute
            `result` is the value that the function would have returned.
    """
    check_launcher(coerce("launcher", launcher, Launcher), workers, hours, resources)
    check_display(show)
    arguments_by_name: dict[str, Any] = {
        "sweep": sweep,
        "range": range,
        "when": when,
        "config": config,
        "network": network,
        "arguments": arguments,
        "eval_arguments": eval_arguments,
        "options": options,
        "search": search,
        "imports": tuple(imports) or None,
    }
    settings = {name: value for name, value in arguments_by_name.items() if value is not None}
    if environment is None:
        study_folder = Study(Path(algorithm)).folder
        fixed = [*settings, *(["folder"] if folder is not None else [])]
        if fixed:
            raise UsageError(
                f"{study_folder} is an existing study, whose settings cannot change. "
                f"Remove {' and '.join(fixed)}."
            )
    else:
        import_package(environment)
        document = {name: _settings_to_dictionary(value) for name, value in settings.items()}
        spec = parse_study_spec({"algorithm": algorithm, "environment": environment, **document})
        trains_here = launcher == "local" and workers == 1
        study_folder = create_study(spec, None if folder is None else Path(folder), trains_here)
    stopped_by = run_study(
        study_folder,
        launcher,
        workers,
        show or make_display(quiet),
        hours=hours,
        resources=resources,
        imports=imports,
        draws_picture=picture,
        quiet=quiet,
    )
    result = _read_result(study_folder)
    if stopped_by == signal.SIGINT:
        raise make_interrupt(
            f"The study was interrupted and is saved in {study_folder}. "
            f"Continue it with rollax.sweep({str(study_folder)!r}).",
            result,
        )
    return result


def _read_result(folder: Path) -> Swept:
    """Return the folder, the ranked trials and the importance of settings of a study."""
    study = Study(folder)
    return Swept(folder, results.list_trial_results(study), results.setting_importance(study))


def _settings_to_dictionary(value: object) -> object:
    """Convert a settings object to a dictionary, and return any other value unchanged.

    `best_metric` is omitted if it has its default value, so that a study can use its own default.
    """
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return value
    settings = dataclasses.asdict(value)
    if isinstance(value, RunOptions) and value.best_metric == RunOptions.best_metric:
        del settings[BEST_METRIC_OPTION]
    return settings
