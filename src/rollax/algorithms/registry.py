"""Registry of built-in and custom algorithms, which finds an `AlgorithmEntry` by its name."""

import importlib
import importlib.metadata
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import jax

from rollax.algorithm import Algorithm
from rollax.algorithms import derived_settings, learning_signals, settings_checks
from rollax.algorithms.builtin import BUILTIN_ALGORITHMS, DemonstrationUse
from rollax.algorithms.derived_settings import DerivedSettings
from rollax.algorithms.learning_signals import LearningSignals
from rollax.environments.environment import Environment
from rollax.errors import UnknownNameError, UsageError
from rollax.networks.actor_critic import NetworkConfig, actor_critic
from rollax.populations.evolution import EPISODE_RETURN
from rollax.types import Parameters, Settings
from rollax.user_input.arguments import coerce_arguments
from rollax.user_input.coercion import format_value

ENTRY_POINT_GROUP = "rollax.algorithms"


class AlgorithmEntry(NamedTuple):
    """Constructors, settings classes and metadata of an algorithm.

    Attributes:
        make: Function `(environment, network)` that returns the algorithm. `network` is a function
            from a random key to a network. If `demonstrations` is not "none", the function has a
            third, optional argument `demonstrations` (`rollax.Demonstrations`).
        config: Settings class with defaults for all fields (`rollax.algorithm.Config`).
        network_config: Settings class of the network.
        make_network: Function `(environment, network_config, key)` that returns the network.
        check: Function `(config, network_config)` that raises a `UsageError` if the settings are
            inconsistent.
        summary: One-line description.
        unit: Unit of the step counts: "steps" of the environment, "evaluations" of solutions, or
            "samples" of demonstrated steps.
        console_metrics: Names of metrics of updates or of `Algorithm.state_metrics` that a run
            prints in addition to returns.
        evolve_metric: Default selection metric of population-based training
            (`RunOptions.evolve_metric`): the mean return in training ("episode_return"), or the
            name of a metric of updates or of `Algorithm.state_metrics`. Larger is better.
        derive_settings: Function from the config to the `DerivedSettings` of a run, such as the
            number of environments (`rollax.algorithms.derived_settings`).
        adapt_to_host: Function from the config to the config to use with simulators on the host.
        derive_signals: Function `(config, network_config)` that returns the `LearningSignals` of a
            run, the metrics that warnings about training read
            (`rollax.algorithms.learning_signals`).
        demonstrations: Use of demonstrations: "none", "optional" or "required".
    """

    make: Callable[..., Algorithm]
    config: type
    network_config: type = NetworkConfig
    make_network: Callable[[Environment, Settings, jax.Array], Parameters] = actor_critic
    check: Callable[[Settings, Settings], None] = settings_checks.accept_any_settings
    summary: str = ""
    unit: str = "steps"
    console_metrics: tuple[str, ...] = ()
    evolve_metric: str = EPISODE_RETURN
    derive_settings: Callable[[Settings], DerivedSettings] = derived_settings.derive_nothing
    adapt_to_host: Callable[[Settings], Settings] = derived_settings.keep_settings
    derive_signals: Callable[[Settings, Settings], LearningSignals] = learning_signals.watch_nothing
    demonstrations: DemonstrationUse = "none"


def _load_builtin(name: str) -> AlgorithmEntry:
    """Import a built-in algorithm and return its entry."""
    builtin = BUILTIN_ALGORITHMS[name]
    module = importlib.import_module(f"rollax.algorithms.{name}")
    network = importlib.import_module(builtin.network.module)
    return AlgorithmEntry(
        make=getattr(module, name),
        config=getattr(module, builtin.config),
        network_config=getattr(network, builtin.network.config),
        make_network=getattr(network, builtin.network.make),
        check=getattr(settings_checks, builtin.check),
        summary=builtin.summary,
        unit=builtin.unit,
        console_metrics=builtin.console_metrics,
        evolve_metric=builtin.evolve_metric,
        derive_settings=getattr(derived_settings, builtin.derive_settings),
        adapt_to_host=getattr(derived_settings, builtin.adapt_to_host),
        derive_signals=getattr(learning_signals, builtin.derive_signals),
        demonstrations=builtin.demonstrations,
    )


ALGORITHMS: dict[str, AlgorithmEntry] = {name: _load_builtin(name) for name in BUILTIN_ALGORITHMS}

_registered_entries: dict[str, AlgorithmEntry] = {}

# Names from papers of methods that rollax implements as a setting of another algorithm.
ALIAS_HINTS = {
    "mappo": "MAPPO is ppo with --env.global-state true, which critics observe",
    "ippo": "IPPO is ppo in a multi-agent environment; --config.sharing selects shared parameters",
    "rnd": "random network distillation is ppo_rnd",
    "rppo": "recurrent PPO is ppo with --network.core gru (and --config.sequence-length)",
    "rl2": "RL^2 is ppo with memory in an environment rl2/... To list them, run: rollax envs rl2",
    "pbt": "population-based training is any algorithm with --evolve.NAME LOW HIGH and --seeds",
    "vtrace": "V-trace is part of impala",
    "ddpg": "td3 is DDPG with two critics, delayed updates and target noise",
    "ddqn": "double DQN is dqn with its default settings",
    "qrdqn": "quantile regression DQN is qr_dqn",
    "categorical_dqn": "categorical DQN is c51",
    "noisynet": "noisy networks are dqn with --network.noisy",
    "behavior_cloning": "behavior cloning is bc, with --demonstrations FILE",
    "behavioral_cloning": "behavior cloning is bc, with --demonstrations FILE",
    "imitation": "imitation of demonstrations is bc, with --demonstrations FILE",
    "cvt_map_elites": "MAP-Elites on Voronoi cells is map_elites with --config.cvt-cells",
}


@coerce_arguments(name=str)
def register_algorithm(name: str, entry: AlgorithmEntry) -> None:
    """Register an algorithm under a name for `train` and the command line.

    A later registration under the same name replaces the earlier one.

    Args:
        name: Name of the algorithm, which consists of letters, digits, underscores and hyphens.
        entry: Entry of the algorithm.

    Raises:
        UsageError: If the name belongs to a built-in algorithm or is not valid, or if `entry` is
            not an `AlgorithmEntry`.
    """
    if not isinstance(entry, AlgorithmEntry):
        raise UsageError(
            f"entry must be an AlgorithmEntry, got {format_value(entry)}. "
            f"Build one from the constructor of {name}."
        )
    if name in ALGORITHMS:
        raise UsageError(
            f"{name} is an algorithm of rollax. Register yours under another name, such as "
            f"my_{name}."
        )
    if not name.replace("-", "_").isidentifier():
        raise UsageError(
            "The name of an algorithm must consist of letters, digits and underscores, got "
            f"{name!r}. Use a name like 'my_algorithm'."
        )
    _registered_entries[name] = entry


def ensure_registered(algorithm: AlgorithmEntry | str) -> str:
    """Return the name of an algorithm. Register an entry that is not registered yet.

    Args:
        algorithm: Name or entry. A new entry is registered under the name of its constructor.

    Returns:
        The name.

    Raises:
        UsageError: If the name of the constructor belongs to a built-in algorithm.
    """
    if not isinstance(algorithm, AlgorithmEntry):
        return algorithm
    names = [name for name, entry in list_algorithms().items() if entry == algorithm]
    if not names:
        names = [algorithm.make.__name__]
        register_algorithm(names[0], algorithm)
    return names[0]


def list_algorithms() -> dict[str, AlgorithmEntry]:
    """Return the built-in, installed and registered algorithms, keyed by name."""
    return {
        **ALGORITHMS,
        **{name: point.load() for name, point in _entry_points().items()},
        **_registered_entries,
    }


def find_algorithm(algorithm: AlgorithmEntry | str) -> tuple[str, AlgorithmEntry]:
    """Return the name and the entry of an algorithm.

    Args:
        algorithm: Name or entry.

    Returns:
        The name and the entry.

    Raises:
        UsageError: If `algorithm` is neither a string nor an entry, or if rollax implements it as a
            setting of another algorithm.
        UnknownNameError: If no algorithm has this name.
    """
    if isinstance(algorithm, AlgorithmEntry):
        return algorithm.make.__name__, algorithm
    if not isinstance(algorithm, str):
        raise UsageError(
            "algorithm must be the name of an algorithm or an AlgorithmEntry, got "
            f"{format_value(algorithm)}."
        )
    if algorithm in ALGORITHMS:
        return algorithm, ALGORITHMS[algorithm]
    if algorithm in _registered_entries:
        return algorithm, _registered_entries[algorithm]
    if algorithm in _entry_points():
        return algorithm, _entry_points()[algorithm].load()
    if algorithm.lower().replace("-", "_") in ALIAS_HINTS:
        raise UsageError(
            f"Unknown algorithm {algorithm!r}: {ALIAS_HINTS[algorithm.lower().replace('-', '_')]}."
        )
    raise UnknownNameError(
        "algorithm", algorithm, [*ALGORITHMS, *_registered_entries, *_entry_points()]
    )


@cache
def _entry_points() -> dict[str, importlib.metadata.EntryPoint]:
    """Return the entry points of installed packages, keyed by the name of the algorithm."""
    return {point.name: point for point in importlib.metadata.entry_points(group=ENTRY_POINT_GROUP)}
