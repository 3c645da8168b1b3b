"""Catalogue of the JaxMARL environments."""

from rollax.environments.suites.suite import Suite

_NAMES = (
    "MPE_simple_v3",
    "MPE_simple_tag_v3",
    "MPE_simple_world_comm_v3",
    "MPE_simple_spread_v3",
    "MPE_simple_crypto_v3",
    "MPE_simple_speaker_listener_v4",
    "MPE_simple_push_v3",
    "MPE_simple_adversary_v3",
    "MPE_simple_reference_v3",
    "MPE_simple_facmac_v1",
    "MPE_simple_facmac_3a_v1",
    "MPE_simple_facmac_6a_v1",
    "MPE_simple_facmac_9a_v1",
    "switch_riddle",
    "SMAX",
    "HeuristicEnemySMAX",
    "ant_4x2",
    "halfcheetah_6x1",
    "hopper_3x1",
    "humanoid_9|8",
    "walker2d_2x3",
    "storm",
    "storm_2p",
    "storm_np",
    "hanabi",
    "overcooked",
    "overcooked_v2",
    "coin_game",
    "jaxnav",
)

_ROBOTARIUM_NAMES = (
    "JaxRobotarium_navigation",
    "JaxRobotarium_discovery",
    "JaxRobotarium_material_transport",
    "JaxRobotarium_warehouse",
    "JaxRobotarium_arctic_transport",
    "JaxRobotarium_foraging",
    "JaxRobotarium_rware",
    "JaxRobotarium_predator_prey",
)

_DESCRIPTIONS = {
    "MPE_simple_spread*": "agents spread out over landmarks without colliding",
    "MPE_simple_tag*": "predators catch faster prey among obstacles",
    "MPE_simple_facmac*": "predators with a limited view catch scripted prey",
    "MPE_*": "a multi-agent particle environment",
    "switch_riddle": "prisoners use a light switch to find out whether all have been in the room",
    "*SMAX": "two armies fight, as in the StarCraft Multi-Agent Challenge",
    "storm*": "matrix games played by moving through a grid",
    "hanabi": "the cooperative card game: players see the others' cards and give hints",
    "overcooked*": "cooks cooperate in a kitchen to deliver soups",
    "coin_game": "two players collect coins of either player's color",
    "jaxnav": "robots drive to their goals by lidar",
    "*": "a brax robot whose joints are divided among agents",
}

SUITE = Suite(
    adapter="rollax.environments.suites.jaxmarl.adapter",
    names=_NAMES,
    descriptions=_DESCRIPTIONS,
    drawing="rollax.environments.suites.jaxmarl.drawing",
    extra="jaxmarl",
    module="jaxmarl",
    packages=("jaxmarl",),
    unavailable_reasons={
        "LearnedPolicyEnemySMAX": (
            "its enemy is a trained network, which cannot be passed as an argument; use "
            "HeuristicEnemySMAX"
        ),
        **dict.fromkeys(
            _ROBOTARIUM_NAMES,
            "it needs the Robotarium simulator, which JaxMARL does not include",
        ),
    },
)
