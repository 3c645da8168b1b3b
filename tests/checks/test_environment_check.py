"""Tests of the environment check with deliberately broken and with valid environments."""

import time
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import rollax
from checks.broken_environments import BROKEN, Clock, Runners, start_with, step_with
from rollax.checks.environment_check import (
    FaultyEnvironmentError,
    check_contract,
    check_environment,
)
from rollax.environments import Transition, make
from rollax.environments.capabilities import capabilities
from rollax.environments.wrappers import AgentId
from rollax.errors import UsageError


@pytest.mark.parametrize("name", BROKEN)
def test_an_error_is_reported_with_its_remedy(name: str) -> None:
    """The contract check finds every error that does not need random steps."""
    env, words, in_play = BROKEN[name]
    if in_play:
        check_contract(env)
    with pytest.raises(FaultyEnvironmentError) as error:
        check_environment(env, steps=12) if in_play else check_contract(env)
    assert (
        len(error.value.faults) == str(error.value).count("\n")
        and max(map(len, error.value.faults)) < 600
    )
    for word in words:
        assert word in str(error.value)


def test_the_contract_check_is_fast() -> None:
    """Nothing is compiled. It takes tenths of a second of processor time."""
    for env in (Clock(), make("probe/memory"), make("control/point-maze")):
        began = time.process_time()
        check_contract(env)
        assert time.process_time() - began < 2


@pytest.mark.parametrize("steps", [0, -1, 2.5])
def test_the_number_of_steps_must_be_a_positive_integer(steps: float) -> None:
    with pytest.raises(UsageError, match=r"steps .*must be (a positive|an) integer"):
        check_environment(Clock(), steps=steps)  # pyright: ignore[reportArgumentType]


def test_all_errors_are_listed_together() -> None:
    broken = step_with(reward=lambda t: 1, truncated=lambda t: 0, info=lambda t: None)
    with pytest.raises(FaultyEnvironmentError, match="in 5 ways") as error:
        check_environment(Clock(start=start_with(place=0.5), advance=broken))
    assert len(error.value.faults) == 5


def test_a_valid_environment_passes_with_notes() -> None:
    report = check_environment(Clock(), steps=12)
    assert (report.steps, report.episodes, report.notes) == (48, 8, ())
    report = check_environment(make("probe/truncation"), steps=4)
    assert any("same start" in note for note in report.notes) and any(
        "no episode ended" in note for note in report.notes
    )
    assert "probe/truncation keeps the contract" in str(report)


def test_flags_with_their_start_value_are_not_taken_for_a_reset() -> None:
    """The state has no clock.

    Its only constant after a reset is a flag, which changes in an episode.
    """

    def start(key: jax.Array) -> Any:
        state = {"has_key": jnp.zeros((), bool), "place": jax.random.uniform(key, maxval=0.5)}
        return state, observe(state)

    def observe(state: Any) -> jax.Array:
        return jnp.stack([state["has_key"].astype(jnp.float32), state["place"]])

    def advance(key: jax.Array, state: Any, action: Any) -> Transition:
        place = state["place"] + 0.3
        end = place > 1
        state = {"has_key": ~end, "place": place}
        return Transition(state, observe(state), jnp.float32(1.0), end, end & False, {})

    assert check_environment(Clock(start=start, advance=advance), steps=12).episodes > 4


def test_environments_stacked_by_vmap_are_reported() -> None:
    many = jax.vmap(lambda g: make("gymnax/CartPole-v1", gravity=g))(jnp.linspace(5, 20, 8))
    with pytest.raises(
        FaultyEnvironmentError, match="all .* lead with an axis of 8, .*DomainRandomization"
    ):
        check_contract(many)


class Parallel:
    """Attributes of an environment of PettingZoo."""

    possible_agents = ("a", "b")
    metadata = {"name": "game"}

    def observation_space(self, agent: str) -> Any: ...
    def reset(self, seed: Any = None) -> Any: ...
    def step(self, actions: Any) -> Any: ...


@pytest.mark.parametrize(
    "give",
    [
        check_environment,
        rollax.from_gymnasium,
        lambda env: rollax.train("ppo", env, total_steps=64),
    ],
)
def test_an_environment_of_pettingzoo_is_reported(give: Any) -> None:
    with pytest.raises(UsageError, match=r"PettingZoo. Pass rollax.from_pettingzoo\(make\)"):
        give(Parallel())


def test_agents_must_report_their_end_until_the_last_step() -> None:
    report = check_environment(Runners(), steps=12)
    assert report.episodes == 12 and not any("own end" in note for note in report.notes)
    with pytest.raises(
        FaultyEnvironmentError,
        match="agent 0 reports its end and then no longer.* Keep in the state which",
    ):
        check_environment(Runners(once=True), steps=4)
    assert any(
        "rewards after their own end" in note
        for note in check_environment(Runners(pays=True), steps=12).notes
    )


def test_agent_types_are_optional() -> None:
    """All agents are then of one type."""
    assert (
        capabilities(Runners()).agent_types == ("agent",) * 3
        and capabilities(Clock()).agent_types == ()
    )
    assert AgentId(Runners()).agent_types == ("agent",) * 3
