"""Programs of a run: what its evaluations start from."""

import jax
import numpy as np
import pytest

import rollax
from rollax.training.compile import keys
from rollax.training.compile import program as programs
from rollax.training.spec import Spec, make_spec
from support.runs import NETWORK, SMALL


def make(**options: int | None) -> Spec:
    run_options = rollax.RunOptions(total_steps=64, **options)
    return make_spec("ppo", "probe/memory", None, SMALL, NETWORK, run_options, None)


def evaluation_keys(spec: Spec) -> np.ndarray:
    algorithm, environment = programs.build_algorithm_and_environment(spec)
    parts = programs.population_functions(spec, algorithm, environment)
    return np.asarray(jax.random.key_data(parts.eval_key))


def test_members_share_the_evaluation_seed() -> None:
    """With an evaluation seed, all members start from the same states."""
    own, shared = (evaluation_keys(make(seed=3, seeds=2, eval_seed=seed)) for seed in (None, 3))
    expected = [jax.random.key_data(keys.evaluation_key(seed)) for seed in (3, 4)]
    assert np.array_equal(own, np.stack(expected))
    assert np.array_equal(shared, np.stack([expected[0]] * 2))


@pytest.mark.parametrize("value", [-1, 2**32])
def test_an_evaluation_seed_out_of_range(value: int) -> None:
    with pytest.raises(rollax.UsageError, match="eval_seed"):
        make(eval_seed=value).options.check()
