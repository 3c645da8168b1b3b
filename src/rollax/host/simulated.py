"""Runs whose environments are simulators on the host: each step of theirs is one call of the compiled policy for all of them.

What learns is the algorithm's own `step`, which reads the steps that were played (`rollax.acting.recording`).
"""

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rollax.acting.evaluate import Episodes
from rollax.acting.recording import RecordedSteps, Recording
from rollax.acting.streams import act_at, actor_of, with_recording
from rollax.algorithm import Algorithm, Metrics
from rollax.environments.core import is_on_host
from rollax.errors import UsageError
from rollax.host import episodes
from rollax.host.pools import Pool
from rollax.host.simulators import InProcess, Layout, SimulatorFailed, Simulators
from rollax.host.workers import InWorkers
from rollax.spaces import zeros

TRAINING, EVALUATION = 1, 2  # purposes of seeds


def simulators_of(environment: Any, number: int, workers: int, timeout: float, names: tuple[str, ...] = ()) -> Simulators:
    """So many simulators of an environment, which report the numbers of those names. Raises UsageError where it cannot be."""
    layout = Layout(jax.tree.map(np.asarray, zeros(environment.observation_space)), names)
    if environment.make_pool is not None:
        return Pool(environment.make_pool, number, layout)
    if workers:
        return InWorkers(environment.make_simulator, number, layout, workers, timeout)
    return InProcess(environment.make_simulator, number, layout, timeout=timeout)


def acting(algorithm: Algorithm) -> Callable[..., tuple[Any, Any, Any]]:
    """`(state, obs, carry, reset, time) -> (carry, action, extras)` of E environments: what `unroll` would do at step `time` of
    the next update."""
    rollouts = algorithm.rollouts
    assert rollouts is not None, "`check_rollouts` refuses others"

    def act(state: Any, obs: Any, carry: Any, reset: jax.Array, time: jax.Array) -> tuple[Any, Any, Any]:
        policy, _, key, _ = rollouts(state)
        return act_at(policy, key, time, carry, obs, reset)

    return act


def learning(algorithm: Algorithm) -> Callable[..., tuple[Any, Metrics]]:
    """`(state, rows, index, recording) -> (state, rows)`: an update, and its metrics in their row."""

    def learn(state: Any, rows: Metrics, index: jax.Array, recording: Recording) -> tuple[Any, Metrics]:
        state, metrics = algorithm.step(with_recording(state, recording))
        return with_recording(state, ()), jax.tree.map(lambda row, m: row.at[index].set(m), rows, metrics)

    return learn


class Simulated:
    """The simulators of a run, of one member or of a population, and what acts in them."""

    def __init__(self, spec: Any, one: Algorithm, running: Algorithm, environments: tuple[Any, Any], like: Any) -> None:
        """`one`: the algorithm of a member; `running`: that of the run's state, whose shapes are `like`; `environments`: those
        of training and of evaluations."""
        self.spec, self.one, self.running, self.like = spec, one, running, like
        self.environment, self.shown = environments
        self.has_members, self.number = spec.num_members > 1, spec.num_members
        self.seeds = [int(member["seed"]) for member in spec.members()]
        # A state goes from call to call as its leaves: taking modules apart takes longer than a step of most simulators.
        self._structure = jax.tree.structure(like)
        self._act = jax.jit(self._by_leaves(jax.vmap(acting(one), (0, 0, 0, 0, None)) if self.has_members else acting(one)))
        self._player = episodes.player(one, not spec.options.eval_stochastic, self.has_members)
        self._acts: Any = None  # compiled
        self._learn: Any = None
        self._rows: Any = None
        self._training: Simulators | None = None
        self._evaluating: Simulators | None = None
        self._seen: tuple[Any, np.ndarray, Any] | None = None  # obs, reset and carry, as acting goes on
        self._anew = np.ones(self.number, bool)  # whose episodes are yet to begin
        self._begun = [0, 0]  # updates done, and how often episodes began anew
        self.failure: SimulatorFailed | None = None  # after which nothing can go on

    def _by_leaves(self, act: Callable[..., Any]) -> Callable[..., Any]:
        """That function of a state of members, as one of the leaves of the run's state."""

        def by_leaves(leaves: list[Any], *arguments: Any) -> Any:
            return act(self.members(self._structure.unflatten(leaves)), *arguments)

        return by_leaves

    def members(self, state: Any) -> Any:
        """The states of the algorithm of one member, `[P, ...]` of a population."""
        return state.members if self.spec.evolve else state

    def shaped(self, rows: Any) -> Any:
        """Arrays of all simulators `[P x E, ...]` as the policies take them: `[P, E, ...]`, or `[E, ...]` without members."""
        return rows.reshape(self.number, -1, *rows.shape[1:]) if self.has_members else rows

    def begin_anew(self, updates: int, members: np.ndarray | None = None) -> None:
        """Where a run begins, goes on or goes back, all episodes begin anew; where members are replaced, bool `[P]`, theirs."""
        self._begun, self.failure = [updates, self._begun[1] + 1], None
        self._anew = np.ones(self.number, bool) if members is None else self._anew | members

    def compile(self, capacity: int) -> Any:
        """Compiles an update; `capacity`: most updates in a call of `advance`."""
        recording, actor, leaves = self.abstract, actor_of(self.like), jax.tree.leaves(self.like)
        index = jax.ShapeDtypeStruct((), np.int32)
        self._acts = self._act.lower(leaves, actor.obs, actor.carry, actor.reset, index).compile()
        shapes = jax.eval_shape(lambda state, steps: self.running.step(with_recording(state, steps)), self.like, recording)[1]
        self._rows = jax.jit(lambda: jax.tree.map(lambda m: jnp.zeros((capacity, *m.shape), m.dtype), shapes))

        def learn(leaves: list[Any], *arguments: Any) -> tuple[list[Any], Metrics]:
            state, rows = learning(self.running)(self._structure.unflatten(leaves), *arguments)
            return jax.tree.leaves(state), rows

        rows = jax.eval_shape(self._rows)
        self._learn = jax.jit(learn, donate_argnums=(0, 1)).lower(leaves, rows, index, recording).compile()
        return self._learn

    def abstract_recording(self) -> Recording:
        """Shapes and types of the rollout of an update."""
        state, actor = self.members(self.like), actor_of(self.like)
        assert self.one.rollouts is not None
        num_steps = int(_num_steps(self.one, jax.tree.map(lambda x: _without_lead(x), state) if self.has_members else state))
        arguments = jax.tree.leaves(self.like), actor.obs, actor.carry, actor.reset, 0
        carry, action, extras = jax.eval_shape(self._act, *arguments)
        reward = jax.ShapeDtypeStruct(actor.reset.shape, np.float32)
        rows = actor.obs, actor.reset, actor.carry, action, extras, reward, actor.reset, actor.reset, actor.obs
        lead = int(self.has_members)
        long = lambda x: jax.ShapeDtypeStruct((*x.shape[:lead], num_steps, *x.shape[lead:]), x.dtype)  # noqa: E731
        last = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), (actor.obs, actor.reset, carry))
        steps: Any = jax.tree.map(long, rows)
        return Recording(RecordedSteps(*steps), last)

    def advance(self, state: Any, num_updates: int) -> tuple[Any, Metrics]:
        """Some updates: the state after them, and their metrics by update; fewer where a simulator fails (`failure`)."""
        rows, done, leaves = self._rows(), 0, jax.tree.leaves(state)
        self.begin(state)
        while done < num_updates:
            try:
                recording = self.played(leaves)
            except SimulatorFailed as error:
                self.failure = error
                if done == 0:
                    raise
                break
            leaves, rows = self._learn(leaves, rows, np.int32(done), recording)
            done += 1
        rows = jax.device_get(rows)
        return self._structure.unflatten(leaves), jax.tree.map(lambda values: values[:done], rows)

    def played(self, leaves: list[Any]) -> Recording:
        """The rollout of an update by the state with these leaves, for which episodes have begun (`begin`)."""
        assert self._training is not None and self._seen is not None
        num_steps = self.abstract.steps.reset.shape[int(self.has_members)]
        obs, reset, carry = self._seen
        taken = []
        for time in range(num_steps):
            seen, begins, memory = obs, reset, carry
            carry, action, extras = jax.device_get(self._acts(leaves, obs, carry, reset, np.int32(time)))
            after = self._training.step(action.reshape(-1, *action.shape[1 + int(self.has_members) :]))
            next_obs, obs = (jax.tree.map(self.shaped, each) for each in (after.next_obs, after.obs))
            reward, terminated, truncated = map(self.shaped, (after.reward, after.terminated, after.truncated))
            taken.append(RecordedSteps(seen, begins, memory, action, extras, reward, terminated, truncated, next_obs))
            reset = terminated | truncated
        self._seen = obs, reset, carry
        axis = int(self.has_members)
        return Recording(jax.tree.map(lambda *x: np.stack(x, axis), *taken), self._seen)

    @functools.cached_property
    def abstract(self) -> Recording:
        return self.abstract_recording()

    def begin(self, state: Any) -> None:
        """Makes the simulators of training and begins those episodes that are to begin anew."""
        number = self.number * actor_of(self.like).reset.shape[-1]
        if self._training is None:
            options = self.spec.options
            self._training = simulators_of(self.environment, number, options.env_workers, options.env_timeout)
        if not self._anew.any():
            return
        each = number // self.number
        seeds = [x for seed in self.seeds for x in _seeds((seed, TRAINING, *self._begun), each)]
        where = np.repeat(self._anew, each)
        obs = jax.tree.map(self.shaped, self._training.reset(seeds, None if where.all() else where))
        begun = obs, self.shaped(where), jax.device_get(actor_of(state).carry)
        if self._seen is not None and not where.all():
            begun = jax.tree.map(lambda new, old: np.where(_like(self._anew, old), new, old), begun, self._seen)
        self._seen, self._anew = begun, np.zeros(self.number, bool)

    def evaluate(self, state: Any, keys: Sequence[jax.Array]) -> Episodes:
        """Whole episodes of every member, by a key each."""
        options, members = self.spec.options, self.members(state)
        width = episodes.slots(options.eval_episodes, self.number)
        names = self.shown.info_names
        if self._evaluating is None:
            workers = min(options.env_workers, self.number * width)
            self._evaluating = simulators_of(self.shown, self.number * width, workers, options.env_timeout, names)
        playing = episodes.Playing(episodes.plan(keys, options.eval_episodes), width, names)
        return play_plan(self.one, self._player, members, self._evaluating, playing, self.shown, self.spec, self.has_members)

    def close(self) -> None:
        for simulators in (self._training, self._evaluating):
            if simulators is not None:
                simulators.close()
        self._training = self._evaluating = None


def play_plan(
    algorithm: Algorithm,
    player: episodes.Player,
    state: Any,
    simulators: Simulators,
    playing: episodes.Playing,
    shown: Any,
    spec: Any,
    has_members: bool,
    choices: Any = None,
) -> Episodes:
    """The episodes of a plan, played."""
    acting_state, first, metrics = algorithm.acting_state, algorithm.initial_carry, algorithm.state_metrics
    if has_members:
        acting_state, first, metrics = (jax.jit(jax.vmap(f)) for f in (acting_state, first, metrics))
    members, width = acting_state(state), playing.side_by_side
    carry = jax.tree.map(np.asarray, first(members))
    spread = (lambda x: np.repeat(x, width, axis=0)) if has_members else (lambda x: np.broadcast_to(x, (width, *x.shape)))
    seen = (lambda x: x.reshape(-1, width, *x.shape[1:])) if has_members else (lambda x: x)
    limit = shown.time_limit or spec.options.eval_max_steps
    episodes.play(player, members, jax.tree.map(spread, carry), simulators, playing, limit, seen)
    told = jax.device_get(metrics(state))
    return episodes.results(shown, playing, spec.options.info if choices is None else choices, has_members, told)


def evaluate(policy: Any, number: int, key: jax.Array, greedy: bool, descriptor: Any, info: dict[str, str]) -> Episodes:
    """Whole episodes of a trained policy (`rollax.Policy`). Raises UsageError for a descriptor, which there is none of."""
    environment, options = policy.environment, policy.spec.options
    if descriptor is not None:
        raise UsageError(f"{environment.name} describes no behavior: leave descriptor ({descriptor}) out")
    width, names = episodes.slots(number), environment.info_names
    playing = episodes.Playing(episodes.plan([key], number), width, names)
    with contextlib.closing(simulators_of(environment, width, 0, options.env_timeout, names)) as simulators:
        player = episodes.player(policy.algorithm, greedy, False)
        return play_plan(policy.algorithm, player, policy.state, simulators, playing, environment, policy.spec, False, info)


def observed(policy: Any, key: jax.Array, number: int, num_steps: int) -> tuple[Any, np.ndarray]:
    """What a trained policy that samples its actions observes, `[T, E, ...]`, and where an episode begins, bool `[T, E]`."""
    act, state = episodes.player(policy.algorithm, False, False), policy.state
    first = jax.tree.map(np.asarray, policy.algorithm.initial_carry(state))
    carry = jax.tree.map(lambda x: np.broadcast_to(x, (number, *x.shape)), first)
    seeds, keys = (rows[0] for rows in episodes.plan([key], number))
    reset, seen = np.ones(number, bool), []
    with contextlib.closing(simulators_of(policy.environment, number, 0, policy.spec.options.env_timeout)) as simulators:
        obs = simulators.reset(list(seeds))
        for time in range(num_steps):
            seen.append((obs, reset))
            carry, action = act(state, obs, carry, reset, keys, np.full(number, time, np.int32))
            after = simulators.step(np.asarray(action))
            obs, reset = after.obs, after.terminated | after.truncated
    return jax.tree.map(lambda *x: np.stack(x), *seen)


def check_rollouts(name: str, algorithm: Algorithm, environment: Any, devices: int) -> None:
    """Raises UsageError for what environments on the host cannot serve."""
    if algorithm.rollouts is None:
        raise UsageError(
            f"{environment.name} runs on the host, where {name} cannot act: ppo, ppo_rnd, impala, pqn, td3, sac and dqn can "
            "(one of your own with Algorithm.rollouts)"
        )
    if devices > 1:
        raise UsageError(f"devices ({devices}) must be 1 in {environment.name}, which runs on the host")


def check_workers(environment: Any, workers: int) -> None:
    """Raises UsageError for worker processes that would have nothing to do."""
    if not workers:
        return
    if not is_on_host(environment):
        raise UsageError(
            f"env_workers ({workers}) is for simulators on the host, and {environment.name} is compiled: leave it out "
            "(--devices spreads environments over devices)"
        )
    if environment.make_pool is not None:
        raise UsageError(
            f"env_workers ({workers}) is for simulators that step one by one, and those of {environment.name} step together in "
            f"threads of EnvPool's: try --env.num-threads {workers}"
        )


def _num_steps(algorithm: Algorithm, state: Any) -> int:
    """Steps of each environment in an update."""
    found: list[int] = []
    assert algorithm.rollouts is not None
    rollouts = algorithm.rollouts
    jax.eval_shape(lambda state: found.append(rollouts(state)[3]), state)
    return found[0]


def _like(members: np.ndarray, values: np.ndarray) -> np.ndarray:
    """`[P]` with as many axes as `[P, ...]`."""
    return members.reshape(-1, *[1] * (np.ndim(values) - 1))


def _without_lead(x: Any) -> Any:
    return jax.ShapeDtypeStruct(x.shape[1:], x.dtype)


def _seeds(entropy: tuple[int, ...], number: int) -> list[int]:
    """Seeds of simulators, of their own for every purpose."""
    return [int(x) >> 1 for x in np.random.SeedSequence(entropy).generate_state(number)]
