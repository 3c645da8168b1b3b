"""Studies from Python: `rollax.sweep`."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rollax.errors import UsageError
from rollax.host.given import checking_keywords
from rollax.host.options import RunOptions
from rollax.host.progress import Display, display
from rollax.studies import results
from rollax.studies.launchers import Launcher, check, launch
from rollax.studies.results import Row
from rollax.studies.spec import Search, of_dictionary
from rollax.studies.study import Study, create
from rollax.typed import typed


class Swept(NamedTuple):
    """What a study has found."""

    folder: Path
    rows: list[Row]  # complete ones first, the best of them first
    importance: dict[str, float]  # by full name of a setting, adding up to 1; empty where it is not known

    @property
    def best(self) -> Row:
        """The best setting. Raises UsageError where none has a result."""
        return results.best(Study(self.folder))

    def preset(self) -> str:
        """The best setting as a file for `rollax train ... --preset FILE`. Raises UsageError where none has a result."""
        return results.preset(Study(self.folder))


@checking_keywords(search=Search)
def sweep(
    algorithm: str | Path,
    environment: str | None = None,
    *,
    sweep: Mapping[str, Any] | None = None,
    range: Mapping[str, Any] | None = None,
    when: Mapping[str, Any] | None = None,
    config: Any = None,
    network: Any = None,
    arguments: Mapping[str, Any] | None = None,
    eval_arguments: Mapping[str, Any] | None = None,
    options: RunOptions | Mapping[str, Any] | None = None,
    search: Search | Mapping[str, Any] | None = None,
    imports: Sequence[str] = (),
    folder: str | Path | None = None,
    launcher: Launcher = "local",
    workers: int = 1,
    hours: float | None = None,
    resources: Mapping[str, Any] | None = None,
    quiet: bool = False,
    show: Display | None = None,
) -> Swept:
    """Trains many settings and says which is the best, by the mean of the best metric over seeds at the end of training.

    `sweep` has values to choose from and `range` ranges, `(low, high)` or `(low, high, "log" or "linear")`, by the name of any
    setting: `learning_rate`, `num_envs`, `network.hidden`, `env.gravity`; `when` has by name the other settings, and their
    values, with which it applies. All else is as in `rollax.train`, with settings in place of a network of one's own; `options`
    has `seeds` and `total_steps`. `search` has `trials`, `method`, `pruner`, `batch`, `search_seed` and `storage`. Settings
    that shape no program train together in one.

    With the folder of a study, `rollax.sweep(FOLDER)`, it goes on with it, which keeps all of these; `hours` ends it early.

    Raises UsageError when something does not fit, before anything is trained, and for a package that is missing.
    """
    check(typed("launcher", launcher, Launcher), workers, hours, resources)
    what: dict[str, Any] = {"sweep": sweep, "range": range, "when": when, "config": config, "network": network}
    what |= {"arguments": arguments, "eval_arguments": eval_arguments, "options": options, "search": search}
    what |= {"imports": tuple(imports) or None}
    given = {name: value for name, value in what.items() if value is not None}
    if environment is None:
        where = Study(Path(algorithm)).folder
        kept = [*given, *(["folder"] if folder is not None else [])]
        if kept:
            raise UsageError(f"{where} is a study, which keeps its settings: leave {' and '.join(kept)} out")
    else:
        parts = {name: dataclasses.asdict(value) if _is_settings(value) else value for name, value in given.items()}
        spec = of_dictionary({"algorithm": algorithm, "environment": environment, **parts})
        trains_here = launcher == "local" and workers == 1
        where = create(spec, None if folder is None else Path(folder), trains_here)
    launch(where, launcher, workers, show or display(quiet), hours, resources, imports)
    study = Study(where)
    return Swept(where, results.rows(study), results.importance(study))


def _is_settings(value: Any) -> bool:
    """Whether it is a config, options or the like, rather than a dictionary of what they have."""
    return dataclasses.is_dataclass(value) and not isinstance(value, type)
