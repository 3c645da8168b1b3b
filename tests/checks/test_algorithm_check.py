"""Tests of `check_algorithm` with a custom algorithm and with deliberately broken copies of PPO."""

import runpy
import sys
import types
from pathlib import Path
from typing import Any

import pytest

import rollax
from rollax.algorithms import on_policy, ppo
from rollax.algorithms.registry import (
    AlgorithmEntry,
    _registered_entries,
    ensure_registered,
    find_algorithm,
)
from rollax.checks.algorithm_check import FaultyAlgorithmError, check_algorithm
from rollax.learning import returns
from rollax.networks import NetworkConfig

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_algorithm.py"
SMALL: dict[str, Any] = {
    "num_envs": 8,
    "num_steps": 16,
    "num_minibatches": 2,
    "learning_rate": 1e-2,
    "gamma": 0.9,
}
NETWORK = NetworkConfig(hidden=(16,))


def broken(*replacements: tuple[str, str]) -> AlgorithmEntry:
    """Return a copy of PPO and of two modules that it uses, with replacements in their sources."""
    sources = {
        module.__name__: Path(module.__file__).read_text() for module in (returns, on_policy, ppo)
    }
    for before, after in replacements:
        assert sum(source.count(before) for source in sources.values()) == 1, before
        sources = {name: source.replace(before, after) for name, source in sources.items()}
    for name, source in sources.items():
        module = types.ModuleType(f"broken_{name.rpartition('.')[2]}")
        for other in sources:
            source = source.replace(
                f"from {other} import", f"from broken_{other.rpartition('.')[2]} import"
            )
        sys.modules[module.__name__] = module
        exec(compile(source, module.__name__, "exec"), vars(module))
    return AlgorithmEntry(module.ppo, module.PPOConfig)


def faults(entry: AlgorithmEntry) -> str:
    with pytest.raises(FaultyAlgorithmError) as caught:
        check_algorithm(entry, entry.config(**SMALL), NETWORK)
    return str(caught.value)


KEY = ("key=keys.next,", "key=state.key,")
GREEDY = ("jnp.asarray(greedy))", "jnp.zeros((), bool))")
EPISODES = (
    "rollout.episodes, finite,",
    "rollout.episodes._replace(total_return=2 * rollout.episodes.total_return), finite,",
)
TIME_LIMIT = (
    "        rollout.terminated,\n        rollout.truncated,",
    "        rollout.terminated | rollout.truncated,\n        rollout.truncated,",
)
SIGN = ("-losses.clipped_objective(", "losses.clipped_objective(")
TYPE = ("updates=state.updates + 1,", "updates=state.updates + 1.0,")
HOST = (
    "    end = RolloutEnd(",
    '    jax.debug.print("{}", rollout.experience.reward)\n    end = RolloutEnd(',
)


def test_five_errors_in_copies_of_ppo() -> None:
    """Four errors are reported together.

    A policy that learns the opposite is reported before time limits are checked.
    """
    found = faults(broken(KEY, GREEDY, EPISODES, TIME_LIMIT))
    for words in (
        "every update draws the same random numbers. Split state.key in step",
        "greedy=True depends on its key. Return the mode",
        "Episodes of return 6.0 and length 3 are reported as 12 and 3",
        "A time limit counts as termination",
    ):
        assert words in found
    assert found.count("\n") == 4
    assert "does not learn the action that matches the observation" in faults(broken(SIGN))


@pytest.mark.quick
def test_errors_of_form_end_the_check_early() -> None:
    """The check stops before any training."""
    found = faults(broken(TYPE, HOST))
    assert "step changes state.updates from int32[] to float32[]. Keep shape and dtype" in found
    assert "step calls the host" in found and found.count("\n") == 2


def test_the_example_passes_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has at most 90 lines, registers itself, passes the check and is found by name."""
    assert len(EXAMPLE.read_text().splitlines()) <= 90
    monkeypatch.delitem(_registered_entries, "a2c", raising=False)
    runpy.run_path(str(EXAMPLE))
    name, entry = find_algorithm("a2c")
    report = check_algorithm("a2c", entry.config(learning_rate=1e-2), NETWORK)
    assert report.name == name == "a2c" and report.notes == ()
    assert ensure_registered(entry) == "a2c" and "a2c" in rollax.list_algorithms()


@pytest.mark.quick
def test_invalid_algorithm_names_are_refused() -> None:
    with pytest.raises(
        rollax.UsageError, match="ppo is an algorithm of rollax. Register yours under another name"
    ):
        rollax.register_algorithm("ppo", AlgorithmEntry(ppo.ppo, ppo.PPOConfig))
    with pytest.raises(rollax.UsageError, match="letters, digits and underscores"):
        rollax.register_algorithm("my algorithm", AlgorithmEntry(ppo.ppo, ppo.PPOConfig))
    with pytest.raises(rollax.UsageError, match="unknown algorithm 'pppo': did you mean ppo"):
        find_algorithm("pppo")
