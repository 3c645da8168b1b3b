"""Speed of JaxMARL environments and of training in them.

Usage: `python benchmarks/agents.py environment` or `python benchmarks/agents.py training`.

`environment` compares random actions with the restarts of rollax and with the auto-resetting `step`
of JaxMARL, in turns. `training` measures PPO with the settings of the published IPPO baselines of
JaxMARL (baselines/IPPO/config in its repository):

- MPE_simple_spread_v3, ippo_ff_mpe.yaml: 16 environments, 128 steps, 4 epochs of 4 minibatches,
  learning rate 2.5e-4, annealed over 1e7 frames, 64 x 64 tanh units.
- HeuristicEnemySMAX, ippo_rnn_smax.yaml, with scenario 3m instead of 2s3z: 128 environments, 128
  steps, 4 epochs of 4 minibatches, learning rate 4e-3, annealed over 1e7 frames, clip range 0.05,
  gradient norm 0.25, 128 relu units, a GRU of 128 and 128 more units, whole rollouts as sequences.
  The two heads share one network. In the baseline, each head has its own 128 units.

Steps are agent steps: environment frames times agents. Results are medians over repeats.
"""

import argparse
import dataclasses
import functools
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import turns

import rollax


class Case(NamedTuple):
    """Environment with its published settings."""

    name: str
    arguments: dict[str, Any]
    config: dict[str, Any]
    network: dict[str, Any]


_SHARED = {
    "num_steps": 128,
    "num_epochs": 4,
    "num_minibatches": 4,
    "learning_rate_final_fraction": 0.0,
}
_TOTAL_FRAMES = 10_000_000
CASES = (
    Case(
        "MPE_simple_spread_v3",
        {},
        {"num_envs": 16, "learning_rate": 2.5e-4, **_SHARED},
        {"hidden": (64, 64), "activation": "tanh"},
    ),
    Case(
        "HeuristicEnemySMAX",
        {"scenario": "3m"},
        {
            "num_envs": 128,
            "sequence_length": 128,
            "learning_rate": 4e-3,
            "clip": 0.05,
            "max_grad_norm": 0.25,
            **_SHARED,
        },
        {
            "hidden": (128,),
            "activation": "relu",
            "core": "gru",
            "core_size": 128,
            "head_hidden": (128,),
            "shared": True,
        },
    ),
)


def uniform(env: Any, size: int) -> Callable[[jax.Array, Any], jax.Array]:
    return lambda key, state: jax.random.randint(key, (size, env.num_agents), 0, env.action_space.n)


def theirs(env: Any, size: int, num_steps: int) -> turns.Program:
    """Build a program of the auto-resetting `step` of JaxMARL, which resets at every step.

    Legal actions are also computed in SMAX, because rollax adds them to the observations.
    """
    dynamics = env.dynamics

    def step(key: jax.Array, state: Any, action: jax.Array) -> tuple[Any, Any]:
        by_name = {agent: action[:, i] for i, agent in enumerate(dynamics.agents)}
        obs, state, reward, done, _ = jax.vmap(dynamics.step)(
            jax.random.split(key, size), state, by_name
        )
        legal = jax.vmap(dynamics.get_avail_actions)(state) if "SMAX" in env.name else {}
        return state, (obs, reward, done, legal)

    def reset(key):
        return jax.vmap(dynamics.reset)(jax.random.split(key, size))[1]

    return turns.theirs(reset, step, uniform(env, size), num_steps)


def environment(arguments: argparse.Namespace) -> None:
    turns.header("agent steps/s")
    for case in CASES:
        env = rollax.make(f"jaxmarl/{case.name}", **case.arguments)
        for size in arguments.copies:
            num_steps = max(32, arguments.frames // size)
            ours = turns.ours(env, size, num_steps, uniform(env, size))
            programs = {"ours": ours, "theirs": theirs(env, size, num_steps)}
            turns.compare(
                case.name, size, size * num_steps * env.num_agents, programs, arguments.repeats
            )


def training(arguments: argparse.Namespace) -> None:
    print(f"{'environment':<24} {'agent steps/s':>14} {'frames/s':>10} {'compile s':>10}")
    for case in CASES:
        env = rollax.make(f"jaxmarl/{case.name}", **case.arguments)
        config = rollax.PPOConfig(**case.config)
        config = dataclasses.replace(config, total_updates=_TOTAL_FRAMES / config.steps_per_update)
        algorithm = rollax.ppo(
            env, functools.partial(rollax.actor_critic, env, rollax.NetworkConfig(**case.network))
        )
        state = jax.jit(algorithm.init)(jax.random.key(0), config)
        started = time.perf_counter()
        step = jax.jit(algorithm.step, donate_argnums=0).lower(state).compile()
        compiling = time.perf_counter() - started
        times = []
        for _ in range(arguments.repeats + 1):
            started = time.perf_counter()
            state, _ = jax.block_until_ready(step(state))
            times.append(time.perf_counter() - started)
        speed = config.steps_per_update / statistics.median(times[1:])
        print(
            f"{case.name:<24} {speed * env.num_agents:>14,.0f} {speed:>10,.0f} {compiling:>10.1f}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("environment", "training"))
    parser.add_argument("--copies", type=int, nargs="+", default=[16, 128, 1024])
    parser.add_argument(
        "--frames", type=int, default=100_000, help="environment frames of one measurement"
    )
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    print(f"jax {jax.__version__} on {jax.devices()[0].device_kind}")
    {"environment": environment, "training": training}[arguments.what](arguments)


if __name__ == "__main__":
    main()
