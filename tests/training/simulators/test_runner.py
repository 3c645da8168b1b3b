"""Tests of host environments: learning equals that in the same environment in JAX."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rollax
from rollax import api
from rollax.acting.streams import unroll
from rollax.environments import register
from rollax.environments.host_environment import HostedEnvironment
from rollax.errors import UsageError
from rollax.spaces import Box, Discrete
from rollax.training.compile import program as programs
from rollax.training.compile import run_check
from rollax.training.options import RunOptions
from rollax.training.run_folder.layout import read_spec, write_spec
from rollax.training.simulators import requirements
from rollax.training.simulators.recording import find_actor, to_rollout
from rollax.training.simulators.runner import SimulatorRunner
from rollax.training.spec import Spec, adapt_to_host, make_spec
from support.counter_simulator import Counter, on_host
from support.parallel_worlds import Counters, make_counters

CONTINUOUS = Box(-1.0, 1.0, (1,))
SIZES = {"num_envs": 3, "num_steps": 8, "num_minibatches": 2, "num_epochs": 1}
REPLAY = {"num_envs": 2, "num_steps": 1, "capacity": 64, "batch_size": 4, "warmup": 6}
SMALL = {"hidden": (8,)}
MEMORY = SMALL | {"core": "gru", "core_size": 4}
# World in JAX and on the host, by name.
WORLDS: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "discrete": (Counter, on_host),
    "continuous": (lambda: Counter(CONTINUOUS), lambda: on_host(True)),
    "agents": (Counters, make_counters),
}
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any], str]] = {
    "ppo": (
        "ppo",
        SIZES | {"normalize_rewards": True, "normalize_observations": True},
        SMALL,
        "discrete",
    ),
    "ppo-continuous": ("ppo", SIZES, SMALL, "continuous"),
    "ppo-gru": ("ppo", SIZES | {"sequence_length": 4}, MEMORY, "discrete"),
    "impala": ("impala", SIZES | {"sequence_length": 4}, SMALL, "discrete"),
    "pqn": ("pqn", SIZES, SMALL, "discrete"),
    "dqn": ("dqn", REPLAY | {"replay_ratio": 0.5}, SMALL, "discrete"),
    "sac": ("sac", REPLAY | {"replay_ratio": 1}, SMALL, "continuous"),
    "td3": ("td3", REPLAY | {"replay_ratio": 1}, SMALL, "continuous"),
    "ppo-agents": (
        "ppo",
        SIZES | {"normalize_rewards": True, "normalize_observations": True, "sharing": "none"},
        SMALL,
        "agents",
    ),
    "ppo-gru-agents": ("ppo", SIZES | {"sequence_length": 4}, MEMORY, "agents"),
    "impala-agents": ("impala", SIZES | {"sequence_length": 4}, SMALL, "agents"),
    "pqn-agents": ("pqn", SIZES, SMALL, "agents"),
    "dqn-agents": ("dqn", REPLAY | {"replay_ratio": 0.5}, SMALL, "agents"),
}
UPDATES = 12


@pytest.fixture(scope="module", autouse=True)
def _registered() -> None:
    register("test/counter", Counter)


def made(name: str) -> tuple[Spec, Any, Any, Any]:
    """Return the specification of a case, both algorithms, and the host environment."""
    algorithm, config, network, world = CASES[name]
    make_in_jax, make_on_host = WORLDS[world]
    options = RunOptions(total_steps=10_000, eval_episodes=5)
    spec = make_spec(algorithm, "test/counter", {}, config, network, options, None)
    compiled, _ = programs.build_algorithm_and_environment(spec, make_in_jax())
    environment = make_on_host()
    return (
        spec,
        compiled,
        programs.build_algorithm_and_environment(spec, environment)[0],
        environment,
    )


FAST = ("ppo-gru", "sac", "ppo-gru-agents")


MARKS = {name: pytest.mark.slow for name in CASES if name not in FAST} | {
    "ppo-gru": pytest.mark.quick
}


@pytest.mark.parametrize("name", [pytest.param(name, marks=MARKS.get(name, ())) for name in CASES])
def test_learning_on_the_host_equals_learning_in_jax(name: str) -> None:
    """Compare the rollout, then parameters, metrics and the rest of the state."""
    spec, compiled, algorithm, environment = made(name)
    key = jax.random.key(3)
    state, on_host_state = compiled.init(key, spec.config), algorithm.init(key, spec.config)
    acts = SimulatorRunner(spec, algorithm, algorithm, (environment, environment), on_host_state)
    acts.compile(UPDATES)
    world = WORLDS[CASES[name][3]][0]()

    policy, actor, act_key, num_steps = compiled.rollouts(state)
    _, experience, _ = jax.jit(lambda: unroll(world, policy, actor, act_key, num_steps))()
    acts.begin(on_host_state)
    recording = acts.collect_rollout(jax.tree.leaves(on_host_state))
    rollout = to_rollout(environment, recording, find_actor(on_host_state))
    for field in experience._fields:
        same(getattr(rollout.experience, field), getattr(experience, field), field)

    acts.restart_episodes(0)
    step, ended = jax.jit(compiled.step), 0.0
    on_host_state, rows = acts.advance(on_host_state, UPDATES)
    for update in range(UPDATES):
        state, metrics = step(state)
        same(
            jax.tree.map(lambda row, i=update: row[i], rows), metrics, f"metrics of update {update}"
        )
        ended += float(metrics.episodes.number)
        assert set(metrics.episodes.info) == {"sum"}
    assert ended > 3, "episodes end in these updates"
    # All except the states of environments.
    same(strip(on_host_state), strip(state), "state")
    acts.close()


def strip(state: Any) -> Any:
    actor = find_actor(state)
    books = actor._replace(
        env_state=None,
        reset_pool=None,
        episode_info={},
        # Agents of simulators may return to an episode, so they have one flag for each.
        reset=jnp.broadcast_to(actor.reset.T, actor.episode_length.T.shape),
    )
    return state._replace(actor=books)


def same(ours: Any, theirs: Any, what: str) -> None:
    ours, theirs = jax.tree.leaves(ours), jax.tree.leaves(theirs)
    assert len(ours) == len(theirs), what
    for a, b in zip(ours, theirs, strict=True):
        if jnp.issubdtype(jnp.asarray(b).dtype, jax.dtypes.prng_key):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=2e-4, atol=2e-5, err_msg=what)


def test_the_specification_of_a_long_run_is_read_back(tmp_path: Path) -> None:
    """Its updates have a single step, and many of them share a line of metrics."""
    config = {"num_envs": 1, "capacity": 1000, "replay_ratio": 1.0}
    spec = adapt_to_host(
        make_spec("dqn", "test/counter", {}, config, None, RunOptions(total_steps=1_000_000), None)
    )
    assert spec.updates_per_line == 250
    write_spec(tmp_path, spec)
    assert read_spec(tmp_path) == spec


def test_options_that_require_compiled_environments() -> None:
    environment = on_host()
    with pytest.raises(UsageError, match="runs on the host, which map_elites does not support"):
        api.train("map_elites", environment, total_steps=64, quiet=True)
    spec = make_spec("ppo", "test/counter", {}, SIZES, None, RunOptions(devices=2), None)
    with pytest.raises(
        UsageError, match=r"devices must be 1 for test/counter, which runs on the host, got 2"
    ):
        requirements.check_rollouts(
            "ppo",
            programs.build_algorithm_and_environment(spec, environment)[0],
            environment,
            spec.options.devices,
            spec.acts_in_training,
        )
    with pytest.raises(UsageError, match="runs on the host"):
        environment.reset(jax.random.key(0))
    assert rollax.check_environment(environment, steps=30).episodes >= 5


def test_worker_processes_without_host_simulators_raise_usage_error() -> None:
    """These are compiled environments, and EnvPool, which uses threads."""
    pool = HostedEnvironment(
        "test/pool",
        Discrete(2),
        Discrete(2),
        9,
        (),
        on_host().make_simulator,
        lambda number, seed: None,
    )
    with pytest.raises(
        UsageError,
        match=r"env_workers \(2\) requires a host simulator, but probe/memory is compiled",
    ):
        run_check.check_run(
            make_spec("ppo", "probe/memory", {}, SIZES, None, RunOptions(env_workers=2), None)
        )
    with pytest.raises(
        UsageError, match=r"test/pool, whose simulators use the threads .* --env.num-threads 2"
    ):
        requirements.check_workers(pool, 2)
    requirements.check_workers(on_host(), 2)
    requirements.check_workers(pool, 0)
