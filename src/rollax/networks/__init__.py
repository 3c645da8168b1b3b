"""Networks: what they are (`core`), their parts (`layers`), actor-critics, and those of other libraries (`interop`)."""

from rollax.networks.actor_critic import ActorCritic, NetworkConfig, TwoHeads, actor_critic
from rollax.networks.core import ActorCriticOutput, Network, Preprocessed, Stepwise
from rollax.networks.tower import Tower

__all__ = [
    "ActorCritic",
    "ActorCriticOutput",
    "Network",
    "NetworkConfig",
    "Preprocessed",
    "Stepwise",
    "Tower",
    "TwoHeads",
    "actor_critic",
]
