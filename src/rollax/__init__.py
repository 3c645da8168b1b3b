"""Reinforcement learning trained end to end in JAX: environment, policy and learner in one compiled program."""

from rollax import startup  # noqa: F401  before all that takes long
from rollax.algorithm import Algorithm, Metrics
from rollax.algorithms import AlgorithmEntry, list_algorithms, register_algorithm
from rollax.algorithms.aurora import AURORAConfig, aurora
from rollax.algorithms.cma_mae import CMAMAEConfig, cma_mae
from rollax.algorithms.cma_maega import CMAMAEGAConfig, cma_maega
from rollax.algorithms.cma_me import CMAMEConfig, cma_me
from rollax.algorithms.cma_mega import CMAMEGAConfig, cma_mega
from rollax.algorithms.dcrl_me import DCRLMEConfig, dcrl_me
from rollax.algorithms.dns import DNSConfig, dns
from rollax.algorithms.dqn import DQNConfig, dqn
from rollax.algorithms.impala import ImpalaConfig, impala
from rollax.algorithms.map_elites import MAPElitesConfig, map_elites
from rollax.algorithms.me_es import MEESConfig, me_es
from rollax.algorithms.me_map_elites import MEMAPElitesConfig, me_map_elites
from rollax.algorithms.mome import MOMEConfig, mome
from rollax.algorithms.omg_mega import OMGMEGAConfig, omg_mega
from rollax.algorithms.pga_me import PGAMEConfig, pga_me
from rollax.algorithms.ppo import PPOConfig, ppo
from rollax.algorithms.ppo_rnd import PPORNDConfig, ppo_rnd
from rollax.algorithms.pqn import PQNConfig, pqn
from rollax.algorithms.sac import SACConfig, sac
from rollax.algorithms.td3 import TD3Config, td3
from rollax.checks.algorithm import check_algorithm
from rollax.checks.environment import check_environment
from rollax.environments import Environment, Transition, list_environments, make, register
from rollax.environments.suites.gymnasium.objects import from_gymnasium
from rollax.environments.suites.objects import from_brax, from_gymnax, from_jumanji, from_pgx, from_playground
from rollax.errors import UsageError
from rollax.exporting.api import Exported, export
from rollax.host.api import Policy, Result, load, resume, train
from rollax.host.ask_tell import AskTell
from rollax.host.merging import Comparison, compare_archives, merge_archives
from rollax.host.options import RunOptions
from rollax.host.reading import Tables, read
from rollax.host.result import Evaluated
from rollax.host.segments import segment
from rollax.networks import NetworkConfig, actor_critic
from rollax.populations import population
from rollax.populations.evolution import evolve, evolving
from rollax.studies.api import Swept, sweep
from rollax.version import __version__

__all__ = [
    "__version__",
    "aurora",
    "AURORAConfig",
    "mome",
    "MOMEConfig",
    "dcrl_me",
    "DCRLMEConfig",
    "me_es",
    "MEESConfig",
    "me_map_elites",
    "MEMAPElitesConfig",
    "pga_me",
    "PGAMEConfig",
    "omg_mega",
    "OMGMEGAConfig",
    "map_elites",
    "MAPElitesConfig",
    "cma_mega",
    "CMAMEGAConfig",
    "cma_me",
    "CMAMEConfig",
    "cma_maega",
    "CMAMAEGAConfig",
    "cma_mae",
    "CMAMAEConfig",
    "Algorithm",
    "AlgorithmEntry",
    "AskTell",
    "Comparison",
    "DNSConfig",
    "DQNConfig",
    "Environment",
    "Exported",
    "ImpalaConfig",
    "Metrics",
    "NetworkConfig",
    "PPOConfig",
    "PPORNDConfig",
    "PQNConfig",
    "Policy",
    "Evaluated",
    "Swept",
    "sweep",
    "Result",
    "RunOptions",
    "SACConfig",
    "TD3Config",
    "Tables",
    "Transition",
    "UsageError",
    "actor_critic",
    "check_algorithm",
    "check_environment",
    "compare_archives",
    "dns",
    "dqn",
    "evolve",
    "evolving",
    "export",
    "from_brax",
    "from_gymnasium",
    "from_gymnax",
    "from_jumanji",
    "from_pgx",
    "from_playground",
    "impala",
    "list_algorithms",
    "list_environments",
    "load",
    "make",
    "merge_archives",
    "population",
    "ppo",
    "ppo_rnd",
    "pqn",
    "read",
    "register",
    "register_algorithm",
    "resume",
    "sac",
    "segment",
    "td3",
    "train",
]
