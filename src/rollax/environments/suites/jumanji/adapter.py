"""The environments of Jumanji (1.1 or newer; Bonnet et al. 2024, arXiv:2306.09884), by their raw dynamics.

Jumanji calls nearly every end, a time limit too, a termination. Here a task is played by dynamics whose own time limit no
episode reaches, so that what ends there has terminated, and rollax's clock truncates. What is put right on the way:

- observations are flat dictionaries: "ems_x1" is Jumanji's `ems.x1`. Boards of symbols are grids, which networks embed; lists
  of categories are one-hot; "step_count" is a share of the time limit (Tetris shows 0 at all times); other numbers are float32;
- an action of several numbers whose mask is joint is one number, in row-major order (`joint` has the sizes);
- masks leave an action legal also where the game is over; rewards are float32 and states of definite types;
- agents whose reward is one for all each get it; parts of an observation that are about all agents, every agent sees.
"""

import copy
import functools
import inspect
import json
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from rollax.environments.convert import convert_all, leaf_types, step_limit, with_types
from rollax.environments.core import Transition
from rollax.environments.suites import version
from rollax.environments.suites.jumanji.specs import Spaces, joint_action, observed, spaces_of
from rollax.environments.suites.silence import silenced
from rollax.errors import UsageError
from rollax.spaces import ActionSpace, Space

with silenced(), jax.ensure_compile_time_eval():
    import jumanji as suite

_LIMIT = "time_limit"
_NEVER = np.iinfo(np.int32).max - 1  # a time limit that no episode reaches
_RECORDED = "max_step"  # of a generator: steps that a state has room for, as many as there can be
# The most steps of a game that has no time limit: each makes progress, or ends it.
_STEPS: dict[str, Callable[[Any], int]] = {
    "BinPack": lambda spec: spec.items_mask.shape[0],
    "CVRP": lambda spec: spec.trajectory.shape[0],
    "FlatPack": lambda spec: spec.blocks.shape[0],
    "GraphColoring": lambda spec: spec.colors.shape[0],
    "JobShop": lambda spec: int(np.prod(spec.ops_durations.shape)) * int(spec.ops_durations.maximum),
    "Knapsack": lambda spec: spec.weights.shape[0],
    "Minesweeper": lambda spec: int(spec.step_count.maximum),
    "MultiCVRP": lambda spec: 2 * spec.nodes.demands.shape[0],
    "Sudoku": lambda spec: int(np.prod(spec.board.shape)),
    "TSP": lambda spec: spec.coordinates.shape[0],
}
_LEFT_OUT = ("debug",)
_SUMMED = ("invalid_action",)  # of what is told of a step; all else is a state


class JumanjiState(NamedTuple):
    raw: Any  # the suite's own state
    time: jax.Array  # int32 []: steps taken


class Jumanji(eqx.Module):
    """One environment of the suite."""

    dynamics: Any = eqx.field(static=True)  # the suite's, with a time limit that no episode reaches
    name: str = eqx.field(static=True)
    spaces: Spaces = eqx.field(static=True)
    told: tuple[str, ...] = eqx.field(static=True)  # numbers of the suite's `extras`
    state_types: tuple[str, ...] = eqx.field(static=True)
    time_limit: int | None = eqx.field(static=True)
    truncates: bool = eqx.field(static=True)  # by its time limit, which otherwise is the most that a game can have

    @property
    def observation_space(self) -> Space:
        return self.spaces.observation

    @property
    def action_space(self) -> ActionSpace:
        return self.spaces.action

    @property
    def num_agents(self) -> int | None:
        return self.spaces.num_agents

    @property
    def joint(self) -> tuple[int, ...]:
        """Sizes of the numbers that an action stands for, in row-major order; () where it stands for itself."""
        return self.spaces.joint

    @property
    def info_reductions(self) -> dict[str, str]:
        return {name: "sum" if name in _SUMMED else "last" for name in self.told}

    def reset(self, key: jax.Array) -> tuple[Any, Any]:
        """`(state, obs)` at the start of an episode."""
        raw, first = _reset(self.dynamics, key)
        time = jnp.zeros((), jnp.int32)
        return JumanjiState(with_types(raw, self.state_types), time), observed(self.spaces, first.observation, time)

    def step(self, key: jax.Array, state: Any, action: Any) -> Transition:
        """One step. `truncated` is the time limit where the task did not end as well."""
        del key  # the suite has one in its state
        raw, after = _step(self.dynamics, state.raw, joint_action(self.spaces, jnp.asarray(action)))
        time = state.time + 1
        axis = () if self.num_agents is None else (self.num_agents,)
        terminated = jnp.broadcast_to(_task_ended(self.dynamics, raw, after), axis)
        late = time >= self.time_limit if self.truncates else jnp.zeros((), bool)
        return Transition(
            state=JumanjiState(with_types(raw, self.state_types), time),
            obs=observed(self.spaces, after.observation, time),
            reward=jnp.broadcast_to(jnp.asarray(after.reward, jnp.float32), axis),
            terminated=terminated,
            truncated=late & ~terminated,
            info={name: jnp.asarray(after.extras[name]).astype(jnp.float32) for name in self.told},
        )


# Compiled also where a user steps by hand: operation by operation, one step takes seconds.
@functools.partial(jax.jit, static_argnums=0)
def _reset(dynamics: Any, key: jax.Array) -> Any:
    return dynamics.reset(key)


@functools.partial(jax.jit, static_argnums=0)
def _step(dynamics: Any, raw: Any, action: jax.Array) -> Any:
    return dynamics.step(raw, action)


def _task_ended(dynamics: Any, raw: Any, after: Any) -> jax.Array:
    """A rescue's reward is made of its time limit, so that it keeps it; it has ended when all are found."""
    return jnp.all(raw.targets.found) if _is_rescue(dynamics) else after.last()


def _is_rescue(dynamics: Any) -> bool:
    return type(dynamics).__name__ == "SearchAndRescue"


def make(name: str, arguments: dict[str, Any]) -> Jumanji:
    """The environment of that name. Raises UsageError and UnknownNameError for arguments that do not fit."""
    id, defaults = f"jumanji/{name}", _defaults(name)
    given = convert_all(id, arguments, defaults)
    if any(isinstance(value, Tracer) for value in given.values()):
        raise UsageError(f"{id}: its arguments shape the program, so they must be plain values, not traced ones.")
    if _LIMIT in given:
        step_limit(id, _LIMIT, given[_LIMIT])
    # Concrete even inside a traced function, so that the constants may be kept and used again.
    with jax.ensure_compile_time_eval():
        return _assembled(id, _dynamics(name, json.dumps(given, sort_keys=True)))


def arguments(name: str) -> dict[str, Any]:
    """The numbers that the suite's constructor takes, and those of the generator of its tasks, with their defaults."""
    return _defaults(name)


def wrapped(id: str, dynamics: Any) -> Jumanji:
    """The environment around an object of Jumanji's, without its wrappers. Raises UsageError for what is none."""
    raw = getattr(dynamics, "unwrapped", dynamics)
    if not isinstance(raw, suite.Environment):
        raise UsageError(f"from_jumanji takes an environment of Jumanji, not a {type(dynamics).__name__}.")
    with jax.ensure_compile_time_eval():
        return _assembled(id, raw)


def _assembled(id: str, dynamics: Any) -> Jumanji:
    """The environment around an object of the suite's."""
    agents = getattr(dynamics, "num_agents", None)
    has_agents = agents is not None and dynamics.action_spec.shape[:1] == (agents,)
    limit = getattr(dynamics, _LIMIT, None)
    most_steps = _STEPS.get(type(dynamics).__name__ if type(dynamics).__module__.startswith("jumanji.") else "")
    most = limit if limit is not None else most_steps(dynamics.observation_spec) if most_steps else None
    unlimited = copy.copy(dynamics)
    if limit is not None and not _is_rescue(dynamics):
        unlimited.time_limit = _NEVER
    spaces = spaces_of(dynamics, has_agents, _largest_symbol(dynamics), None if most is None else float(most))
    with jax.debug_key_reuse(False):
        raw, after = jax.eval_shape(functools.partial(_two_steps, dynamics), jax.eval_shape(lambda: jax.random.key(0)))
    told = tuple(name for name, value in after.extras.items() if jnp.shape(value) == ())
    return Jumanji(unlimited, id, spaces, told, leaf_types(raw), None if most is None else int(most), limit is not None)


def _two_steps(dynamics: Any, key: jax.Array) -> Any:
    """A state that a step has made: its types are those that all states have."""
    raw, _ = dynamics.reset(key)
    return dynamics.step(jax.tree.map(jnp.asarray, raw), jnp.zeros(dynamics.action_spec.shape, dynamics.action_spec.dtype))


def _largest_symbol(dynamics: Any) -> int | None:
    """Of the board of 2048: tiles are powers of 2, at most one more than there are cells."""
    return dynamics.board_size**2 + 1 if type(dynamics).__name__ == "Game2048" else None


@functools.cache
def _defaults(name: str) -> dict[str, Any]:
    """Plain arguments of the constructor, and those of its generator, as the suite's own environment of that name has them."""
    version.require("jumanji", "1.1")
    with jax.ensure_compile_time_eval():
        dynamics = _dynamics(name, "{}")
    return _plain(_generator(dynamics)) | _plain(dynamics)


def _generator(dynamics: Any) -> Any:
    """The generator of its tasks; None where it has none."""
    return getattr(dynamics, "generator", getattr(dynamics, "_generator", None))


def _plain(made: Any) -> dict[str, Any]:
    """Arguments of the constructor of an object that are plain values, as the object has them."""
    if made is None:
        return {}
    names = [name for name in inspect.signature(type(made).__init__).parameters if name != "self"]
    values = {name: getattr(made, name, getattr(made, f"_{name}", None)) for name in names}
    return {name: value for name, value in values.items() if isinstance(value, bool | int | float) and name not in _LEFT_OUT}


@functools.cache
def _dynamics(name: str, given: str) -> Any:
    """One object for the same arguments (as JSON), so that making an environment twice does not compile it twice."""
    values = json.loads(given)
    try:
        with silenced():
            if not values:
                return suite.make(name)
            plain = _dynamics(name, "{}")
            generated = {key: value for key, value in values.items() if key not in _plain(plain)}
            own = {key: value for key, value in values.items() if key not in generated}
            if generated:
                others = _plain(_generator(plain))
                others |= {_RECORDED: own[_LIMIT]} if _RECORDED in others and _LIMIT in own else {}
                own["generator"] = type(_generator(plain))(**{**others, **generated})
            return suite.make(name, **own)
    except (ValueError, TypeError, AssertionError, IndexError, ZeroDivisionError) as error:
        shown = ", ".join(f"{key}={value!r}" for key, value in values.items())
        raise UsageError(f"Jumanji refuses to make {name} with {shown}: {error or 'it states no reason'}.") from error
