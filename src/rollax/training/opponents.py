"""Opponents with policies from other runs: fixed ones by agent type, and those of a pool."""

import dataclasses
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import jax

from rollax.acting.opponent_pool import PoolPolicies, PoolRuns
from rollax.algorithm import Algorithm, Carry, State
from rollax.environments.capabilities import capabilities, is_on_host
from rollax.environments.environment import Environment
from rollax.environments.wrappers import AgentId, FixedOpponents, add_agent_id
from rollax.errors import UsageError
from rollax.populations.self_play import list_seats
from rollax.spaces import Space
from rollax.training.compile import program as programs
from rollax.training.options import check_path
from rollax.training.run_folder import layout
from rollax.training.run_folder.files import check_not_symlink, check_regular_tree, fsync_tree
from rollax.training.spec import Spec
from rollax.types import PyTree

if TYPE_CHECKING:
    import rollax.policy

OPPONENTS_FOLDER = "opponents"  # folder of the copies inside a run
POOL_FOLDER = "opponent_pool"  # folder of the copies of runs in the pool of opponents


class RunOpponents(NamedTuple):
    """Policies of other runs that a run plays against.

    Attributes:
        by_type: Policy of each type of opponents, keyed by agent type.
        pool: Policies in the pool of opponents.
    """

    by_type: "Mapping[str, rollax.policy.Policy]" = {}
    pool: "tuple[rollax.policy.Policy, ...]" = ()


class RunCheckpoint(NamedTuple):
    """Folder of a run, and the name of one of its checkpoints: "last", "best" or a step."""

    folder: Path
    checkpoint: str


def parse_run_and_checkpoint(run: str) -> RunCheckpoint:
    """Split "RUN@CHECKPOINT" into run folder and checkpoint name. The default is "last".

    Args:
        run: Folder of a run, with an optional checkpoint.

    Returns:
        The folder and the name of the checkpoint.

    Raises:
        UsageError: If the path is too long or cannot be encoded.
    """
    folder, at, checkpoint = run.rpartition("@")
    check_path("the opponent", Path(run))
    if at and not Path(run).exists():
        return RunCheckpoint(Path(folder), checkpoint)
    return RunCheckpoint(Path(run), "last")


def opponent_copy_folder(folder: Path, option: str, copy: str, run: str) -> Path:
    """Return the folder inside a run that contains the copy of an opponent's run.

    Args:
        folder: Folder of the run.
        option: Option that names the opponent, for error messages.
        copy: Path of the copy in the folder of the run, such as "opponents/predator".
        run: Folder of the opponent, as read from config.yaml.

    Raises:
        UsageError: If `run` is not `copy`, or the folder contains a link, a pipe or a device.
    """
    parent, _, name = copy.partition("/")
    if run != copy or name in ("", ".", "..") or not set(name).isdisjoint("/\\\0"):
        raise UsageError(
            f"{option} in {folder / layout.CONFIG_FILE} must be "
            f"{copy}, the run's own copy, got {run!r}. Train a new run "
            "against that opponent."
        )
    check_not_symlink(folder / parent)
    check_regular_tree(folder / run)
    return folder / run


def add_opponents(
    spec: Spec, environment: Environment | None, opponents: RunOpponents
) -> Environment | None:
    """Return the environment with agents that act with the opponents' policies.

    Args:
        spec: Specification of the run.
        environment: Environment object, or None if the environment is made from its id.
        opponents: Policies of the opponents.

    Returns:
        The environment with opponents, or `environment` unchanged without policies of other runs.

    Raises:
        UsageError: If an opponent was trained in another environment or as another agent type.
    """
    if opponents == RunOpponents():
        return environment
    if environment is None:
        environment = programs.make_environment(spec)
    if is_on_host(environment):
        raise UsageError(
            f"opponents must be used with a compiled environment, and {environment.name} is a "
            "simulator on the host. Let the simulator move these agents."
        )
    if opponents.by_type:
        environment = _add_fixed_opponents(spec, environment, opponents.by_type)
    return _add_pool_runs(spec, environment, opponents.pool) if opponents.pool else environment


def _add_fixed_opponents(
    spec: Spec, environment: Environment, policies: "Mapping[str, rollax.policy.Policy]"
) -> Environment:
    """Return the environment with fixed policies for the agents of some types."""
    states, functions = {}, []
    for agent_type, policy in policies.items():
        run = spec.opponents[agent_type]
        algorithm, agents = fit_policy(environment, run, policy)
        types = capabilities(environment).agent_types
        trained_types = [types[agent] for agent in agents]
        if agent_type in types and agent_type not in trained_types:
            raise UsageError(
                f"the opponent {run} must have been trained as {agent_type}, got a policy for "
                f"{', '.join(trained_types)}. Choose another opponent."
            )
        states[agent_type] = policy.state
        functions.append((agent_type, algorithm, agents))
    return FixedOpponents(environment, states, tuple(functions))


def _add_pool_runs(
    spec: Spec, environment: Environment, policies: "tuple[rollax.policy.Policy, ...]"
) -> Environment:
    """Return the environment with policies of other runs for the pool of opponents."""
    observed = programs.wrap_for_networks(spec, environment)
    seats = list_seats(observed, spec.options.opponent_pool_types)
    needed = [agent for agent in range(len(seats[0])) if any(seat[agent] for seat in seats)]
    types = capabilities(observed).agent_types
    functions = []
    for run, policy in zip(spec.options.opponent_pool_runs, policies, strict=True):
        fitted = fit_policy(observed, run, policy)
        missing = [types[agent] for agent in needed if agent not in fitted.agents]
        if missing:
            trained_types = ", ".join(dict.fromkeys(types[agent] for agent in fitted.agents))
            raise UsageError(
                f"the opponent {run} must have been trained as {', '.join(dict.fromkeys(missing))}"
                f" too, got a policy for {trained_types}. Set opponent_pool_types to "
                f"{trained_types}, or choose another opponent."
            )
        functions.append(fitted)
    states = tuple(policy.state for policy in policies)
    return PoolRuns(environment, states, tuple(functions))


def fit_policy(environment: Environment, run: str, policy: "rollax.policy.Policy") -> PoolPolicies:
    """Return the functions of a policy that acts on the observations of an environment.

    Args:
        environment: Environment with all agents.
        run: Name of the policy's run for error messages.
        policy: Policy that was trained in the same environment, possibly with agent ids or with
            fixed opponents.

    Returns:
        The algorithm, and the indices of the agents that it controls.

    Raises:
        UsageError: If the policy was trained in another environment.
    """
    trained_in, algorithm = policy.environment, policy.algorithm
    agents = tuple(range(environment.num_agents or 0))
    if isinstance(trained_in, AgentId) and not isinstance(environment, AgentId):
        trained_in = trained_in.env
        algorithm = _add_agent_ids(algorithm, trained_in.observation_space)
    if isinstance(trained_in, FixedOpponents):
        trained_in, agents = trained_in.env, trained_in.learning_agents
    for name in ("name", "observation_space", "action_space", "num_agents"):
        expected, actual = getattr(trained_in, name), getattr(environment, name)
        if expected != actual:
            raise UsageError(
                f"the {name} of the environment must be that of the opponent {run}, "
                f"{expected}, got {actual}. Choose another opponent."
            )
    return PoolPolicies(algorithm, agents)


def _add_agent_ids(algorithm: Algorithm, space: Space) -> Algorithm:
    """Return an algorithm that adds agent ids to the observations before it acts."""

    def act(
        state: State, obs: PyTree, carry: Carry, key: jax.Array, greedy: bool | jax.Array
    ) -> tuple[PyTree, Carry]:
        return algorithm.act(state, add_agent_id(space, obs), carry, key, greedy)

    return algorithm._replace(act=act)


def copy_opponents(folder: Path, spec: Spec, opponents: RunOpponents) -> Spec:
    """Copy the opponents' policies into the folder of a run, so that it does not need other runs.

    Args:
        folder: Folder of the run.
        spec: Specification of the run.
        opponents: Policies of the opponents.

    Returns:
        The specification with the copies as opponents. It is also written to the folder.

    Raises:
        UsageError: If the folder of an opponent contains a link, a pipe or a device.
    """
    if opponents == RunOpponents():
        return spec
    copies = {name: f"{OPPONENTS_FOLDER}/{name}" for name in opponents.by_type}
    for name, policy in opponents.by_type.items():
        _copy_run(spec.opponents[name], policy, folder / copies[name])
    pool_copies = tuple(f"{POOL_FOLDER}/{index}" for index in range(len(opponents.pool)))
    pool = zip(spec.options.opponent_pool_runs, opponents.pool, pool_copies, strict=True)
    for run, policy, copy in pool:
        _copy_run(run, policy, folder / copy)
    options = dataclasses.replace(spec.options, opponent_pool_runs=pool_copies)
    spec = dataclasses.replace(spec, opponents=copies, options=options)
    layout.write_spec(folder, spec)
    return spec


def _copy_run(run: str, policy: "rollax.policy.Policy", target: Path) -> None:
    """Copy the settings, the checkpoint and the opponents of a policy's run to a new folder."""
    source = parse_run_and_checkpoint(run).folder
    checkpoint = f"{layout.CHECKPOINTS_FOLDER}/step_{policy.step:012d}"
    target.mkdir(parents=True)
    shutil.copy(source / layout.CONFIG_FILE, target)
    _copy_folder(source / checkpoint, target / checkpoint)
    copy_stored_opponents(policy.spec, source, target)
    fsync_tree(target)


def list_copies(spec: Spec) -> list[str]:
    """Return the paths of the copies of opponents in the folder of a run."""
    return [*spec.opponents.values(), *spec.options.opponent_pool_runs]


def copy_stored_opponents(spec: Spec, run: Path, target: Path) -> None:
    """Copy the opponents that a run stores in its folder to another folder.

    Args:
        spec: Specification of the run. `load_opponents` must have checked its paths.
        run: Folder of the run.
        target: Folder that receives the copies.

    Raises:
        UsageError: If the folder of an opponent contains a link, a pipe or a device.
    """
    for copy in list_copies(spec):
        _copy_folder(run / copy, target / copy)


def _copy_folder(folder: Path, target: Path) -> None:
    """Copy a folder. Raise UsageError if it contains a link, a pipe or a device."""
    check_regular_tree(folder)
    shutil.copytree(folder, target)
