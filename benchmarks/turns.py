"""What the benchmarks of environments share: random actions in rollax or in a suite, and two programs that take turns."""

import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rollax import spaces
from rollax.acting import streams

Program = tuple[Callable[[Any], tuple[Any, Any]], Any]  # compiled, from a state to a state and what it made; the first state


def seconds(run: Callable[[Any], Any], state: Any) -> float:
    """Of one call, everything compiled before."""
    started = time.perf_counter()
    jax.block_until_ready(run(state))
    return time.perf_counter() - started


def ours(env: Any, size: int, num_steps: int, draw: Callable[[jax.Array, Any], Any]) -> Program:
    """Steps of `size` streams with rollax's restarts. `draw(key, obs)` gives the actions of all of them."""
    given = lambda action, obs, reset, key: (action, action, None)  # noqa: E731
    none = spaces.zeros(env.action_space)
    one = none if env.num_agents is None else jnp.broadcast_to(none, (env.num_agents, *none.shape))

    def body(carry: Any, step: jax.Array) -> tuple[Any, jax.Array]:
        actor, key = carry
        act_key, env_key = jax.random.split(jax.random.fold_in(key, step))
        actor = actor._replace(carry=draw(act_key, actor.obs))
        actor, experience, after = streams.step(env, given, actor, streams.split(jax.random.split(env_key, size)))
        return (streams.restart(env, actor, streams.episode_ended(env, after)), key), experience.reward.sum()

    begin = jax.jit(lambda key: streams.begin_streams(env, key, size, one))
    return scanned(body, num_steps), (begin(jax.random.key(0)), jax.random.key(1))


def theirs(
    reset: Callable[[jax.Array], Any], step: Callable[..., Any], draw: Callable[[jax.Array, Any], Any], num_steps: int
) -> Program:
    """Steps of a suite's own environments, which restart by themselves.

    `reset(key)` gives the state of all of them, `draw(key, state)` their actions, and `step(key, state, action)` the next state
    and arrays of which sums are kept, so that none is optimized away.
    """

    def body(carry: Any, index: jax.Array) -> tuple[Any, Any]:
        state, key = carry
        act_key, env_key = jax.random.split(jax.random.fold_in(key, index))
        state, made = step(env_key, state, draw(act_key, state))
        return (state, key), jax.tree.map(jnp.sum, made)

    begun = jax.jit(reset)(jax.random.key(0)), jax.random.key(1)
    # In the types of a state as a step leaves it.
    after, _ = jax.eval_shape(body, begun, jnp.zeros((), jnp.int32))
    typed = lambda x, like: x if x.dtype == like.dtype else x.astype(like.dtype)  # noqa: E731
    return scanned(body, num_steps), jax.tree.map(typed, begun, after)


def scanned(body: Callable[[Any, jax.Array], tuple[Any, Any]], num_steps: int) -> Callable[[Any], tuple[Any, Any]]:
    return jax.jit(lambda carry: jax.lax.scan(body, carry, jnp.arange(num_steps)))


class Taken(NamedTuple):
    """What one call took, in seconds."""

    wall: float
    processor: float  # of all threads together, which other work on the machine leaves nearly alone


def taken(run: Callable[[Any], Any], state: Any) -> Taken:
    processor = time.process_time()
    return Taken(seconds(run, state), time.process_time() - processor)


def header(unit: str) -> None:
    print(f"{'environment':<44} {'copies':>7} {'rollax':>12} {'suite':>12} {'ratio':>6} {'by processor time':>18}   {unit}")


def compare(name: str, size: int, count: int, programs: dict[str, Program], repeats: int) -> None:
    """Prints medians of both programs, "ours" and "theirs", in `count` a second, and of the ratio in pairs.

    Both are measured from where a first call, which compiles, leaves them.
    """
    begun = {key: (run, jax.block_until_ready(run(state)[0])) for key, (run, state) in programs.items()}
    times = [{key: taken(*program) for key, program in begun.items()} for _ in range(repeats)]
    speeds = {key: count / statistics.median(each[key].wall for each in times) for key in begun}
    ratio = statistics.median(each["theirs"].wall / each["ours"].wall for each in times)
    processor = statistics.median(each["theirs"].processor / each["ours"].processor for each in times)
    shown = f"{speeds['ours']:>12,.0f} {speeds['theirs']:>12,.0f} {ratio:>6.2f} {processor:>18.2f}"
    print(f"{name:<44} {size:>7} {shown}", flush=True)
