"""Optuna's CMA-ES sampler without pickles.

Optuna stores the state of CMA-ES as a pickle in the attributes of a trial and unpickles it later.
An untrusted storage could execute code this way. Here the state is computed from the trials: a new
optimizer is updated with every complete generation. Updates do not use random numbers.
"""

import itertools
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import optuna

GENERATION_KEY = "cma:generation"  # trial attribute of Optuna


def make_cma_sampler(seed: int) -> "optuna.samplers.CmaEsSampler":
    """Return an `optuna.samplers.CmaEsSampler` that does not use pickles."""
    from optuna._transform import _SearchSpaceTransform
    from optuna.samplers import CmaEsSampler
    from optuna.study import StudyDirection

    # This fails if Optuna renames the method that is overridden here.
    restored_by_optuna = CmaEsSampler._restore_optimizer
    del restored_by_optuna

    class ReplayedCmaEsSampler(CmaEsSampler):
        """CMA-ES sampler that computes its state from the trials instead of storing it."""

        def sample_relative(
            self,
            study: "optuna.Study",
            trial: "optuna.trial.FrozenTrial",
            search_space: "dict[str, optuna.distributions.BaseDistribution]",
        ) -> dict[str, Any]:
            self._direction_and_space = study.direction, search_space
            return super().sample_relative(study, trial, search_space)

        def _restore_optimizer(
            self, completed_trials: "list[optuna.trial.FrozenTrial]", *_: object
        ) -> Any:
            """Return a new optimizer, updated with all complete generations."""
            direction, search_space = self._direction_and_space
            transform = _SearchSpaceTransform(search_space, transform_step=True, transform_0_1=True)
            optimizer = self._init_optimizer(transform, direction)
            sign = 1 if direction == StudyDirection.MINIMIZE else -1
            for generation in _complete_generations(
                completed_trials, search_space, optimizer.population_size
            ):
                solutions = [
                    (transform.transform(trial.params), sign * trial.values[0])
                    for trial in generation
                ]
                optimizer.tell(solutions)
            return optimizer

        def _split_optimizer_str(self, optimizer_str: str) -> dict[str, str]:
            return {}  # nothing is stored

    return ReplayedCmaEsSampler(seed=seed)


def _complete_generations(
    trials: "list[optuna.trial.FrozenTrial]",
    search_space: "Mapping[str, optuna.distributions.BaseDistribution]",
    generation_size: int,
) -> "Iterator[list[optuna.trial.FrozenTrial]]":
    """Yield the trials of each generation that is complete, up to the first incomplete generation.

    A generation is complete with `generation_size` trials. Later trials of it are ignored.
    """
    complete = [trial for trial in trials if search_space.keys() <= trial.params.keys()]
    for generation in itertools.count():
        members = [
            trial for trial in complete if trial.system_attrs.get(GENERATION_KEY) == generation
        ][:generation_size]
        if len(members) < generation_size:
            return
        yield members
