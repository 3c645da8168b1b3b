"""Catalogue of the gymnasium environments, with Atari games and MuJoCo robots."""

from rollax.environments.suites.suite import Suite

_NAMES = (
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

# The MuJoCo robots and Atari games are also in EnvPool.
_ROBOTS = (
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
MUJOCO_NAMES = tuple(f"{name}-{version}" for name in _ROBOTS for version in ("v5", "v4"))

_ATARI_TEXT = """
    Adventure AirRaid Alien Amidar Assault Asterix Asteroids Atlantis2 Atlantis Backgammon BankHeist
    BasicMath BattleZone BeamRider Berzerk Blackjack Bowling Boxing Breakout Carnival Casino
    Centipede ChopperCommand CrazyClimber Crossbow Darkchambers Defender DemonAttack DonkeyKong
    DoubleDunk Earthworld ElevatorAction Enduro Entombed Et FishingDerby FlagCapture Freeway Frogger
    Frostbite Galaxian Gopher Gravitar Hangman HauntedHouse Hero HumanCannonball IceHockey Jamesbond
    JourneyEscape Kaboom Kangaroo KeystoneKapers KingKong Klax Koolaid Krull KungFuMaster LaserGates
    LostLuggage MarioBros MiniatureGolf MontezumaRevenge MrDo MsPacman NameThisGame Othello Pacman
    Phoenix Pitfall2 Pitfall Pong Pooyan PrivateEye Qbert Riverraid RoadRunner Robotank Seaquest
    SirLancelot Skiing Solaris SpaceInvaders SpaceWar StarGunner Superman Surround Tennis Tetris
    TicTacToe3D TimePilot Trondead Turmoil Tutankham UpNDown Venture VideoCheckers VideoChess
    VideoCube VideoPinball WizardOfWor WordZapper YarsRevenge Zaxxon
"""
ATARI_NAMES = tuple(_ATARI_TEXT.split())

# Of environments that are also in EnvPool.
CONTROL_DESCRIPTIONS = {
    "CartPole-*": "balance a pole on a cart that is pushed left or right",
    "MountainCar-*": "a weak car rocks out of a valley; the reward is -1 per step",
    "MountainCarContinuous-*": (
        "a weak car rocks out of a valley; the force is continuous and has a cost"
    ),
    "Pendulum-*": "swing a pendulum up by a torque and hold it there",
    "Acrobot-*": "swing the lower of two links above a height",
    "LunarLander*": "land a rocket softly between two flags",
    "BipedalWalkerHardcore-*": "a planar robot on two legs walks over stumps, pits and stairs",
    "BipedalWalker-*": "a planar robot on two legs walks over rough ground",
    "CarRacing-*": "drive a car around a track, from pictures",
    "Reacher-*": "a planar arm of two links reaches a target",
    "Pusher-*": "an arm pushes an object to a target position",
    "InvertedPendulum-*": "balance a pole on a cart by a force",
    "InvertedDoublePendulum-*": "balance two poles, one on the other, on a cart by a force",
    "HalfCheetah-*": "a planar cheetah on two legs runs along x",
    "Hopper-*": "a planar robot on one leg hops along x",
    "Swimmer-*": "a chain of three links swims along x",
    "Walker2d-*": "a planar robot on two legs walks along x",
    "Ant-*": "a robot on four legs runs along x",
    "HumanoidStandup-*": "a humanoid stands up",
    "Humanoid-*": "a humanoid walks along x",
}

_DESCRIPTIONS = {
    **CONTROL_DESCRIPTIONS,
    "Blackjack-*": "the card game against a dealer",
    "FrozenLake*": "cross a frozen lake with holes",
    "CliffWalking*": "walk along a cliff to the goal",
    "Taxi-*": "pick up a passenger and drive to the destination on a grid",
    "ALE/*": "an Atari 2600 game, from pictures",
}

SUITE = Suite(
    adapter="rollax.environments.suites.gymnasium.adapter",
    names=(
        *_NAMES,
        *MUJOCO_NAMES,
        *(f"ALE/{name}-v5" for name in ATARI_NAMES),
    ),
    descriptions=_DESCRIPTIONS,
    extra="gymnasium",
    module="gymnasium",
    packages=("gymnasium", "ale-py", "box2d", "box2d-py", "mujoco"),
    is_open=True,
    is_on_host=True,
    # Evaluations play complete games and report the score.
    evaluation={"ALE/*": {"episodic_life": False, "clip_rewards": False}},
)
