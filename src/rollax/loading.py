"""Loading of the trained policies of runs and their opponents."""

import dataclasses
from pathlib import Path
from typing import Any, NamedTuple

import jax

from rollax.algorithm import Algorithm
from rollax.distributed import processes
from rollax.environments.capabilities import is_on_host
from rollax.environments.environment import Environment
from rollax.environments.registry import has_host_suite, is_suite_environment
from rollax.errors import UsageError
from rollax.policy import Policy
from rollax.populations.self_play import list_versions
from rollax.runtime.numerics import standard_numerics
from rollax.training import argument_validation, user_imports
from rollax.training.checkpoints import carry_over, compatibility, warm_start
from rollax.training.checkpoints.summary import MemberScores
from rollax.training.checkpoints.warm_start import SourceParts, WarmStart
from rollax.training.compile import program as programs
from rollax.training.compile.varied_parameters import fixed_environment
from rollax.training.evaluation import members
from rollax.training.opponents import (
    OPPONENTS_FOLDER,
    POOL_FOLDER,
    RunCheckpoint,
    RunOpponents,
    add_opponents,
    opponent_copy_folder,
    parse_run_and_checkpoint,
)
from rollax.training.result import Result, accept_result
from rollax.training.run_folder import layout
from rollax.training.setting_functions import add_known_functions
from rollax.training.spec import Spec, with_eval_arguments
from rollax.types import NetworkFn, RunPath, SettingValues
from rollax.user_input.arguments import coerce_arguments
from rollax.user_input.coercion import coerce


@accept_result
@user_imports.accept_trust_keyword
@standard_numerics()
@coerce_arguments(folder=Path, checkpoint=str | int, **argument_validation.POLICY_ARGUMENT_TYPES)
def load(
    folder: RunPath,
    *,
    checkpoint: str | int = "last",
    member: int | None = None,
    environment: Environment | None = None,
    network: NetworkFn | None = None,
    eval_arguments: SettingValues | None = None,
    trust: bool = False,
) -> Policy:
    """Load the policy of a run.

    Args:
        folder: Result of the run, or its folder.
        checkpoint: "last", "best" or the step of a checkpoint.
        member: Index of the member of a population. The default is the member with the best
            `best_metric` in the last evaluation before the checkpoint. If population-based training
            has replaced a member since that evaluation, the score of its parent is used, and
            `Policy.warnings` contains a note.
        environment: Environment that replaces the environment of the run. It is required if the run
            was started with an environment object.
        network: The network function, if the run was started with a network function.
        eval_arguments: Arguments of the evaluation environment, which override those of the run.
        trust: Whether to import the modules that are listed in the folder. Set it only for folders
            from people that you trust.

    Returns:
        The policy.

    Raises:
        UsageError: If the run, the checkpoint or the member does not exist, if config.yaml has
            changed since the checkpoint was written, or if an argument is invalid.
    """
    folder = Path(folder)
    environment = argument_validation.validate_environment_object(environment)
    argument_validation.check_network_function(network)
    run = _open_run(folder, checkpoint, environment, network, eval_arguments)
    loaded = _load_checkpoint(folder, run, checkpoint, member)
    policy = _make_policy(folder, run, loaded)
    if environment is not None:
        return policy
    evaluated = programs.evaluation_environment(run.spec, run.environment)
    return dataclasses.replace(policy, environment=evaluated)


def load_versions(folder: Path, checkpoint: str | None = None) -> dict[str, Policy]:
    """Load policies of a run in its environment of training.

    Args:
        folder: Folder of the run.
        checkpoint: "last", "best" or the step of a checkpoint. None loads all checkpoints and the
            versions in the pool of opponents.

    Returns:
        The policies, keyed by "version <number>" or "step <step>". For a population, they belong to
        the best member.

    Raises:
        UsageError: If the run or a checkpoint cannot be read, or the run was started with an
            environment or network object.
    """
    run = _open_run(folder, checkpoint or "last", None, None)
    names: list[str | int] = [] if checkpoint is None else [checkpoint]
    if checkpoint is None:
        with compatibility.open_checkpoints(folder, run.spec) as checkpoints:
            names += sorted(checkpoints.steps())
    runs = [_open_run(folder, name, None, None) for name in names]
    loaded = [
        _load_checkpoint(folder, each, name, None) for each, name in zip(runs, names, strict=True)
    ]
    policies = {
        f"step {state.step:,}": _make_policy(folder, each, state)
        for each, state in zip(runs, loaded, strict=True)
    }
    if checkpoint is not None or not run.spec.options.opponent_pool or not loaded:
        return policies
    newest = loaded[-1]
    return {
        f"version {number}": _make_policy(folder, run, newest._replace(state=state))
        for number, state in list_versions(run.algorithm, newest.state).items()
    } | policies


def _make_policy(folder: Path, run: "_OpenRun", loaded: "_LoadedState") -> Policy:
    """Return the policy of a checkpoint in the environment of training, with fixed parameters."""
    return Policy(
        spec=run.spec,
        environment=fixed_environment(run.spec, run.environment),
        step=loaded.step,
        state=run.algorithm.acting_state(loaded.state),
        algorithm=run.algorithm,
        warnings=[*run.warnings, *loaded.warnings],
        member=loaded.member,
        folder=folder,
    )


def load_source_parts(source: RunPath | Policy, checkpoint: str) -> SourceParts:
    """Load the parts of a run's state that a warm start can copy.

    Args:
        source: Folder or result of a run, or a policy. A policy has one member and no replay
            buffer.
        checkpoint: "last", "best" or the step of a checkpoint. It is ignored for a policy.

    Returns:
        The parts, with a leading axis of members for a population.

    Raises:
        UsageError: If the run or the checkpoint does not exist or cannot be read, or if a folder
            is passed although the run used an environment or network object.
    """
    if isinstance(source, Policy):
        name = "a policy" if source.folder is None else str(source.folder)
        parts = source.algorithm.parts(source.state)
        return SourceParts(
            name, source.spec.algorithm, source.spec.environment, source.step, 1, parts
        )
    folder = Path(source)
    is_result = isinstance(source, Result)
    environment, network = (source.environment, source.network) if is_result else (None, None)
    _check_has_objects(folder, environment, network)
    optimizer = source.optimizer if is_result else None
    run = _open_run(folder, checkpoint, environment, network, optimizer=optimizer)
    restored = _restore(folder, run, checkpoint)
    state = restored.state.members if run.spec.evolve else restored.state
    return SourceParts(
        run=str(folder),
        algorithm=run.spec.algorithm,
        environment=run.spec.environment,
        step=restored.step,
        num_members=run.spec.num_members,
        parts=run.algorithm.parts(state),
    )


def _check_has_objects(
    folder: Path, environment: Environment | None, network: NetworkFn | None
) -> None:
    """Raise UsageError if a run used an environment or network object that is not passed."""
    spec = layout.read_spec(folder)
    missing = [
        name
        for name, is_missing in (
            ("environment", spec.own_environment and environment is None),
            ("network", spec.network == layout.CUSTOM and network is None),
        )
        if is_missing
    ]
    if missing:
        objects = ", ".join(f"{name}=..." for name in missing)
        raise UsageError(
            f"init_from ({folder}) must have no custom {' or '.join(missing)} if it is a folder. "
            f"Pass the policy instead: init_from=rollax.load({str(folder)!r}, {objects})."
        )


class _OpenRun(NamedTuple):
    """Specification, algorithm and environment of a run, and warnings about changed settings."""

    spec: Spec
    algorithm: Algorithm
    environment: Environment
    warnings: list[str]


def _open_run(
    folder: Path,
    checkpoint: str | int,
    environment: Environment | None,
    network: NetworkFn | None,
    eval_arguments: SettingValues | None = None,
    optimizer: object = None,
) -> _OpenRun:
    """Read the specification of a run, and build its algorithm and its environment.

    The network and the optimizer are those of the checkpoint. Without `optimizer`, a custom
    optimizer has no state.

    Raises:
        UsageError: If the run or the checkpoint cannot be read, or an object or argument does not
            fit the run.
    """
    stored_spec = layout.read_spec(folder)
    spec = carry_over.with_checkpoint_structure(folder, stored_spec, checkpoint)
    warnings = compatibility.check_load(folder, stored_spec, spec, network)
    spec = add_known_functions(spec, optimizer=optimizer)
    if environment is not None:
        _check_same_kind(spec, environment)
    compatibility.check_environment_fits(folder, spec, environment)
    if eval_arguments:
        if environment is not None or spec.own_environment:
            raise UsageError(argument_validation.ARGUMENTS_NEED_ID_MESSAGE)
        spec = with_eval_arguments(spec, eval_arguments)
    opponents = load_opponents(spec, environment, network, folder)
    environment = add_opponents(spec, environment, opponents)
    built = programs.build_algorithm_and_environment(spec, environment, network)
    return _OpenRun(spec, *built, warnings)


def _check_same_kind(spec: Spec, environment: Environment) -> None:
    """Raise UsageError if only one of the two environments is a simulator on the host."""
    if is_suite_environment(spec.environment) and is_on_host(environment) != has_host_suite(
        spec.environment
    ):
        raise UsageError(
            f"environment ({environment.name}) must be of the same kind as {spec.environment}, but "
            "one is a simulator on the host and the other is compiled. Load the run without "
            "environment, and use policy.predict in the other environment."
        )


class _LoadedState(NamedTuple):
    """State of one member from a checkpoint.

    Attributes:
        step: Environment step of the checkpoint.
        state: State of the member.
        member: Index of the member, or None for a single run.
        warnings: Warnings about damaged checkpoints and the choice of the member.
    """

    step: int
    state: Any
    member: int | None
    warnings: list[str]


def _load_checkpoint(
    folder: Path, run: _OpenRun, checkpoint: str | int, member: int | None
) -> _LoadedState:
    """Load the state of one member. If `member` is None, load the best member.

    Raises:
        UsageError: If the checkpoint or the member does not exist.
    """
    count = run.spec.num_members
    if member is not None and not 0 <= member < count:
        raise UsageError(
            f"member ({member}) must be between 0 and {count - 1}, because the run has {count}."
        )
    restored = _restore(folder, run, checkpoint)
    step, state, warnings = restored.step, restored.state, restored.warnings
    if count == 1:
        return _LoadedState(step, state, None, warnings)
    if member is None:
        member, notes = members.find_best_member(run.spec, restored.scores)
        warnings = [*warnings, *notes]
    population = state.members if run.spec.evolve else state
    state = jax.tree.map(lambda x: x[member], population)
    return _LoadedState(step, state, member, warnings)


class _Restored(NamedTuple):
    """Checkpoint of a run with the states and scores of all members."""

    step: int
    state: Any
    warnings: list[str]
    scores: MemberScores | None


def _restore(folder: Path, run: _OpenRun, checkpoint: str | int) -> _Restored:
    """Read a checkpoint of a run. Raise UsageError if it does not exist or cannot be read."""
    abstract_state = (
        programs.abstract_member_state(run.spec, run.algorithm)
        if run.spec.num_members == 1
        else programs.abstract_population_state(run.spec, run.algorithm)
    )
    with compatibility.open_checkpoints(folder, run.spec) as checkpoints:
        selected = compatibility.parse_checkpoint(checkpoint, checkpoints)
        step, state, warnings = checkpoints.restore(selected, abstract_state)
        return _Restored(step, state, warnings, checkpoints.summary(step).scores)


def load_opponents(
    spec: Spec,
    environment: Environment | None,
    network: NetworkFn | None,
    folder: Path | None = None,
) -> RunOpponents:
    """Load the policies of other runs that a run plays against.

    An opponent that was trained with an environment or network object uses `environment` or
    `network` instead.

    Args:
        spec: Specification of the run.
        environment: Environment object of the run, or None.
        network: Network function of the run, or None.
        folder: Folder of the run, which contains copies of the opponents. None loads the opponents
            from the runs named in `spec`.

    Returns:
        The policies.

    Raises:
        UsageError: If the run or checkpoint of an opponent does not exist, if an opponent needs a
            network function and `network` is None, or if it was trained in another environment
            object.
    """

    def load_copy_or_run(option: str, copy: str, run: str) -> Policy:
        source = (
            parse_run_and_checkpoint(run)
            if folder is None
            else RunCheckpoint(opponent_copy_folder(folder, option, copy, run), "last")
        )
        return _load_opponent(spec, run, source, environment, network)

    return RunOpponents(
        by_type={
            name: load_copy_or_run(f"opponents.{name}", f"{OPPONENTS_FOLDER}/{name}", run)
            for name, run in spec.opponents.items()
        },
        pool=tuple(
            load_copy_or_run("options.opponent_pool_runs", f"{POOL_FOLDER}/{index}", run)
            for index, run in enumerate(spec.options.opponent_pool_runs)
        ),
    )


def _load_opponent(
    spec: Spec,
    run: str,
    source: RunCheckpoint,
    environment: Environment | None,
    network: NetworkFn | None,
) -> Policy:
    """Load the policy of an opponent, with the environment and network object of the run."""
    opponent_spec = layout.read_spec(source.folder)
    needs_environment = opponent_spec.own_environment
    needs_network = opponent_spec.network == layout.CUSTOM
    if needs_environment:
        environment = environment or programs.make_environment(spec)
        _check_same_environment(run, opponent_spec, environment)
    if needs_network and network is None:
        raise UsageError(
            f"The opponent {run} was trained with a network function. Pass it as network=..."
        )
    return load(
        source.folder,
        checkpoint=source.checkpoint,
        environment=environment if needs_environment else None,
        network=network if needs_network else None,
    )


def _check_same_environment(run: str, opponent_spec: Spec, environment: Environment) -> None:
    """Raise UsageError if an opponent was trained in another environment object."""
    if opponent_spec.environment != environment.name:
        raise UsageError(
            f"The opponent {run} was trained in {opponent_spec.environment}, and this run uses "
            f"{environment.name}. Use an opponent of the same environment."
        )


def warm_start_options(
    init_from: RunPath | Policy | None, checkpoint: str | int | None, strict: bool | None
) -> dict[str, Any]:
    """Return the run options of a warm start from the arguments of `rollax.train`.

    Args:
        init_from: Folder or result of the source run, a policy, or None.
        checkpoint: Checkpoint of the source run, or None.
        strict: Whether all arrays must fit, or None for the default.

    Raises:
        UsageError: If `checkpoint` is passed together with a policy.
    """
    if not isinstance(init_from, Policy):
        folder = None if init_from is None else str(coerce("init_from", init_from, Path))
        step = None if checkpoint is None else str(checkpoint)
        return {"init_from": folder, "init_checkpoint": step, "init_strict": strict}
    if checkpoint is not None:
        raise UsageError(
            f"checkpoint ({checkpoint}) has no effect if init_from is a policy, which was loaded "
            "from a checkpoint. Remove one of them."
        )
    return {
        "init_from": str(init_from.folder or init_from.spec.environment),
        "init_checkpoint": str(init_from.step),
        "init_strict": strict,
    }


def plan_warm_start(
    spec: Spec,
    environment: Environment | None,
    network: NetworkFn | None,
    init_from: RunPath | Policy | None,
) -> WarmStart | None:
    """Load the source of a run's warm start, and match it with the initial state of the run.

    Args:
        spec: Specification of the new run.
        environment: Environment object of the new run, or None.
        network: Network function of the new run, or None.
        init_from: Source, or None for the option `init_from`.

    Returns:
        The warm start, or None for a run without one.

    Raises:
        UsageError: If the source cannot be read, or does not fit the run.
    """
    options = spec.options
    if options.init_from is None:
        return None
    if processes.num_processes() > 1:
        raise UsageError(
            "init_from is not available for a run in several processes. Use one process, or "
            "remove init_from."
        )
    source = load_source_parts(init_from or options.init_from, options.init_checkpoint)
    algorithm, _ = programs.build_algorithm_and_environment(spec, environment, network)
    target = algorithm.parts(programs.abstract_member_state(spec, algorithm))
    return warm_start.plan_warm_start(
        source, target, options.init_parts, spec.num_members, options.init_strict
    )
