"""Function `rollax.record`, which records episodes of a policy as demonstrations."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import jax

from rollax.environments import registry
from rollax.environments.capabilities import has_closed_form, is_on_host
from rollax.environments.environment import Environment
from rollax.errors import UsageError
from rollax.loading import load
from rollax.policy import Policy
from rollax.replay.demonstrations import Demonstrations
from rollax.runtime.numerics import standard_numerics
from rollax.spaces import describe_space
from rollax.training import argument_validation
from rollax.training.checkpoints.index import read_checkpoint_index
from rollax.training.compile import cache, keys
from rollax.training.compile import program as programs
from rollax.training.datasets.demonstration_files import save_demonstrations
from rollax.training.datasets.episode_recording import (
    ActFn,
    EpisodeSteps,
    PolicyActor,
    join_episodes,
    record_function,
    record_policy,
    record_simulators,
)
from rollax.training.datasets.npz_files import check_new_npz
from rollax.training.options import RunOptions, check_path
from rollax.types import Action, Observation, Record, RunPath, SettingValues
from rollax.user_input.arguments import coerce_arguments
from rollax.user_input.coercion import coerce, format_value
from rollax.version import __version__

FORMAT = 1  # version of the arrays and their names


@standard_numerics()
@coerce_arguments(
    episodes=int,
    path=Path | None,
    checkpoint=str | int | None,
    member=int | None,
    greedy=bool,
    seed=int,
    max_steps=int | None,
)
def record(
    policy: RunPath | Policy | Callable[[Observation], Action],
    environment: str | Environment | None = None,
    *,
    episodes: int = 20,
    path: str | Path | None = None,
    checkpoint: str | int | None = None,
    member: int | None = None,
    arguments: SettingValues | None = None,
    greedy: bool = True,
    seed: int = 0,
    max_steps: int | None = None,
) -> Demonstrations:
    """Record complete episodes of a policy as demonstrations.

    Args:
        policy: Result or folder of a run, a policy, or a Python function from an observation to an
            action, such as a hand-written controller.
        environment: Id or environment to act in. None uses the evaluation environment of the
            policy.
        episodes: Number of episodes.
        path: New .npz file to write, or None.
        checkpoint: Checkpoint of a run: "last", "best" or a step. The default is the best
            checkpoint, or the last one if none was evaluated.
        member: Index of the member of a population, as in `rollax.load`.
        arguments: Arguments of the environment, if `environment` is an id.
        greedy: Whether to take the most likely actions instead of sampling.
        seed: Random seed of the episodes.
        max_steps: Maximum number of steps of an episode, or None for the time limit of the
            environment (10,000 steps if it has none). Longer episodes count as truncated.

    Returns:
        The demonstrations.

    Raises:
        UsageError: If an argument is invalid, the policy does not fit the environment, the function
            fails or returns an invalid action, or the file exists.
    """
    number = argument_validation.validate_count("episodes", episodes)
    if not 0 <= seed < 2**32:
        raise UsageError(f"seed must be at least 0 and less than 2^32, got {format_value(seed)}.")
    if path is not None:
        check_path("path", Path(path))
        check_new_npz(Path(path))
    cache.enable()
    actor = _load_actor(policy, checkpoint, member)
    made = _make_environment(actor, environment, arguments)
    limit = max_steps or made.time_limit or RunOptions.eval_max_steps
    if has_closed_form(made):
        raise UsageError(f"{made.name} has no episodes to record. Choose another environment.")
    key = keys.demonstration_key(jax.random.key(seed))
    played = _play(
        actor, made, key, number, greedy, argument_validation.validate_count("max_steps", limit)
    )
    metadata = _describe(actor, made, arguments) | {"seed": seed, "greedy": greedy}
    recorded = join_episodes(made, played, metadata)
    if path is not None:
        save_demonstrations(recorded, path)
    return recorded


def _load_actor(
    policy: RunPath | Policy | ActFn, checkpoint: str | int | None, member: int | None
) -> Policy | ActFn:
    """Return the policy of a run. Policies and functions are returned unchanged."""
    if not isinstance(policy, Policy) and not callable(policy):
        folder = coerce("policy", policy, Path)
        if checkpoint is None:
            checkpoint = "last" if read_checkpoint_index(folder).best is None else "best"
        return load(policy, checkpoint=checkpoint, member=member)
    for name, value in (("checkpoint", checkpoint), ("member", member)):
        if value is not None:
            raise UsageError(
                f"{name} ({format_value(value)}) has no effect unless policy is a run. Remove it."
            )
    return policy


def _make_environment(
    actor: Policy | ActFn, environment: str | Environment | None, arguments: SettingValues | None
) -> Environment:
    """Return the environment of the episodes, as the policy observes it.

    Raises:
        UsageError: If the environment is missing, or its spaces differ from those of the policy.
    """
    custom = None if environment is None else argument_validation.validate_environment(environment)
    if not isinstance(environment, str):
        argument_validation.check_arguments_fit(custom or cast(Environment, actor), arguments, None)
    if environment is None:
        if isinstance(actor, Policy):
            return actor.environment
        raise UsageError("environment must be an id or an environment for a function, got None.")
    made = (
        registry.make(environment, **dict(arguments or {}))
        if isinstance(environment, str)
        else cast(Environment, custom)
    )
    if not isinstance(actor, Policy):
        return made
    made = programs.wrap_for_networks(actor.spec, made)
    for name in ("observation_space", "action_space", "num_agents"):
        expected, actual = getattr(actor.environment, name), getattr(made, name)
        if expected != actual:
            raise UsageError(
                f"The {name} of {made.name} must be that of the policy, {expected}, got {actual}. "
                "Choose another environment."
            )
    return made


def _play(
    actor: Policy | ActFn,
    environment: Environment,
    key: jax.Array,
    episodes: int,
    greedy: bool,
    max_steps: int,
) -> Iterator[EpisodeSteps]:
    """Play the episodes in a compiled environment or in a simulator on the host."""
    if is_on_host(environment):
        options = actor.spec.options if isinstance(actor, Policy) else RunOptions()
        player = (
            PolicyActor(actor.algorithm, actor.state, greedy)
            if isinstance(actor, Policy)
            else actor
        )
        return record_simulators(environment, player, key, episodes, max_steps, options.env_timeout)
    if isinstance(actor, Policy):
        return record_policy(
            environment, actor.algorithm, actor.state, key, episodes, greedy, max_steps
        )
    return record_function(environment, actor, key, episodes, max_steps)


def _describe(
    actor: Policy | ActFn, environment: Environment, arguments: SettingValues | None
) -> Record:
    """Return the description of recorded episodes that a file stores."""
    record: Record = {
        "rollax": __version__,
        "format": FORMAT,
        "environment": environment.name,
        "arguments": dict(arguments or {}),
        "observation_space": describe_space(environment.observation_space),
        "action_space": describe_space(environment.action_space),
        "num_agents": environment.num_agents,
        "policy": "function",
    }
    if not isinstance(actor, Policy):
        return record
    if arguments is None and environment is actor.environment:
        record["arguments"] = actor.spec.arguments | actor.spec.eval_arguments
    origin = {"run": None if actor.folder is None else str(actor.folder), "step": actor.step}
    return record | {"policy": actor.spec.algorithm, **origin}
