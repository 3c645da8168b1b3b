"""Algorithms by name: what a run needs to build them. An outsider's is one `AlgorithmEntry`, as ours are."""

import importlib.metadata
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import jax

from rollax.algorithm import Algorithm
from rollax.environments.core import Environment
from rollax.errors import UnknownNameError, UsageError
from rollax.networks.actor_critic import NetworkConfig, actor_critic

ENTRY_POINTS = "rollax.algorithms"


def fits(config: Any, network: Any) -> None:
    """Any settings go together; `init` says what does not."""


class AlgorithmEntry(NamedTuple):
    """How a run builds an algorithm: its settings, its network's settings, and the functions that take them."""

    make: Callable[[Environment, Callable[[jax.Array], Any]], Algorithm]  # (environment, key -> network) -> algorithm
    config: type  # of settings, with defaults: see `rollax.algorithm.Config`
    network_config: type = NetworkConfig
    make_network: Callable[[Environment, Any, jax.Array], Any] = actor_critic  # (environment, network config, key) -> network
    check: Callable[[Any, Any], None] = fits  # (config, network config): raises UsageError when they do not go together
    summary: str = ""
    unit: str = "steps"  # what steps count, in words: of the environment, or "evaluations" of solutions
    # Numbers by name, of updates and of evaluations (`Algorithm.state_metrics`), that a run shows besides returns.
    shown: tuple[str, ...] = ()


_registered: dict[str, AlgorithmEntry] = {}

# What papers have a name for and here is an algorithm with a setting.
ELSEWHERE = {
    "mappo": "MAPPO is ppo whose critic sees the state of all agents: ppo with --env.global-state true",
    "ippo": "IPPO is ppo in an environment with agents; --config.sharing says who shares parameters",
    "rnd": "random network distillation is ppo_rnd",
    "rppo": "recurrent PPO is ppo with --network.core gru (and --config.sequence-length)",
    "rl2": "RL^2 is ppo with a memory in an environment rl2/...: rollax envs rl2",
    "pbt": "population-based training is any algorithm with --evolve.NAME LOW HIGH and --seeds",
    "vtrace": "V-trace is impala",
    "ddpg": "td3 is DDPG with two critics, delayed updates and target noise",
    "ddqn": "double DQN is dqn, as it is by default",
    "cvt_map_elites": "MAP-Elites on Voronoi cells is map_elites with --config.cvt-cells",
}


def register_algorithm(name: str, entry: AlgorithmEntry) -> None:
    """Makes an algorithm known as `name`, to `train` and to the command line. The last registration of a name counts.

    Raises UsageError for a name of rollax's own, or one that cannot be part of a file's name.
    """
    from rollax.algorithms import ALGORITHMS

    if name in ALGORITHMS:
        raise UsageError(f"{name} is an algorithm of rollax: register yours under another name, such as my_{name}")
    if not name.replace("-", "_").isidentifier():
        raise UsageError(f"an algorithm's name is letters, digits and underscores, not {name!r}: try 'my_algorithm'")
    _registered[name] = entry


def registered(algorithm: AlgorithmEntry | str) -> str:
    """The name of an algorithm; an entry is registered under that of its constructor, if it is not registered already."""
    if not isinstance(algorithm, AlgorithmEntry):
        return algorithm
    names = [name for name, entry in list_algorithms().items() if entry == algorithm]
    if not names:
        names = [algorithm.make.__name__]
        register_algorithm(names[0], algorithm)
    return names[0]


def list_algorithms() -> dict[str, AlgorithmEntry]:
    """All algorithms by name: those of rollax, of other installed packages, and those registered."""
    from rollax.algorithms import ALGORITHMS

    return {**ALGORITHMS, **{name: point.load() for name, point in _entry_points().items()}, **_registered}


def find(algorithm: AlgorithmEntry | str) -> tuple[str, AlgorithmEntry]:
    """Name and entry of an algorithm, which may be given by its name. Raises UnknownNameError for one that is not there."""
    if isinstance(algorithm, AlgorithmEntry):
        return algorithm.make.__name__, algorithm
    from rollax.algorithms import ALGORITHMS

    if algorithm in ALGORITHMS:
        return algorithm, ALGORITHMS[algorithm]
    if algorithm in _registered:
        return algorithm, _registered[algorithm]
    if algorithm in _entry_points():
        return algorithm, _entry_points()[algorithm].load()
    if algorithm.lower().replace("-", "_") in ELSEWHERE:
        raise UsageError(f"unknown algorithm {algorithm!r}: {ELSEWHERE[algorithm.lower().replace('-', '_')]}")
    raise UnknownNameError("algorithm", algorithm, [*ALGORITHMS, *_registered, *_entry_points()])


@cache
def _entry_points() -> dict[str, importlib.metadata.EntryPoint]:
    """Algorithms of other installed packages: the entry point's name is the algorithm's, its object an `AlgorithmEntry`."""
    return {point.name: point for point in importlib.metadata.entry_points(group=ENTRY_POINTS)}
