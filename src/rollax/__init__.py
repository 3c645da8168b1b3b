"""Reinforcement learning in JAX, with environment, policy and learner in one compiled program.

Public names are imported when they are first used (PEP 562). `import rollax` is therefore fast, and
does not import JAX, environment suites or plotting libraries.
"""

import importlib
import importlib.util
import sys
from typing import TYPE_CHECKING, Any

from rollax.runtime import startup  # noqa: F401  must precede the slow imports
from rollax.algorithms.builtin import BUILTIN_ALGORITHMS
from rollax.version import __version__

if TYPE_CHECKING:  # the names below, for type checkers
    # Runs
    from rollax.api import resume as resume, train as train
    from rollax.visualization.tables.tournament import (
        CrossPlay as CrossPlay,
        cross_play as cross_play,
    )
    from rollax.loading import load as load
    from rollax.policy import Policy as Policy
    from rollax.training.callbacks.events import RunEvent as RunEvent
    from rollax.training.options import RunOptions as RunOptions
    from rollax.training.result import Evaluated as Evaluated, Result as Result
    from rollax.training.run_folder.tables import Tables as Tables, read as read
    from rollax.visualization.tables.paper_tables import table as table
    from rollax.visualization.tables.run_table import RunTable as RunTable
    from rollax.sweeps.sweep import Swept as Swept, sweep as sweep
    from rollax.exporting.exporter import Exported as Exported, export as export
    from rollax.exporting.gymnasium_export import to_gymnasium as to_gymnasium
    from rollax.visualization.run_views import (
        plot as plot,
        render as render,
        report as report,
    )
    from rollax.runtime.notebook import Animation as Animation
    from rollax.errors import UsageError as UsageError

    # Demonstrations
    from rollax.training.datasets.demonstration_recorder import record as record
    from rollax.replay.demonstrations import Demonstrations as Demonstrations
    from rollax.training.datasets.demonstration_files import (
        load_demonstrations as load_demonstrations,
        save_demonstrations as save_demonstrations,
    )

    # Environments
    from rollax.environments import (
        Environment as Environment,
        Transition as Transition,
        list_environments as list_environments,
        make as make,
        register as register,
    )
    from rollax.environments.suites.brax.objects import from_brax as from_brax
    from rollax.environments.suites.gymnasium.objects import from_gymnasium as from_gymnasium
    from rollax.environments.suites.pettingzoo.objects import from_pettingzoo as from_pettingzoo
    from rollax.environments.suites.gymnax.objects import from_gymnax as from_gymnax
    from rollax.environments.suites.jumanji.objects import from_jumanji as from_jumanji
    from rollax.environments.suites.pgx.objects import from_pgx as from_pgx
    from rollax.environments.suites.playground.objects import from_playground as from_playground
    from rollax.checks.environment_check import check_environment as check_environment

    # Networks
    from rollax.networks import NetworkConfig as NetworkConfig, actor_critic as actor_critic
    from rollax.networks.interop import (
        from_equinox as from_equinox,
        from_function as from_function,
        from_linen as from_linen,
        from_nnx as from_nnx,
    )

    # Algorithms
    from rollax.algorithm import Algorithm as Algorithm, Metrics as Metrics
    from rollax.algorithms.registry import (
        AlgorithmEntry as AlgorithmEntry,
        list_algorithms as list_algorithms,
        register_algorithm as register_algorithm,
    )
    from rollax.checks.algorithm_check import check_algorithm as check_algorithm

    # Custom training loops
    from rollax.acting.evaluation import Episodes as Episodes
    from rollax.populations import population as population
    from rollax.populations.evolution import evolve as evolve, evolving as evolving
    from rollax.training.compile.segments import segment as segment

    # Archives
    from rollax.training.elites.ask_tell import AskTell as AskTell
    from rollax.training.elites.merging import (
        Comparison as Comparison,
        compare_archives as compare_archives,
        merge_archives as merge_archives,
    )

    # Built-in algorithms, one line for each entry of `BUILTIN_ALGORITHMS`
    from rollax.algorithms.aurora import AURORAConfig as AURORAConfig, aurora as aurora
    from rollax.algorithms.bc import BCConfig as BCConfig, bc as bc
    from rollax.algorithms.cma_mae import CMAMAEConfig as CMAMAEConfig, cma_mae as cma_mae
    from rollax.algorithms.cma_maega import CMAMAEGAConfig as CMAMAEGAConfig, cma_maega as cma_maega
    from rollax.algorithms.cma_me import CMAMEConfig as CMAMEConfig, cma_me as cma_me
    from rollax.algorithms.cma_mega import CMAMEGAConfig as CMAMEGAConfig, cma_mega as cma_mega
    from rollax.algorithms.dcrl_me import DCRLMEConfig as DCRLMEConfig, dcrl_me as dcrl_me
    from rollax.algorithms.dns import DNSConfig as DNSConfig, dns as dns
    from rollax.algorithms.dqn import DQNConfig as DQNConfig, dqn as dqn
    from rollax.algorithms.iqn import IQNConfig as IQNConfig, iqn as iqn
    from rollax.algorithms.c51 import C51Config as C51Config, c51 as c51
    from rollax.algorithms.qr_dqn import QRDQNConfig as QRDQNConfig, qr_dqn as qr_dqn
    from rollax.algorithms.rainbow import RainbowConfig as RainbowConfig, rainbow as rainbow
    from rollax.algorithms.impala import ImpalaConfig as ImpalaConfig, impala as impala
    from rollax.algorithms.map_elites import (
        MAPElitesConfig as MAPElitesConfig,
        map_elites as map_elites,
    )
    from rollax.algorithms.me_es import MEESConfig as MEESConfig, me_es as me_es
    from rollax.algorithms.me_map_elites import (
        MEMAPElitesConfig as MEMAPElitesConfig,
        me_map_elites as me_map_elites,
    )
    from rollax.algorithms.mome import MOMEConfig as MOMEConfig, mome as mome
    from rollax.algorithms.omg_mega import OMGMEGAConfig as OMGMEGAConfig, omg_mega as omg_mega
    from rollax.algorithms.pga_me import PGAMEConfig as PGAMEConfig, pga_me as pga_me
    from rollax.algorithms.ppo import PPOConfig as PPOConfig, ppo as ppo
    from rollax.algorithms.ppo_rnd import PPORNDConfig as PPORNDConfig, ppo_rnd as ppo_rnd
    from rollax.algorithms.pqn import PQNConfig as PQNConfig, pqn as pqn
    from rollax.algorithms.sac import SACConfig as SACConfig, sac as sac
    from rollax.algorithms.td3 import TD3Config as TD3Config, td3 as td3

# Public names, keyed by the module that defines them.
_NAMES_BY_MODULE: dict[str, tuple[str, ...]] = {
    # Runs
    "rollax.api": ("resume", "train"),
    "rollax.loading": ("load",),
    "rollax.policy": ("Policy",),
    "rollax.training.callbacks.events": ("RunEvent",),
    "rollax.training.options": ("RunOptions",),
    "rollax.training.result": ("Evaluated", "Result"),
    "rollax.training.run_folder.tables": ("Tables", "read"),
    "rollax.visualization.tables.paper_tables": ("table",),
    "rollax.visualization.tables.run_table": ("RunTable",),
    "rollax.visualization.tables.tournament": ("CrossPlay", "cross_play"),
    "rollax.sweeps.sweep": ("Swept", "sweep"),
    "rollax.exporting.exporter": ("Exported", "export"),
    "rollax.exporting.gymnasium_export": ("to_gymnasium",),
    "rollax.visualization.run_views": ("plot", "render", "report"),
    "rollax.runtime.notebook": ("Animation",),
    "rollax.errors": ("UsageError",),
    # Demonstrations
    "rollax.training.datasets.demonstration_recorder": ("record",),
    "rollax.replay.demonstrations": ("Demonstrations",),
    "rollax.training.datasets.demonstration_files": ("load_demonstrations", "save_demonstrations"),
    # Environments
    "rollax.environments": ("Environment", "Transition", "list_environments", "make", "register"),
    "rollax.environments.suites.brax.objects": ("from_brax",),
    "rollax.environments.suites.gymnasium.objects": ("from_gymnasium",),
    "rollax.environments.suites.pettingzoo.objects": ("from_pettingzoo",),
    "rollax.environments.suites.gymnax.objects": ("from_gymnax",),
    "rollax.environments.suites.jumanji.objects": ("from_jumanji",),
    "rollax.environments.suites.pgx.objects": ("from_pgx",),
    "rollax.environments.suites.playground.objects": ("from_playground",),
    "rollax.checks.environment_check": ("check_environment",),
    # Networks
    "rollax.networks": ("NetworkConfig", "actor_critic"),
    "rollax.networks.interop": ("from_equinox", "from_function", "from_linen", "from_nnx"),
    # Algorithms
    "rollax.algorithm": ("Algorithm", "Metrics"),
    "rollax.algorithms.registry": ("AlgorithmEntry", "list_algorithms", "register_algorithm"),
    "rollax.checks.algorithm_check": ("check_algorithm",),
    # Custom training loops
    "rollax.acting.evaluation": ("Episodes",),
    "rollax.populations": ("population",),
    "rollax.populations.evolution": ("evolve", "evolving"),
    "rollax.training.compile.segments": ("segment",),
    # Archives
    "rollax.training.elites.ask_tell": ("AskTell",),
    "rollax.training.elites.merging": ("Comparison", "compare_archives", "merge_archives"),
    # Built-in algorithms
    **{
        f"rollax.algorithms.{name}": (builtin.config, name)
        for name, builtin in BUILTIN_ALGORITHMS.items()
    },
}
_MODULE_BY_NAME = {name: module for module, names in _NAMES_BY_MODULE.items() for name in names}
_SUBMODULES = ("environments", "networks", "spaces")

__all__ = ["__version__", *_MODULE_BY_NAME]  # pyright: ignore[reportUnsupportedDunderAll]

if not TYPE_CHECKING:  # a type checker would accept any attribute

    def __getattr__(name: str) -> Any:
        """Import a public name or submodule when it is first used."""
        if name in _MODULE_BY_NAME:
            value = getattr(importlib.import_module(_MODULE_BY_NAME[name]), name)
            globals()[name] = value
            return value
        if name in _SUBMODULES:
            return importlib.import_module(f"rollax.{name}")
        raise AttributeError(f"module 'rollax' has no attribute {name!r}{_attribute_hint(name)}")

    def _attribute_hint(name: str) -> str:
        """Return a hint that names the attribute or the public name that the user may mean."""
        is_submodule = importlib.util.find_spec(f"rollax.{name}") is not None
        if is_submodule or name.startswith("_"):  # asked for by imports and tools
            return ""
        result = sys.modules.get("rollax.training.result")
        if result is not None and hasattr(result.Result, name):
            return f". It is an attribute of results, such as rollax.train(...).{name}"
        errors = importlib.import_module("rollax.errors")
        close = errors.find_similar_names(name, [*__all__, *_SUBMODULES])
        return f": did you mean {' or '.join(close)}?" if close else ""


def __dir__() -> list[str]:
    """Return all names of the module, including names that are not imported yet."""
    return sorted({*globals(), *__all__, *_SUBMODULES})
