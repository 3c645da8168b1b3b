"""Tests of the Brax adapter: dynamics, ends, physics, descriptors and drawings."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("brax")

import rollax
from rollax.acting.evaluation import make_evaluator
from rollax.algorithm import Algorithm
from rollax.environments import default_arguments, list_environments, make
from rollax.environments.suites.brax import adapter
from rollax.errors import UnknownNameError, UsageError
from rollax.visualization.render.drawings import find_drawing

pytestmark = pytest.mark.usefixtures("as_strict_as_the_suite")


def play(env: Any, actions: np.ndarray, seed: int = 0) -> tuple[Any, Any]:
    """Return the first state and the transitions of `actions`, `[T, ...]`.

    The loop runs in Python, so that all environments of a name share one compiled step.
    """
    key = jax.random.key(seed)
    with jax.debug_key_reuse(False):
        first, _ = env.reset(key)
        state, told = first, []
        for action in actions:
            told.append(jax.device_get(env.step(key, state, jnp.asarray(action))))
            state = told[-1].state
    return first, jax.tree.map(lambda *rows: np.stack(rows), *told)


def test_dynamics_equal_those_of_the_suite() -> None:
    """Rewards, observations and ends are those of the unwrapped suite. The time limit is added."""
    env = make("brax/reacher", backend="spring", max_steps=5)
    actions = np.random.default_rng(0).uniform(-1, 1, (6, 2)).astype(np.float32)
    _, told = play(env, actions)
    raw = jax.jit(env.dynamics.reset)(jax.random.key(0))
    step = jax.jit(env.dynamics.step)
    for time, action in enumerate(actions):
        raw = step(raw, jnp.asarray(action))
        np.testing.assert_allclose(told.obs[time], raw.obs, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(told.reward[time], raw.reward, rtol=1e-4, atol=1e-5)
        assert not told.terminated[time] and told.truncated[time] == (time >= 4)
    # The terms of the reward in info sum to it.
    np.testing.assert_allclose(sum(told.info.values()), told.reward, rtol=1e-4, atol=1e-5)


def test_a_fallen_pole_terminates_also_at_the_time_limit() -> None:
    """The suite reports the fall as a timeout.

    A constant push makes the pole fall within 30 steps.
    """
    actions = np.ones((40, 1), np.float32)
    _, told = play(make("brax/inverted_pendulum"), actions)
    fallen = int(np.argmax(told.terminated))
    assert 0 < fallen < 40 and abs(told.obs[fallen, 1]) > 0.2 > abs(told.obs[fallen - 1, 1])
    assert not told.truncated[: fallen + 1].any()
    _, told = play(make("brax/inverted_pendulum", max_steps=fallen + 1), actions)
    assert told.terminated[fallen] and not told.truncated[fallen]
    _, told = play(make("brax/inverted_pendulum", max_steps=fallen), actions)
    assert told.truncated[fallen - 1] and not told.terminated[fallen - 1]


def test_step_does_not_change_its_input_state() -> None:
    """The suite writes into the state that it is given."""
    env = make("brax/reacher", backend="spring")
    state, _ = env.reset(jax.random.key(0))
    before = jax.tree.map(np.asarray, state)
    after = env.step(jax.random.key(1), state, jnp.ones(2))
    jax.tree.map(np.testing.assert_array_equal, before, jax.tree.map(np.asarray, state))
    assert float(after.info["reward_ctrl"]) == -2.0


def test_physics_are_leaves() -> None:
    """Copies with motors of different strength run in one program.

    Without a motor, the pendulum moves as with no action.
    """
    env = make("brax/inverted_pendulum")
    strong = eqx.tree_at(
        lambda e: e.physics["gear"], env, jnp.stack([0 * env.physics["gear"], env.physics["gear"]])
    )
    axes = eqx.tree_at(
        lambda e: e.physics["gear"],
        jax.tree.map(lambda x: None, env),
        0,
        is_leaf=lambda x: x is None,
    )
    state, _ = env.reset(jax.random.key(0))
    run = jax.vmap(lambda e, a: e.step(jax.random.key(0), state, a).obs, in_axes=(axes, None))
    pushed, idle = run(strong, jnp.ones(1)), run(strong, jnp.zeros(1))
    np.testing.assert_allclose(pushed[0], idle[0], atol=1e-6)
    assert float(jnp.abs(pushed[1] - idle[1]).max()) > 1e-2


def test_a_nonfinite_simulation_terminates_with_finite_values() -> None:
    """The suite's reacher would continue with NaN until its time limit."""
    env = make("brax/reacher", backend="spring", max_steps=5)
    state, obs = env.reset(jax.random.key(0))
    pipeline = state.suite_state.pipeline_state
    broken = pipeline.replace(xd_i=jax.tree.map(lambda x: x * jnp.nan, pipeline.xd_i))
    state = state._replace(suite_state=state.suite_state.replace(pipeline_state=broken))
    after = env.step(jax.random.key(0), state, jnp.ones(2))
    assert (
        after.terminated
        and not after.truncated
        and after.reward == 0
        and not any(after.info.values())
    )
    np.testing.assert_array_equal(after.obs, obs)


def test_only_physics_that_the_engine_reads_are_leaves() -> None:
    """Randomizing other parameters would have no effect."""
    assert sorted(make("brax/hopper").physics) == ["friction", "gear", "gravity"]
    assert sorted(make("brax/walker2d").physics) == ["friction", "gear", "gravity", "mass"]
    assert len(make("brax/hopper", backend="generalized").physics) == 7


@pytest.mark.filterwarnings("ignore:Brax System:UserWarning")  # caused by Brax for its own model
def test_observations_of_several_parts_are_refused() -> None:
    class Parts(adapter.suite.hopper.Hopper):
        def reset(self, rng: Any) -> Any:
            state = super().reset(rng)
            return state.replace(obs={"state": state.obs})

        def step(self, state: Any, action: Any) -> Any:
            after = super().step(state.replace(obs=state.obs["state"]), action)
            return after.replace(obs={"state": after.obs})

    with pytest.raises(UsageError, match="observations must be one array, got the parts state"):
        rollax.from_brax(Parts())


# --- Descriptors ---


def test_position_descriptors_are_displacements_from_the_start() -> None:
    """In an evaluation, the descriptor is that of the last state, as in a plain loop."""
    env = make("brax/ant", descriptor="position", max_steps=4)
    assert env.descriptor_space.shape == (2,) and env.descriptor_extraction == "final"
    still = Algorithm(None, None, lambda s, o, c, k, g: (jnp.full(8, s), c), lambda state: ())  # pyright: ignore
    run = jax.jit(make_evaluator(env, still, 3, 4, True))
    episodes = run(jnp.float32(0.5), jax.random.key(0))
    reset_key, _ = jax.random.split(jax.random.key(0))
    for number, key in enumerate(jax.random.split(reset_key, 3)):
        first, _ = env.reset(key)
        np.testing.assert_array_equal(env.descriptor(first), [0.0, 0.0])
        state = first
        for _ in range(4):
            state = env.step(key, state, jnp.full(8, 0.5)).state
        shift = (
            state.suite_state.pipeline_state.x.pos[0] - first.suite_state.pipeline_state.x.pos[0]
        )[:2]
        np.testing.assert_allclose(episodes.descriptor[number], shift, rtol=1e-4, atol=1e-5)
        assert float(jnp.abs(shift).max()) > 1e-3


# --- Creation and drawing ---


def test_names_and_arguments() -> None:
    assert len(list_environments("brax")) == 11
    assert (
        default_arguments("brax/hopper")["backend"] == "spring"
        and default_arguments("brax/swimmer")["backend"] == "generalized"
    )
    env = make("brax/reacher", backend="spring", max_steps=7, n_frames=1)
    assert env.time_limit == 7 and env.dynamics._n_frames == 1 and env.descriptor_space is None
    assert make("brax/hopper", healthy_z_range="[0.5, 2.0]").dynamics._healthy_z_range == (0.5, 2.0)


@pytest.mark.parametrize(
    ("name", "given", "words"),
    [
        ("fast", {}, "brax/fast is not offered: it is not a task"),
        ("reacher", {"backend": "fast"}, "must be one of spring, generalized, positional, mjx"),
        ("reacher", {"max_steps": 0}, r"max_steps \(0\) must be at least 1"),
        ("reacher", {"descriptor": "contact"}, "unknown argument of brax/reacher 'descriptor'"),
        (
            "ant",
            {"descriptor": "contacts"},
            r"descriptor \('contacts'\) must be one of contact, position",
        ),
        (
            "ant",
            {"use_contact_forces": True},
            "brax cannot create ant with .*use_contact_forces=True",
        ),
        ("swimmer", {"backend": "spring"}, "Unsupported backend: spring"),
    ],
)
def test_mistakes_are_refused_with_a_remedy(name: str, given: dict[str, Any], words: str) -> None:
    with pytest.raises((UsageError, UnknownNameError), match=words):
        make(f"brax/{name}", **given)


def test_nothing_is_printed_or_written_to_the_folder(tmp_path: Path) -> None:
    """MuJoCo prints on import, warns about the file of halfcheetah, and writes a log file."""
    program = "import rollax; rollax.make('brax/halfcheetah')"
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": str(Path(adapter.__file__).parents[4]),
    }
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert not list(tmp_path.iterdir())


def test_the_drawing_shows_the_body() -> None:
    """The drawing follows the torso, and a moved leg changes it."""
    env = make("brax/ant")
    state, obs = env.reset(jax.random.key(0))
    draw = find_drawing(env).draw
    picture = draw(env, jax.device_get(state), np.asarray(obs))
    assert len(np.unique(np.asarray(picture).reshape(-1, 3), axis=0)) > 5
    after = env.step(jax.random.key(0), state, jnp.ones(8))
    other = draw(env, jax.device_get(after.state), np.asarray(after.obs))
    assert other.size == picture.size and other.tobytes() != picture.tobytes()


def test_the_ant_without_forward_reward_is_ant_omni_of_qdax() -> None:
    """Ant-omni has the suite's reward without the forward term.

    Its descriptor is the position of the torso.
    """
    whole, omni = make("brax/ant"), make("brax/ant", forward_reward_weight=0, descriptor="position")
    key = jax.random.key(3)
    state, _ = whole.reset(key)
    other = state  # the worlds are the same, and reset must not use the key twice
    start = np.asarray(state.suite_state.pipeline_state.x.pos[0])
    for index in range(3):
        action = jnp.sin(jnp.arange(8.0) + index)
        after, less = whole.step(key, state, action), omni.step(key, other, action)
        forward = (
            after.state.suite_state.pipeline_state.x.pos[0, 0]
            - state.suite_state.pipeline_state.x.pos[0, 0]
        ) / whole.dynamics.dt
        np.testing.assert_allclose(less.reward, after.reward - forward, atol=1e-4)
        np.testing.assert_allclose(
            less.reward, 1.0 - 0.5 * jnp.sum(action**2), atol=1e-4
        )  # survival and cost of the actions
        np.testing.assert_allclose(sum(less.info.values()), less.reward, atol=1e-4)
        assert less.info["reward_forward"] == 0 and after.info["reward_forward"] != 0
        state, other = after.state, less.state
    assert omni.descriptor_extraction == "final"
    place = np.asarray(other.suite_state.pipeline_state.x.pos[0])
    np.testing.assert_allclose(omni.descriptor(other), (place - start)[:2], atol=1e-6)
