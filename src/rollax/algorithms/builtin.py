"""Table of the built-in algorithms.

The table defines the public names of each algorithm (such as `rollax.ppo` and `rollax.PPOConfig`),
its entry in `rollax.algorithms.registry` and its command line. It refers to modules and functions
by name, so that public names are available without importing JAX.
"""

from typing import Literal, NamedTuple

DemonstrationUse = Literal["none", "optional", "required"]


class NetworkReference(NamedTuple):
    """Names of the module, settings class and constructor of a network.

    Attributes:
        module: Full name of the module that defines the network.
        config: Name of the settings class of the network.
        make: Name of the function `(environment, network_config, key)` that returns the network.
    """

    module: str
    config: str
    make: str


ACTOR_CRITIC = NetworkReference("rollax.networks.actor_critic", "NetworkConfig", "actor_critic")
Q_NETWORK = NetworkReference(
    "rollax.networks.action_values.q_networks", "QNetworkConfig", "q_network"
)
RECURRENT_Q_NETWORK = NetworkReference(
    "rollax.networks.action_values.q_networks", "RecurrentQNetworkConfig", "recurrent_q_network"
)
CATEGORICAL_Q_NETWORK = NetworkReference(
    "rollax.networks.action_values.q_networks", "CategoricalQNetworkConfig", "categorical_q_network"
)
RAINBOW_NETWORK = NetworkReference(
    "rollax.networks.action_values.q_networks", "RainbowNetworkConfig", "categorical_q_network"
)
QUANTILE_Q_NETWORK = NetworkReference(
    "rollax.networks.action_values.q_networks", "QuantileQNetworkConfig", "quantile_q_network"
)
IMPLICIT_QUANTILE_NETWORK = NetworkReference(
    "rollax.networks.action_values.implicit_quantiles",
    "ImplicitQuantileNetworkConfig",
    "implicit_quantile_network",
)
STOCHASTIC_ACTOR_CRITICS = NetworkReference(
    "rollax.networks.critics", "StochasticActorCriticsConfig", "make_stochastic_actor_critics"
)
DETERMINISTIC_ACTOR_CRITICS = NetworkReference(
    "rollax.networks.critics", "ActorCriticsConfig", "make_deterministic_actor_critics"
)
SOLUTION = NetworkReference("rollax.networks.solutions", "PolicyConfig", "make_solution")


class BuiltinAlgorithm(NamedTuple):
    """Names that `rollax.algorithms.registry` resolves to the `AlgorithmEntry` of an algorithm.

    The key of an entry in `BUILTIN_ALGORITHMS` is the name of the algorithm, of its module
    `rollax.algorithms.<name>` and of the constructor in this module.

    Attributes:
        config: Name of the settings class in the module of the algorithm.
        summary: One-line description.
        network: Names of the network's module, settings class and constructor.
        derive_settings: Name of the function in `rollax.algorithms.derived_settings` that becomes
            `AlgorithmEntry.derive_settings`.
        check: Name of the function in `rollax.algorithms.settings_checks` that becomes
            `AlgorithmEntry.check`.
        adapt_to_host: Name of the function in `rollax.algorithms.derived_settings` that becomes
            `AlgorithmEntry.adapt_to_host`.
        unit: Unit of step counts, "steps" or "evaluations".
        console_metrics: Names of metrics that a run prints in addition to returns.
        evolve_metric: Default selection metric of population-based training.
        derive_signals: Name of the function in `rollax.algorithms.learning_signals` that becomes
            `AlgorithmEntry.derive_signals`.
        demonstrations: Use of demonstrations, "none", "optional" or "required".
    """

    config: str
    summary: str
    network: NetworkReference
    derive_settings: str
    check: str = "accept_any_settings"
    adapt_to_host: str = "keep_settings"
    unit: str = "steps"
    console_metrics: tuple[str, ...] = ()
    evolve_metric: str = "episode_return"
    derive_signals: str = "watch_nothing"
    demonstrations: DemonstrationUse = "none"


def _q_learning(
    config: str, summary: str, network: NetworkReference, check: str = "accept_any_settings"
) -> BuiltinAlgorithm:
    """Return the `BuiltinAlgorithm` of a variant of deep Q-learning with replay."""
    return BuiltinAlgorithm(
        config=config,
        summary=summary,
        network=network,
        derive_settings="derive_replay",
        check=check,
        adapt_to_host="use_one_cycle_per_update",
        demonstrations="optional",
    )


def _quality_diversity(
    config: str,
    summary: str,
    console_metrics: tuple[str, ...] = ("coverage", "qd_score", "fitness_best"),
    evolve_metric: str = "qd_score",
    derive_settings: str = "derive_quality_diversity",
) -> BuiltinAlgorithm:
    """Return the `BuiltinAlgorithm` of a quality-diversity algorithm."""
    return BuiltinAlgorithm(
        config=config,
        summary=f"quality-diversity{summary}",
        network=SOLUTION,
        derive_settings=derive_settings,
        unit="evaluations",
        console_metrics=console_metrics,
        evolve_metric=evolve_metric,
    )


BUILTIN_ALGORITHMS: dict[str, BuiltinAlgorithm] = {
    "ppo": BuiltinAlgorithm(
        config="PPOConfig",
        summary="proximal policy optimization: feed-forward, recurrent, one agent or many "
        "(IPPO, MAPPO)",
        network=ACTOR_CRITIC,
        derive_settings="derive_on_policy",
        check="check_actor_critic_settings",
        derive_signals="watch_actor_critic",
    ),
    "ppo_rnd": BuiltinAlgorithm(
        config="PPORNDConfig",
        summary="PPO with random network distillation: explores unseen states when rewards are "
        "sparse",
        network=ACTOR_CRITIC,
        derive_settings="derive_on_policy",
        check="check_actor_critic_settings",
        derive_signals="watch_actor_critic",
    ),
    "impala": BuiltinAlgorithm(
        config="ImpalaConfig",
        summary="actor-critic with V-trace: reuses each rollout and corrects for the lag of the "
        "policy",
        network=ACTOR_CRITIC,
        derive_settings="derive_on_policy",
        check="check_actor_critic_settings",
        derive_signals="watch_actor_critic",
    ),
    "dqn": _q_learning(
        "DQNConfig",
        "deep Q-learning: discrete actions, replay, double, dueling, n-step, prioritized, noisy",
        Q_NETWORK,
    ),
    "c51": _q_learning(
        "C51Config",
        "categorical DQN: distributions of returns on fixed atoms",
        CATEGORICAL_Q_NETWORK,
        "check_value_range",
    ),
    "qr_dqn": _q_learning(
        "QRDQNConfig",
        "quantile regression DQN: quantiles of returns at fixed fractions",
        QUANTILE_Q_NETWORK,
    ),
    "iqn": _q_learning(
        "IQNConfig",
        "implicit quantile networks: quantiles of returns at random fractions",
        IMPLICIT_QUANTILE_NETWORK,
    ),
    "rainbow": _q_learning(
        "RainbowConfig",
        "C51 with double, dueling, prioritized, n-step and noisy networks",
        RAINBOW_NETWORK,
        "check_value_range",
    ),
    "pqn": BuiltinAlgorithm(
        config="PQNConfig",
        summary="parallelized Q-learning: discrete actions, lambda-returns, optional memory, no "
        "replay",
        network=RECURRENT_Q_NETWORK,
        derive_settings="derive_on_policy",
        check="check_sequence_length",
    ),
    "sac": BuiltinAlgorithm(
        config="SACConfig",
        summary="soft actor-critic: continuous, discrete and mixed actions, replay, learned "
        "temperature",
        network=STOCHASTIC_ACTOR_CRITICS,
        derive_settings="derive_replay",
        check="check_fixed_std",
        adapt_to_host="use_one_cycle_per_update",
        derive_signals="watch_entropy_of_normalized_actions",
        demonstrations="optional",
    ),
    "td3": BuiltinAlgorithm(
        config="TD3Config",
        summary="twin delayed deterministic policy gradient: continuous actions, replay",
        network=DETERMINISTIC_ACTOR_CRITICS,
        derive_settings="derive_replay",
        adapt_to_host="use_one_cycle_per_update",
        demonstrations="optional",
    ),
    "bc": BuiltinAlgorithm(
        config="BCConfig",
        summary="behavior cloning: imitates demonstrations by maximum likelihood, optional memory",
        network=ACTOR_CRITIC,
        derive_settings="derive_behavior_cloning",
        check="check_cloning_sequence_length",
        unit="samples",
        console_metrics=("log_prob",),
        evolve_metric="log_prob",
        demonstrations="required",
    ),
    "map_elites": _quality_diversity(
        "MAPElitesConfig", ": keeps the best policy or solution of every cell of behaviors"
    ),
    "cma_me": _quality_diversity(
        "CMAMEConfig", ": evolution strategies that maximize the improvement of the archive"
    ),
    "cma_mae": _quality_diversity(
        "CMAMAEConfig",
        ": CMA-ME with acceptance thresholds that rise slowly",
        derive_settings="derive_thresholds",
    ),
    "dns": _quality_diversity(
        "DNSConfig", " without cells: dominated novelty search with local competition"
    ),
    "aurora": _quality_diversity(
        "AURORAConfig",
        " with learned descriptors: an autoencoder of the observations",
        console_metrics=("coverage", "qd_score", "num_elites"),
    ),
    "mome": _quality_diversity(
        "MOMEConfig",
        " for several objectives: the Pareto front of every cell of behaviors",
        console_metrics=("coverage", "moqd_score", "hypervolume"),
        evolve_metric="moqd_score",
        derive_settings="derive_multi_objective",
    ),
    "omg_mega": _quality_diversity(
        "OMGMEGAConfig", " with gradients: random steps along the gradients of a closed form"
    ),
    "cma_mega": _quality_diversity("CMAMEGAConfig", " with gradients: steps adapted by CMA-ES"),
    "cma_maega": _quality_diversity(
        "CMAMAEGAConfig",
        " with gradients: CMA-MEGA with the thresholds of CMA-MAE",
        derive_settings="derive_thresholds",
    ),
    "pga_me": _quality_diversity(
        "PGAMEConfig",
        ": MAP-Elites with offspring by the policy gradient of TD3's critics",
        derive_settings="derive_policy_gradient",
    ),
    "dcrl_me": _quality_diversity(
        "DCRLMEConfig",
        ": PGA-ME with descriptor-conditioned critics and injected actors",
        derive_settings="derive_policy_gradient",
    ),
    "me_es": _quality_diversity(
        "MEESConfig", ": an evolution strategy that alternates between fitness and novelty"
    ),
    "me_map_elites": _quality_diversity(
        "MEMAPElitesConfig",
        ": a bandit selects among MAP-Elites and evolution-strategy emitters",
    ),
}
