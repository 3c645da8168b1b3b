"""Speed of environments with the restarts of rollax and with the auto-reset of their suite.

Usage: `python benchmarks/suites.py`, or for example
`python benchmarks/suites.py --only craftax pgx/go_9x9 --copies 64`.

Both programs play random actions, which are legal in environments with action masks. They have the
same number of copies and steps and take turns. Results are medians over repeats, and steps are
environment frames. The auto-reset of a suite is the one that it contains or recommends:

- craftax: the auto-reset environments, which create a new world at every step. "optimistic" is the
  wrapper of the Craftax baselines, which creates one new world per 16 copies and step. Copies whose
  episodes end at the same step share new worlds.
- jumanji: `AutoResetWrapper` under `vmap`.
- pgx: `pgx.experimental.auto_reset`.
- gymnax, navix: the method `step` of the environments.
- brax, playground: the wrappers for training, in which all episodes of a copy start from its first
  state.

rollax is measured after `warm_up` steps, so that episodes end at different times. The cost of an
auto-reset does not depend on the number of ended episodes.
"""

import argparse
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jumanji
import turns
from brax.envs.wrappers import training
from jumanji.wrappers import AutoResetWrapper
from mujoco_playground import wrapper
from pgx.experimental import auto_reset

import rollax
from rollax import tree
from rollax.errors import UsageError
from rollax.spaces import Box

RATIO = 16  # copies per new world in optimistic resets


class Own(NamedTuple):
    """Batched environments of a suite with its auto-reset."""

    reset: Callable[[jax.Array], Any]
    step: Callable[[jax.Array, Any, jax.Array], tuple[Any, Any]]
    mask: Callable[[Any], jax.Array | None]  # legal actions of a state


def no_mask(state: Any) -> None:
    return None


def craftax(env: Any, size: int) -> Own:
    """Build the auto-reset variant of the environment class that rollax uses."""
    kind = type(env.dynamics)
    module = __import__(kind.__module__, fromlist=["*"])
    return gymnax_like(getattr(module, kind.__name__.removesuffix("NoAutoReset"))(), size)


def gymnax(env: Any, size: int) -> Own:
    return gymnax_like(env.dynamics, size)


def gymnax_like(dynamics: Any, size: int) -> Own:
    params = dynamics.default_params

    def step(key: jax.Array, state: Any, action: jax.Array) -> tuple[Any, Any]:
        obs, after, reward, *_ = jax.vmap(dynamics.step, (0, 0, 0, None))(
            jax.random.split(key, size), state[1], action, params
        )
        return (obs, after), reward

    return Own(
        lambda key: jax.vmap(dynamics.reset, (0, None))(jax.random.split(key, size), params),
        step,
        no_mask,
    )


def optimistic(env: Any, size: int) -> Own:
    """Build environments with optimistic resets, which create few new worlds per step.

    Equivalent to `OptimisticResetVecEnvWrapper` of the Craftax baselines.
    """
    dynamics, params, fresh = env.dynamics, env.dynamics.default_params, size // RATIO

    def reset(key, count):
        return jax.vmap(dynamics.reset, (0, None))(jax.random.split(key, count), params)

    def step(key: jax.Array, state: Any, action: jax.Array) -> tuple[Any, Any]:
        step_key, reset_key, key = jax.random.split(key, 3)
        keys = jax.random.split(step_key, size)
        obs, after, reward, done, _ = jax.vmap(dynamics.step, (0, 0, 0, None))(
            keys, state[1], action, params
        )
        begun = reset(reset_key, fresh)
        ended = jax.random.choice(key, size, (fresh,), replace=False, p=done)
        source = jnp.repeat(jnp.arange(fresh), RATIO).at[ended].set(jnp.arange(fresh))
        return tree.where(done, jax.tree.map(lambda x: x[source], begun), (obs, after)), reward

    return Own(lambda key: reset(key, size), step, no_mask)


def jumanji_wrapped(env: Any, size: int) -> Own:
    dynamics = AutoResetWrapper(jumanji.make(env.name.split("/")[1]))

    def step(key: jax.Array, state: Any, action: jax.Array) -> tuple[Any, Any]:
        after, timestep = jax.vmap(dynamics.step)(state[0], action)
        return (after, timestep), timestep.reward

    def reset(key):
        return jax.vmap(dynamics.reset)(jax.random.split(key, size))

    return Own(reset, step, lambda state: state[1].observation.action_mask)


def navix(env: Any, size: int) -> Own:
    from navix.environments import registry  # requires Python 3.12 or newer

    dynamics = registry.make(env.name.split("/")[1])

    def step(key: jax.Array, state: Any, action: jax.Array) -> tuple[Any, Any]:
        after = jax.vmap(dynamics.step)(state, action)
        return after, after.reward

    return Own(lambda key: jax.vmap(dynamics.reset)(jax.random.split(key, size)), step, no_mask)


def pgx(env: Any, size: int) -> Own:
    move = jax.vmap(auto_reset(env.dynamics.step, env.dynamics.init))

    def step(key: jax.Array, state: Any, action: jax.Array) -> tuple[Any, Any]:
        after = move(state, action, jax.random.split(key, size))
        return after, after.rewards

    def reset(key):
        return jax.vmap(env.dynamics.init)(jax.random.split(key, size))

    return Own(reset, step, lambda state: state.legal_action_mask)


def playground(env: Any, size: int) -> Own:
    return brax_like(
        wrapper.wrap_for_brax_training(env.dynamics, episode_length=env.time_limit), size
    )


def brax(env: Any, size: int) -> Own:
    return brax_like(training.wrap(env.dynamics, episode_length=env.time_limit), size)


def brax_like(dynamics: Any, size: int) -> Own:
    def step(key: jax.Array, state: Any, action: jax.Array) -> tuple[Any, Any]:
        after = dynamics.step(state, action)
        return after, after.reward

    # brax derives the batch shape from raw keys `[E, 2]`.
    return Own(
        lambda key: dynamics.reset(jax.random.key_data(jax.random.split(key, size))), step, no_mask
    )


class Case(NamedTuple):
    """Environment with the auto-reset of its suite and the length of a measurement."""

    name: str
    own: Callable[[Any, int], Own]
    frames: int  # per measurement
    warm_up: int = 0  # steps of rollax before the measurement
    copies: tuple[int, ...] = (64, 1024)
    arguments: dict[str, Any] = {}
    label: str = ""


CASES = (
    Case("craftax/Craftax-Symbolic-v1", craftax, 1_024, 300, (64, 256)),
    Case("craftax/Craftax-Symbolic-v1", optimistic, 1_024, 300, (64, 256), label=", optimistic"),
    Case("craftax/Craftax-Classic-Symbolic-v1", craftax, 2_048, 200, (64, 256)),
    Case(
        "craftax/Craftax-Classic-Symbolic-v1",
        optimistic,
        2_048,
        200,
        (64, 256),
        label=", optimistic",
    ),
    Case("jumanji/Snake-v1", jumanji_wrapped, 100_000),
    Case("jumanji/Game2048-v1", jumanji_wrapped, 100_000),
    Case("pgx/connect_four", pgx, 200_000),
    Case("pgx/go_9x9", pgx, 10_000, 160),
    Case("navix/Navix-DoorKey-5x5-v0", navix, 100_000),
    Case("navix/Navix-Fetch-8x8-N3-v0", navix, 100_000),
    Case("playground/CartpoleBalance", playground, 20_000),
    Case("playground/WalkerWalk", playground, 4_000),
    Case("brax/ant", brax, 20_000, 200, arguments={"backend": "spring"}),
    Case("gymnax/Breakout-MinAtar", gymnax, 200_000),
    Case("gymnax/CartPole-v1", gymnax, 1_000_000),
)


def actions(env: Any, size: int) -> Callable[[jax.Array, jax.Array | None], jax.Array]:
    """Return a function that samples uniform random actions for all copies.

    Given a mask `[E, N]`, it samples legal actions.
    """
    space = env.action_space

    def draw(key: jax.Array, mask: jax.Array | None) -> jax.Array:
        if isinstance(space, Box):
            return jax.random.uniform(key, (size, *space.shape), minval=-1.0)
        if mask is None:
            return jax.random.randint(key, (size,), 0, space.n)
        rank = jnp.floor(jax.random.uniform(key, (size,)) * mask.sum(-1)).astype(jnp.int32)
        return jnp.argmax(jnp.cumsum(mask, -1) > rank[:, None], -1).astype(jnp.int32)

    return draw


def streams_actions(env: Any, size: int) -> Callable[[jax.Array, Any], jax.Array]:
    """Return a function that samples random actions for observations of rollax.

    In games it samples one move for all players, because the actions of waiting players have no
    effect.
    """
    draw = actions(env, size)

    def chosen(key: jax.Array, obs: Any) -> jax.Array:
        mask = obs.get("action_mask") if isinstance(obs, dict) else None
        if env.num_agents is None or mask is None:
            return draw(key, mask)
        return jnp.broadcast_to(draw(key, mask[..., :-1].any(1))[:, None], (size, env.num_agents))

    return chosen


def measure(case: Case, size: int, repeats: int) -> None:
    env = rollax.make(case.name, **case.arguments)
    num_steps = max(8, case.frames // size)
    own, draw = case.own(env, size), actions(env, size)
    run, state = turns.ours(env, size, num_steps, streams_actions(env, size))
    for _ in range(case.warm_up // num_steps):
        state, _ = run(state)
    programs = {
        "ours": (run, state),
        "theirs": turns.theirs(
            own.reset, own.step, lambda key, state: draw(key, own.mask(state)), num_steps
        ),
    }
    turns.compare(case.name + case.label, size, size * num_steps, programs, repeats)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--copies", type=int, nargs="+", help="by default 64 and 1,024, of Craftax 256 at most"
    )
    parser.add_argument(
        "--only",
        nargs="+",
        default=[""],
        help="words, of which an environment's line must have one",
    )
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    print(f"jax {jax.__version__} on {jax.devices()[0].device_kind}")
    turns.header("steps/s")
    for case in CASES:
        if any(word in case.name + case.label for word in arguments.only):
            try:
                for size in arguments.copies or case.copies:
                    measure(case, size, arguments.repeats)
            except UsageError as error:  # the suite is not installed
                print(f"{case.name} is left out: {error}")


if __name__ == "__main__":
    main()
