"""The suites and the names of their environments, listed without importing any of them."""

import sys
from typing import Any, NamedTuple

from rollax.environments.suites import names


class Suite(NamedTuple):
    """A family of environments behind one adapter module, which is imported when one of its names is asked for.

    The module has two functions, and two more where its suite needs them:

    - `make(name, arguments) -> Environment`, with the arguments as a dictionary;
    - `arguments(name) -> dict`: the names of the arguments that it accepts, with their defaults;
    - `resolve_arguments(arguments) -> dict`: the arguments with paths made absolute, for a run that is resumed elsewhere;
    - `CHOICES`: of arguments that take one of a few words, these words, or a function from the environment's name to them;
    - `check_evaluation(id, training, other)`: raises UsageError where evaluations with the arguments `other` over those of
      training would not measure what they claim, such as returns on tasks that training does not draw;
    - `knows(name) -> bool`, where `is_open`: whether another package has added that name to those of the suite.
    """

    module: str
    names: tuple[str, ...]
    extra: str | None  # what to install: pip install "rollax[extra]"; None for suites that are part of rollax
    absent: dict[str, str] = {}
    is_open: bool = False  # other packages may add names to those of its package
    on_host: bool = False  # simulators in Python or C++ (`rollax.environments.core.HostEnvironment`)
    # Arguments that are others in evaluations, unless one says otherwise, of the names that match the pattern.
    evaluation: dict[str, dict[str, Any]] = {}
    best_metric: str = "return_mean"  # what the best checkpoint is best by, unless one says otherwise
    python: tuple[int, int] = (0, 0)  # the lowest version of Python that its package installs on, where rollax's is lower


_GYMNAX = (
    "CartPole-v1",
    "Pendulum-v1",
    "Acrobot-v1",
    "MountainCar-v0",
    "MountainCarContinuous-v0",
    "Asterix-MinAtar",
    "Breakout-MinAtar",
    "Freeway-MinAtar",
    "Seaquest-MinAtar",
    "SpaceInvaders-MinAtar",
    "Catch-bsuite",
    "DeepSea-bsuite",
    "MemoryChain-bsuite",
    "UmbrellaChain-bsuite",
    "DiscountingChain-bsuite",
    "SimpleBandit-bsuite",
    "FourRooms-misc",
    "MetaMaze-misc",
    "PointRobot-misc",
    "BernoulliBandit-misc",
    "GaussianBandit-misc",
    "Reacher-misc",
    "Swimmer-misc",
    "Pong-misc",
    "FrozenLake-misc",
)

_GYMNASIUM = (
    "CartPole-v0",
    "CartPole-v1",
    "MountainCar-v0",
    "MountainCarContinuous-v0",
    "Pendulum-v1",
    "Acrobot-v1",
    "LunarLander-v3",
    "LunarLanderContinuous-v3",
    "BipedalWalker-v3",
    "BipedalWalkerHardcore-v3",
    "CarRacing-v3",
    "Blackjack-v1",
    "FrozenLake-v1",
    "FrozenLake8x8-v1",
    "CliffWalking-v1",
    "CliffWalkingSlippery-v1",
    "Taxi-v4",
)

_MUJOCO = (
    "Reacher",
    "Pusher",
    "InvertedPendulum",
    "InvertedDoublePendulum",
    "HalfCheetah",
    "Hopper",
    "Swimmer",
    "Walker2d",
    "Ant",
    "Humanoid",
    "HumanoidStandup",
)

_ATARI = """
    Adventure AirRaid Alien Amidar Assault Asterix Asteroids Atlantis2 Atlantis Backgammon BankHeist BasicMath BattleZone
    BeamRider Berzerk Blackjack Bowling Boxing Breakout Carnival Casino Centipede ChopperCommand CrazyClimber Crossbow
    Darkchambers Defender DemonAttack DonkeyKong DoubleDunk Earthworld ElevatorAction Enduro Entombed Et FishingDerby
    FlagCapture Freeway Frogger Frostbite Galaxian Gopher Gravitar Hangman HauntedHouse Hero HumanCannonball IceHockey
    Jamesbond JourneyEscape Kaboom Kangaroo KeystoneKapers KingKong Klax Koolaid Krull KungFuMaster LaserGates LostLuggage
    MarioBros MiniatureGolf MontezumaRevenge MrDo MsPacman NameThisGame Othello Pacman Phoenix Pitfall2 Pitfall Pong
    Pooyan PrivateEye Qbert Riverraid RoadRunner Robotank Seaquest SirLancelot Skiing Solaris SpaceInvaders SpaceWar
    StarGunner Superman Surround Tennis Tetris TicTacToe3D TimePilot Trondead Turmoil Tutankham UpNDown Venture
    VideoCheckers VideoChess VideoCube VideoPinball WizardOfWor WordZapper YarsRevenge Zaxxon
"""

_PROBES = (
    "one-action",
    "two-observations",
    "two-steps",
    "action-reward",
    "action-observation",
    "memory",
    "two-agents",
    "truncation",
    "continuous",
    "multi-discrete",
    "masked",
)

_MEMORY = (
    "repeat-previous",
    "repeat-first",
    "autoencode",
    "count-recall",
    "higher-lower",
    "CartPole-v1",
    "Pendulum-v1",
    "MountainCarContinuous-v0",
)

_HUNTING = (
    "2-players",
    "3-players",
)

_CONTROL = ("point-maze",)

_TASKS = ("sphere", "rastrigin", "rastrigin-multi", "arm")

_GRANULAR = (
    "single-navigator",
    "many-navigators",
    "single-roller",
)

_XLAND = (
    "XLand-MiniGrid-R1-9x9",
    "XLand-MiniGrid-R1-11x11",
    "XLand-MiniGrid-R1-13x13",
    "XLand-MiniGrid-R1-15x15",
    "XLand-MiniGrid-R1-17x17",
    "XLand-MiniGrid-R2-9x9",
    "XLand-MiniGrid-R2-11x11",
    "XLand-MiniGrid-R2-13x13",
    "XLand-MiniGrid-R2-15x15",
    "XLand-MiniGrid-R2-17x17",
    "XLand-MiniGrid-R4-9x9",
    "XLand-MiniGrid-R4-11x11",
    "XLand-MiniGrid-R4-13x13",
    "XLand-MiniGrid-R4-15x15",
    "XLand-MiniGrid-R4-17x17",
    "XLand-MiniGrid-R6-13x13",
    "XLand-MiniGrid-R6-17x17",
    "XLand-MiniGrid-R6-19x19",
    "XLand-MiniGrid-R9-16x16",
    "XLand-MiniGrid-R9-19x19",
    "XLand-MiniGrid-R9-25x25",
)

_MINIGRID = (
    "MiniGrid-BlockedUnlockPickUp",
    "MiniGrid-DoorKey-5x5",
    "MiniGrid-DoorKey-6x6",
    "MiniGrid-DoorKey-8x8",
    "MiniGrid-DoorKey-16x16",
    "MiniGrid-Empty-5x5",
    "MiniGrid-Empty-6x6",
    "MiniGrid-Empty-8x8",
    "MiniGrid-Empty-16x16",
    "MiniGrid-EmptyRandom-5x5",
    "MiniGrid-EmptyRandom-6x6",
    "MiniGrid-EmptyRandom-8x8",
    "MiniGrid-EmptyRandom-16x16",
    "MiniGrid-FourRooms",
    "MiniGrid-LockedRoom",
    "MiniGrid-MemoryS8",
    "MiniGrid-MemoryS16",
    "MiniGrid-MemoryS32",
    "MiniGrid-MemoryS64",
    "MiniGrid-MemoryS128",
    "MiniGrid-Playground",
    "MiniGrid-Unlock",
    "MiniGrid-UnlockPickUp",
)

_BRAX = (
    "ant",
    "halfcheetah",
    "hopper",
    "humanoid",
    "humanoidstandup",
    "inverted_pendulum",
    "inverted_double_pendulum",
    "pusher",
    "reacher",
    "swimmer",
    "walker2d",
)

_GYMNASIUM_IDS = (
    *_GYMNASIUM,
    *(f"{name}-{version}" for name in _MUJOCO for version in ("v5", "v4")),
    *(f"ALE/{name}-v5" for name in _ATARI.split()),
)

_ENVPOOL = (
    *("CartPole-v1", "Pendulum-v1", "Acrobot-v1", "MountainCar-v0", "MountainCarContinuous-v0"),
    *("LunarLander-v3", "LunarLanderContinuous-v3", "BipedalWalker-v3", "BipedalWalkerHardcore-v3", "CarRacing-v3"),
    *(f"{name}-{version}" for name in _MUJOCO for version in ("v5", "v4")),
    *(f"{name}-v5" for name in _ATARI.split() if name != "TicTacToe3D"),
)

SUITES: dict[str, Suite] = {
    "gymnax": Suite(
        "rollax.environments.suites.gymnax",
        _GYMNAX,
        "gymnax",
        {"MNISTBandit-bsuite": "it downloads its images when it is made; every other gymnax environment works offline"},
    ),
    "gymnasium": Suite(
        "rollax.environments.suites.gymnasium.adapter",
        _GYMNASIUM_IDS,
        "gymnasium",
        is_open=True,
        on_host=True,
        evaluation={"ALE/*": {"episodic_life": False, "clip_rewards": False}},  # whole games and their score
    ),
    "envpool": Suite("rollax.environments.suites.envpool", _ENVPOOL, "envpool", on_host=True),
    "probe": Suite("rollax.environments.native.probes", _PROBES, None),
    "memory": Suite("rollax.environments.native.memory", _MEMORY, None),
    "hunting": Suite("rollax.environments.native.hunting", _HUNTING, None),
    "control": Suite("rollax.environments.native.control", _CONTROL, None),
    "task": Suite("rollax.environments.native.tasks", _TASKS, None),
    "granular": Suite("rollax.environments.native.granular", _GRANULAR, None),
    "xminigrid": Suite("rollax.environments.suites.xminigrid.adapter", (*_XLAND, *_MINIGRID), "xland"),
    "rl2": Suite("rollax.environments.suites.xminigrid.trials", _XLAND, "xland", evaluation={"*": {"split": "validation"}}),
    "brax": Suite(
        "rollax.environments.suites.brax",
        _BRAX,
        "brax",
        {"fast": "it is no task: it serves brax's own tests"},
    ),
    "craftax": Suite("rollax.environments.suites.craftax", names.CRAFTAX, "craftax"),
    "jumanji": Suite(
        "rollax.environments.suites.jumanji.adapter",
        names.JUMANJI,
        "jumanji",
        {"Sokoban-v0": "it downloads its levels when it is made; every other Jumanji environment works offline"},
    ),
    "navix": Suite("rollax.environments.suites.navix", names.NAVIX, "navix", python=(3, 12)),
    "pgx": Suite(
        "rollax.environments.suites.pgx",
        names.PGX,
        "pgx",
        {
            "2048": "it is jumanji/Game2048-v1 here",
            "bridge_bidding": "it needs a data set of solved deals, which Pgx downloads",
            **dict.fromkeys(names.PGX_MINATAR, "MinAtar is that of gymnax here: gymnax/Breakout-MinAtar and the like"),
        },
        evaluation={"*": {"opponent": "random"}},
        best_metric="return_player_0",
    ),
    "playground": Suite(
        "rollax.environments.suites.playground",
        names.PLAYGROUND,
        "playground",
        dict.fromkeys(names.PLAYGROUND_ROBOTS, "Playground clones a repository of robots for it when it is made"),
    ),
    "jaxmarl": Suite(
        "rollax.environments.suites.jaxmarl.adapter",
        names.JAXMARL,
        "jaxmarl",
        {
            "LearnedPolicyEnemySMAX": "its enemy is a trained network, which is no argument; HeuristicEnemySMAX needs none",
            **dict.fromkeys(names.ROBOTARIUM, "it needs the simulator of robots that JaxMARL does not ship"),
        },
    ),
}


def missing_python(entry: Suite) -> str:
    """The version of Python that the package of a suite needs, such as "3.12", where this one is older; "" otherwise."""
    return ".".join(map(str, entry.python)) if sys.version_info < entry.python else ""
