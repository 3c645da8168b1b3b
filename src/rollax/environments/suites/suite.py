"""Metadata of suites of environments, available without importing the packages of the suites."""

from typing import Any, NamedTuple, TypeAlias

SuiteEnvironment: TypeAlias = Any
"""Environment object of a suite. Its attributes depend on the suite."""


class Suite(NamedTuple):
    """Metadata of a suite of environments. The module `catalogue` of a suite defines `SUITE`.

    The adapter is imported on first use. It defines `make(name, arguments) -> Environment` and
    `default_arguments(name) -> dict`. It may also define:

    - `CHOICES`: Accepted strings of arguments with a fixed list of values, keyed by argument name,
      or a function from the name of the environment to such a dictionary.
    - `resolve_arguments(arguments) -> dict`: Replace relative paths by absolute paths, so that a
      run can be resumed from another folder.
    - `check_evaluation(id, training, changes)`: Raise UsageError if evaluations with the changed
      arguments `changes` would be misleading, for example if they claim tasks that training does
      not sample.
    - `is_registered(name) -> bool`: Return whether another package has registered the name. Suites
      with `is_open` need it.

    Attributes:
        adapter: Name of the adapter module.
        names: Names of the environments.
        descriptions: One-line descriptions, keyed by environment name or pattern. The first match
            is used.
        drawing: Name of the module that defines `DRAWINGS`, a dictionary from names or patterns of
            names to `rollax.canvas.drawing.Drawing`. The first match is used. None draws
            observations.
        extra: Extra of rollax that installs the packages of the suite. None for suites that
            are part of rollax.
        module: Name under which the package of the suite is imported, or None.
        packages: Distribution names of the packages whose versions are recorded with a run. The
            first one provides `module`.
        converter: Call of the rollax function that converts environment objects of the suite, or
            None.
        unavailable_reasons: Reasons why environments of the package are not available, keyed by
            environment name.
        is_open: Whether other packages may add names to the suite.
        is_on_host: Whether simulators run in Python or C++ (`HostEnvironment`).
        evaluation: Arguments that evaluations override by default, keyed by pattern of environment
            names.
        best_metric: Default metric that selects the best checkpoint.
        min_python: Minimum version of Python, if it is higher than the minimum of rollax.
    """

    adapter: str
    names: tuple[str, ...]
    descriptions: dict[str, str] = {}
    drawing: str | None = None
    extra: str | None = None
    module: str | None = None
    packages: tuple[str, ...] = ()
    converter: str | None = None
    unavailable_reasons: dict[str, str] = {}
    is_open: bool = False
    is_on_host: bool = False
    evaluation: dict[str, dict[str, Any]] = {}
    best_metric: str = "return_mean"
    min_python: tuple[int, int] = (0, 0)
