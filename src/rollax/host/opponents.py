"""Agents of a run that play by the policies of other runs."""

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import jax

from rollax.algorithm import Algorithm
from rollax.environments.core import Environment, agent_types
from rollax.environments.views import AgentId, FixedOpponents, with_agent_id
from rollax.errors import UsageError
from rollax.host import program as programs
from rollax.host import run_folder
from rollax.host.files import sync_tree
from rollax.host.options import check_path
from rollax.host.settings import Spec
from rollax.spaces import Space


def checkpoint_of(run: str) -> tuple[Path, str]:
    """The folder and the checkpoint of "RUN@CHECKPOINT", of "RUN" the last."""
    folder, at, checkpoint = run.rpartition("@")
    check_path("the opponent", Path(run))
    return (Path(folder), checkpoint) if at and not Path(run).exists() else (Path(run), "last")


def with_opponents(spec: Spec, environment: Environment | None, policies: dict[str, Any]) -> Environment | None:
    """The environment with the run's opponents in it; as it is given where there are none.

    Raises UsageError for opponents that do not fit: other spaces, or agents that they never were.
    """
    if not policies:
        return environment
    if environment is None:
        environment = programs.environment_of(spec)
    states, functions = {}, []
    for kind, policy in policies.items():
        run = spec.opponents[kind]
        theirs, algorithm, agents = policy.environment, policy.algorithm, tuple(range(environment.num_agents or 0))
        if isinstance(theirs, AgentId):
            theirs = theirs.env
            algorithm = _with_agent_ids(algorithm, theirs.observation_space)
        if isinstance(theirs, FixedOpponents):
            theirs, agents = theirs.env, theirs.learners
        for what in ("name", "observation_space", "action_space", "num_agents"):
            if getattr(theirs, what) != getattr(environment, what):
                raise UsageError(f"the opponent {run} was trained with the {what} {getattr(theirs, what)}: here it is another")
        kinds = agent_types(environment)
        if kind in kinds and kind not in (kinds[i] for i in agents):
            raise UsageError(f"the opponent {run} never was a {kind}: it is that of {', '.join(kinds[i] for i in agents)}")
        states[kind] = policy.state
        functions.append((kind, algorithm, agents))
    return FixedOpponents(environment, states, tuple(functions))


def _with_agent_ids(algorithm: Algorithm, space: Space) -> Algorithm:
    """An algorithm whose agents see who they are, for observations that do not tell."""

    def act(state: Any, obs: Any, carry: Any, key: jax.Array, greedy: bool | jax.Array) -> tuple[Any, Any]:
        return algorithm.act(state, with_agent_id(space, obs), carry, key, greedy)

    return algorithm._replace(act=act)


def copied(folder: Path, spec: Spec, policies: dict[str, Any]) -> Spec:
    """The specification with copies of its opponents' policies in the run's folder, so that it needs no other run."""
    if not policies:
        return spec
    kept = {}
    for kind, policy in policies.items():
        kept[kind] = f"opponents/{kind}"
        run, target = checkpoint_of(spec.opponents[kind])[0], folder / kept[kind]
        checkpoint = f"{run_folder.CHECKPOINTS}/step_{policy.step:012d}"
        target.mkdir(parents=True)
        shutil.copy(run / run_folder.CONFIG, target)
        shutil.copytree(run / checkpoint, target / checkpoint)
        if (run / "opponents").is_dir():
            shutil.copytree(run / "opponents", target / "opponents")
        sync_tree(target)
    spec = dataclasses.replace(spec, opponents=kept)
    run_folder.write_spec(folder, spec)
    return spec
