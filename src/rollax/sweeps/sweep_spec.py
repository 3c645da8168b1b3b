"""Specification of a study: base run, search space and search options (study.yaml)."""

import dataclasses
import functools
import sys
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal

from rollax.distributed.sharding import make_mesh
from rollax.errors import UsageError
from rollax.populations.evolution import Range
from rollax.sweeps import optuna_study
from rollax.sweeps.search_space import SearchSpace, make_search_space
from rollax.synonyms.lookup import UnknownSettingError
from rollax.training import loop
from rollax.training.compile import program as programs
from rollax.training.options import EVOLVE_OPTIONS, RunOptions
from rollax.training.spec import Spec, get_algorithm_entry, make_spec, to_plain_value
from rollax.types import Record, SettingValues
from rollax.user_input.coercion import coerce, coerce_dict, field_types, format_value

DEFAULT_TRIALS = 32
BEST_METRIC_OPTION = "best_metric"  # run option that ranks the trials of a study
# Default number of trials in one program. Methods that learn from results use smaller batches.
DEFAULT_BATCH_SIZE, DEFAULT_ADAPTIVE_BATCH_SIZE = (64, 8)


@dataclasses.dataclass(frozen=True)
class SearchOptions:
    """Options of a hyperparameter search, such as the number of trials, sampler and pruner."""

    trials: int | None = None
    """Number of trials. Defaults to all of a grid, else 32, or as many as the budget allows."""
    budget: int | None = None
    """Total steps over all trials and seeds. No trial starts that could exceed it. Steps saved by
    early stopping are available to other trials."""
    method: Literal["auto", "grid", "random", "qmc", "tpe", "gp", "cmaes", "evolve"] = "auto"
    """Search method: grid (every combination), an Optuna sampler, or auto (grid if all settings
    have values, else tpe). With evolve, the trials are one population whose settings evolve within
    their ranges during training."""
    pruner: Literal[
        "none", "halving", "median", "percentile", "successive_halving", "hyperband"
    ] = "none"
    """Early stopping after evaluations: an Optuna pruner, or halving, which stops the worse half of
    the trials of a program three times."""
    batch: int = 0
    """Maximum number of trials in one program. 0 means 64 for grid, random and qmc, else 8."""
    search_seed: int = 0
    """Random seed of the sampler."""
    storage: str | None = None
    """Optuna database, such as postgresql://host/name. Defaults to a file in the study's folder."""

    def check(self) -> None:
        """Check that all numbers are in range.

        Raises:
            UsageError: If a number is out of range.
        """
        limits = (
            ("trials", self.trials, 1),
            ("budget", self.budget, 1),
            ("batch", self.batch, 0),
            ("search_seed", self.search_seed, 0),
        )
        for name, value, low in limits:
            if value is not None and value < low:
                raise UsageError(f"{name} must be at least {low}, got {format_value(value)}.")


@dataclasses.dataclass(frozen=True)
class StudySpec:
    """Specification of a study, as stored in study.yaml.

    Attributes:
        algorithm: Name of the algorithm.
        environment: Id of the environment.
        sweep: Values of each setting, keyed by setting name.
        range: Lowest value, highest value and optionally "log" or "linear", keyed by setting name.
        when: Conditions, keyed by setting name. A condition maps names of other settings to their
            accepted values.
        config: Settings of the algorithm, as in `rollax.train`.
        network: Settings of the network.
        arguments: Arguments of the environment.
        eval_arguments: Arguments of the environment in evaluations.
        options: Run options.
        imports: Modules that register environments or algorithms.
        search: Search options.
    """

    algorithm: str
    environment: str
    sweep: dict[str, Any] = dataclasses.field(default_factory=dict)
    range: dict[str, Any] = dataclasses.field(default_factory=dict)
    when: dict[str, Any] = dataclasses.field(default_factory=dict)
    config: dict[str, Any] = dataclasses.field(default_factory=dict)
    network: dict[str, Any] = dataclasses.field(default_factory=dict)
    arguments: dict[str, Any] = dataclasses.field(default_factory=dict)
    eval_arguments: dict[str, Any] = dataclasses.field(default_factory=dict)
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    imports: tuple[str, ...] = ()
    search: SearchOptions = SearchOptions()

    @functools.cached_property
    def space(self) -> SearchSpace:
        """Search space: the settings that differ between trials, with their values.

        Raises:
            UsageError: If the settings do not form a valid search space.
        """
        return make_search_space(
            get_algorithm_entry(self.algorithm), self.environment, self.sweep, self.range, self.when
        )

    @property
    def method(self) -> str:
        """Search method, with `auto` resolved.

        Raises:
            UsageError: If the method is grid and a setting has a range.
        """
        finite, method = self.space.is_finite, self.search.method
        if method == "auto":
            return "grid" if finite else "tpe"
        if method == "grid" and not finite:
            ranges = [
                dimension.name for dimension in self.space if dimension.value_range is not None
            ]
            raise UsageError(
                f"The grid method needs values for {ranges[0]}, got a range. "
                "Use --sweep.NAME VALUES, or choose another --method."
            )
        return method

    @functools.cached_property  # building the grid is slow, and every progress line needs the size
    def num_trials(self) -> int:
        """Number of trials. With a budget, this is an upper bound."""
        size = len(self.space.grid()) if self.method == "grid" else None
        if self.search.budget is None:
            limit = self.search.trials or size or DEFAULT_TRIALS
        else:  # a trial stops after its first evaluation at the earliest
            earliest = 1 if self.search.pruner == "none" else RunOptions(**self.options).eval_count
            limit = min(
                self.search.trials or sys.maxsize,
                self.search.budget * earliest // self.steps_per_trial,
            )
        return limit if size is None else min(size, limit)

    @functools.cached_property
    def steps_per_trial(self) -> int:
        """Maximum number of steps of a trial, summed over all seeds."""
        return (
            self.space.max_total_steps(self.base.config, self.base.options.total_steps or 0)
            * self.base.options.seeds
        )

    @functools.cached_property
    def base(self) -> Spec:
        """Run specification shared by all trials.

        Raises:
            UsageError: If the settings are invalid.
        """
        options = dict(self.options)
        if self.is_evolving:  # the population of a study evolves, not that of a single run
            defaults = vars(RunOptions())
            options |= {name: defaults[name] for name in EVOLVE_OPTIONS}
        return self._make_run(RunOptions(**options))

    def _make_run(
        self,
        options: RunOptions,
        arguments: SettingValues = MappingProxyType({}),
        evolve: Mapping[str, Range | None] | None = None,
    ) -> Spec:
        """Return the specification of a run. `arguments` override the environment arguments."""
        return make_spec(
            algorithm=self.algorithm,
            environment=self.environment,
            arguments=self.arguments | dict(arguments),
            config=self.config,
            network=self.network,
            options=options,
            sweep={},
            eval_arguments=self.eval_arguments,
            opponents={},
            evolve=evolve,
            imports=self.imports,
        )

    @property
    def is_evolving(self) -> bool:
        """Whether the trials are members of an evolving population.

        Raises:
            UsageError: If the space or the options do not allow evolution.
        """
        if self.search.method != "evolve":
            return False
        fixed = [
            dimension.name
            for dimension in self.space
            if dimension.value_range is None or not dimension.is_traced or dimension.when
        ]
        if fixed:
            raise UsageError(
                f"{fixed[0]} cannot evolve. Evolution needs a range of a setting that is not "
                "static, without --when."
            )
        if (
            RunOptions(**self.options).seeds > 1
            or self.search.pruner != "none"
            or self.search.budget is not None
        ):
            raise UsageError(
                "The number of evolving members is given by --trials. "
                "Remove --seeds, --pruner and --budget."
            )
        return True

    def with_ranking_metric(self) -> "StudySpec":
        """Return the study with the QD score as the ranking metric if its runs have an archive.

        A ranking metric that is already set is not changed. The default for a single run, the
        fitness of the best elite, does not describe an archive well.
        """
        scores = [
            name
            for name in get_algorithm_entry(self.algorithm).console_metrics
            if name.endswith("qd_score")
        ]
        if not scores or BEST_METRIC_OPTION in self.options:
            return self
        return dataclasses.replace(self, options={**self.options, BEST_METRIC_OPTION: scores[0]})

    @property
    def max_batch_trials(self) -> int:
        """Maximum number of trials that one compiled program trains."""
        return self.search.batch or (
            DEFAULT_BATCH_SIZE
            if self.method in ("grid", "random", "qmc")
            else DEFAULT_ADAPTIVE_BATCH_SIZE
        )

    def check(self) -> None:
        """Check the search options, the search space and the settings of the runs.

        Raises:
            UsageError: If the study cannot be run.
        """
        self.search.check()
        optuna_study.check_sampler_installed(self.method)
        options = RunOptions(**self.options)
        for name, is_set in (
            ("run_dir", options.run_dir is not None),
            ("sweep_paired", options.sweep_paired),
        ):
            if is_set:
                raise UsageError(f"{name} is set by the study for each run. Remove it.")
        if options.stop_when is not None:
            raise UsageError(
                f"stop_when ({options.stop_when}) would end all trials of a batch together. Remove "
                "it. To end trials early, choose a pruner, such as --pruner median."
            )
        if self.is_evolving:
            if self.num_trials < 2:
                raise UsageError(
                    f"An evolving population needs at least 2 trials, got {self.num_trials}. "
                    "Raise --trials, for example to 16."
                )
            spans = {
                dimension.name.partition(".")[2]: dimension.value_range for dimension in self.space
            }
            self._make_run(dataclasses.replace(options, seeds=self.num_trials), evolve=spans)
        first = self._first_run()
        # Loggers are checked by workers, because this process may lack their packages.
        local_options = dataclasses.replace(first.options, wandb=None, trackio=None)
        loop.check_metrics_and_loggers(
            dataclasses.replace(first, options=local_options),
            None,
            programs.make_environment(first),
        )
        budget = self.search.budget
        if budget is not None and budget < self.steps_per_trial:
            raise UsageError(
                f"budget ({format_value(budget)}) must be at least the steps of one trial with all "
                f"its seeds ({self.steps_per_trial}). Raise --budget or lower --total-steps."
            )
        _ = self.num_trials
        if self.search.pruner != "none" and options.eval_count < 2:
            raise UsageError(
                f"The pruner {self.search.pruner} needs evaluations during training. "
                "Set --eval-count to 2 or more."
            )
        if self.search.pruner == "halving" and (
            self.max_batch_trials == 1 or not any(dimension.is_traced for dimension in self.space)
        ):
            raise UsageError(
                "The pruner halving compares trials of one program, but each trial of this study "
                "has its own program. Choose another pruner, for example median."
            )

    def check_trainable_here(self) -> None:
        """Check for problems that would make every trial fail in this process.

        Raises:
            UsageError: If devices or packages are missing, or the environment cannot be made.
        """
        devices = RunOptions(**self.options).devices
        if devices not in ("auto", 1):
            make_mesh(int(devices), "members")
        first = self._first_run()
        loop.check_metrics_and_loggers(first, None, programs.make_environment(first))

    def _first_run(self) -> Spec:
        """Return the base run with the first value of each environment argument in the space."""
        arguments = {
            dimension.name.partition(".")[2]: dimension.extreme_values[0]
            for dimension in self.space
            if dimension.name.startswith("env.") and not dimension.when
        }
        return self._make_run(self.base.options, arguments)


def parse_study_spec(document: Record) -> StudySpec:
    """Build a study specification from plain values.

    Args:
        document: Contents of a study file.

    Returns:
        The specification.

    Raises:
        UsageError: If a key is missing or has a value of the wrong type.
        UnknownSettingError: If a key is unknown.
    """
    types, search_types = field_types(StudySpec), field_types(SearchOptions)
    for name in document:
        if name not in types:
            raise UnknownSettingError("key", name, types)
    for name in ("algorithm", "environment"):
        if name not in document:
            raise UsageError(f"The key {name} is missing.")
    search = coerce_dict("search", document.get("search"))
    for name in search:
        if name not in search_types:
            known = [f"search.{known_name}" for known_name in search_types]
            raise UnknownSettingError("key", f"search.{name}", known)
    search_options = SearchOptions(
        **{
            name: coerce(f"search.{name}", value, search_types[name])
            for name, value in search.items()
        }
    )
    values = {
        name: to_plain_value(name, coerce(name, value, types[name]))
        for name, value in document.items()
        if name != "search"
    }
    return StudySpec(**values, search=search_options)
