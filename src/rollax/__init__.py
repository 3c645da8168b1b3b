"""Reinforcement learning trained end to end in JAX: environment, policy and learner in one compiled program."""

from rollax.algorithm import Algorithm, population, segment
from rollax.algorithms.dqn import DQNConfig, dqn
from rollax.algorithms.impala import ImpalaConfig, impala
from rollax.algorithms.ppo import PPOConfig, ppo
from rollax.algorithms.pqn import PQNConfig, pqn
from rollax.algorithms.sac import SACConfig, sac
from rollax.algorithms.td3 import TD3Config, td3
from rollax.environments import Environment, Transition, check_environment, list_environments, make, register
from rollax.errors import UsageError
from rollax.host.api import Policy, Result, load, resume, train
from rollax.host.options import RunOptions
from rollax.networks import NetworkConfig, actor_critic
from rollax.populations.evolution import evolve, evolving
from rollax.version import __version__

__all__ = [
    "__version__",
    "Algorithm",
    "DQNConfig",
    "Environment",
    "ImpalaConfig",
    "NetworkConfig",
    "PPOConfig",
    "PQNConfig",
    "Policy",
    "Result",
    "RunOptions",
    "SACConfig",
    "TD3Config",
    "Transition",
    "UsageError",
    "actor_critic",
    "check_environment",
    "dqn",
    "evolve",
    "evolving",
    "impala",
    "list_environments",
    "load",
    "make",
    "population",
    "ppo",
    "pqn",
    "register",
    "resume",
    "sac",
    "segment",
    "td3",
    "train",
]
