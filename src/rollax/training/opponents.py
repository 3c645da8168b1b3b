"""Opponents: agents that act with fixed policies from other runs."""

import dataclasses
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import jax

from rollax.algorithm import Algorithm, Carry, State
from rollax.environments.capabilities import capabilities, is_on_host
from rollax.environments.environment import Environment
from rollax.environments.wrappers import AgentId, FixedOpponents, add_agent_id
from rollax.errors import UsageError
from rollax.spaces import Space
from rollax.training.compile import program as programs
from rollax.training.options import check_path
from rollax.training.run_folder import layout
from rollax.training.run_folder.files import check_not_symlink, fsync_tree
from rollax.training.spec import Spec
from rollax.types import PyTree

if TYPE_CHECKING:
    import rollax.policy

OPPONENTS_FOLDER = "opponents"  # folder of the copies inside a run


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


def opponent_copy_folder(folder: Path, agent_type: str, run: str) -> Path:
    """Return the folder inside a run that contains the copy of an opponent's run.

    Args:
        folder: Folder of the run.
        agent_type: Agent type of the opponent.
        run: Folder of the opponent, as read from config.yaml.

    Raises:
        UsageError: If `run` is not `opponents/<agent type>`, or the folder is a link.
    """
    if (
        run != f"{OPPONENTS_FOLDER}/{agent_type}"
        or agent_type in ("", ".", "..")
        or not set(agent_type).isdisjoint("/\\\0")
    ):
        raise UsageError(
            f"opponents.{agent_type} in {folder / layout.CONFIG_FILE} must be "
            f"{OPPONENTS_FOLDER}/{agent_type}, the run's own copy, got {run!r}. Train a new run "
            "against that opponent."
        )
    for path in (folder / OPPONENTS_FOLDER, folder / run):
        check_not_symlink(path)
    return folder / run


def add_opponents(
    spec: Spec, environment: Environment | None, policies: "Mapping[str, rollax.policy.Policy]"
) -> Environment | None:
    """Return the environment with agents that act with the opponents' policies.

    Args:
        spec: Specification of the run.
        environment: Environment object, or None if the environment is made from its id.
        policies: Policy of each opponent, keyed by agent type.

    Returns:
        The environment with opponents, or `environment` unchanged if `policies` is empty.

    Raises:
        UsageError: If an opponent was trained in another environment or as another agent type.
    """
    if not policies:
        return environment
    if environment is None:
        environment = programs.make_environment(spec)
    if is_on_host(environment):
        raise UsageError(
            f"opponents must be used with a compiled environment, and {environment.name} is a "
            "simulator on the host. Let the simulator move these agents."
        )
    states, functions = {}, []
    for agent_type, policy in policies.items():
        run = spec.opponents[agent_type]
        trained_in, algorithm = policy.environment, policy.algorithm
        agents = tuple(range(environment.num_agents or 0))
        if isinstance(trained_in, AgentId):
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


def _add_agent_ids(algorithm: Algorithm, space: Space) -> Algorithm:
    """Return an algorithm that adds agent ids to the observations before it acts."""

    def act(
        state: State, obs: PyTree, carry: Carry, key: jax.Array, greedy: bool | jax.Array
    ) -> tuple[PyTree, Carry]:
        return algorithm.act(state, add_agent_id(space, obs), carry, key, greedy)

    return algorithm._replace(act=act)


def copy_opponents(
    folder: Path, spec: Spec, policies: "Mapping[str, rollax.policy.Policy]"
) -> Spec:
    """Copy the opponents' policies into the folder of a run, so that it does not need other runs.

    Args:
        folder: Folder of the run.
        spec: Specification of the run.
        policies: Policy of each opponent, keyed by agent type.

    Returns:
        The specification with the copies as opponents. It is also written to the folder.

    Raises:
        UsageError: If the folder of an opponent contains a symbolic link.
    """
    if not policies:
        return spec
    copies = {}
    for agent_type, policy in policies.items():
        copies[agent_type] = f"{OPPONENTS_FOLDER}/{agent_type}"
        run = parse_run_and_checkpoint(spec.opponents[agent_type]).folder
        target = folder / copies[agent_type]
        checkpoint = f"{layout.CHECKPOINTS_FOLDER}/step_{policy.step:012d}"
        target.mkdir(parents=True)
        shutil.copy(run / layout.CONFIG_FILE, target)
        _copy_folder(run / checkpoint, target / checkpoint)
        copy_stored_opponents(policy.spec, run, target)
        fsync_tree(target)
    spec = dataclasses.replace(spec, opponents=copies)
    layout.write_spec(folder, spec)
    return spec


def copy_stored_opponents(spec: Spec, run: Path, target: Path) -> None:
    """Copy the opponents that a run stores in its folder to another folder.

    Args:
        spec: Specification of the run. `load_opponents` must have checked its paths.
        run: Folder of the run.
        target: Folder that receives the copies.

    Raises:
        UsageError: If the folder of an opponent contains a symbolic link.
    """
    for copy in spec.opponents.values():
        _copy_folder(run / copy, target / copy)


def _copy_folder(folder: Path, target: Path) -> None:
    """Copy a folder. Raise UsageError if it contains a symbolic link, which could lead outside."""
    for path in (folder, *folder.rglob("*")):
        check_not_symlink(path)
    shutil.copytree(folder, target)
