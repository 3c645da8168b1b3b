"""Runs from Python: `train`, `resume`, `load`."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rollax import tree
from rollax.acting import descriptors
from rollax.acting.evaluate import Episodes, evaluator
from rollax.algorithms import AlgorithmEntry, registered
from rollax.environments.core import Environment, agent_types, is_on_host
from rollax.environments.registry import is_of_suite, runs_on_host
from rollax.errors import UsageError
from rollax.host import corrected as correcting
from rollax.host import elites, given, keys, loop, members, predicting, resuming, run_folder, simulated, sizes, tasks, words
from rollax.host import opponents as opponents_of
from rollax.host import program as programs
from rollax.host.evaluation import Metric, default_metrics, measured
from rollax.host.options import RunOptions
from rollax.host.progress import Display, Enduring, Unseen, display
from rollax.host.result import Result, StopWhen
from rollax.host.settings import Spec, evaluated_with, make_spec
from rollax.host.signals import stop_on_signals
from rollax.scale import processes
from rollax.typed import names, typed

_NOT_BY_ID = "arguments and eval_arguments are for environments made from their id, not for an environment that was passed"


@processes.telling()
@given.checking_keywords()
def train(
    algorithm: str | AlgorithmEntry,
    environment: str | Environment,
    *,
    total_steps: int | None = None,
    seed: int | None = None,
    seeds: int | None = None,
    config: Any = None,
    network: Any = None,
    arguments: Mapping[str, Any] | None = None,
    eval_arguments: Mapping[str, Any] | None = None,
    sweep: Mapping[str, Any] | None = None,
    opponents: Mapping[str, str | Path] | None = None,
    evolve: Mapping[str, Any] | None = None,
    options: RunOptions | Mapping[str, Any] | None = None,
    metrics: Metric | None = None,
    imports: Sequence[str] = (),
    stop_when: StopWhen | None = None,
    quiet: bool = False,
    show: Display | None = None,
) -> Result:
    """Trains and leaves a run folder.

    `algorithm` is a name, or an `AlgorithmEntry` of one's own, which is registered under the name of its constructor;
    `environment` is an id ("gymnax/CartPole-v1", with `arguments`, of which `eval_arguments` are others in evaluations, such as
    tasks that are held out) or an environment; `config` the algorithm's settings, or a dictionary that overrides the preset;
    `network` likewise, or a function from a key to a network; `sweep` maps names of traced settings to values; `evolve` maps
    such names to ranges `(low, high)` or `(low, high, "log" or "linear")` within which population-based training moves them,
    over as many members as `seeds`; `opponents` maps types of agents to runs whose policies they follow without learning (the
    run keeps copies): "RUN" at its last checkpoint, "RUN@best" or "RUN@40960" at another. Where those had an environment or a
    network object of their own, it is that of this run. `metrics` is a function from `Episodes` to further numbers of an
    evaluation. `options` has everything else; `total_steps`, `seed` and `seeds` come before those in it. `imports` names the
    modules that registered what the run uses, for the commands that go on with it. After an evaluation for which
    `stop_when(rollax.Evaluated)` is true the run stops, and can be resumed.

    Raises UsageError before anything is compiled or written when something does not fit.
    """
    algorithm, own_environment = registered(algorithm), given.own_environment(environment)
    name = environment if isinstance(environment, str) else environment.name
    own_network = network if given.is_network(network) else None
    options = given.options(options, total_steps=total_steps, seed=seed, seeds=seeds)
    given.check_functions(metrics=metrics, stop_when=stop_when)
    if own_environment is not None and (names("arguments", arguments) or names("eval_arguments", eval_arguments)):
        raise UsageError(_NOT_BY_ID)
    spec = make_spec(
        algorithm,
        name,
        arguments,
        config,
        None if own_network else network,
        options,
        sweep,
        eval_arguments,
        opponents,
        evolve,
        typed("imports", imports, tuple[str, ...]),
    )
    lost = spec.eval_arguments if own_environment is not None else {}
    spec = programs.fitted(_with_objects(spec, own_environment, own_network), own_environment)
    played, policies = _checked(spec, own_environment, own_network, metrics)
    processes.check_alike(run_folder.text_of(spec) + given.which(metrics=metrics, stop_when=stop_when), spec.imports)
    folder = Path(processes.of_first(lambda: str(run_folder.create(spec))))
    with run_folder.held(folder):
        spec = opponents_of.copied(folder, spec, policies)
        told = [words.of_what_was_passed(name, lost)] if lost else []
        return _run(spec, folder, played, own_network, metrics, show or display(quiet), told, stop_when=stop_when, begins=True)


def _with_objects(spec: Spec, environment: Any, network: Any) -> Spec:
    """The specification of a run with objects of the user's own, which it cannot make again."""
    if environment is not None:
        spec = dataclasses.replace(spec, own_environment=True, arguments={}, eval_arguments={})
    return spec if network is None else dataclasses.replace(spec, network=run_folder.CUSTOM)


@processes.telling()
def resume(
    folder: str | Path,
    *,
    total_steps: int | None = None,
    environment: Environment | None = None,
    network: Callable[[jax.Array], Any] | None = None,
    metrics: Metric | None = None,
    learning_rate: float | None = None,
    stop_when: StopWhen | None = None,
    quiet: bool = False,
    show: Display | None = None,
    **changes: Any,
) -> Result:
    """Goes on with a run from its newest checkpoint, bit for bit as if it had never stopped.

    With other `total_steps` its schedules end there from now on; `learning_rate` is held from here on. `environment` and
    `network` are needed again when the run was given objects of its own. `stop_when` as in `train`. Further keywords
    change options of the host, such as `on_nonfinite`.

    Raises UsageError when there is no run, or nothing left to do; when checkpoints are gone, or config.yaml was changed since
    they were made; or for an object that the run was not given.
    """
    folder = Path(folder)
    before = run_folder.read_spec(folder)
    spec, rate = resuming.resumed(before, total_steps, changes), resuming.check_learning_rate(before, learning_rate)
    warnings = resuming.check(folder, spec, before, environment, network, rate)
    environment = opponents_of.with_opponents(spec, environment, _opponents(spec, environment, network, folder))
    programs.check(spec, environment, network)
    loop.check(spec, metrics, environment)
    others = given.which(metrics=metrics, stop_when=stop_when)
    processes.check_alike(f"{run_folder.text_of(spec)}{others}learning_rate: {rate}", spec.imports)
    with run_folder.held(folder):
        return _run(spec, folder, environment, network, metrics, show or display(quiet), warnings, rate, stop_when)


def _run(
    spec: Spec,
    folder: Path,
    environment: Any,
    network: Any,
    metrics: Metric | None,
    show: Display,
    warnings: list[str],
    rate: float | None = None,
    stop_when: StopWhen | None = None,
    begins: bool = False,
) -> Result:
    show = Enduring(show if processes.is_first() else Unseen())
    with stop_on_signals() as request:
        try:
            for warning in warnings:
                show.message(f"warning: {warning}")
            show.message(words.of_run(spec, folder))
            show.status("compiling")
            program = programs.compile_program(spec, environment, network, begins=begins)
            session = loop.Session(spec, folder, program, show, metrics, rate, stop_when)
            result = loop.run(session, request)
        finally:
            show.close()
        for line in words.at_the_end(result, spec, program.environment):
            show.message(line)
        return result


@dataclasses.dataclass(frozen=True)
class Policy:
    """A trained policy: `action = policy.predict(obs)`, or in compiled code `carry = policy.initial_carry()`, then
    `action, carry = policy.act(obs, carry, key)`.

    `environment` is that of its evaluations; `state` is that of the algorithm without what learning alone needs, as a replay.
    """

    spec: Spec
    environment: Environment
    step: int
    state: Any
    algorithm: Any
    warnings: list[str]
    member: int | None = None  # which of a population
    memory: predicting.Memory = dataclasses.field(default_factory=predicting.Memory, init=False, repr=False, compare=False)

    def initial_carry(self) -> Any:
        """The memory that an episode begins with."""
        return self.algorithm.initial_carry(self.state)

    def reset_memory(self, carry: Any, begins: jax.Array) -> Any:
        """The memory, begun anew where an episode begins.

        `begins`: bool `[]`, or with the leading axes of the memories of many environments: `[E]`, or `[E, A]` for single agents
        of each.
        """
        first = jax.tree.map(lambda x, like: jnp.broadcast_to(x, jnp.shape(like)), self.initial_carry(), carry)
        return tree.where(begins, first, carry)

    def act(self, obs: Any, carry: Any, key: jax.Array, greedy: bool = True) -> tuple[Any, Any]:
        """The action for one observation, and the memory after it; of all agents together where there are some. Pure: jit and
        vmap it."""
        return self.algorithm.act(self.state, obs, carry, key, greedy)

    def predict(self, obs: Any, begins: Any = False, greedy: bool = True) -> Any:
        """The action for an observation as NumPy arrays, or actions `[B, ...]` for observations `[B, ...]`.

        It keeps the policy's memory from one call to the next: `begins`, bool `[]` or `[B]`, says which observations begin an
        episode, as all of the first call do. With agents observations and actions lead with `[A]` or `[B, A]`. Sampled
        actions (`greedy=False`) follow from the run's seed and the number of the call. Of a simulator on the host both are of
        its own spaces, as gymnasium's tuples; legal actions are `{"observation": obs, "action_mask": info["action_mask"]}`.

        Raises UsageError for an observation that is not of the environment's space, and for a memory of another batch.
        """
        return predicting.predict(self, obs, begins, typed("greedy", greedy, bool))

    def elite(self, descriptor: Sequence[float] | None = None, cell: Sequence[int] | None = None) -> "Policy":
        """The elite of the run's archive whose descriptor is nearest to the given one, or that of a grid cell (indices from 0).

        Its `warnings` say which it is. Raises UsageError when the run has no archive, or the cell is empty.
        """
        return elites.chosen(self, descriptor, cell)

    def elites(self) -> dict[str, np.ndarray]:
        """The elites of the run's archive as columns of a table, the best first: place, fitness, and each descriptor.

        `pandas.DataFrame(policy.elites())` makes a frame of it. Raises UsageError when the run has no archive.
        """
        return elites.table(self)

    def corrected(self, episodes: int, key: jax.Array) -> tuple[dict[str, Any], "Policy"]:
        """Plays every elite of the run's archive anew, for so many episodes each: the numbers of the corrected archive, and the
        policy with that archive in place of its own.

        Corrected QD score, coverage, best and mean fitness; by how much fitness fell in the mean (`fitness_loss`); the share of
        elites that are still in their cell (`kept_cell`). Raises UsageError when the run has no archive, or it is empty.
        """
        return correcting.corrected(self, given.count("episodes", episodes), given.random_key(key))

    def by_task(self, episodes: int, key: jax.Array, greedy: bool = True) -> dict[str, np.ndarray]:
        """Plays every task of an environment that lists them, so many episodes each: columns of a table, as for pandas, with
        `task`, `return_mean`, `return_std`, `return_min` and `terminated`. Raises UsageError where tasks are no list.
        """
        return tasks.by_task(self, given.count("episodes", episodes), given.random_key(key), greedy)

    def evaluate(
        self,
        episodes: int,
        key: jax.Array,
        greedy: bool = True,
        descriptor: descriptors.Choice = None,
        metrics: Metric | None = None,
        info: Mapping[str, str] | None = None,
    ) -> tuple[dict[str, Any], Episodes]:
        """Plays whole episodes: their numbers, and each one's return, length and end.

        With an environment that describes behavior also each one's descriptor: "final", "mean", a function
        `(descriptors [T, D], mask [T]) -> [K]`, or what the environment has for itself (None). `metrics` adds numbers, as it
        does in `train`. A constant is folded into the key, so that the key of the run's seed gives other starts and noise than
        training and its evaluations had. `info`: by name "mean", "sum" or "last", over what the run's evaluations have.

        Raises UsageError for a descriptor where the environment describes none, and for more episodes than fit into memory.
        """
        episodes, key = given.count("episodes", episodes), given.random_key(key)
        given.check_functions(metrics=metrics)
        steps = programs.eval_steps(self.environment, self.spec)
        how = self.spec.options.info | dict(info or {})
        if is_on_host(self.environment):
            played = simulated.evaluate(self, episodes, keys.of_evaluate(key), greedy, descriptor, how)
            return default_metrics(played) | measured(metrics, played), played
        play = evaluator(self.environment, self.algorithm, episodes, steps, typed("greedy", greedy, bool), descriptor, how)
        sizes.check_evaluation(play, self.state, self.environment, episodes)
        played = jax.device_get(jax.jit(play)(self.state, keys.of_evaluate(key)))
        return default_metrics(played, agent_types(self.environment)) | measured(metrics, played), played


def load(
    folder: str | Path,
    *,
    checkpoint: str | int = "last",
    member: int | None = None,
    environment: Environment | None = None,
    network: Callable[[jax.Array], Any] | None = None,
    eval_arguments: Mapping[str, Any] | None = None,
) -> Policy:
    """The policy of a run, at its "last" or "best" checkpoint or that of a step.

    Of a population it is the member asked for, or the best by the run's `best_metric` as last evaluated before that
    checkpoint; a copy that population-based training made since counts as good as its parent, and `warnings` says so.
    `environment`: another to play in than the run's own. `eval_arguments` are further arguments of the environment of its
    evaluations, over those that the run has.

    Raises UsageError when there is no such run, checkpoint or member, when config.yaml was changed since the checkpoint was
    made, or for arguments that evaluations cannot have.
    """
    folder = Path(folder)
    spec = run_folder.read_spec(folder)
    changed = resuming.check_to_load(folder, spec, network)
    is_passed = environment is not None
    if is_passed and is_of_suite(spec.environment) and is_on_host(environment) != runs_on_host(spec.environment):
        raise UsageError(
            f"one of {spec.environment} and {environment.name} is a simulator on the host, and the other is compiled: load the "
            "run in its own, and play the policy in the other with policy.predict"
        )
    if eval_arguments:
        if environment is not None or spec.own_environment:
            raise UsageError(_NOT_BY_ID)
        spec = evaluated_with(spec, eval_arguments)
    environment = opponents_of.with_opponents(spec, environment, _opponents(spec, environment, network, folder))
    algorithm, trained_in = programs.assemble(spec, environment, network)
    like = programs.abstract(spec, algorithm)
    environment = trained_in if is_passed else programs.evaluation_environment(spec, trained_in)
    count = len(spec.members())
    if count > 1:
        like = programs.abstract_population(spec, algorithm)
    if member is not None and not 0 <= member < count:
        raise UsageError(f"member ({member}) must be between 0 and {count - 1}: the run has {count}")
    with resuming.checkpoints_of(folder, spec) as checkpoints:
        if checkpoint not in ("last", "best") and not str(checkpoint).isdecimal():
            raise UsageError(f"checkpoint ({checkpoint}) must be last, best or the number of a step: {checkpoints.steps()}")
        which: Any = checkpoint if checkpoint in ("last", "best") else int(checkpoint)
        step, state, warnings = checkpoints.restore(which, like)
        scores = checkpoints.summary(step).scores
    warnings = changed + warnings
    if count == 1:
        return Policy(spec, environment, step, algorithm.acting_state(state), algorithm, warnings)
    chosen, notes = members.best(spec, scores) if member is None else (member, [])
    everyone = state.members if spec.evolve else state
    state = algorithm.acting_state(jax.tree.map(lambda x: x[chosen], everyone))
    return Policy(spec, environment, step, state, algorithm, warnings + notes, chosen)


def _checked(spec: Spec, environment: Any, network: Any, metrics: Metric | None) -> tuple[Any, dict[str, Policy]]:
    """The environment with the run's opponents in it, and these. Raises UsageError for all that can be known beforehand."""
    given.check_is_no_worker()
    programs.check_environment(spec, environment)
    policies = _opponents(spec, environment, network)
    played = opponents_of.with_opponents(spec, environment, policies)
    programs.check(spec, played, network)
    loop.check(spec, metrics, played)
    return played, policies


def _opponents(spec: Spec, environment: Any, network: Any, folder: Path | None = None) -> dict[str, Policy]:
    """By type of agents, the policies of the run's opponents. `folder`: of a run that is begun.

    Opponents that were trained with objects of their own have the environment and the network of this run.

    Raises UsageError when there is no such run or checkpoint, or when its objects cannot be those of this run.
    """
    policies = {}
    for kind, run in spec.opponents.items():
        path, checkpoint = opponents_of.checkpoint_of(run) if folder is None else (folder / run, "last")
        theirs, objects = run_folder.read_spec(path), {}
        if theirs.own_environment:
            objects["environment"] = programs.environment_of(spec) if environment is None else environment
            if theirs.environment != objects["environment"].name:
                raise UsageError(f"the opponent {run} was trained with the name {theirs.environment}: here it is another")
        if theirs.network == run_folder.CUSTOM:
            if network is None:
                raise UsageError(
                    f"the opponent {run} used a network of its own, which this run needs too: pass it as network=..."
                )
            objects["network"] = network
        policies[kind] = load(path, checkpoint=checkpoint, **objects)
    return policies
