"""Evaluation function of a run."""

from collections.abc import Callable
from typing import Any

import jax

from rollax.acting.evaluation import Episodes, make_evaluator
from rollax.algorithm import Algorithm
from rollax.environments.environment import Environment
from rollax.training.options import COMPILED_EVAL_EPISODES
from rollax.training.spec import Spec


def make_run_evaluator(
    spec: Spec, algorithm: Algorithm, eval_environment: Environment
) -> Callable[[Any, jax.Array], Episodes]:
    """Return the evaluation function of one member. It maps `(state, key)` to episodes.

    Args:
        spec: Specification of the run.
        algorithm: Algorithm of one member.
        eval_environment: Environment of evaluations.
    """
    options = spec.options
    return make_evaluator(
        eval_environment,
        algorithm,
        options.eval_episodes or COMPILED_EVAL_EPISODES,
        max_eval_steps(eval_environment, spec),
        not options.eval_stochastic,
        info=options.info,
    )


def max_eval_steps(environment: Environment, spec: Spec) -> int:
    """Return the maximum number of steps of an evaluation episode.

    Args:
        environment: Environment of evaluations.
        spec: Specification of the run.

    Returns:
        The environment's time limit, or the option `eval_max_steps` if the time limit is None.
    """
    return spec.options.eval_max_steps if environment.time_limit is None else environment.time_limit
