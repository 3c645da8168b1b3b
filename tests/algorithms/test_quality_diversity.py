"""Quality-diversity: what holds for every algorithm that is an archive and an emitter."""

import dataclasses
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from laws.programs import assert_equal, fresh, plain
from rollax import make, tree
from rollax.acting.scoring import Watched, gradients, played, scorer
from rollax.algorithm import Algorithm
from rollax.algorithms import ALGORITHMS
from rollax.environments.native.tasks import Task, linear_projection
from rollax.errors import UsageError
from rollax.host.segments import segment
from rollax.networks.solutions import Constant, PolicyConfig, solution
from rollax.populations import population
from rollax.spaces import Box

NAMES = [name for name, entry in ALGORITHMS.items() if entry.unit == "evaluations"]
LEARNERS = ("pga_me", "dcrl_me")
PLAYED = (*LEARNERS, "aurora")  # they need policies to play
CLOSED = [name for name in NAMES if name not in PLAYED]
SMALL = {"batch_size": 12, "num_iterations": 2, "grid": (5, 5)}
# With noise that reaches its bound, and descriptors near enough to one another for rewards to count.
LEARNS = {"critic_updates": 4, "policy_updates": 2, "samples": 4, "capacity": 240, "critic_hidden": (8,), "target_noise": 1.0}
SMALLEST = {
    **dict.fromkeys(LEARNERS, LEARNS),
    "map_elites": {"iso_sigma": 2.0},  # so that there is a second elite for lines to lead to
    "dns": {"population_size": 20},
    "mome": {"front_size": 4},
    "aurora": {"num_elites": 20, "num_frames": 3, "encoder_hidden": (8,), "encoder_updates": 5, "samples": 8},
    "me_es": {"num_neighbors": 3, "memory": 5, "num_optim_gens": 3.0, "sigma": 0.3, "learning_rate": 0.5},
    "me_map_elites": {"num_emitters": 6, "num_iterations": 8, "window": 3, "iso_sigma": 2.0, "zeta": 0.3},
    **dict.fromkeys(("cma_me", "cma_mae", "cma_mega", "cma_maega"), {"num_emitters": 3}),
}


def environment(name: str) -> Any:
    if name in PLAYED:
        return make("control/point-maze", time_limit=10)
    return make("task/rastrigin-multi" if name == "mome" else "task/sphere", dimensions=6)


def config(name: str, **settings: Any) -> Any:
    return ALGORITHMS[name].config(**(SMALL | SMALLEST.get(name, {}) | settings))


# The settings with which others matter.
POLYNOMIAL = {"variation": "polynomial", "crossover": "simulated_binary", "mutation_fraction": 0.5}
NEEDED: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("eta", "mutation_fraction", "crossover_fraction"), POLYNOMIAL),
    "archive_learning_rate": {"num_iterations": 10},  # so that solutions fall where thresholds have moved
}


@cache
def algorithm(name: str) -> Algorithm:
    world = environment(name)
    return ALGORITHMS[name].make(world, lambda key: solution(world, PolicyConfig(hidden=(8,)), key))


@cache
def run(name: str) -> Any:
    return jax.jit(segment(algorithm(name), 6))


def begun(name: str, seed: int = 0, **settings: Any) -> Any:
    return jax.jit(algorithm(name).init)(jax.random.key(seed), config(name, **settings))


@pytest.mark.parametrize("name", NAMES)
def test_where_it_is_cut_changes_no_bit(name: str) -> None:
    """Archive, emitter and replay included, through a file of the state's leaves."""
    whole, metrics = run(name)(begun(name), jnp.int32(6))
    middle, first = run(name)(begun(name), jnp.int32(2))
    leaves, structure = jax.tree.flatten(plain(middle))
    assert_equal(structure.unflatten([np.asarray(x) for x in leaves]), plain(middle))
    end, second = run(name)(fresh(middle), jnp.int32(4))
    assert_equal(end, whole)
    joined = jax.tree.map(lambda a, b: jnp.concatenate([a[:2], b[:4]]), first, second)
    assert_equal(joined, metrics)
    assert metrics.values["coverage"][-1] > 0 and (name == "dns" or np.all(np.diff(metrics.values["coverage"]) >= 0))
    assert np.all(np.diff(metrics.values["fitness_best"]) >= 0)


# Of each kind of emitter one.
@pytest.mark.parametrize("name", NAMES)
def test_what_devices_split(name: str) -> None:
    """By shapes alone: the solutions of cells, and replays. Populations are whole, and so is what is small."""
    shapes = jax.eval_shape(algorithm(name).init, jax.random.key(0), config(name))
    marks = algorithm(name).placement(shapes)
    assert jax.tree.structure(marks) == jax.tree.structure(shapes)
    elites = marks.archive.elites
    assert set(jax.tree.leaves(elites.solution)) == {name not in ("dns", "aurora")}
    assert not any(jax.tree.leaves((elites.fitness, elites.descriptor, elites.extras, marks.config, marks.first)))
    assert any(jax.tree.leaves(marks.emitter)) == (name in LEARNERS)


MEMBERS = ("map_elites", "cma_mae", "pga_me", "me_es", "mome")


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in MEMBERS else pytest.mark.slow) for n in NAMES])
def test_a_member_is_the_run_alone(name: str) -> None:
    """Two seeds at once are each of them by itself, to rounding; after one update, before rounding decides who wins a cell."""
    many = population(algorithm(name))
    keys = jax.vmap(jax.random.key)(jnp.arange(2))
    configs = jax.tree.map(lambda x: jnp.full(2, x), tree.as_leaves(config(name)))
    together = jax.jit(segment(many, 1))(fresh(jax.jit(many.init)(keys, configs)), jnp.int32(1))[0]
    alone, _ = run(name)(begun(name, seed=1), jnp.int32(1))
    archives = jax.tree.map(lambda x: x[1], together.archive), alone.archive
    for a, b in zip(*map(jax.tree.leaves, archives), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_every_setting_counts(name: str) -> None:
    """Each number that is data changes what is found or learnt, or only the score where it is the score's."""

    def outcome(state: Any) -> list[Any]:
        return [state.archive.elites.fitness, *jax.tree.leaves(state.emitter)]

    plain_run = run(name)(begun(name), jnp.int32(4))
    for field in dataclasses.fields(ALGORITHMS[name].config):
        needed = NEEDED.get(field.name, {})
        value = getattr(config(name, **needed), field.name)
        if field.metadata.get("static") or field.name == "total_updates":
            continue
        changed = {"threshold_start": 95.0, "archive_learning_rate": 1.0}.get(field.name, value * 0.5 + 0.2)
        before, metrics = run(name)(begun(name, **needed), jnp.int32(4)) if needed else plain_run
        after, other = run(name)(begun(name, **(needed | {field.name: changed})), jnp.int32(4))
        if field.name == "qd_offset":
            expected = metrics.values["qd_score"] + changed * metrics.values["coverage"] * 25
            np.testing.assert_allclose(other.values["qd_score"][:4], expected[:4], rtol=1e-5)
        else:
            assert not all(map(jnp.array_equal, outcome(before), outcome(after))), field.name


@pytest.mark.parametrize("id", ["task/sphere", "task/rastrigin", "task/arm"])
def test_the_closed_form_is_the_episode(id: str) -> None:
    """Scores by the closed form are those of playing the one step."""
    world: Any = make(id)
    solutions = jax.vmap(lambda key: Constant(3 * jax.random.normal(key, world.action_space.shape)))(
        jax.random.split(jax.random.key(0), 7)
    )
    form = jax.jit(scorer(world, 1, 1))(solutions, jax.random.key(1))

    result = jax.vmap(lambda s, key: world.step(key, world.reset(key)[0], s.action))(
        solutions, jax.random.split(jax.random.key(2), 7)
    )
    np.testing.assert_allclose(form.fitness, result.reward, rtol=1e-6)
    np.testing.assert_allclose(form.descriptor, jax.vmap(world.descriptor)(result.state), rtol=1e-6)
    assert np.all(result.terminated)


def test_gradients_are_those_of_the_closed_form() -> None:
    """Against differences, on both sides of the fold at 5.12 and at 0."""
    world: Any = make("task/sphere", dimensions=4)
    point = jnp.asarray([0.0, 6.0, -7.0, 2.0])
    rows = gradients(world)(Constant(point)).action
    assert rows.shape == (3, 4)
    for axis in range(4):
        step = jnp.zeros(4).at[axis].set(1e-2)
        (high, more), (low, less) = world.score(point + step), world.score(point - step)
        np.testing.assert_allclose(
            rows[:, axis], jnp.concatenate([(high - low)[None], more - less]) / 2e-2, rtol=2e-2, atol=1e-3
        )
    assert np.allclose(linear_projection(jnp.asarray([6.0, 0.0])), [5.12 / 6, 0.0])


def test_the_hand_stays_within_reach() -> None:
    """No cell of the arm's archive lies outside the disc of radius 1/2, and most of those inside get filled."""
    world = make("task/arm")
    arm = ALGORITHMS["map_elites"].make(world, lambda key: solution(world, PolicyConfig(), key))
    settings = ALGORITHMS["map_elites"].config(batch_size=256, num_iterations=8, grid=(20, 20))
    state = jax.jit(arm.init)(jax.random.key(0), settings)
    state = jax.jit(lambda state: jax.lax.scan(lambda state, _: (arm.step(state)[0], None), state, None, length=20)[0])(state)
    filled = np.asarray(state.archive.elites.fitness > -np.inf).reshape(20, 20)
    edges = np.arange(21) / 20 - 0.5
    nearest = np.maximum(np.maximum(edges[:-1], -edges[1:]), 0)  # of each cell to the shoulder, along one axis
    reachable = np.hypot(nearest[:, None], nearest[None, :]) <= 0.5
    assert not np.any(filled & ~reachable)
    assert np.sum(filled) > 0.9 * np.sum(reachable)


def test_what_is_not_finite_never_enters() -> None:
    """A task that gives NaN for half of its solutions, and an infinite descriptor for some: the run goes on without them."""

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
        make_it = ALGORITHMS[name].make(world, lambda key: solution(world, PolicyConfig(), key))
        state = jax.jit(make_it.init)(jax.random.key(0), config(name, **settings_of.get(name, {})))
        for _ in range(4):
            state, metrics = jax.jit(make_it.step)(state)
        elites, mask = state.archive.elites, np.asarray(state.archive.elites.fitness > -np.inf)
        assert mask.any() and np.all(np.isfinite(elites.fitness[mask])) and np.all(np.isfinite(elites.descriptor))
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
    """With several episodes a solution, fitness and descriptor are their means, and experience has all their steps."""
    world = make("control/point-maze", time_limit=5)
    solutions = jax.lax.map(lambda key: solution(world, PolicyConfig(hidden=(8,)), key), jax.random.split(jax.random.key(0), 3))
    score = jax.jit(played(world, 4, 5, Watched(records=True)))(solutions, jax.random.key(1))
    steps, there_is = score.experience
    assert score.fitness.shape == (3,) and score.descriptor.shape == (3, 2)
    assert steps.obs.shape == (20, 3, 4) and there_is.shape == (20, 3)
    total = jnp.sum(jnp.where(there_is, steps.reward, 0.0), axis=0) / 4
    np.testing.assert_allclose(total, score.fitness, rtol=1e-5)
    # Every action is that of the solution in whose column it stands.
    for i in range(3):
        mine = jax.tree.map(lambda x, i=i: x[i], solutions)
        np.testing.assert_allclose(jax.vmap(mine)(steps.obs[:, i]), steps.action[:, i], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("cma_me", {"batch_size": 10}, r"batch_size \(10\) must be a multiple of num_emitters \(3\).*try 9 or 12"),
        ("cma_mega", {"batch_size": 6}, "3 solutions or more for each: try 9 or 12"),
        ("map_elites", {"grid": (4,)}, "has 1 dimensions, but descriptors have 2"),
        ("omg_mega", {"batch_size": 13}, "must be even"),
        ("me_map_elites", {"kinds": ("gaussian", "gaussian")}, "must be one or more different ones"),
        ("me_map_elites", {"batch_size": 14}, "must be a multiple of num_emitters"),
        ("me_es", {"batch_size": 13}, r"batch_size \(13\) less mean_evaluations \(2\) must be an even.*try batch_size 14"),
        ("map_elites", {"variation": "polynomial", "solution_bounds": (2, 1)}, r"solution_bounds \(2 1\) must be two numbers"),
        ("pga_me", {"gradient_fraction": 2.0}, "gradient_fraction"),
        ("dcrl_me", {"gradient_fraction": 0.5, "injected_fraction": 0.6}, "their sum must be at most 1"),
    ],
)
def test_what_does_not_fit(name: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        jax.eval_shape(algorithm(name).init, jax.random.key(0), config(name, **settings))


def test_a_covariance_that_is_too_large_is_refused() -> None:
    with pytest.raises(UsageError, match=r"a covariance of 4,001 x 4,001 for each of 3 searches.*map_elites or me_es"):
        world = make("task/sphere", dimensions=4001)
        made = ALGORITHMS["cma_me"].make(world, lambda key: solution(world, PolicyConfig(), key))
        jax.eval_shape(made.init, jax.random.key(0), config("cma_me"))


def test_without_objectives_there_is_no_front() -> None:
    world = make("task/arm")
    made = ALGORITHMS["mome"].make(world, lambda key: solution(world, PolicyConfig(), key))
    with pytest.raises(UsageError, match="task/arm has no numbers in its info that could be objectives"):
        jax.eval_shape(made.init, jax.random.key(0), config("mome"))


def no_bounds(dimensions: int = 2) -> Task:
    """A task whose descriptor, its solution, may be anywhere."""
    space = Box(-np.inf, np.inf, (dimensions,))
    return Task("test/no-bounds", lambda x: (-jnp.sum(x**2), x), space, space)


def archive_within(world: Any, low: tuple[float, ...], high: tuple[float, ...]) -> Any:
    """The state of MAP-Elites before any update, and its elites."""
    made = ALGORITHMS["map_elites"].make(world, lambda key: solution(world, PolicyConfig(), key))
    state = jax.jit(made.init)(jax.random.key(0), config("map_elites", descriptor_low=low, descriptor_high=high))
    return made, state


def elites_of(made: Any, state: Any) -> Any:
    archive, archive_state = made.archived.archive(state)
    return archive.elites(archive_state)


def test_bounds_can_be_set() -> None:
    """Cells reach from the lower to the upper bounds of the settings, also where the environment has narrower or none."""
    for world in (no_bounds(), make("task/sphere", dimensions=4)):
        made, state = archive_within(world, (-1.0, 2.0), (4.0, 7.0))
        center = np.asarray(elites_of(made, state).center)
        np.testing.assert_allclose(np.unique(center[:, 0]), np.arange(5) - 0.5)
        np.testing.assert_allclose(np.unique(center[:, 1]), np.arange(5) + 2.5)
    # One of the two sides alone: the other is the environment's own.
    made, state = archive_within(make("task/arm"), (), (2.0, 2.0))
    np.testing.assert_allclose(np.ptp(np.asarray(elites_of(made, state).center), axis=0), 2 * 4 / 5, rtol=1e-6)


@pytest.mark.parametrize(
    ("low", "high", "message"),
    [
        ((), (), r"test/no-bounds have no bounds.*set config.descriptor_low, 2 numbers \(--config.descriptor-low\)"),
        ((-1.0, -1.0), (), "set config.descriptor_high"),
        ((-1.0,), (1.0, 1.0), r"descriptor_low \(-1\) must have 2 numbers"),
        ((-1.0, -1.0), (1.0, 1.0, 1.0), r"descriptor_high \(1 1 1\) must have 2 numbers"),
        ((-1.0, 1.0), (1.0, 1.0), r"descriptor_low \(-1 1\) must be below descriptor_high \(1 1\)"),
    ],
)
def test_bounds_that_are_none(low: tuple[float, ...], high: tuple[float, ...], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        archive_within(no_bounds(), low, high)


@pytest.mark.parametrize(
    ("name", "id", "message"),
    [
        ("map_elites", "gymnax/CartPole-v1", "does not describe behavior"),
        ("cma_mega", "control/point-maze", "has no closed form to take gradients of"),
        ("pga_me", "task/arm", "needs policies to play"),
        ("dcrl_me", "task/arm", "dcrl_me needs policies to play"),
        ("dcrl_me", "gymnax/MountainCar-v0", "descri|continuous actions need"),
    ],
)
def test_where_it_cannot_learn(name: str, id: str, message: str) -> None:
    world = make(id)
    with pytest.raises(UsageError, match=message):
        made = ALGORITHMS[name].make(world, lambda key: solution(world, PolicyConfig(), key))
        jax.eval_shape(made.init, jax.random.key(0), config(name))


def test_what_no_policy_is_for() -> None:
    with pytest.raises(UsageError, match="need discrete actions"):
        solution(make("probe/multi-discrete"), PolicyConfig(), jax.random.key(0))


def test_actions_within_a_ball() -> None:
    """Policies of a world of forces: directions stay, lengths never exceed the radius, and an archive of them fills."""
    world = make("granular/single-navigator", max_steps=10)
    policy = solution(world, PolicyConfig(hidden=(8,)), jax.random.key(0))
    far = jax.tree.map(lambda x: 30 * x, policy)
    for each in (policy, far):
        actions = np.asarray(jax.vmap(each)(jax.random.normal(jax.random.key(1), (50, 6))))
        assert actions.shape == (50, 2) and np.all(np.linalg.norm(actions, axis=1) <= 1 + 1e-6)
    assert np.linalg.norm(actions, axis=1).max() > 0.99
    made = ALGORITHMS["map_elites"].make(world, lambda key: solution(world, PolicyConfig(hidden=(8,)), key))
    state = jax.jit(made.init)(jax.random.key(0), config("map_elites"))
    _, metrics = jax.jit(made.step)(state)
    assert metrics.values["new"] >= 3 and metrics.values["outside"] == 0
    with pytest.raises(UsageError, match="continuous actions need a Box"):
        learner = ALGORITHMS["pga_me"].make(world, lambda key: solution(world, PolicyConfig(hidden=(8,)), key))
        jax.eval_shape(learner.init, jax.random.key(0), config("pga_me"))


def test_floats_are_what_varies() -> None:
    """A solution of whole numbers is refused before anything runs."""
    world = make("task/arm")
    made = ALGORITHMS["map_elites"].make(world, lambda key: Constant(jnp.zeros(8, jnp.int32)))
    with pytest.raises(UsageError, match=r"changes floats, but .action of solutions is int32"):
        jax.eval_shape(made.init, jax.random.key(0), config("map_elites"))
