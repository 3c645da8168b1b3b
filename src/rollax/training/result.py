"""Results of a training run and of the evaluations during it.

Methods of a result call public functions of rollax. These functions are imported when a method is
called, because their modules depend on this module.
"""

import functools
import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, ParamSpec, TypeVar

import jax

from rollax.environments.environment import Environment
from rollax.errors import UsageError
from rollax.runtime.notebook import Animation, format_html_table
from rollax.runtime.printing import print_warning
from rollax.training.checkpoints.summary import MemberScores
from rollax.training.evaluation.metrics import user_metric_names, zero_sum_side_returns
from rollax.types import MetricValues, NetworkFn, SettingValues
from rollax.user_input.arguments import coerce_arguments
from rollax.user_input.coercion import format_repr, format_value

if TYPE_CHECKING:
    import matplotlib.figure
    import pandas

    import rollax.policy

P = ParamSpec("P")
R = TypeVar("R")


class Evaluated(NamedTuple):
    """Result of one evaluation during a run.

    Attributes:
        step: Environment steps that each member has trained for.
        values: Metrics of the evaluation, keyed by name.
        scores: Best metric of each member of a population, or None for a single run.
    """

    step: int
    values: MetricValues
    scores: MemberScores | None

    def __repr__(self) -> str:
        return format_repr(
            "Evaluated",
            step=self.step,
            return_mean=self.values.get("return_mean"),
            values=len(self.values),
        )


DEFAULT_EPISODES = 128  # of an evaluation of a policy

StopWhenFn = Callable[[Evaluated], bool]


class Result(NamedTuple):
    """Result of a run.

    Functions that take the folder of a run, such as `rollax.load`, also take its result.

    Attributes:
        folder: Folder of the run.
        status: "done", "stopped", "nonfinite", or "failed" if a host simulator failed.
        exit_code: Exit code of the command line for this status.
        steps: Environment steps that each member has trained for.
        evaluation: Metrics of the last evaluation (not necessarily the best one), keyed by name.
            Empty if the run was not evaluated.
        wall_time: Duration of the run in seconds.
        steps_per_second: Frames of all members per second, without evaluation and compilation.
        best: Step and best metric of the best checkpoint, or None if no metric was finite.
        scores: Best metric of each member of a population at its last evaluation, or None for a
            single run.
        environment: Environment object that the run was started with, or None. Methods of the
            result and functions that take the result use it.
        network: Network function that the run was started with, or None. It is used like
            `environment`.
        optimizer: Optimizer or function that the run was started with, or None. `rollax.resume`
            uses it.
        learning_rate_schedule: Schedule function that the run was started with, or None.
    """

    folder: Path
    status: str
    exit_code: int
    steps: int
    evaluation: MetricValues
    wall_time: float
    steps_per_second: float
    best: tuple[int, float] | None = None
    scores: MemberScores | None = None
    environment: Environment | None = None
    network: NetworkFn | None = None
    optimizer: Any = None
    learning_rate_schedule: Any = None

    def __repr__(self) -> str:
        return format_repr("Result", **self._facts())

    def _repr_html_(self) -> str:
        return format_html_table("Result", self._facts())

    def __fspath__(self) -> str:
        return str(self.folder)

    if not TYPE_CHECKING:  # a type checker would accept any attribute

        def __getattr__(self, name: str) -> Any:
            """Raise AttributeError, which names the function of rollax for the attribute."""
            rollax = importlib.import_module("rollax")
            hint = f". Use rollax.{name}(result, ...)" if name in rollax.__all__ else ""
            raise AttributeError(f"'Result' object has no attribute {name!r}{hint}")

    def _facts(self) -> dict[str, Any]:
        """Return the values that `repr(result)` shows, keyed by label."""
        member_returns = self.evaluation.get("return_members")
        return {
            "status": self.status,
            "steps": self.steps,
            "folder": self.folder,
            "return_mean": self.evaluation.get("return_mean"),
            "best": self.best and self.best[1],
            "best_step": self.best and self.best[0],
            "members": None if member_returns is None else len(member_returns),
        }

    @property
    def metrics(self) -> "pandas.DataFrame":
        """Metrics of training and evaluations as a data frame, as in `Tables.history`.

        Raises:
            UsageError: If the run cannot be read, or pandas is not installed.
        """
        return _public_function("read")(self).history()

    @coerce_arguments()
    def policy(
        self,
        checkpoint: str | int = "last",
        *,
        member: int | None = None,
        environment: Environment | None = None,
        network: NetworkFn | None = None,
        eval_arguments: SettingValues | None = None,
    ) -> "rollax.policy.Policy":
        """Load the policy of the run. The arguments are those of `rollax.load`."""
        return _public_function("load")(
            self,
            checkpoint=checkpoint,
            member=member,
            environment=environment,
            network=network,
            eval_arguments=eval_arguments,
        )

    @coerce_arguments(seed=int, env_workers=int | str | None)
    def evaluate(
        self,
        episodes: int = DEFAULT_EPISODES,
        *,
        seed: int = 0,
        checkpoint: str | int = "last",
        member: int | None = None,
        greedy: bool | None = None,
        metrics: Callable[..., Mapping[str, Any]] | None = None,
        info: Mapping[str, str] | None = None,
        env_workers: int | str | None = None,
        eval_arguments: SettingValues | None = None,
    ) -> MetricValues:
        """Evaluate a policy of the run on new episodes, like `rollax eval`.

        `result.policy().evaluate(...)` also returns the episodes.

        Args:
            episodes: Number of episodes.
            seed: Random seed of the episodes, from 0 to 2^32 - 1.
            checkpoint: "last", "best" or the step of a checkpoint.
            member: Index of the member of a population, as in `rollax.load`.
            greedy: Whether to take the most likely actions instead of sampling. None uses the
                setting of the run's evaluations.
            metrics: Function that maps `Episodes` to a dictionary of additional metrics, as in
                `rollax.train`.
            info: Reduction of each `info` value over an episode, keyed by value name, as in
                `Policy.evaluate`.
            env_workers: Number of worker processes for simulators on the host. None uses the
                setting of the run.
            eval_arguments: Arguments of the evaluation environment, as in `rollax.load`.

        Returns:
            Metrics of the evaluation, keyed by name.

        Raises:
            UsageError: If the checkpoint does not exist or an argument is invalid.
        """
        if not 0 <= seed < 2**32:
            raise UsageError(f"seed must be between 0 and 2^32 - 1, got {format_value(seed)}.")
        policy = self.policy(checkpoint, member=member, eval_arguments=eval_arguments)
        for warning in policy.warnings:
            print_warning(warning)
        workers = policy.spec.options.env_workers if env_workers is None else env_workers
        values, _ = policy.evaluate(
            episodes,
            jax.random.key(seed),
            greedy,
            metrics=metrics,
            info=info,
            env_workers=workers,
        )
        return values

    @coerce_arguments()
    def plot(
        self,
        *,
        path: str | Path | None = None,
        only: str | Sequence[str] = (),
        columns: Literal[1, 2] | None = None,
        label: str | Sequence[str] = (),
        x: Literal["steps", "time"] = "steps",
        smooth: int = 1,
        archive: bool = False,
        quiet: bool = False,
    ) -> "matplotlib.figure.Figure":
        """Draw the learning curves of the run. The arguments are those of `rollax.plot`."""
        return _public_function("plot")(
            self,
            path=path,
            only=only,
            columns=columns,
            label=label,
            x=x,
            smooth=smooth,
            archive=archive,
            quiet=quiet,
        )

    @coerce_arguments()
    def render(
        self,
        *,
        path: str | Path | None = None,
        checkpoint: str | int | None = None,
        seed: int = 0,
        episodes: int = 1,
        greedy: bool = True,
        max_frames: int = 600,
        fps: int | None = None,
        member: int | None = None,
        descriptor: Sequence[float] | None = None,
        cell: Sequence[int] | None = None,
        sheet: int | None = None,
        eval_arguments: SettingValues | None = None,
        quiet: bool = False,
    ) -> Animation:
        """Render episodes of the run. The arguments are those of `rollax.render`."""
        return _public_function("render")(
            self,
            path=path,
            checkpoint=checkpoint,
            seed=seed,
            episodes=episodes,
            greedy=greedy,
            max_frames=max_frames,
            fps=fps,
            member=member,
            descriptor=descriptor,
            cell=cell,
            sheet=sheet,
            eval_arguments=eval_arguments,
            quiet=quiet,
        )

    @coerce_arguments()
    def report(
        self,
        *,
        path: str | Path | None = None,
        render: bool = False,
        label: str | Sequence[str] = (),
        quiet: bool = False,
    ) -> Path:
        """Write an HTML report of the run. The arguments are those of `rollax.report`."""
        return _public_function("report")(self, path=path, render=render, label=label, quiet=quiet)

    def summary(self) -> dict[str, Any]:
        """Return the result as one flat dictionary of plain values, for scripts."""
        # The number of finite returns is included only if some returns are not finite.
        counts = ("return_count",) if self.evaluation.get("return_any_nan") else ()
        # Members of an evolved population that share a founder are not independent, so there is no
        # interval.
        interval = () if "founders" in self.evaluation else ("return_iqm_low", "return_iqm_high")
        names = (
            "return_mean",
            "return_std",
            "return_iqm",
            *interval,
            "return_members",
            "founders",
            "episodes",
            *counts,
            *user_metric_names(self.evaluation),
            *zero_sum_side_returns(self.evaluation),
        )
        return {
            "run": str(self.folder),
            "status": self.status,
            "steps": self.steps,
            **{name: self.evaluation[name] for name in names if name in self.evaluation},
            **({} if self.best is None else {"best_step": self.best[0], "best": self.best[1]}),
            "any_nan": bool(self.evaluation.get("return_any_nan", 0.0)),
            "wall_time": round(self.wall_time, 3),
            "steps_per_second": round(self.steps_per_second, 1),
        }


def accept_result(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function so that a `Result` provides the keywords `environment` and `network`.

    If the first argument is a `Result`, its environment and network are used for keywords that are
    None or not passed. Its optimizer and schedule are used if the function has these keywords.
    """
    parameters = inspect.signature(function).parameters
    first = next(iter(parameters))
    functions = [n for n in ("optimizer", "learning_rate_schedule") if n in parameters]

    @functools.wraps(function)
    def call(*arguments: P.args, **keywords: P.kwargs) -> R:
        run = arguments[0] if arguments else keywords.get(first)
        if isinstance(run, Result):
            missing = [
                name
                for name in ("environment", "network", *functions)
                if keywords.get(name) is None
            ]
            keywords.update({name: getattr(run, name) for name in missing})
        return function(*arguments, **keywords)

    return call


def _public_function(name: str) -> Callable[..., Any]:
    """Return the function `rollax.<name>`."""
    return getattr(importlib.import_module("rollax"), name)
