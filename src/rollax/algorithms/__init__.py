"""The algorithms: a module each, and by name, with what a run needs to build them."""

from typing import Any

from rollax.algorithms import (
    aurora,
    cma_mae,
    cma_maega,
    cma_me,
    cma_mega,
    dcrl_me,
    dns,
    dqn,
    impala,
    map_elites,
    me_es,
    me_map_elites,
    mome,
    omg_mega,
    pga_me,
    ppo,
    ppo_rnd,
    pqn,
    sac,
    td3,
)
from rollax.algorithms.registry import AlgorithmEntry, find, fits, list_algorithms, register_algorithm, registered
from rollax.errors import UsageError
from rollax.networks import critics, q_networks, solutions
from rollax.networks.actor_critic import NetworkConfig, actor_critic


def _memory_needs_sequences(config: Any, network: Any) -> None:
    if network.core != "none" and network.core_size >= 1 and config.sequence_length == 1:
        raise UsageError(
            f"network.core ({network.core}) learns nothing to remember with config.sequence_length 1: "
            f"set that to {config.num_steps} (num_steps) or a divisor of it"
        )


def _actor_critic_fits(config: Any, network: Any) -> None:
    _memory_needs_sequences(config, network)
    given = [name for name in ("critic_epochs", "critic_learning_rate") if getattr(config, name)]
    if network.shared and given:
        raise UsageError(
            f"network.shared leaves no critic apart that config.{given[0]} ({getattr(config, given[0])}) could be for: "
            "leave one of the two out"
        )


def _archive_of(
    make: Any, config: type, summary: str, shown: tuple[str, ...] = ("coverage", "qd_score", "fitness_best")
) -> AlgorithmEntry:
    """A quality-diversity algorithm."""
    return AlgorithmEntry(make, config, solutions.PolicyConfig, solutions.solution, fits, summary, "evaluations", shown)


ALGORITHMS: dict[str, AlgorithmEntry] = {
    "ppo": AlgorithmEntry(
        ppo.ppo,
        ppo.PPOConfig,
        NetworkConfig,
        actor_critic,
        _actor_critic_fits,
        "proximal policy optimization: feed-forward, recurrent, one agent or many (IPPO, MAPPO)",
    ),
    "ppo_rnd": AlgorithmEntry(
        ppo_rnd.ppo_rnd,
        ppo_rnd.PPORNDConfig,
        NetworkConfig,
        actor_critic,
        _actor_critic_fits,
        "PPO with random network distillation: seeks what it has not seen, where reward is rare",
    ),
    "impala": AlgorithmEntry(
        impala.impala,
        impala.ImpalaConfig,
        NetworkConfig,
        actor_critic,
        _actor_critic_fits,
        "actor-critic with V-trace: learns several times from a rollout as its policy moves away from it",
    ),
    "dqn": AlgorithmEntry(
        dqn.dqn,
        dqn.DQNConfig,
        q_networks.QNetworkConfig,
        q_networks.q_network,
        fits,
        "deep Q-learning: discrete actions, from replay, double, dueling, n-step, prioritized",
    ),
    "pqn": AlgorithmEntry(
        pqn.pqn,
        pqn.PQNConfig,
        q_networks.RecurrentQNetworkConfig,
        q_networks.recurrent_q_network,
        _memory_needs_sequences,
        "parallelized Q-learning: discrete actions, lambda-returns over many environments, a memory or none, no replay",
    ),
    "sac": AlgorithmEntry(
        sac.sac,
        sac.SACConfig,
        critics.ActorCriticsConfig,
        critics.stochastic,
        fits,
        "soft actor-critic: continuous actions, from replay, learned temperature",
    ),
    "map_elites": _archive_of(
        map_elites.map_elites,
        map_elites.MAPElitesConfig,
        "quality-diversity: the best policy or solution of every cell of behaviors, varied",
    ),
    "cma_me": _archive_of(
        cma_me.cma_me, cma_me.CMAMEConfig, "quality-diversity: evolution strategies that climb what improves the archive"
    ),
    "cma_mae": _archive_of(
        cma_mae.cma_mae, cma_mae.CMAMAEConfig, "quality-diversity: CMA-ME with acceptance thresholds that rise slowly"
    ),
    "dns": _archive_of(
        dns.dns,
        dns.DNSConfig,
        "quality-diversity without cells: dominated novelty search, a population that competes locally",
    ),
    "aurora": _archive_of(
        aurora.aurora,
        aurora.AURORAConfig,
        "quality-diversity with learnt descriptors: an autoencoder tells apart what policies see",
        ("coverage", "qd_score", "num_elites"),
    ),
    "mome": _archive_of(
        mome.mome,
        mome.MOMEConfig,
        "quality-diversity for several objectives: the Pareto front of every cell of behaviors",
        ("coverage", "moqd_score", "hypervolume"),
    ),
    "omg_mega": _archive_of(
        omg_mega.omg_mega, omg_mega.OMGMEGAConfig, "quality-diversity with gradients: random steps along those of a closed form"
    ),
    "cma_mega": _archive_of(
        cma_mega.cma_mega, cma_mega.CMAMEGAConfig, "quality-diversity with gradients: steps adapted by CMA-ES"
    ),
    "cma_maega": _archive_of(
        cma_maega.cma_maega,
        cma_maega.CMAMAEGAConfig,
        "quality-diversity with gradients: CMA-MEGA with the thresholds of CMA-MAE",
    ),
    "pga_me": _archive_of(
        pga_me.pga_me, pga_me.PGAMEConfig, "quality-diversity: MAP-Elites with children by the gradient of TD3's critics"
    ),
    "dcrl_me": _archive_of(
        dcrl_me.dcrl_me,
        dcrl_me.DCRLMEConfig,
        "quality-diversity: PGA-ME with critics and an actor that depend on the descriptor, and actors injected",
    ),
    "me_es": _archive_of(
        me_es.me_es, me_es.MEESConfig, "quality-diversity: an evolution strategy that climbs fitness and novelty by turns"
    ),
    "me_map_elites": _archive_of(
        me_map_elites.me_map_elites,
        me_map_elites.MEMAPElitesConfig,
        "quality-diversity: MAP-Elites and evolution strategies side by side, shared out by a bandit",
    ),
    "td3": AlgorithmEntry(
        td3.td3,
        td3.TD3Config,
        critics.ActorCriticsConfig,
        critics.deterministic,
        fits,
        "twin delayed deterministic policy gradient: continuous actions, from replay",
    ),
}

__all__ = [
    "ALGORITHMS",
    "AlgorithmEntry",
    "dqn",
    "find",
    "impala",
    "list_algorithms",
    "map_elites",
    "ppo",
    "ppo_rnd",
    "pqn",
    "register_algorithm",
    "registered",
    "sac",
    "td3",
]
