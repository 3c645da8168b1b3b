"""Command `rollax eval`."""

import dataclasses
import sys
import time
from pathlib import Path

import jax
import tyro

from rollax.acting.evaluation import Episodes
from rollax.cli.command_output import print_summary
from rollax.cli.parsing.dynamic_options import (
    check_checkpoint_name,
    check_seed,
    parse_options,
    take_prefixed_options,
    unwrap_single_values,
)
from rollax.cli.parsing.flags import normalize_switches
from rollax.cli.parsing.shared_options import SharedOptions
from rollax.environments.capabilities import capabilities, has_closed_form, has_finite_tasks
from rollax.errors import UsageError
from rollax.loading import load
from rollax.policy import Policy
from rollax.runtime.printing import print_line, print_note, print_warning
from rollax.training.compile import cache
from rollax.training.elites.re_evaluation import DEFAULT_NUM_EPISODES, can_be_corrected
from rollax.training.evaluation import metrics
from rollax.training.evaluation.metrics import TRIAL_END_NAMES, format_finite_count, format_number
from rollax.training.evaluation.task_results import DEFAULT_EPISODES_PER_TASK, format_worst_tasks
from rollax.training.options import parse_info_reductions
from rollax.training.result import DEFAULT_EPISODES
from rollax.training.run_folder.tables import find_runs
from rollax.types import MetricValues, Record, SettingValues

MAX_CURVE_VALUES = 50  # printed values of one curve


@dataclasses.dataclass(frozen=True)
class EvaluateOptions:
    """Evaluate the policies of one or more runs on whole episodes, and all elites of an archive.

    The elites are inserted into an empty archive with their mean fitness and mean descriptor. The
    result is the corrected archive.

    After the runs, --eval-env.NAME VALUE changes an argument of the evaluation environment:
    rollax eval RUN --eval-env.episodes 10
    """

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Folders of runs, folders that contain runs, or patterns such as "runs/*"."""
    checkpoint: str = "last"
    """Checkpoint: last, best, or a step."""
    episodes: int | None = None
    """Number of episodes. Defaults to 128, and 16 per elite of an archive."""
    archive: bool = True
    """Evaluate all elites of an archive. --no-archive evaluates only the best one."""
    stochastic: bool | None = None
    """Sample actions. --no-stochastic takes the most likely ones. Defaults to that of the run."""
    seed: int = 0
    """Random seed of the episodes."""
    member: int | None = None
    """Member of a population. Defaults to the best one."""
    descriptor: str | None = None
    """Descriptor of an episode: final or mean. Defaults to that of the environment."""
    tasks: int | None = None
    """Evaluate every task of a multi-task environment (8 episodes each) and print the worst N."""
    info: tuple[str, ...] = ()
    """Reductions of info values: NAME=mean, NAME=sum or NAME=last. Defaults to those of the run."""
    json: bool = False
    """Print only one JSON object per run."""


def evaluate(arguments: list[str], shared: SharedOptions) -> int:
    """Run `rollax eval` and return its exit code."""
    rest, eval_env = take_prefixed_options(arguments, "--eval-env.")
    options = parse_options(
        EvaluateOptions, normalize_switches(rest, {"": EvaluateOptions}), "rollax eval"
    )
    if not options.runs:
        raise UsageError("eval needs one or more run folders. Run `rollax eval RUN`.")
    if options.episodes is not None and options.episodes < 1:
        raise UsageError(f"episodes must be at least 1, got {options.episodes}.")
    check_seed(options.seed)
    check_checkpoint_name(options.checkpoint)
    cache.enable()
    for run in find_runs(options.runs, print_warning):
        print_summary(evaluate_run(options, run, unwrap_single_values(eval_env)), options.json)
    return 0


def evaluate_run(options: EvaluateOptions, run: Path, eval_arguments: SettingValues) -> Record:
    """Evaluate one run and print the result.

    Args:
        options: Options of `rollax eval`.
        run: Run folder.
        eval_arguments: Environment arguments that replace those of the run's evaluations.

    Returns:
        The results as a flat dictionary for JSON.
    """
    episodes = DEFAULT_EPISODES if options.episodes is None else options.episodes
    policy = load(
        run, checkpoint=options.checkpoint, member=options.member, eval_arguments=eval_arguments
    )
    for warning in policy.warnings:
        print_warning(warning)
    how = parse_info_reductions(options.info, "info")
    started = time.monotonic()
    key = jax.random.key(options.seed)
    greedy = None if options.stochastic is None else not options.stochastic
    workers = policy.spec.options.env_workers
    numbers, played = policy.evaluate(
        episodes, key, greedy, options.descriptor, info=how, env_workers=workers
    )
    wall_time = time.monotonic() - started
    frames = int(played.length.sum())
    if not options.json:
        print_line(
            format_run_evaluation(run, policy, numbers, played, policy.is_greedy(greedy)),
            flush=True,
        )
    corrected = evaluate_elites(options, policy, key) | evaluate_tasks(options, policy, key)
    first = {
        "run": str(run),
        "steps": policy.step,
        **({} if policy.member is None else {"member": policy.member}),
        "episodes": episodes,
        "stochastic": not policy.is_greedy(greedy),
    }
    last = {
        **corrected,
        "any_nan": bool(numbers.pop("return_any_nan")),
        "wall_time": round(wall_time, 3),
        "steps_per_second": round(frames / wall_time, 1),
    }
    # Prefix info values whose names are taken by the keys of this command, such as "steps".
    return (
        first
        | {
            f"info/{name}" if name in first | last else name: value
            for name, value in numbers.items()
        }
        | last
    )


def evaluate_elites(options: EvaluateOptions, policy: Policy, key: jax.Array) -> MetricValues:
    """Evaluate all elites and print the metrics of the corrected archive (see `EvaluateOptions`).

    Args:
        options: Options of `rollax eval`.
        policy: Loaded policy.
        key: Random key.

    Returns:
        The metrics, or an empty dictionary without an archive or with `--no-archive`.
    """
    if not options.archive or not can_be_corrected(policy):
        return {}
    episodes = DEFAULT_NUM_EPISODES if options.episodes is None else options.episodes
    if not options.json and sys.stderr.isatty() and not has_closed_form(policy.environment):
        print_note(
            f"Evaluating every elite with {episodes} episodes each. Disable with --no-archive."
        )
    numbers, _ = policy.correct_archive(episodes, key)
    if not options.json:
        _print_corrected_archive(numbers, has_closed_form(policy.environment))
    return numbers


def _print_corrected_archive(numbers: MetricValues, is_closed_form: bool) -> None:
    number, loss = numbers["episodes_per_elite"], numbers["fitness_loss"]
    elites = format_finite_count(numbers["elites_finite"], numbers["elites"], "elites")
    how = "a closed form" if is_closed_form else f"{number} episode{'s' * (number > 1)} each"
    change = f"{'rose' if loss < 0 else 'fell'} by {format_number(abs(loss))}"
    print_line(
        f"  corrected archive ({elites}, {how})\n"
        f"           {_format_archive_scores(numbers, 'corrected_')}\n"
        f"           mean fitness {change}, {numbers['kept_cell']:.1%} of elites kept their cell"
    )


def evaluate_tasks(options: EvaluateOptions, policy: Policy, key: jax.Array) -> MetricValues:
    """Evaluate every task and print the worst ones.

    Args:
        options: Options of `rollax eval`.
        policy: Loaded policy.
        key: Random key.

    Returns:
        Dictionary of lists, keyed by metric name, with one entry per task. Empty without `--tasks`.
    """
    if options.tasks is None:
        return {}
    greedy = None if options.stochastic is None else not options.stochastic
    table = policy.evaluate_tasks(options.episodes or DEFAULT_EPISODES_PER_TASK, key, greedy)
    if not options.json and has_finite_tasks(policy.environment):
        print_line(format_worst_tasks(table, policy.environment, options.tasks))
    return {f"tasks_{name}": column.tolist() for name, column in table.items()}


def format_run_evaluation(
    run: Path, policy: Policy, numbers: MetricValues, episodes: Episodes, greedy: bool
) -> str:
    """Format the results of an evaluation as text.

    Args:
        run: Run folder.
        policy: Loaded policy.
        numbers: Metrics of the evaluation.
        episodes: Episode records of the evaluation.
        greedy: Whether the policy took its most likely actions.

    Returns:
        The lines as one string.
    """
    total = len(episodes.length)
    if has_closed_form(policy.environment):
        how = "a closed form, without episodes"
        lines = [f"  return   {metrics.format_number(numbers['return_mean'])}"]
    else:
        count = metrics.format_finite_count(numbers["return_count"], total, "episodes")
        how = f"{count}, {'greedy' if greedy else 'sampled'} actions"
        lines = _format_episodes(numbers)
    kinds = dict.fromkeys(capabilities(policy.environment).agent_types)
    by_agents = ["return_agents", "return_team", *(f"return_{kind}" for kind in kinds)]
    others = metrics.format_metrics(
        [*by_agents, *episodes.info], numbers | {"episodes": total}, MAX_CURVE_VALUES
    )
    lines = [_format_heading(run, policy, how), *lines, *(f"  {words}" for words in others)]
    if "qd_score" in numbers:
        lines.append(f"  archive  {_format_archive_scores(numbers)}")
    if "descriptor_mean" in numbers:
        values = ", ".join(f"{value:.3f}" for value in numbers["descriptor_mean"])
        lines.append(f"  descriptor mean [{values}]")
    return "\n".join(lines)


def _format_heading(run: Path, policy: Policy, how: str) -> str:
    member = ""
    if policy.member is not None:
        settings = policy.spec.members()[policy.member].items()
        values = ", ".join(f"{name} {value:g}" for name, value in settings)
        member = f", member {policy.member} ({values})"
    changed = ", ".join(f"{name} {value}" for name, value in policy.spec.eval_arguments.items())
    end = f" (with {changed})" if changed else ""
    return f"{run} at step {policy.step:,}{member}: {how}{end}"


def _format_episodes(numbers: MetricValues) -> list[str]:
    """Format returns and lengths of episodes."""
    figures = "  ".join(
        f"{name} {format_number(numbers[f'return_{name}'])}"
        for name in ("mean", "std", "min", "p20", "median", "max")
    )
    iqm, low, high = (format_number(numbers[f"return_iqm{end}"]) for end in ("", "_low", "_high"))
    ends = f"{numbers['terminated']:.0%} terminated, {numbers['truncated']:.0%} truncated"
    if TRIAL_END_NAMES[0] in numbers:
        shares = (f"{numbers[name]:.0%} {name.rpartition('_')[2]}" for name in TRIAL_END_NAMES)
        ends = f"trial episodes: {', '.join(shares)}"
    return [
        f"  return   {figures}",
        f"           interquartile mean {iqm}, 95 % interval [{low}, {high}]",
        f"  length   mean {numbers['length_mean']:.1f}; {ends}",
    ]


def _format_archive_scores(numbers: MetricValues, prefix: str = "") -> str:
    names = ("coverage", "qd_score", "fitness_best", "fitness_mean")
    coverage, score, best, mean = (format_number(numbers[f"{prefix}{name}"]) for name in names)
    return f"coverage {coverage}  QD score {score}  fitness best {best}, mean {mean}"
