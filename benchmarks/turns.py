"""Programs that play random actions in rollax or in a suite, and their comparison in turns."""

import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rollax import spaces
from rollax.acting import streams

# Compiled function from a state to the next state and its outputs, and the initial state.
Program = tuple[Callable[[Any], tuple[Any, Any]], Any]


def seconds(run: Callable[[Any], Any], state: Any) -> float:
    """Return the seconds of one call of a compiled function."""
    started = time.perf_counter()
    jax.block_until_ready(run(state))
    return time.perf_counter() - started


def ours(env: Any, size: int, num_steps: int, draw: Callable[[jax.Array, Any], Any]) -> Program:
    """Return a program of rollax that steps environments and restarts ended episodes.

    Args:
        env: Environment.
        size: Number of streams.
        num_steps: Number of steps per call.
        draw: Function from a key and observations to the actions of all streams.
    """

    def given(action, obs, reset, key):
        return (action, action, None)

    none = spaces.make_zeros(env.action_space)
    one = none if env.num_agents is None else jnp.broadcast_to(none, (env.num_agents, *none.shape))

    def body(carry: Any, step: jax.Array) -> tuple[Any, jax.Array]:
        actor, key = carry
        act_key, env_key = jax.random.split(jax.random.fold_in(key, step))
        actor = actor._replace(carry=draw(act_key, actor.obs))
        actor, experience, after = streams.step(
            env, given, actor, streams.split_step_keys(jax.random.split(env_key, size))
        )
        return (
            streams.restart_ended_episodes(env, actor, streams.has_episode_ended(env, after)),
            key,
        ), experience.reward.sum()

    begin = jax.jit(lambda key: streams.init_actor(env, key, size, one))
    return scanned(body, num_steps), (begin(jax.random.key(0)), jax.random.key(1))


def theirs(
    reset: Callable[[jax.Array], Any],
    step: Callable[..., Any],
    draw: Callable[[jax.Array, Any], Any],
    num_steps: int,
) -> Program:
    """Return a program of batched environments of a suite, with the auto-reset of the suite.

    Args:
        reset: Function from a key to the state of all environments.
        step: Function from a key, a state and actions to the next state and arrays. The program
            returns sums of the arrays, so that the compiler cannot remove them.
        draw: Function from a key and a state to the actions of all environments.
        num_steps: Number of steps per call.
    """

    def body(carry: Any, index: jax.Array) -> tuple[Any, Any]:
        state, key = carry
        act_key, env_key = jax.random.split(jax.random.fold_in(key, index))
        state, made = step(env_key, state, draw(act_key, state))
        return (state, key), jax.tree.map(jnp.sum, made)

    begun = jax.jit(reset)(jax.random.key(0)), jax.random.key(1)
    # Convert the initial state to the dtypes of the state after a step.
    after, _ = jax.eval_shape(body, begun, jnp.zeros((), jnp.int32))

    def typed(x, like):
        return x if x.dtype == like.dtype else x.astype(like.dtype)

    return scanned(body, num_steps), jax.tree.map(typed, begun, after)


def scanned(
    body: Callable[[Any, jax.Array], tuple[Any, Any]], num_steps: int
) -> Callable[[Any], tuple[Any, Any]]:
    return jax.jit(lambda carry: jax.lax.scan(body, carry, jnp.arange(num_steps)))


class Taken(NamedTuple):
    """Times of one call in seconds."""

    wall: float
    processor: float  # CPU time of all threads, which other load on the machine hardly affects


def taken(run: Callable[[Any], Any], state: Any) -> Taken:
    processor = time.process_time()
    return Taken(seconds(run, state), time.process_time() - processor)


def header(unit: str) -> None:
    print(
        f"{'environment':<44} {'copies':>7} {'rollax':>12} {'suite':>12} {'ratio':>6} "
        f"{'by processor time':>18}   {unit}"
    )


def compare(name: str, size: int, count: int, programs: dict[str, Program], repeats: int) -> None:
    """Measure two programs in turns and print their median speeds and median ratios.

    The states after a first call are the initial states of all measured calls.

    Args:
        name: Name of the environment.
        size: Number of copies.
        count: Number of steps per call.
        programs: Programs "ours" and "theirs".
        repeats: Number of calls per program.
    """
    begun = {
        key: (run, jax.block_until_ready(run(state)[0])) for key, (run, state) in programs.items()
    }
    times = [{key: taken(*program) for key, program in begun.items()} for _ in range(repeats)]
    speeds = {key: count / statistics.median(each[key].wall for each in times) for key in begun}
    ratio = statistics.median(each["theirs"].wall / each["ours"].wall for each in times)
    processor = statistics.median(
        each["theirs"].processor / each["ours"].processor for each in times
    )
    shown = f"{speeds['ours']:>12,.0f} {speeds['theirs']:>12,.0f} {ratio:>6.2f} {processor:>18.2f}"
    print(f"{name:<44} {size:>7} {shown}", flush=True)
