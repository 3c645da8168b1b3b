"""Trained policies with methods for acting, evaluation and access to the archive."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from rollax import prediction, tree
from rollax.acting import descriptors
from rollax.acting.evaluation import Episodes, make_evaluator
from rollax.algorithm import Algorithm, Carry, State
from rollax.environments.capabilities import capabilities, is_on_host
from rollax.environments.environment import Environment
from rollax.prediction import PyTree
from rollax.runtime.notebook import format_html_table
from rollax.runtime.numerics import standard_numerics, to_single_precision
from rollax.training import argument_validation
from rollax.training.callbacks.user_functions import (
    MetricsFn,
    check_user_functions,
    compute_custom_metrics,
)
from rollax.training.compile import keys, memory_estimate
from rollax.training.compile.background import execute
from rollax.training.compile.evaluators import max_eval_steps
from rollax.training.elites import re_evaluation, selection
from rollax.training.evaluation.metrics import default_metrics
from rollax.training.evaluation.task_results import evaluate_tasks
from rollax.training.simulators import policy_episodes
from rollax.training.spec import Spec
from rollax.types import MetricValues
from rollax.user_input.arguments import coerce_arguments
from rollax.user_input.coercion import coerce, format_repr


@dataclasses.dataclass(frozen=True, repr=False)
class Policy:
    """Trained policy of a run.

    Use `action = policy.predict(obs)` in Python loops. In compiled code, use `carry =
    policy.initial_carry()` and then `action, carry = policy.act(obs, carry, key)`.

    Attributes:
        spec: Specification of the run.
        environment: Evaluation environment of the policy.
        step: Environment step of the checkpoint.
        state: State of the algorithm, reduced to what acting needs (`Algorithm.acting_state`).
        algorithm: Algorithm of the run.
        warnings: Warnings from loading the policy.
        member: Index of the member in the population, or None for a run with a single member.
        folder: Folder of the run, or None.
        memory: State of `predict` between calls.
    """

    spec: Spec
    environment: Environment
    step: int
    state: State
    algorithm: Algorithm
    warnings: list[str]
    member: int | None = None
    folder: Path | None = None
    memory: prediction.PredictionState = dataclasses.field(
        default_factory=prediction.PredictionState, init=False, repr=False, compare=False
    )

    def __repr__(self) -> str:
        return format_repr("Policy", **self._facts())

    def _repr_html_(self) -> str:
        return format_html_table("Policy", self._facts())

    def _facts(self) -> dict[str, object]:
        """Return the attributes that `__repr__` and the notebook table show, keyed by label."""
        member = None if self.member is None else f"{self.member} of {self.spec.num_members}"
        return {
            "algorithm": self.spec.algorithm,
            "environment": self.environment.name,
            "step": self.step,
            "member": member,
            "folder": self.folder,
        }

    @standard_numerics()
    def initial_carry(self) -> Carry:
        """Return the policy's memory at the start of an episode in one environment."""
        return self.algorithm.initial_carry(self.state)

    @standard_numerics()
    def reset_memory(self, carry: Carry, begins: jax.Array) -> Carry:
        """Reset the memory of environments where a new episode begins.

        Args:
            carry: Memory after a step, in one environment, or `[E, ...]` in E environments.
            begins: Whether a new episode begins, bool `[]`, or `[E]` for E environments. `[E, A]`
                resets individual agents.

        Returns:
            The memory for the next step.
        """
        first = jax.tree.map(
            lambda x, like: jnp.broadcast_to(x, jnp.shape(like)), self.initial_carry(), carry
        )
        return tree.where(begins, first, carry)

    def act(
        self, obs: PyTree, carry: Carry, key: jax.Array, greedy: bool = True
    ) -> tuple[PyTree, Carry]:
        """Return the action for one observation and the memory after the step.

        In multi-agent environments, observation, memory and action contain all agents. The function
        is pure and works under `jit` and `vmap`.

        Args:
            obs: Observation.
            carry: Memory before the step.
            key: Random key.
            greedy: Whether to take the most likely action instead of sampling.
        """
        with standard_numerics():
            obs, carry = to_single_precision((obs, carry))
            return self.algorithm.act(self.state, obs, carry, key, greedy)

    @standard_numerics()
    def predict(
        self, obs: PyTree, begins: bool | np.ndarray = False, greedy: bool = True
    ) -> PyTree:
        """Return the action for an observation, or actions `[B, ...]` for a batch, as NumPy arrays.

        The memory of the policy is stored between calls. Sampled actions are determined by the
        run's seed and the number of previous calls. For a policy trained in a simulator on the
        host, such as gymnasium, observations and actions are values of the simulator's spaces. Pass
        a mask of legal actions as `{"observation": obs, "action_mask": info["action_mask"]}`.

        Args:
            obs: Observation, or a batch. In multi-agent environments, the leading axes are `[A]` or
                `[B, A]`.
            begins: Whether each observation is the first of an episode, bool `[]` or `[B]`. It is
                ignored in the first call, which always starts episodes.
            greedy: Whether to take the most likely action instead of sampling.

        Returns:
            The action, or one action per observation of the batch.

        Raises:
            UsageError: If the observation is not in the environment's space. For a policy with
                memory, also if the batch size has changed and `begins` is not true everywhere.
        """
        return prediction.predict(self, obs, begins, coerce("greedy", greedy, bool))

    @standard_numerics()
    @coerce_arguments(**argument_validation.ELITE_ARGUMENT_TYPES)
    def elite(
        self, descriptor: Sequence[float] | None = None, cell: Sequence[int] | None = None
    ) -> "Policy":
        """Return an elite of the run's archive as a policy, selected by descriptor or by cell.

        Pass exactly one of `descriptor` and `cell`.

        Args:
            descriptor: Descriptor, one number per dimension. The elite with the nearest descriptor
                is selected.
            cell: Index of a grid cell along each dimension, starting from 0. The fittest elite in
                this cell is selected.

        Returns:
            The policy. The last entry of its attribute `warnings` states the descriptor and the
            fitness of the elite.

        Raises:
            UsageError: If not exactly one argument is passed, the run has no archive, the
                descriptor has the wrong length, or the cell is invalid or empty.
        """
        return selection.select_elite(self, descriptor, cell)

    @standard_numerics()
    def elites(self) -> dict[str, np.ndarray]:
        """Return the elites of the run's archive as columns of a table, best first.

        The columns are `place` (index in the archive), `fitness`, `descriptor_0`, `descriptor_1`
        and so on, and one column per objective. `pandas.DataFrame(policy.elites())` converts them
        to a data frame.

        Raises:
            UsageError: If the run has no archive, or the archive is empty.
        """
        return selection.elite_table(self)

    @standard_numerics()
    @coerce_arguments(episodes=int)
    def correct_archive(self, episodes: int, key: jax.Array) -> tuple[MetricValues, "Policy"]:
        """Evaluate every elite of the run's archive again, and build a corrected archive.

        Args:
            episodes: Number of episodes per elite.
            key: Random key.

        Returns:
            Metrics of the corrected archive, and the policy with this archive. The metrics are the
            QD score, coverage, best and mean fitness, the mean decrease of fitness of an elite
            (`fitness_loss`), and the fraction of elites that stay in their cell (`kept_cell`).

        Raises:
            UsageError: If the run has no archive, or the archive is empty.
        """
        return re_evaluation.correct_archive(
            self,
            argument_validation.validate_count("episodes", episodes),
            argument_validation.validate_random_key(key),
        )

    def is_greedy(self, greedy: bool | None = None) -> bool:
        """Return `greedy`. If it is None, return whether the run's evaluations are greedy."""
        return (
            not self.spec.options.eval_stochastic
            if greedy is None
            else coerce("greedy", greedy, bool)
        )

    @standard_numerics()
    @coerce_arguments(episodes=int, greedy=bool | None)
    def evaluate_tasks(
        self, episodes: int, key: jax.Array, greedy: bool | None = None
    ) -> dict[str, np.ndarray]:
        """Evaluate the policy on every task of an environment with a finite list of tasks.

        Args:
            episodes: Number of episodes per task.
            key: Random key.
            greedy: Whether to take the most likely actions. None uses the setting of the run's
                evaluations.

        Returns:
            Columns of a table: `task`, `return_mean`, `return_std`, `return_min` and `terminated`.

        Raises:
            UsageError: If the environment does not list its tasks.
        """
        return evaluate_tasks(
            self,
            argument_validation.validate_count("episodes", episodes),
            argument_validation.validate_random_key(key),
            self.is_greedy(greedy),
        )

    @standard_numerics()
    @coerce_arguments(episodes=int, greedy=bool | None, info=dict[str, str] | None)
    def evaluate(
        self,
        episodes: int,
        key: jax.Array,
        greedy: bool | None = None,
        descriptor: descriptors.ExtractionChoice = None,
        metrics: MetricsFn | None = None,
        info: Mapping[str, str] | None = None,
        env_workers: int | str = 0,
    ) -> tuple[MetricValues, Episodes]:
        """Evaluate the policy in complete episodes.

        A constant is folded into the key. Passing the key of the run's seed therefore results in
        other random numbers than in training and its evaluations.

        Args:
            episodes: Number of episodes.
            key: Random key.
            greedy: Whether to take the most likely actions instead of sampling. None uses the
                setting of the run's evaluations.
            descriptor: Reduction of the state descriptors of an episode to the descriptor of the
                episode: "final", "mean", a function `(descriptors [T, D], mask [T]) -> [K]`, an
                `Extraction`, or None for the environment's default.
            metrics: Function from `Episodes` to a dictionary of additional metrics, as in `train`.
            info: Dictionary from the name of an `info` entry to its reduction over an episode,
                "mean", "sum" or "last". It overrides the reductions of the run.
            env_workers: Number of worker processes for simulators on the host, or "ray:N". 0 runs
                them in the main process.

        Returns:
            Metrics of the evaluation, keyed by name, and the results of each episode.

        Raises:
            UsageError: If `descriptor` is passed and the environment has no state descriptors, or
                if the episodes do not fit into memory.
        """
        episodes = argument_validation.validate_count("episodes", episodes)
        key = keys.policy_evaluation_key(argument_validation.validate_random_key(key))
        check_user_functions(metrics=metrics)
        steps = max_eval_steps(self.environment, self.spec)
        reductions = self.spec.options.info | dict(info or {})
        greedy = self.is_greedy(greedy)
        if is_on_host(self.environment):
            workers = coerce("env_workers", env_workers, int | str)
            played = policy_episodes.evaluate_policy(
                self, episodes, key, greedy, descriptor, reductions, workers
            )
            values = default_metrics(played, capabilities(self.environment).agent_types)
            return values | compute_custom_metrics(metrics, played, values), played
        play = make_evaluator(
            self.environment, self.algorithm, episodes, steps, greedy, descriptor, reductions
        )
        memory_estimate.check_evaluation_memory(play, self.state, self.environment, episodes)
        played = jax.device_get(execute(jax.jit(play), self.state, key))
        values = default_metrics(played, capabilities(self.environment).agent_types)
        return values | compute_custom_metrics(metrics, played, values), played
