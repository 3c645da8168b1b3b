"""The suites and the names of their environments, listed without importing any of them."""

from typing import Any, NamedTuple


class Suite(NamedTuple):
    """A family of environments behind one adapter module, which is imported when one of its names is asked for.

    The module has two functions, and two more where its suite needs them:

    - `make(name, arguments) -> Environment`, with the arguments as a dictionary;
    - `arguments(name) -> dict`: the names of the arguments that it accepts, with their defaults;
    - `resolve_arguments(arguments) -> dict`: the arguments with paths made absolute, for a run that is resumed elsewhere;
    - `CHOICES`: of arguments that take one of a few words, these words, or a function from the environment's name to them;
    - `check_evaluation(id, training, other)`: raises UsageError where evaluations with the arguments `other` over those of
      training would not measure what they claim, such as returns on tasks that training does not draw.
    """

    module: str
    names: tuple[str, ...]
    extra: str | None  # what to install: pip install "rollax[extra]"; None for suites that are part of rollax
    absent: dict[str, str] = {}
    evaluation: dict[str, Any] = {}  # arguments that are others in evaluations, unless one says otherwise


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

_JAXMARL = (
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

_ROBOTS = (
    "JaxRobotarium_navigation",
    "JaxRobotarium_discovery",
    "JaxRobotarium_material_transport",
    "JaxRobotarium_warehouse",
    "JaxRobotarium_arctic_transport",
    "JaxRobotarium_foraging",
    "JaxRobotarium_rware",
    "JaxRobotarium_predator_prey",
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

SUITES: dict[str, Suite] = {
    "gymnax": Suite(
        "rollax.environments.suites.gymnax",
        _GYMNAX,
        "gymnax",
        {"MNISTBandit-bsuite": "it downloads its images when it is made; every other gymnax environment works offline"},
    ),
    "probe": Suite("rollax.environments.native.probes", _PROBES, None),
    "memory": Suite("rollax.environments.native.memory", _MEMORY, None),
    "hunting": Suite("rollax.environments.native.hunting", _HUNTING, None),
    "control": Suite("rollax.environments.native.control", _CONTROL, None),
    "task": Suite("rollax.environments.native.tasks", _TASKS, None),
    "granular": Suite("rollax.environments.native.granular", _GRANULAR, None),
    "xminigrid": Suite("rollax.environments.suites.xminigrid.adapter", (*_XLAND, *_MINIGRID), "xland"),
    "rl2": Suite("rollax.environments.suites.xminigrid.trials", _XLAND, "xland", evaluation={"split": "validation"}),
    "brax": Suite(
        "rollax.environments.suites.brax",
        _BRAX,
        "brax",
        {"fast": "it is no task: it serves brax's own tests"},
    ),
    "jaxmarl": Suite(
        "rollax.environments.suites.jaxmarl.adapter",
        _JAXMARL,
        "jaxmarl",
        {
            "LearnedPolicyEnemySMAX": "its enemy is a trained network, which is no argument; HeuristicEnemySMAX needs none",
            **dict.fromkeys(_ROBOTS, "it needs the simulator of robots that JaxMARL does not ship"),
        },
    ),
}
