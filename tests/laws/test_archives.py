"""Consistency of archives without noise, for every algorithm.

An archive does not change if it is merged, re-evaluated, saved or rebuilt solution by solution.
"""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rollax
from laws.archives import NAMES, PLAYED, SMALL, SMALLEST
from rollax.archives.archive import ScoredSolutions
from rollax.training.elites import selection
from rollax.training.elites.merging import collect_elites
from support.parameters import mark_quick

OPTIONS = {"eval_count": 1, "eval_episodes": 4, "tensorboard": False}
MAZE: dict[str, Any] = {
    "arguments": {"time_limit": 10, "start_spread": 0.0},
    "network": {"hidden": (8,)},
}
TASKS = {
    "mome": "task/rastrigin-multi",
    **dict.fromkeys(("map_elites", "cma_mae", "me_es"), "task/arm"),
}


@pytest.fixture(scope="module", params=mark_quick(NAMES, "map_elites"))
def policy(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> rollax.Policy:
    """Return the policy of a short run without noise that has several elites."""
    name = request.param
    environment, more = (
        ("control/point-maze", MAZE) if name in PLAYED else (TASKS.get(name, "task/sphere"), {})
    )
    settings = SMALL | SMALLEST.get(name, {})
    options = OPTIONS | {"run_dir": tmp_path_factory.mktemp(name) / "run"}
    steps = 20 * settings["batch_size"] * settings["num_iterations"]
    result = rollax.train(
        name, environment, config=settings, total_steps=steps, options=options, quiet=True, **more
    )
    found = rollax.load(result.folder)
    assert len(found.elites()["place"]) > 2
    return found


def rows_of(policy: rollax.Policy) -> dict[str, np.ndarray]:
    """Return the elites of an archive as columns in the order of their solutions.

    The columns include the thresholds of cells if the archive has some.
    """
    archive, state = selection.get_archive(policy)
    found = selection.get_elites(policy)
    scored = jax.tree.map(lambda x: np.asarray(x)[found.mask], found.solutions)
    number = len(scored.fitness)
    solution = np.concatenate(
        [x.reshape(number, -1) for x in jax.tree.leaves(scored.solution)], axis=1
    )
    order = np.lexsort(solution.T)
    columns = {"solution": solution, "fitness": scored.fitness, "descriptor": scored.descriptor}
    columns["cell"] = np.flatnonzero(found.mask) // int(found.num_per_cell)
    columns |= {f"extras {i}": x for i, x in enumerate(jax.tree.leaves(scored.extras))}
    columns = {name: column[order] for name, column in columns.items()}
    return (
        columns
        if archive.thresholds is None
        else columns | {"threshold": np.asarray(archive.thresholds(state))}
    )


def assert_same(policy: rollax.Policy, other: rollax.Policy, tolerance: float = 0.0) -> None:
    before, after = rows_of(policy), rows_of(other)
    assert before.keys() == after.keys()
    for name, column in before.items():
        np.testing.assert_allclose(
            after[name], column, rtol=tolerance, atol=tolerance, err_msg=name
        )


def test_merging_a_single_archive_changes_nothing(policy: rollax.Policy, tmp_path: Path) -> None:
    """Neither as a policy nor as a folder that is loaded."""
    assert_same(policy, rollax.merge_archives([policy]))
    assert_same(policy, rollax.merge_archives([policy], folder=tmp_path / "merged"))
    assert_same(policy, rollax.load(tmp_path / "merged"))


def test_merging_an_archive_with_itself_changes_nothing(policy: rollax.Policy) -> None:
    """Elites that several archives share count once."""
    assert_same(policy, rollax.merge_archives([policy, policy]))


def test_re_evaluation_without_noise_changes_nothing(policy: rollax.Policy) -> None:
    numbers, corrected = policy.correct_archive(2, jax.random.key(0))
    assert_same(policy, corrected, 1e-5)
    assert numbers["kept_cell"] == 1 and numbers["fitness_loss"] == pytest.approx(0, abs=1e-5)
    values = policy.algorithm.state_metrics(policy.state)
    assert numbers["corrected_qd_score"] == pytest.approx(float(values["qd_score"]), rel=1e-4)


def test_adding_one_by_one_equals_one_batch(policy: rollax.Policy) -> None:
    """Check elites and competitors for their places.

    Populations are left out, because their members compete with the whole batch at once.
    """
    if policy.spec.algorithm == "dns":
        pytest.skip("all of a batch compete with one another")
    archive, state = selection.get_archive(policy)
    assert archive.empty is not None
    found, empty = collect_elites(policy), archive.empty(state)
    number = len(found.fitness)
    competitors = found._replace(
        fitness=found.fitness + np.where(np.arange(number) % 2, 1.0, -1.0).astype(np.float32)
    )
    batch: ScoredSolutions = jax.tree.map(lambda x, y: jnp.concatenate([x, y]), found, competitors)
    add = jax.jit(archive.add)
    together, one_by_one = add(empty, batch)[0], empty
    for index in range(2 * number):
        one_by_one = add(
            one_by_one, jax.tree.map(lambda x, index=index: x[index : index + 1], batch)
        )[0]
    a, b = archive.elites(together), archive.elites(one_by_one)
    np.testing.assert_array_equal(a.mask, b.mask)
    for x, y in zip(jax.tree.leaves(a.solutions), jax.tree.leaves(b.solutions), strict=True):
        np.testing.assert_allclose(np.asarray(x)[a.mask], np.asarray(y)[a.mask], rtol=1e-6)
