"""Functions `train` and `resume`, which start and continue training runs."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from rollax.algorithm import Config
from rollax.algorithms.registry import AlgorithmEntry, ensure_registered
from rollax.config import DataclassInstance, user_functions
from rollax.distributed import processes
from rollax.environments.environment import Environment
from rollax.loading import load_opponents, plan_warm_start, warm_start_options
from rollax.policy import Policy
from rollax.replay.demonstrations import Demonstrations
from rollax.runtime.numerics import standard_numerics
from rollax.training import (
    argument_validation,
    loop,
    setting_functions,
    unused_settings,
    user_imports,
)
from rollax.training.callbacks import dispatch, stop_conditions
from rollax.training.callbacks.events import Callback
from rollax.training.callbacks.user_functions import MetricsFn, check_user_functions
from rollax.training.checkpoints import changed_settings, compatibility
from rollax.training.checkpoints.fork import continue_in_new_folder
from rollax.training.checkpoints.warm_start import WarmStart
from rollax.training.compile import program as programs
from rollax.training.compile import run_check
from rollax.training.compile.varied_parameters import check_arguments_have_effect
from rollax.training.console.messages import describe_ignored_eval_arguments
from rollax.training.console.progress import Display, make_display
from rollax.training.datasets.run_demonstrations import (
    data_options,
    read_run_demonstrations,
    with_demonstrations,
    write_run_demonstrations,
)
from rollax.training.execution import run_in_folder, unwrap_outcome
from rollax.training.opponents import RunOpponents, add_opponents, copy_opponents
from rollax.training.options import RunOptions
from rollax.training.result import Result, StopWhenFn, accept_result
from rollax.training.run_folder import creation, layout
from rollax.training.spec import Spec, make_spec
from rollax.types import LearningRateSchedule, NetworkFn, Optimizer, RunPath, SettingValues
from rollax.user_input.arguments import coerce_arguments
from rollax.user_input.coercion import coerce


@processes.share_errors()
@argument_validation.check_keywords()
@standard_numerics()
@coerce_arguments(quiet=bool)
def train(
    algorithm: str | AlgorithmEntry,
    environment: str | Environment,
    *,
    total_steps: int | None = None,
    seed: int | None = None,
    seeds: int | None = None,
    config: Config | SettingValues | None = None,
    network: NetworkFn | DataclassInstance | SettingValues | None = None,
    optimizer: Optimizer | None = None,
    learning_rate_schedule: LearningRateSchedule | None = None,
    arguments: SettingValues | None = None,
    eval_arguments: SettingValues | None = None,
    sweep: SettingValues | None = None,
    randomize: SettingValues | None = None,
    curriculum: SettingValues | None = None,
    opponents: Mapping[str, RunPath] | None = None,
    evolve: SettingValues | None = None,
    init_from: RunPath | Policy | None = None,
    checkpoint: str | int | None = None,
    strict: bool | None = None,
    demonstrations: Demonstrations | RunPath | None = None,
    options: RunOptions | SettingValues | None = None,
    metrics: MetricsFn | None = None,
    imports: Sequence[str] = (),
    callback: Callback | Sequence[Callback] | None = None,
    stop_when: StopWhenFn | str | None = None,
    quiet: bool = False,
    show: Display | None = None,
) -> Result:
    """Train an algorithm in an environment and write a run folder.

    Args:
        algorithm: Name of an algorithm, or an `AlgorithmEntry`. An entry is registered under the
            name of its constructor.
        environment: Id, such as "gymnax/CartPole-v1", or an environment.
        total_steps: Number of environment steps. `total_steps`, `seed` and `seeds` take precedence
            over `options`. None uses the value in `options`.
        seed: Random seed.
        seeds: Number of members that train with different seeds in one program.
        config: Settings of the algorithm, or a dictionary that overrides its preset. None uses the
            preset.
        network: Settings of the network, a dictionary that overrides the preset, or a function from
            a random key to a network. None uses the preset.
        optimizer: Name of an optimizer, an optimizer of optax, or a function from the learning rate
            to an optimizer, such as `optax.lion` (see docs/optimizers.md). It replaces the setting
            `config.optimizer`.
        learning_rate_schedule: Name of a schedule, or a function from the number of environment
            steps to the learning rate, such as a schedule of optax. It replaces the setting
            `config.learning_rate_schedule`.
        arguments: Arguments of the environment, if `environment` is an id.
        eval_arguments: Arguments of the environment that differ in evaluations, such as held-out
            tasks.
        sweep: Dictionary from the name of a traced setting to its values. Each combination of
            values and seed becomes a member.
        randomize: Dictionary from the name of an environment parameter to its range, `(low, high)`.
            Training samples the parameter at the start of every episode
            (`rollax.environments.wrappers.DomainRandomization`). Evaluations use the fixed value.
        curriculum: Dictionary from the name of an environment parameter to its values at equally
            spaced levels from 0 to 1, such as `(first, last)`, or to a function of the level. The
            level is the completed fraction of training, or follows the return of training (option
            `curriculum_returns`). Evaluations use the last values. A callback may change a
            parameter that has a single value (`RunEvent.set_arguments`).
        opponents: Dictionary from an agent type to a run. Agents of this type follow the policy of
            that run and do not learn. "RUN" or a result selects the last checkpoint of the run,
            "RUN@best" the best checkpoint, and "RUN@40960" the checkpoint at a step. The policies
            are copied to the new run folder. If an opponent was trained with an environment or
            network object, it uses the object that is passed to this run.
        evolve: Dictionary from the name of a traced setting to its range, `(low, high)` or `(low,
            high, scale)`. `scale` is "log" or "linear", by default "log" if `low` is positive.
            Population-based training changes the settings within these ranges. `seeds` is the
            number of members.
        init_from: Run whose checkpoint initializes this run: a result, a folder or a policy. Its
            networks and statistics are copied as far as they fit (see docs/warm-start.md). The
            option `init_parts` selects other parts.
        checkpoint: Checkpoint of `init_from`: "best" (the default), "last" or a step.
        strict: Whether to raise an error if an array of `init_from` does not fit.
        demonstrations: Demonstrations or their file, as in `rollax.load_demonstrations`. `bc`
            imitates them, and algorithms with replay, such as `dqn`, `sac` and `td3`, start with
            them in the replay buffer. They are copied to the run folder.
        options: All other options of the run. None uses their defaults.
        metrics: Function from `Episodes` to a dictionary of additional metrics of an evaluation.
        imports: Names of modules that register the algorithm or the environment. Commands that read
            the run folder import these modules.
        callback: Function of a `rollax.RunEvent`, which is called for every event, or an object
            with at least one of the methods `on_metrics`, `on_evaluation`, `on_checkpoint` and
            `on_end`, or a list of these. Callbacks are not stored in the run folder.
        stop_when: Condition such as "return_mean>=195", which is stored as the option `stop_when`,
            or a function from `rollax.Evaluated` to a bool. If the condition is true after an
            evaluation, the run stops. It can be resumed.
        quiet: Whether to print only warnings and errors.
        show: Display that replaces the default display.

    Returns:
        The result of the run.

    Raises:
        UsageError: If an argument is invalid, before anything is compiled or written. Also if a
            callback raises, after the run is saved.
        KeyboardInterrupt: After an interrupt (Ctrl-C), once the run is saved. The message contains
            the folder. The attribute `result` holds the `Result` of the steps so far. A second
            interrupt raises it immediately, without `result`.
    """
    name = ensure_registered(algorithm)
    custom_environment = argument_validation.validate_environment(environment)
    environment_name, packages = argument_validation.environment_name_and_imports(environment)
    make_network, network_settings = argument_validation.split_network_argument(network, name)
    functions = {"optimizer": optimizer, "learning_rate_schedule": learning_rate_schedule}
    condition, stop_fn = stop_conditions.split_stop_when(stop_when)
    more = warm_start_options(init_from, checkpoint, strict) | data_options(demonstrations)
    run_options = argument_validation.resolve_options(
        options, total_steps=total_steps, seed=seed, seeds=seeds, stop_when=condition, **more
    )
    callbacks = _check_functions(metrics, stop_fn, callback, show)
    argument_validation.check_arguments_fit(custom_environment, arguments, eval_arguments)
    spec = make_spec(
        algorithm=name,
        environment=environment_name,
        arguments=arguments,
        config=setting_functions.add_functions(config, **functions),
        network=network_settings,
        options=run_options,
        sweep=sweep,
        eval_arguments=eval_arguments,
        opponents=opponents,
        evolve=evolve,
        imports=tuple(dict.fromkeys((*coerce("imports", imports, tuple[str, ...]), *packages))),
        randomize=randomize,
        curriculum=curriculum,
    )
    warnings = _check_arguments(spec, custom_environment, arguments or {})
    spec = programs.with_custom_objects(spec, custom_environment, make_network)
    spec = programs.adapt_to_environment(spec, custom_environment)
    spec = with_demonstrations(spec, demonstrations)
    run = _validate_run(spec, custom_environment, make_network, metrics, callbacks, init_from)
    _check_same_call_in_all_processes(spec, metrics, stop_fn, callbacks)
    folder = _create_run_folder(spec, custom_environment)
    with layout.lock_run_folder(folder):
        outcome = run_in_folder(
            copy_opponents(folder, spec, run.opponents),
            folder,
            environment=run.environment,
            network=make_network,
            metrics=metrics,
            show=show or make_display(quiet),
            warnings=warnings,
            stop_when=stop_fn,
            callbacks=callbacks,
            warm_start=run.warm_start,
            is_new=True,
            quiet=quiet,
        )
    return unwrap_outcome(outcome, custom_environment, make_network, user_functions(spec.config))


@processes.share_errors()
@accept_result
@user_imports.accept_trust_keyword
@standard_numerics()
@coerce_arguments(
    folder=Path,
    total_steps=int | None,
    fork=Path | None,
    checkpoint=str | int | None,
    quiet=bool,
)
def resume(
    folder: RunPath,
    *,
    total_steps: int | None = None,
    config: Config | SettingValues | None = None,
    arguments: SettingValues | None = None,
    fork: Path | str | None = None,
    checkpoint: str | int | None = None,
    environment: Environment | None = None,
    network: NetworkFn | DataclassInstance | SettingValues | None = None,
    optimizer: Optimizer | None = None,
    learning_rate_schedule: LearningRateSchedule | None = None,
    metrics: MetricsFn | None = None,
    learning_rate: float | None = None,
    callback: Callback | Sequence[Callback] | None = None,
    stop_when: StopWhenFn | str | None = None,
    quiet: bool = False,
    show: Display | None = None,
    trust: bool = False,
    **changes: object,
) -> Result:
    """Resume a run from its newest checkpoint.

    Without changes, the result is bit-identical to that of a run without interruption. New values
    of settings or arguments begin a new phase of the run, which is recorded in the run folder.

    Args:
        folder: Result of the run, or its folder.
        total_steps: New total number of environment steps, including the steps before the resume.
            It also changes the end of schedules. None keeps the stored number.
        config: Dictionary of settings of the algorithm that change. The optimizer and the rest of
            the state continue. Static settings may change if they do not determine the shapes of
            the state. After a change of `optimizer`, the state of an optimizer is kept if all of
            its arrays fit.
        arguments: Dictionary of arguments of the environment that change. The spaces must stay the
            same. The best checkpoint is then selected among the evaluations of the new phase.
        fork: New folder for a run that continues this one, which stays unchanged. None continues
            the run in its folder.
        checkpoint: First checkpoint of the fork: "last", "best" or a step of the last phase. None
            uses the newest checkpoint.
        environment: The environment, if the run was started with an environment object.
        network: The network function, if the run was started with a network function. Otherwise a
            dictionary of settings of the network that change, or a network function that replaces
            them. Parameters with the same path and shape are kept, all others are initialized.
        optimizer: The optimizer or the function, if the run was started with one. Otherwise an
            optimizer that replaces the setting `config.optimizer`.
        learning_rate_schedule: The schedule function, if the run was started with one. Otherwise a
            schedule that replaces the setting `config.learning_rate_schedule`.
        metrics: Function from `Episodes` to a dictionary of additional metrics of an evaluation.
        learning_rate: Constant learning rate that replaces the schedule. Other
            learning rates keep their ratio to it.
        callback: Callbacks, as in `train`.
        stop_when: Condition or function that stops the run early, as in `train`. A condition
            replaces the stored condition. "off" removes the stored condition.
        quiet: Whether to print only warnings and errors.
        show: Display that replaces the default display.
        trust: Whether to import the modules that are listed in the folder. Set it only for folders
            from people that you trust.
        **changes: New values of other `RunOptions`, such as `eval_seed`, `on_nonfinite` or
            `devices`.

    Returns:
        The result of the run.

    Raises:
        UsageError: If the run does not exist or has finished, if checkpoints are missing, or if
            config.yaml has changed since they were written. If a changed setting does not fit the
            state. If an environment is passed although the run was started without such an object.
            If a callback raises, after the run is saved.
        KeyboardInterrupt: After an interrupt, as in `train`.
    """
    condition, stop_fn = stop_conditions.split_stop_when(stop_when)
    callbacks = _check_functions(metrics, stop_fn, callback, show)
    folder, fork = Path(folder), None if fork is None else Path(fork)
    custom_environment = argument_validation.validate_environment_object(environment)
    functions = {"optimizer": optimizer, "learning_rate_schedule": learning_rate_schedule}
    stored_spec = setting_functions.restore_functions(layout.read_spec(folder), **functions)
    if condition is not None:
        changes["stop_when"] = stop_conditions.remove_if_off(condition)
    spec = compatibility.with_resume_options(stored_spec, total_steps, changes)
    config = setting_functions.add_new_functions(stored_spec, config, **functions)
    spec = changed_settings.with_changes(spec, network, config, learning_rate, arguments)
    network = network if callable(network) else None
    start = compatibility.find_start_step(folder, stored_spec, fork, checkpoint)
    spec = changed_settings.with_new_phase(spec, stored_spec, folder, start, fork)
    spec = read_run_demonstrations(folder, spec)
    fork_step = None if checkpoint is None else start
    warnings = compatibility.check_resume(
        folder, spec, stored_spec, custom_environment, network, fork_step
    )
    policies = load_opponents(spec, custom_environment, network, folder)
    run_environment = add_opponents(spec, custom_environment, policies)
    changed_settings.check_changes(spec, stored_spec, run_environment, network)
    run_check.check_run(spec, run_environment, network)
    loop.check_metrics_and_loggers(spec, metrics, run_environment, callbacks)
    _check_same_call_in_all_processes(spec, metrics, stop_fn, callbacks)
    if fork is not None:
        stored_environment = add_opponents(stored_spec, custom_environment, policies)
        folder = continue_in_new_folder(
            folder, stored_spec, spec, custom_environment, network, stored_environment, fork_step
        )
    with layout.lock_run_folder(folder):
        outcome = run_in_folder(
            spec,
            folder,
            environment=run_environment,
            network=network,
            metrics=metrics,
            show=show or make_display(quiet),
            warnings=warnings,
            stop_when=stop_fn,
            callbacks=callbacks,
            quiet=quiet,
        )
    return unwrap_outcome(outcome, custom_environment, network, user_functions(spec.config))


def _check_functions(
    metrics: MetricsFn | None,
    stop_fn: StopWhenFn | None,
    callback: Callback | Sequence[Callback] | None,
    show: Display | None,
) -> tuple[dispatch.NamedCallback, ...]:
    """Check the functions and the display that the user passed, and return the callbacks."""
    argument_validation.check_display(show)
    check_user_functions(metrics=metrics, stop_when=stop_fn)
    return dispatch.parse_callbacks(callback)


def _check_same_call_in_all_processes(
    spec: Spec,
    metrics: MetricsFn | None,
    stop_when: StopWhenFn | None,
    callbacks: Sequence[dispatch.NamedCallback],
) -> None:
    """Raise UsageError if the arguments differ between the processes of a distributed run."""
    passed = argument_validation.describe_passed_arguments(metrics=metrics, stop_when=stop_when)
    passed += dispatch.describe_callbacks(callbacks)
    processes.check_processes_match(f"{layout.spec_to_text(spec)}{passed}", spec.imports)


def _check_arguments(
    spec: Spec, environment: Environment | None, arguments: SettingValues
) -> list[str]:
    """Raise UsageError for an argument that has no effect because of a curriculum.

    Returns:
        A warning if evaluation arguments have no effect on an environment object.
    """
    if environment is None:
        check_arguments_have_effect(spec, arguments)
    if environment is None or not spec.eval_arguments:
        return []
    return [describe_ignored_eval_arguments(spec.environment, spec.eval_arguments)]


def _create_run_folder(spec: Spec, environment: Environment | None) -> Path:
    """Create the run folder in the first process, and return it in all processes."""

    def create() -> str:
        fingerprint = programs.environment_fingerprint(spec, environment)
        folder = creation.create_run_folder(spec, fingerprint)
        write_run_demonstrations(folder, spec)
        return str(folder)

    return Path(processes.broadcast_from_first(create))


class _ValidatedRun(NamedTuple):
    """Objects of a run that passed all checks.

    Attributes:
        environment: Environment with the opponents of the run. Without opponents, the environment
            object that the user passed, or None.
        opponents: Policies of the opponents.
        warm_start: Arrays of another run for the initial state, or None.
    """

    environment: Environment | None
    opponents: RunOpponents
    warm_start: WarmStart | None


def _validate_run(
    spec: Spec,
    environment: Environment | None,
    network: NetworkFn | None,
    metrics: MetricsFn | None,
    callbacks: Sequence[dispatch.NamedCallback],
    init_from: RunPath | Policy | None,
) -> _ValidatedRun:
    """Check all arguments of a run, and load its opponents and the source of its warm start.

    Raises:
        UsageError: If an argument is invalid.
    """
    argument_validation.check_not_worker_process()
    run_check.check_run_environment(spec, environment)
    opponents = load_opponents(spec, environment, network)
    environment = add_opponents(spec, environment, opponents)
    run_check.check_run(spec, environment, network)
    unused_settings.check_unused_settings(spec, environment, network)
    loop.check_metrics_and_loggers(spec, metrics, environment, callbacks)
    warm_start = plan_warm_start(spec, environment, network, init_from)
    return _ValidatedRun(environment, opponents, warm_start)
