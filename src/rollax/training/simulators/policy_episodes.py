"""Episodes of a trained policy in host simulators."""

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import jax
import numpy as np

from rollax.acting import descriptors
from rollax.acting.evaluation import Episodes
from rollax.environments.capabilities import is_on_host
from rollax.errors import UsageError
from rollax.runtime.printing import print_warning
from rollax.training.simulators import episodes
from rollax.training.simulators.runner import make_simulators
from rollax.training.simulators.vectorized import Simulators
from rollax.types import Observation

if TYPE_CHECKING:
    import rollax.policy


def evaluate_policy(
    policy: "rollax.policy.Policy",
    number: int,
    key: jax.Array,
    greedy: bool,
    descriptor: descriptors.ExtractionChoice,
    info: dict[str, str],
    workers: int | str = 0,
) -> Episodes:
    """Play complete episodes with a trained policy (`rollax.Policy`).

    Args:
        policy: Trained policy.
        number: Number of episodes.
        key: Random key.
        greedy: Whether to take the most likely actions.
        descriptor: Must be None, because simulators have no descriptors.
        info: Reduction of each info value over an episode, keyed by value name.
        workers: Maximum number of workers (see `RunOptions.env_workers`).

    Returns:
        The episode records.

    Raises:
        UsageError: If `descriptor` is not None.
    """
    environment = policy.environment
    assert is_on_host(environment)
    if descriptor is not None:
        raise UsageError(
            f"{environment.name} has no descriptor, got descriptor ({descriptor}). "
            "Remove descriptor."
        )
    width, names = episodes.num_parallel_episodes(number), environment.info_names
    plan = episodes.plan_episodes([key], number)
    playing = episodes.EpisodeTracker(plan, width, names, environment.num_agents)
    with _open_simulators(policy, width, workers, names) as simulators:
        return episodes.play_planned_episodes(
            algorithm=policy.algorithm,
            act=episodes.make_evaluation_act_fn(policy.algorithm, greedy, False),
            state=policy.state,
            simulators=simulators,
            playing=playing,
            environment=environment,
            spec=policy.spec,
            has_members=False,
            choices=info,
        )


def collect_observations(
    policy: "rollax.policy.Policy", key: jax.Array, number: int, num_steps: int
) -> tuple[Observation, np.ndarray]:
    """Collect the observations of a trained policy that acts with sampled actions.

    Args:
        policy: Trained policy.
        key: Random key.
        number: Number E of environments.
        num_steps: Number T of steps.

    Returns:
        Observations [T, E, ...], and a mask of the first observations of episodes, bool [T, E].
    """
    act, state = episodes.make_evaluation_act_fn(policy.algorithm, False, False), policy.state
    first = jax.tree.map(np.asarray, policy.algorithm.initial_carry(state))
    carry = jax.tree.map(lambda x: np.broadcast_to(x, (number, *x.shape)), first)
    seeds, keys = (rows[0] for rows in episodes.plan_episodes([key], number))
    observed = []
    with _open_simulators(policy, number) as simulators:
        obs, active = simulators.reset(list(seeds))
        begins = np.ones(number, bool)
        reset = begins if active is None else np.ones(active.shape, bool)
        for step in range(num_steps):
            observed.append((obs, begins))
            carry, action = act(state, obs, carry, reset, keys, np.full(number, step, np.int32))
            after = simulators.step(jax.tree.map(np.asarray, action))
            obs, reset, begins = after.obs, after.reset, after.ended
    return jax.tree.map(lambda *x: np.stack(x), *observed)


@contextlib.contextmanager
def _open_simulators(
    policy: "rollax.policy.Policy",
    number: int,
    workers: int | str = 0,
    names: tuple[str, ...] = (),
) -> Iterator[Simulators]:
    """Make simulators with the options of a run. Print a warning at the end if some restarted."""
    environment, options = policy.environment, policy.spec.options
    assert is_on_host(environment)
    with contextlib.closing(
        make_simulators(
            environment, number, workers, options.env_timeout, names, options.env_restarts
        )
    ) as simulators:
        yield simulators
        messages = simulators.pop_restart_messages()
    if messages:
        print_warning(
            f"Simulators that failed were made again (number of restarts: {len(messages)}). The "
            f"first error is: {messages[0].splitlines()[0]}"
        )
