"""Tests of games with turns: agents that wait have no part in policy metrics and policy losses."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rollax import ImpalaConfig, NetworkConfig, PPOConfig, Transition, actor_critic, impala, ppo
from rollax.acting import parameter_sharing
from rollax.acting.streams import unroll
from rollax.algorithms.ppo_rnd import PPORNDConfig, ppo_rnd
from rollax.environments.capabilities import find_acting_agents
from rollax.environments.wrappers import AgentId
from rollax.learning import losses, train_state
from rollax.spaces import Box, Dict, Discrete

MOVES = 4  # of a game; the last move has a single legal action


class Turns(eqx.Module):
    """Game of four moves by two agents in turn, with 4, 3, 2 and 1 legal actions.

    The last action is to wait. It is the only legal one while the other agent moves.
    """

    declares: bool = eqx.field(static=True, default=True)

    name = "test/turns"
    num_agents = 2
    time_limit = MOVES
    observation_space = Dict(
        {"observation": Box(0.0, 1.0, (2,)), "action_mask": Box(0.0, 1.0, (MOVES + 1,), "bool")}
    )
    action_space = Discrete(MOVES + 1)

    @property
    def waiting_action(self) -> int | None:
        return MOVES if self.declares else None

    def reset(self, key: jax.Array) -> tuple[Any, Any]:
        state = jnp.zeros((), jnp.int32)
        return state, self.observe(state)

    def observe(self, state: Any) -> Any:
        acts = jnp.arange(2) == state % 2
        legal = jnp.where(
            acts[:, None], jnp.arange(MOVES + 1) < MOVES - state, jnp.arange(MOVES + 1) == MOVES
        )
        features = jnp.stack([acts.astype(jnp.float32), jnp.full(2, state / MOVES)], axis=1)
        return {"observation": features, "action_mask": legal}

    def step(self, key: jax.Array, state: Any, action: Any) -> Transition:
        mover = state % 2
        reward = jnp.where(jnp.arange(2) == mover, 1.0, -1.0) * (action[mover] == 0)
        ended = jnp.broadcast_to(state + 1 >= MOVES, 2)
        return Transition(state + 1, self.observe(state + 1), reward, ended, jnp.zeros(2, bool), {})


def stepped(
    make: Any, config: Any, environment: Any, network: Any = None, updates: int = 2
) -> tuple[Any, Any]:
    """Return the algorithm's state and its metrics after some updates."""
    shape = NetworkConfig(**({"hidden": (8,)} | (network or {})))
    algorithm = make(environment, lambda key: actor_critic(environment, shape, key))
    state = jax.jit(lambda key: algorithm.init(key, config))(jax.random.key(0))
    step = jax.jit(algorithm.step)
    for _ in range(updates):
        state, metrics = step(state)
    return state, metrics.values


SIZES = {"num_envs": 4, "num_steps": 8, "learning_rate": 0.0}
EXPECTED = np.mean(
    np.log(np.arange(1, MOVES + 1))
)  # for a policy that is uniform over legal actions
KINDS: list[tuple[str, Any, Any, dict[str, Any]]] = [
    ("ppo", ppo, PPOConfig(**SIZES, num_minibatches=2), {}),
    (
        "ppo-gru",
        ppo,
        PPOConfig(**SIZES, num_minibatches=2, sequence_length=4),
        {"core": "gru", "core_size": 4},
    ),
    (
        "ppo_rnd",
        ppo_rnd,
        PPORNDConfig(**SIZES, num_minibatches=2, novelty_hidden=4, novelty_outputs=2),
        {},
    ),
    ("impala", impala, ImpalaConfig(**SIZES, sequence_length=4), {}),
]


@pytest.mark.parametrize(
    ("name", "make", "config", "network"), KINDS, ids=[kind[0] for kind in KINDS]
)
def test_entropy_is_that_of_acting_agents(name: str, make: Any, config: Any, network: Any) -> None:
    """The forced last move counts with entropy 0.

    Waiting agents do not count. A new policy is nearly uniform.
    """
    _, values = stepped(make, config, Turns(), network)
    assert float(values["entropy"]) == pytest.approx(EXPECTED, rel=0.03)


def test_the_clip_fraction_is_that_of_acting_agents() -> None:
    """A tiny range clips all moves with a choice, 3 of 4.

    The first minibatch may use the policy that acted.
    """
    config = PPOConfig(
        num_envs=4, num_steps=8, num_minibatches=2, num_epochs=4, learning_rate=1e-2, clip=1e-6
    )
    _, values = stepped(ppo, config, Turns(), updates=1)
    assert float(values["clip_fraction"]) == pytest.approx(0.7, abs=0.06)


def test_policy_means_are_over_acting_agents() -> None:
    """KL estimate, clip fraction and policy gradient ignore other agents.

    Values count for all agents.
    """
    environment, config = Turns(), PPOConfig(num_envs=4, num_steps=8)
    team = parameter_sharing.make_agent_groups(environment, "all")
    state, _ = stepped(ppo, config, environment)
    policy = parameter_sharing.make_policy(team, train_state.sample_action_with_extras, state.train)
    _, rollout, _ = unroll(environment, policy, state.actor, jax.random.key(3), 8)
    assert rollout.acts is not None and float(jnp.mean(rollout.acts)) == 0.5
    numbers = jax.random.normal(jax.random.key(4), rollout.acts.shape)
    terms = {"policy_loss": numbers, "value_loss": numbers, "entropy": numbers}
    found = losses.masked_means(
        terms, rollout.mask, losses.policy_mask(rollout.mask, rollout.acts), values=("value_loss",)
    )
    expected = float(numbers[np.asarray(rollout.acts)].mean())
    assert (
        float(found["policy_loss"]) == float(found["entropy"]) == pytest.approx(expected, abs=1e-6)
    )
    assert float(found["value_loss"]) == pytest.approx(float(numbers.mean()), abs=1e-6)


@pytest.mark.quick
@pytest.mark.parametrize("make", [Turns, lambda: AgentId(Turns())])
def test_acting_agents_are_found(make: Callable[[], Any]) -> None:
    """They are found by the declared waiting action, also through a wrapper.

    Without a declaration, agents with more than one legal action act.
    """
    environment = make()
    for move in range(MOVES):
        acts = find_acting_agents(environment, Turns().observe(move))
        assert acts is not None and acts.tolist() == [move % 2 == 0, move % 2 == 1]
    acts = find_acting_agents(Turns(declares=False), Turns().observe(MOVES - 1))
    assert acts is not None and acts.tolist() == [False, False], "no choice is left"


def test_agents_that_always_act_are_not_masked() -> None:
    from rollax import make

    for id in ("probe/two-agents", "probe/masked", "probe/action-reward"):
        environment = make(id)
        _, obs = environment.reset(jax.random.key(0))
        acts = find_acting_agents(environment, obs)
        assert acts is None or bool(jnp.all(acts)), id


def test_entropy_of_tic_tac_toe() -> None:
    """Over the moves of random games the mean is 1.59 nats: 12.16 in a game of 7.63 moves."""
    pytest.importorskip("pgx")
    from rollax import make

    with jax.debug_key_reuse(False):
        environment = make("pgx/tic_tac_toe")
        sizes = {"num_envs": 32, "num_steps": 32, "num_minibatches": 4, "learning_rate": 0.0}
        _, values = stepped(ppo, PPOConfig(**sizes), environment)
    assert float(values["entropy"]) == pytest.approx(1.594, rel=0.03)
