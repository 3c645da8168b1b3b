"""Tests of all quality-diversity algorithms, which have an archive and an emitter."""

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from laws.archives import NAMES, config
from laws.table import BY_NAME
from rollax import make
from rollax.acting.scoring import ScoringOptions, make_episode_scorer, make_gradient_fn, make_scorer
from rollax.algorithm import Algorithm
from rollax.algorithms.registry import ALGORITHMS
from rollax.environments.closed_form import Task
from rollax.environments.native.task.benchmarks import linear_projection
from rollax.errors import UsageError
from rollax.networks.solutions import ConstantSolution, PolicyConfig, make_solution
from rollax.spaces import Box
from rollax.training.compile.segments import segment


@cache
def algorithm(name: str) -> Algorithm:
    return BY_NAME[name].make(BY_NAME[name].environment)


@cache
def run(name: str) -> Any:
    return jax.jit(segment(algorithm(name), 6))


def begun(name: str, seed: int = 0, **settings: Any) -> Any:
    return jax.jit(algorithm(name).init)(jax.random.key(seed), config(name, **settings))


@pytest.mark.parametrize("name", NAMES)
def test_solutions_of_cells_are_split_between_devices(name: str) -> None:
    """This is checked by shapes.

    Populations, emitters with their replay, and small leaves are not split.
    """
    shapes = jax.eval_shape(algorithm(name).init, jax.random.key(0), config(name))
    marks = algorithm(name).placement(shapes)
    assert jax.tree.structure(marks) == jax.tree.structure(shapes)
    elites = marks.archive.elites
    assert set(jax.tree.leaves(elites.solution)) == {name not in ("dns", "aurora")}
    assert not any(
        jax.tree.leaves(
            (elites.fitness, elites.descriptor, elites.extras, marks.config, marks.first)
        )
    )
    assert not any(jax.tree.leaves(marks.emitter))


@pytest.mark.parametrize("id", ["task/sphere", "task/rastrigin", "task/arm"])
def test_the_closed_form_equals_an_episode(id: str) -> None:
    """Scores of the closed form equal those of an episode of one step."""
    world: Any = make(id)
    solutions = jax.vmap(
        lambda key: ConstantSolution(3 * jax.random.normal(key, world.action_space.shape))
    )(jax.random.split(jax.random.key(0), 7))
    form = jax.jit(make_scorer(world, 1, 1))(solutions, jax.random.key(1))

    result = jax.vmap(lambda s, key: world.step(key, world.reset(key)[0], s.action))(
        solutions, jax.random.split(jax.random.key(2), 7)
    )
    np.testing.assert_allclose(form.fitness, result.reward, rtol=1e-6)
    np.testing.assert_allclose(form.descriptor, jax.vmap(world.descriptor)(result.state), rtol=1e-6)
    assert np.all(result.terminated)


def test_gradients_are_those_of_the_closed_form() -> None:
    """They equal finite differences on both sides of the fold at 5.12 and at 0."""
    world: Any = make("task/sphere", dimensions=4)
    point = jnp.asarray([0.0, 6.0, -7.0, 2.0])
    rows = make_gradient_fn(world)(ConstantSolution(point)).action
    assert rows.shape == (3, 4)
    for axis in range(4):
        step = jnp.zeros(4).at[axis].set(1e-2)
        (high, more), (low, less) = world.score(point + step), world.score(point - step)
        np.testing.assert_allclose(
            rows[:, axis],
            jnp.concatenate([(high - low)[None], more - less]) / 2e-2,
            rtol=2e-2,
            atol=1e-3,
        )
    assert np.allclose(linear_projection(jnp.asarray([6.0, 0.0])), [5.12 / 6, 0.0])


@pytest.mark.parametrize("angle", [0.5, 2.0, -1.0])
def test_gradients_of_the_arm_are_finite_at_equal_angles(angle: float) -> None:
    """The standard deviation of equal angles is 0, where its square root has no derivative."""
    world = make("task/arm", joints=3)
    gradients = jax.jacobian(world.score)(jnp.full(3, angle))
    np.testing.assert_array_equal(gradients[0], np.zeros(3))
    assert np.isfinite(gradients[1]).all()
    fitness, _ = world.score(jnp.asarray([0.0, 0.5, 1.0]))
    assert fitness == pytest.approx(-np.std([0.0, 0.5, 1.0]))


def test_the_arm_fills_reachable_cells() -> None:
    """No cell outside of the disc of radius 1/2 has an elite, and most cells inside have one."""
    world = make("task/arm")
    arm = ALGORITHMS["map_elites"].make(
        world, lambda key: make_solution(world, PolicyConfig(), key)
    )
    settings = ALGORITHMS["map_elites"].config(batch_size=256, num_iterations=8, grid=(20, 20))
    state = jax.jit(arm.init)(jax.random.key(0), settings)
    state = jax.jit(
        lambda state: jax.lax.scan(
            lambda state, _: (arm.step(state)[0], None), state, None, length=20
        )[0]
    )(state)
    filled = np.asarray(state.archive.elites.fitness > -np.inf).reshape(20, 20)
    edges = np.arange(21) / 20 - 0.5
    nearest = np.maximum(
        np.maximum(edges[:-1], -edges[1:]), 0
    )  # distance of each cell to the shoulder along one axis
    reachable = np.hypot(nearest[:, None], nearest[None, :]) <= 0.5
    assert not np.any(filled & ~reachable)
    assert np.sum(filled) > 0.9 * np.sum(reachable)


def test_nonfinite_solutions_do_not_enter() -> None:
    """Half of the solutions have fitness NaN and some an infinite descriptor.

    Finite ones still enter.
    """

    def score(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jnp.where(x[0] > 0, jnp.nan, -jnp.sum(x**2)), jnp.where(x[1] > 0.3, jnp.inf, x[:2])

    world = Task("test/nan", score, Box(-1.0, 1.0, (3,)), Box(-1.0, 1.0, (2,)))
    settings_of: dict[str, dict[str, Any]] = {
        "map_elites": {"iso_sigma": 0.3},
        "cma_mae": {"threshold_start": -10.0},
        "me_es": {"adds_pairs": True},
        "me_map_elites": {"iso_sigma": 0.3},
    }
    for name in ("map_elites", "cma_me", "cma_mae", "me_map_elites", "me_es"):
        make_it = ALGORITHMS[name].make(
            world, lambda key: make_solution(world, PolicyConfig(), key)
        )
        state = jax.jit(make_it.init)(jax.random.key(0), config(name, **settings_of.get(name, {})))
        for _ in range(4):
            state, metrics = jax.jit(make_it.step)(state)
        elites, mask = state.archive.elites, np.asarray(state.archive.elites.fitness > -np.inf)
        assert (
            mask.any()
            and np.all(np.isfinite(elites.fitness[mask]))
            and np.all(np.isfinite(elites.descriptor))
        )
        assert np.all(elites.solution.action[mask][:, 0] <= 0) and metrics.values["nonfinite"] > 0
        assert metrics.finite.parameters


def test_the_best_policy_acts() -> None:
    """A run's policy is the member of highest fitness, and evaluations report the archive."""
    name = "map_elites"
    state, _ = run(name)(begun(name), jnp.int32(6))
    best = int(np.argmax(state.archive.elites.fitness))
    action, _ = algorithm(name).act(state, jnp.zeros(1), (), jax.random.key(0), True)
    np.testing.assert_array_equal(action, state.archive.elites.solution.action[best])
    values = algorithm(name).state_metrics(state)
    assert set(values) == {"qd_score", "coverage", "fitness_best", "fitness_mean"}


def test_scores_are_means_over_episodes() -> None:
    """Fitness and descriptor are means over several episodes, and experience has all steps."""
    world = make("control/point-maze", time_limit=5)
    solutions = jax.lax.map(
        lambda key: make_solution(world, PolicyConfig(hidden=(8,)), key),
        jax.random.split(jax.random.key(0), 3),
    )
    score = jax.jit(make_episode_scorer(world, 4, 5, ScoringOptions(records=True)))(
        solutions, jax.random.key(1)
    )
    steps, there_is = score.experience
    assert score.fitness.shape == (3,) and score.descriptor.shape == (3, 2)
    assert steps.obs.shape == (20, 3, 4) and there_is.shape == (20, 3)
    total = jnp.sum(jnp.where(there_is, steps.reward, 0.0), axis=0) / 4
    np.testing.assert_allclose(total, score.fitness, rtol=1e-5)
    # Every action is that of the solution in its column.
    for i in range(3):
        mine = jax.tree.map(lambda x, i=i: x[i], solutions)
        np.testing.assert_allclose(
            jax.vmap(mine)(steps.obs[:, i]), steps.action[:, i], rtol=1e-5, atol=1e-6
        )


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        (
            "cma_me",
            {"batch_size": 10},
            r"batch_size must be a multiple of num_emitters \(3\) .*got 10. Set "
            r"batch_size to 9 or 12",
        ),
        ("cma_mega", {"batch_size": 6}, "3 solutions for each, got 6. Set batch_size to 9 or 12"),
        ("map_elites", {"grid": (4,)}, "grid must have one number per descriptor dimension"),
        ("omg_mega", {"batch_size": 13}, "must be even"),
        (
            "me_map_elites",
            {"kinds": ("gaussian", "gaussian")},
            "must be one or more different kinds",
        ),
        ("me_map_elites", {"batch_size": 14}, "must be a multiple of num_emitters"),
        (
            "me_es",
            {"batch_size": 13},
            r"batch_size less mean_evaluations \(2\) must be even .*, got 11. Set batch_size to 14",
        ),
        (
            "map_elites",
            {"variation": "polynomial", "solution_bounds": (2, 1)},
            r"solution_bounds must be two numbers in ascending order, got 2 1\.",
        ),
        ("pga_me", {"gradient_fraction": 2.0}, "gradient_fraction"),
        (
            "dcrl_me",
            {"gradient_fraction": 0.5, "injected_fraction": 0.6},
            "The sum of gradient_fraction and injected_fraction must be at most 1",
        ),
    ],
)
def test_invalid_settings_are_refused(name: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        jax.eval_shape(algorithm(name).init, jax.random.key(0), config(name, **settings))


def test_a_too_large_covariance_is_refused() -> None:
    with pytest.raises(
        UsageError,
        match=r"at most 4,000 parameters, got 4,001.*map_elites or me_es",
    ):
        world = make("task/sphere", dimensions=4001)
        made = ALGORITHMS["cma_me"].make(
            world, lambda key: make_solution(world, PolicyConfig(), key)
        )
        jax.eval_shape(made.init, jax.random.key(0), config("cma_me"))


def test_an_environment_without_objectives_is_refused() -> None:
    world = make("task/arm")
    made = ALGORITHMS["mome"].make(world, lambda key: make_solution(world, PolicyConfig(), key))
    with pytest.raises(
        UsageError, match="task/arm must have numbers in its info to use as objectives"
    ):
        jax.eval_shape(made.init, jax.random.key(0), config("mome"))


def no_bounds(dimensions: int = 2) -> Task:
    """Return a task whose descriptor is its solution and is unbounded."""
    space = Box(-np.inf, np.inf, (dimensions,))
    return Task("test/no-bounds", lambda x: (-jnp.sum(x**2), x), space, space)


def archive_within(world: Any, low: tuple[float, ...], high: tuple[float, ...]) -> Any:
    """Return MAP-Elites and its state before any update."""
    made = ALGORITHMS["map_elites"].make(
        world, lambda key: make_solution(world, PolicyConfig(), key)
    )
    state = jax.jit(made.init)(
        jax.random.key(0), config("map_elites", descriptor_low=low, descriptor_high=high)
    )
    return made, state


def elites_of(made: Any, state: Any) -> Any:
    archive, archive_state = made.archived.archive(state)
    return archive.elites(archive_state)


def test_descriptor_bounds_can_be_set() -> None:
    """Cells cover the range of the settings, even if the environment has other or no bounds."""
    for world in (no_bounds(), make("task/sphere", dimensions=4)):
        made, state = archive_within(world, (-1.0, 2.0), (4.0, 7.0))
        center = np.asarray(elites_of(made, state).center)
        np.testing.assert_allclose(np.unique(center[:, 0]), np.arange(5) - 0.5)
        np.testing.assert_allclose(np.unique(center[:, 1]), np.arange(5) + 2.5)
    # If one side is set, the other is that of the environment.
    made, state = archive_within(make("task/arm"), (), (2.0, 2.0))
    np.testing.assert_allclose(
        np.ptp(np.asarray(elites_of(made, state).center), axis=0), 2 * 4 / 5, rtol=1e-6
    )


@pytest.mark.parametrize(
    ("low", "high", "message"),
    [
        (
            (),
            (),
            r"test/no-bounds have no finite.*Set config.descriptor_low to 2 numbers "
            r"\(--config.descriptor-low\)",
        ),
        ((-1.0, -1.0), (), "Set config.descriptor_high"),
        ((-1.0,), (1.0, 1.0), r"descriptor_low must have 2 numbers, .*, got -1\."),
        ((-1.0, -1.0), (1.0, 1.0, 1.0), r"descriptor_high must have 2 numbers, .*, got 1 1 1\."),
        (
            (-1.0, 1.0),
            (1.0, 1.0),
            r"descriptor_low must be below descriptor_high .*, got -1 1 and 1 1\.",
        ),
    ],
)
def test_invalid_descriptor_bounds_are_refused(
    low: tuple[float, ...], high: tuple[float, ...], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        archive_within(no_bounds(), low, high)


@pytest.mark.parametrize(
    ("name", "id", "message"),
    [
        ("map_elites", "gymnax/CartPole-v1", "must describe behavior"),
        ("cma_mega", "control/point-maze", "must have a closed form to compute gradients"),
        ("pga_me", "task/arm", "requires an environment with episodes"),
        ("dcrl_me", "task/arm", "dcrl_me requires an environment with episodes"),
        ("dcrl_me", "gymnax/MountainCar-v0", "descri|must be a Box of floats with finite bounds"),
    ],
)
def test_unsupported_environments_are_refused(name: str, id: str, message: str) -> None:
    world = make(id)
    with pytest.raises(UsageError, match=message):
        made = ALGORITHMS[name].make(world, lambda key: make_solution(world, PolicyConfig(), key))
        jax.eval_shape(made.init, jax.random.key(0), config(name))


def test_unsupported_action_spaces_are_refused() -> None:
    with pytest.raises(UsageError, match="require discrete actions"):
        make_solution(make("probe/multi-discrete"), PolicyConfig(), jax.random.key(0))


def test_actions_within_a_ball() -> None:
    """Directions are unchanged, lengths are at most the radius, and an archive gets elites."""
    world = make("granular/single-navigator", max_steps=10)
    policy = make_solution(world, PolicyConfig(hidden=(8,)), jax.random.key(0))
    far = jax.tree.map(lambda x: 30 * x, policy)
    for each in (policy, far):
        actions = np.asarray(jax.vmap(each)(jax.random.normal(jax.random.key(1), (50, 6))))
        assert actions.shape == (50, 2) and np.all(np.linalg.norm(actions, axis=1) <= 1 + 1e-6)
    assert np.linalg.norm(actions, axis=1).max() > 0.99
    made = ALGORITHMS["map_elites"].make(
        world, lambda key: make_solution(world, PolicyConfig(hidden=(8,)), key)
    )
    state = jax.jit(made.init)(jax.random.key(0), config("map_elites"))
    _, metrics = jax.jit(made.step)(state)
    assert metrics.values["new"] >= 3 and metrics.values["outside"] == 0
    learner = ALGORITHMS["pga_me"].make(
        world, lambda key: make_solution(world, PolicyConfig(hidden=(8,)), key)
    )
    jax.eval_shape(learner.init, jax.random.key(0), config("pga_me"))


def test_solutions_must_be_floats() -> None:
    """Integer solutions are refused before anything runs."""
    world = make("task/arm")
    made = ALGORITHMS["map_elites"].make(
        world, lambda key: ConstantSolution(jnp.zeros(8, jnp.int32))
    )
    with pytest.raises(UsageError, match=r"requires solutions of floats, got int32 for .action"):
        jax.eval_shape(made.init, jax.random.key(0), config("map_elites"))
