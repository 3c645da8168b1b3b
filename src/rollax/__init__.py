"""Reinforcement learning trained end to end in JAX: environment, policy and learner in one compiled program."""

from rollax.algorithm import Algorithm, population, segment
from rollax.algorithms.ppo import PPOConfig, ppo
from rollax.environments import Environment, Transition, check_environment, list_environments, make, register
from rollax.errors import UsageError
from rollax.evolution import evolve, evolving
from rollax.networks import NetworkConfig, actor_critic
from rollax.train.api import Policy, Result, load, resume, train
from rollax.train.settings import RunOptions
from rollax.version import __version__

__all__ = [
    "__version__",
    "Algorithm",
    "Environment",
    "NetworkConfig",
    "PPOConfig",
    "Policy",
    "Result",
    "RunOptions",
    "Transition",
    "UsageError",
    "actor_critic",
    "check_environment",
    "evolve",
    "evolving",
    "list_environments",
    "load",
    "make",
    "population",
    "ppo",
    "register",
    "resume",
    "segment",
    "train",
]
