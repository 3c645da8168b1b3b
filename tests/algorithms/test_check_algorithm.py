"""What `check_algorithm` says of an algorithm of one's own, and of copies of PPO that are broken on purpose."""

import runpy
import types
from pathlib import Path
from typing import Any

import pytest

import rollax
from rollax.algorithms import ppo
from rollax.algorithms.registry import AlgorithmEntry, _registered, find, registered
from rollax.checks.algorithm import FaultyAlgorithmError, check_algorithm
from rollax.networks import NetworkConfig

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_algorithm.py"
SMALL: dict[str, Any] = {"num_envs": 8, "num_steps": 16, "num_minibatches": 2, "learning_rate": 1e-2, "gamma": 0.9}
NETWORK = NetworkConfig(hidden=(16,))


def broken(*replacements: tuple[str, str]) -> AlgorithmEntry:
    """A copy of PPO with words of its source replaced."""
    source = Path(ppo.__file__).read_text()
    for before, after in replacements:
        assert source.count(before) == 1, before
        source = source.replace(before, after)
    module = types.ModuleType("broken")
    exec(compile(source, "broken", "exec"), vars(module))
    return AlgorithmEntry(module.ppo, module.PPOConfig)


def faults(entry: AlgorithmEntry) -> str:
    with pytest.raises(FaultyAlgorithmError) as caught:
        check_algorithm(entry, entry.config(**SMALL), NETWORK)
    return str(caught.value)


KEY = ("state = OnPolicyState(key, config,", "state = OnPolicyState(state.key, config,")
GREEDY = (
    "step, train_state.choose, explore)",
    "step, lambda config, greedy, *rest: train_state.choose(config, jnp.zeros((), bool), *rest), explore)",
)
EPISODES = (
    "Metrics(values, episodes, finite)",
    "Metrics(values, episodes._replace(total_return=2 * episodes.total_return), finite)",
)
TIME_LIMIT = (
    "ends = rollout.terminated, rollout.truncated",
    "ends = rollout.terminated | rollout.truncated, rollout.truncated",
)
SIGN = ("-losses.clipped_objective(", "losses.clipped_objective(")
TYPE = ("state.updates + 1)", "state.updates + 1.0)")
HOST = ("    # Credit\n", '    jax.debug.print("{}", rollout.reward)\n    # Credit\n')


def test_five_faults_in_a_copy_of_ppo() -> None:
    """Four are found in one go; a policy that learns the opposite is found before its time limits are looked at."""
    found = faults(broken(KEY, GREEDY, EPISODES, TIME_LIMIT))
    for words in (
        "every update draws the same random numbers: split state.key in step",
        "greedy=True depends on its key: give the mode",
        "episodes of return 6.0 and length 3 are reported as 12 and 3",
        "a time limit counts as an end of the task",
    ):
        assert words in found
    assert found.count("\n") == 4
    assert "does not learn the action that matches the observation" in faults(broken(SIGN))


def test_faults_of_form() -> None:
    """They end the check, in a moment."""
    found = faults(broken(TYPE, HOST))
    assert "step turns state.updates from int32[] into float32[]: keep both" in found
    assert "step calls the host" in found and found.count("\n") == 2


def test_the_example_keeps_the_laws(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is at most 90 lines, registers itself, passes the check, and is found by its name."""
    assert len(EXAMPLE.read_text().splitlines()) <= 90
    monkeypatch.delitem(_registered, "a2c", raising=False)
    runpy.run_path(str(EXAMPLE))
    name, entry = find("a2c")
    report = check_algorithm("a2c", entry.config(learning_rate=1e-2), NETWORK)
    assert report.name == name == "a2c" and report.notes == ()
    assert registered(entry) == "a2c" and "a2c" in rollax.list_algorithms()


def test_names() -> None:
    with pytest.raises(rollax.UsageError, match="ppo is an algorithm of rollax: register yours under another name"):
        rollax.register_algorithm("ppo", AlgorithmEntry(ppo.ppo, ppo.PPOConfig))
    with pytest.raises(rollax.UsageError, match="letters, digits and underscores"):
        rollax.register_algorithm("my algorithm", AlgorithmEntry(ppo.ppo, ppo.PPOConfig))
    with pytest.raises(rollax.UsageError, match="unknown algorithm 'pppo': did you mean ppo"):
        find("pppo")
