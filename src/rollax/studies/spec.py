"""What a study compares and how it searches: all that study.yaml holds."""

import dataclasses
import functools
import sys
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal

from rollax.errors import UnknownNameError, UsageError
from rollax.host import loop
from rollax.host import program as programs
from rollax.host.options import EVOLVE_OPTIONS, RunOptions
from rollax.host.settings import Spec, entry, make_spec, plain
from rollax.scale.sharding import mesh
from rollax.studies import optuna_study as drawing
from rollax.studies.space import Space, space
from rollax.typed import hints, shown, typed

DEFAULT_TRIALS = 32
LARGEST_BATCH, LEARNING_BATCH = 64, 8  # settings in one program by default; the latter where later ones learn from earlier ones


@dataclasses.dataclass(frozen=True)
class Search:
    """How a study searches."""

    trials: int | None = None
    """Settings to try; default: all of a grid, else 32, or as many as the budget is enough for."""
    budget: int | None = None
    """Steps of all settings and seeds together: no further one is drawn that could take more. Those that stop early leave
    theirs to others."""
    method: Literal["auto", "grid", "random", "qmc", "tpe", "gp", "cmaes", "evolve"] = "auto"
    """How settings are drawn: every combination, or one of Optuna's samplers; auto: grid where all settings have values to
    choose from, else tpe. evolve: the trials are one population, whose settings move within their ranges while it trains."""
    pruner: Literal["none", "halving", "median", "percentile", "successive_halving", "hyperband"] = "none"
    """Which settings stop early, after an evaluation: halving, the worse half of those that train in one program, three times;
    or one of Optuna's pruners."""
    batch: int = 0
    """Settings that train in one program, at most; 0: 64 of a grid or at random, else 8, as later ones learn from earlier."""
    search_seed: int = 0
    """Seed of the sampler."""
    storage: str | None = None
    """A database for Optuna, such as postgresql://...; default: a file in the study's folder."""

    def check(self) -> None:
        """Raises UsageError for numbers out of their range."""
        for name, low in (("trials", 1), ("budget", 1), ("batch", 0), ("search_seed", 0)):
            value = getattr(self, name)
            if value is not None and value < low:
                raise UsageError(f"{name} ({shown(value)}) must be at least {low}")


@dataclasses.dataclass(frozen=True)
class StudySpec:
    """What a study compares: study.yaml holds it. All but the search is as `rollax.train` takes it."""

    algorithm: str
    environment: str
    sweep: dict[str, Any] = dataclasses.field(default_factory=dict)  # by name: values to choose from
    range: dict[str, Any] = dataclasses.field(default_factory=dict)  # by name: ends, and perhaps log or linear
    when: dict[str, Any] = dataclasses.field(default_factory=dict)  # by name: what others must be
    config: dict[str, Any] = dataclasses.field(default_factory=dict)
    network: dict[str, Any] = dataclasses.field(default_factory=dict)
    arguments: dict[str, Any] = dataclasses.field(default_factory=dict)
    eval_arguments: dict[str, Any] = dataclasses.field(default_factory=dict)
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    imports: tuple[str, ...] = ()
    search: Search = Search()

    @functools.cached_property
    def space(self) -> Space:
        """The search space. Raises UsageError where it is none."""
        return space(entry(self.algorithm), self.environment, self.sweep, self.range, self.when)

    @property
    def method(self) -> str:
        """The method, with what auto stands for. Raises UsageError where it cannot draw from the space."""
        finite, method = self.space.is_finite, self.search.method
        if method == "auto":
            return "grid" if finite else "tpe"
        if method == "grid" and not finite:
            ranges = [one.name for one in self.space if one.span is not None]
            raise UsageError(f"a grid needs values of {ranges[0]}, not a range: --sweep.NAME VALUES, or another --method")
        return method

    @functools.cached_property  # a grid is long, and every line of progress asks
    def num_trials(self) -> int:
        """How many settings are tried, at most where there is a budget."""
        size = len(self.space.grid()) if self.method == "grid" else None
        if self.search.budget is None:
            most = self.search.trials or size or DEFAULT_TRIALS
        else:  # a setting is stopped after its first evaluation at the earliest
            earliest = 1 if self.search.pruner == "none" else RunOptions(**self.options).eval_count
            most = min(self.search.trials or sys.maxsize, self.search.budget * earliest // self.steps_of_one)
        return most if size is None else min(size, most)

    @functools.cached_property
    def steps_of_one(self) -> int:
        """The most steps of a setting that is not stopped early, with all its seeds."""
        return self.space.most_steps(self.base.config, self.base.options.total_steps or 0) * self.base.options.seeds

    @functools.cached_property
    def base(self) -> Spec:
        """The run of each trial but for what these differ in. Raises UsageError where there can be none."""
        evolving = {name: getattr(RunOptions(), name) for name in EVOLVE_OPTIONS} if self.evolves else {}
        return self._run(RunOptions(**(self.options | evolving)))

    def _run(self, options: RunOptions, settings: Mapping[str, Any] = MappingProxyType({}), evolve: Any = None) -> Spec:
        """`settings`: of the environment, in place of its arguments."""
        given = self.config, self.network, options, {}, self.eval_arguments, {}, evolve
        return make_spec(self.algorithm, self.environment, self.arguments | dict(settings), *given, imports=self.imports)

    @property
    def evolves(self) -> bool:
        """Whether the trials are the members of a population that evolves. Raises UsageError where they cannot be."""
        if self.search.method != "evolve":
            return False
        strange = [one.name for one in self.space if one.span is None or not one.is_traced or one.when]
        if strange:
            raise UsageError(
                f"{strange[0]} cannot evolve: that takes a range of a setting that shapes no program, without --when"
            )
        if RunOptions(**self.options).seeds > 1 or self.search.pruner != "none" or self.search.budget is not None:
            raise UsageError("members that evolve are as many as --trials: leave --seeds, --pruner and --budget out")
        return True

    @property
    def largest_batch(self) -> int:
        """How many settings train in one program at most."""
        return self.search.batch or (LARGEST_BATCH if self.method in ("grid", "random", "qmc") else LEARNING_BATCH)

    def check(self) -> None:
        """Raises UsageError where a run, the space or the search cannot be."""
        self.search.check()
        drawing.check_method(self.method)
        options = RunOptions(**self.options)
        for name in ("run_dir", "sweep_paired"):
            if getattr(options, name) != getattr(RunOptions(), name):
                raise UsageError(f"{name} is set by the study for each of its runs: leave it out")
        if self.evolves:
            if self.num_trials < 2:
                raise UsageError(f"a population of {self.num_trials} cannot evolve: give --trials 2 or more, such as 16")
            spans = {one.name.partition(".")[2]: one.span for one in self.space}
            self._run(dataclasses.replace(options, seeds=self.num_trials), evolve=spans)
        first = self._first()
        elsewhere = dataclasses.replace(first.options, wandb=None, trackio=None)  # what a worker has this process may lack
        loop.check(dataclasses.replace(first, options=elsewhere), None, programs.environment_of(first))
        budget = self.search.budget
        if budget is not None and budget < self.steps_of_one:
            raise UsageError(
                f"budget ({shown(budget)}) is less than one setting takes, {self.steps_of_one} steps with all its seeds: take "
                "more, or fewer --total-steps"
            )
        _ = self.num_trials
        if self.search.pruner != "none" and options.eval_count < 2:
            raise UsageError(
                f"the pruner {self.search.pruner} looks at evaluations during training: give --eval-count 2 or more"
            )
        if self.search.pruner == "halving" and (self.largest_batch == 1 or not any(one.is_traced for one in self.space)):
            raise UsageError(
                "the pruner halving compares settings that train in one program, and here each has its own: choose another, "
                "such as median"
            )

    def check_here(self) -> None:
        """Raises UsageError for what each trial would fail by in this process, whatever its settings: more devices than there
        are, packages that are missing, an environment that cannot be made."""
        devices = RunOptions(**self.options).devices
        if devices not in ("auto", 1):
            mesh(int(devices), "members")
        first = self._first()
        loop.check(first, None, programs.environment_of(first))

    def _first(self) -> Spec:
        """The run of the first values of the environment's arguments."""
        of = lambda one: one.choices[0] if one.span is None else (int if one.is_whole else float)(one.span.low)  # noqa: E731
        own = {one.name.partition(".")[2]: of(one) for one in self.space if one.name.startswith("env.") and not one.when}
        return self._run(self.base.options, own)


def of_dictionary(given: dict[str, Any]) -> StudySpec:
    """A study from plain values. Raises UsageError for a key that is missing, unknown or of another type."""
    wanted, search = hints(StudySpec), hints(Search)
    for name in given:
        if name not in wanted:
            raise UnknownNameError("key", name, wanted)
    for name in ("algorithm", "environment"):
        if name not in given:
            raise UsageError(f"the key {name} is missing")
    parts = typed("search", given.get("search") or {}, dict[str, Any])
    for name in parts:
        if name not in search:
            raise UnknownNameError("key", f"search.{name}", [f"search.{known}" for known in search])
    found = {name: typed(f"search.{name}", value, search[name]) for name, value in parts.items()}
    values = {name: plain(name, typed(name, value, wanted[name])) for name, value in given.items() if name != "search"}
    return StudySpec(**values, search=Search(**found))
