"""Catalogue of the Pgx games."""

from rollax.environments.suites.suite import Suite

_NAMES = (
    "animal_shogi",
    "backgammon",
    "chess",
    "connect_four",
    "gardner_chess",
    "go_19x19",
    "go_9x9",
    "hex",
    "kuhn_poker",
    "leduc_holdem",
    "othello",
    "shogi",
    "sparrow_mahjong",
    "tic_tac_toe",
)

_MINATAR_NAMES = (
    "minatar-asterix",
    "minatar-breakout",
    "minatar-freeway",
    "minatar-seaquest",
    "minatar-space_invaders",
)

_DESCRIPTIONS = {
    "connect_four": "connect four discs that drop to the lowest free cell",
    "tic_tac_toe": "three in a row",
    "hex": "connect two sides of an 11 x 11 board",
    "go_*": "Go, with area scoring and a komi of 7.5 points",
    "kuhn_poker": "poker with three cards and one bet",
    "leduc_holdem": "poker with six cards and two rounds",
    "backgammon": "backgammon, without doubling",
    "sparrow_mahjong": "simplified mahjong for three players",
    "*": "a board game for two players",
}

SUITE = Suite(
    adapter="rollax.environments.suites.pgx.adapter",
    names=_NAMES,
    descriptions=_DESCRIPTIONS,
    drawing="rollax.environments.suites.pgx.drawing",
    extra="pgx",
    module="pgx",
    packages=("pgx",),
    converter="from_pgx(environment)",
    unavailable_reasons={
        "2048": "it is available as jumanji/Game2048-v1",
        "bridge_bidding": "it needs a data set of solved deals that Pgx downloads",
        **dict.fromkeys(
            _MINATAR_NAMES,
            "MinAtar games are available in gymnax, for example gymnax/Breakout-MinAtar",
        ),
    },
    evaluation={"*": {"opponent": "random"}},
    best_metric="return_player_0",
)
