"""Catalogue of the parallel environments of PettingZoo and MPE2."""

from rollax.environments.suites.suite import Suite

_DESCRIPTIONS = {
    "butterfly/cooperative_pong_*": "two paddles keep a ball in play, from pictures",
    "butterfly/knights_archers_zombies_*": "knights and archers, who may die, stop zombies",
    "butterfly/pistonball_*": "pistons move a ball to the left wall, from pictures",
    "classic/rps_*": "repeated rock, paper, scissors",
    "mpe/collect_treasure_*": "collectors bring treasures to the deposits of their color",
    "mpe/simple_adversary_*": "agents reach a target that an adversary does not know",
    "mpe/simple_crypto_*": "Alice sends an encrypted message to Bob, and Eve listens",
    "mpe/simple_formation_*": "agents form a circle around a landmark",
    "mpe/simple_line_*": "agents form a line between two landmarks",
    "mpe/simple_push_*": "an adversary pushes an agent away from its target",
    "mpe/simple_reference_*": "two agents tell each other their target landmarks",
    "mpe/simple_speaker_listener_*": "a speaker tells a listener its target landmark",
    "mpe/simple_spread_*": "agents cover all landmarks without collisions",
    "mpe/simple_tag_*": "adversaries catch faster agents around obstacles",
    "mpe/simple_world_comm_*": "adversaries with a leader catch agents that hide in forests",
    "mpe/simple_v*": "an agent reaches a landmark",
    "sisl/multiwalker_*": "walkers on two legs carry a package",
    "sisl/pursuit_*": "pursuers surround evaders on a grid",
}

_TURNS = "Its agents take turns. Use one of rollax.list_environments('pgx')"
_ATARI = (
    "Its ROMs have to be installed with AutoROM. Pass its function parallel_env to "
    "rollax.from_pettingzoo"
)
_ATARI_NAMES = (
    *("basketball_pong_v3", "boxing_v2", "combat_plane_v2", "combat_tank_v2", "double_dunk_v3"),
    *("entombed_competitive_v3", "entombed_cooperative_v3", "flag_capture_v2", "foozpong_v3"),
    *("ice_hockey_v2", "joust_v3", "mario_bros_v3", "maze_craze_v3", "othello_v3", "pong_v3"),
    *("quadrapong_v4", "space_invaders_v2", "space_war_v2", "surround_v2", "tennis_v3"),
    *("video_checkers_v4", "volleyball_pong_v3", "warlords_v3", "wizard_of_wor_v3"),
)
_TURN_NAMES = (
    *("chess_v6", "connect_four_v3", "go_v5", "hanabi_v5", "leduc_holdem_v4"),
    *("texas_holdem_no_limit_v6", "texas_holdem_v4", "tictactoe_v3"),
)

SUITE = Suite(
    adapter="rollax.environments.suites.pettingzoo.adapter",
    names=(
        "butterfly/cooperative_pong_v6",
        "butterfly/knights_archers_zombies_v11",
        "butterfly/pistonball_v6",
        "classic/rps_v2",
        "mpe/collect_treasure_v1",
        "mpe/simple_v3",
        "mpe/simple_adversary_v3",
        "mpe/simple_crypto_v3",
        "mpe/simple_formation_v1",
        "mpe/simple_line_v1",
        "mpe/simple_push_v3",
        "mpe/simple_reference_v3",
        "mpe/simple_speaker_listener_v4",
        "mpe/simple_spread_v3",
        "mpe/simple_tag_v3",
        "mpe/simple_world_comm_v3",
        "sisl/multiwalker_v9",
        "sisl/pursuit_v5",
    ),
    descriptions=_DESCRIPTIONS,
    extra="pettingzoo",
    module="pettingzoo",
    packages=("pettingzoo", "mpe2"),
    converter="from_pettingzoo(make_environment)",
    unavailable_reasons={
        **{f"atari/{name}": _ATARI for name in _ATARI_NAMES},
        **{f"classic/{name}": _TURNS for name in _TURN_NAMES},
    },
    is_on_host=True,
)
