"""Networks, their protocol `network.Network`, layers, and adapters (`interop`)."""

from rollax.networks.actor_critic import ActorCritic, NetworkConfig, TwoHeads, actor_critic
from rollax.networks.network import ActorCriticOutput, Network, PreprocessedNetwork, StepwiseNetwork
from rollax.networks.torso import Tower

__all__ = [
    "ActorCritic",
    "ActorCriticOutput",
    "Network",
    "NetworkConfig",
    "PreprocessedNetwork",
    "StepwiseNetwork",
    "Tower",
    "TwoHeads",
    "actor_critic",
]
