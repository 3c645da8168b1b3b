"""Laws of environments on the host: what is learnt in simulators is what is learnt in the same environment in JAX."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from host.counters import Counter, on_host
from rollax.acting.streams import actor_of, unroll
from rollax.environments import register
from rollax.host import program as programs
from rollax.host.options import RunOptions
from rollax.host.run_folder import read_spec, write_spec
from rollax.host.settings import Spec, fitted_to_host, make_spec
from rollax.host.simulated import Simulated
from rollax.spaces import Box

CONTINUOUS = Box(-1.0, 1.0, (1,))
SIZES = {"num_envs": 3, "num_steps": 8, "num_minibatches": 2, "num_epochs": 1}
REPLAY = {"num_envs": 2, "num_steps": 1, "capacity": 64, "batch_size": 4, "warmup": 6}
SMALL = {"hidden": (8,)}
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any], bool]] = {
    "ppo": ("ppo", SIZES | {"normalize_rewards": True, "normalize_observations": True}, SMALL, False),
    "ppo-continuous": ("ppo", SIZES, SMALL, True),
    "ppo-gru": ("ppo", SIZES | {"sequence_length": 4}, SMALL | {"core": "gru", "core_size": 4}, False),
    "impala": ("impala", SIZES | {"sequence_length": 4}, SMALL, False),
    "pqn": ("pqn", SIZES, SMALL, False),
    "dqn": ("dqn", REPLAY | {"replay_ratio": 0.5}, SMALL, False),
    "sac": ("sac", REPLAY | {"replay_ratio": 1}, SMALL, True),
    "td3": ("td3", REPLAY | {"replay_ratio": 1}, SMALL, True),
}
UPDATES = 12


@pytest.fixture(scope="module", autouse=True)
def _registered() -> None:
    register("test/counter", Counter)


def made(name: str) -> tuple[Spec, Any, Any, Any]:
    """The specification of a case, the algorithm in JAX and the one on the host, and that environment."""
    algorithm, config, network, continuous = CASES[name]
    options = RunOptions(total_steps=10_000, eval_episodes=5)
    spec = make_spec(algorithm, "test/counter", {}, config, network, options, None)
    compiled, _ = programs.assemble(spec, Counter(CONTINUOUS) if continuous else Counter())
    environment = on_host(continuous)
    return spec, compiled, programs.assemble(spec, environment)[0], environment


FAST = ("ppo-gru", "sac")


@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name in FAST else pytest.mark.slow) for name in CASES])
def test_what_is_learnt_on_the_host_is_what_is_learnt_in_jax(name: str) -> None:
    """Observations, actions, rewards, ends, carries and what the policy gave; then parameters, metrics and all else."""
    spec, compiled, algorithm, environment = made(name)
    key = jax.random.key(3)
    state, on_host_state = compiled.init(key, spec.config), algorithm.init(key, spec.config)
    acts = Simulated(spec, algorithm, algorithm, (environment, environment), on_host_state)
    acts.compile(UPDATES)
    world: Any = Counter(CONTINUOUS) if CASES[name][3] else Counter()

    policy, actor, act_key, num_steps = compiled.rollouts(state)
    _, experience, _ = jax.jit(lambda: unroll(world, policy, actor, act_key, num_steps))()
    acts.begin(on_host_state)
    recording = acts.played(jax.tree.leaves(on_host_state))
    for field in recording.steps._fields:
        same(getattr(recording.steps, field), getattr(experience, field), field)

    acts.begin_anew(0)
    step, ended = jax.jit(compiled.step), 0.0
    on_host_state, rows = acts.advance(on_host_state, UPDATES)
    for update in range(UPDATES):
        state, metrics = step(state)
        same(jax.tree.map(lambda row, i=update: row[i], rows), metrics, f"metrics of update {update}")
        ended += float(metrics.episodes.number)
    assert ended > 3, "episodes end in these updates"
    # All that is not the environments' own.
    same(strip(on_host_state), strip(state), "state")
    acts.close()


def strip(state: Any) -> Any:
    actor = actor_of(state)
    books = actor._replace(env_state=None, starts=None)
    return state._replace(actor=books)


def same(ours: Any, theirs: Any, what: str) -> None:
    ours, theirs = jax.tree.leaves(ours), jax.tree.leaves(theirs)
    assert len(ours) == len(theirs), what
    for a, b in zip(ours, theirs, strict=True):
        if jnp.issubdtype(jnp.asarray(b).dtype, jax.dtypes.prng_key):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=2e-4, atol=2e-5, err_msg=what)


def test_the_settings_of_a_long_run_are_read_again(tmp_path: Path) -> None:
    """Whose updates are as short as they can be, and whose lines of metrics lie many of them apart."""
    config = {"num_envs": 1, "capacity": 1000, "replay_ratio": 1.0}
    spec = fitted_to_host(make_spec("dqn", "test/counter", {}, config, None, RunOptions(total_steps=1_000_000), None))
    assert spec.updates_per_line == 250
    write_spec(tmp_path, spec)
    assert read_spec(tmp_path) == spec
