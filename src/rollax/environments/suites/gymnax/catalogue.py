"""Catalogue of the gymnax environments."""

from rollax.environments.suites.suite import Suite

_NAMES = (
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

_DESCRIPTIONS = {
    "CartPole-v1": "balance a pole on a cart that is pushed left or right",
    "Pendulum-v1": "swing a pendulum up by a torque and hold it there",
    "Acrobot-v1": "swing the lower of two links above a height",
    "MountainCar-v0": "a weak car rocks out of a valley; the reward is -1 per step",
    "MountainCarContinuous-v0": (
        "a weak car rocks out of a valley; the force is continuous and has a cost"
    ),
    "Asterix-MinAtar": "collect gold, avoid enemies, on a 10 x 10 grid",
    "Breakout-MinAtar": "break a wall of bricks with a ball, on a 10 x 10 grid",
    "Freeway-MinAtar": "cross a road with traffic as often as possible, on a 10 x 10 grid",
    "Seaquest-MinAtar": (
        "a submarine rescues divers and shoots enemies with limited oxygen, on a 10 x 10 grid"
    ),
    "SpaceInvaders-MinAtar": "shoot descending aliens, on a 10 x 10 grid",
    "Catch-bsuite": "move a paddle below a falling ball",
    "DeepSea-bsuite": (
        "exploration: only one path through a grid leads to the reward, and its steps have a cost"
    ),
    "MemoryChain-bsuite": "memory: the correct action at the end depends on the first observation",
    "UmbrellaChain-bsuite": (
        "credit assignment: the first action determines the final reward, with noise in between"
    ),
    "DiscountingChain-bsuite": "the first action chooses a reward after 1, 3, 10, 30 or 100 steps",
    "*Bandit-*": "a bandit: an episode is a single choice or a sequence of pulls",
    "FourRooms-misc": "find a goal in four rooms",
    "MetaMaze-misc": "find a goal in a maze repeatedly within an episode",
    "PointRobot-misc": "a point moves to a goal on a circle that it does not observe",
    "Reacher-misc": "a planar arm reaches a goal",
    "Swimmer-misc": "a chain of links swims forward",
    "Pong-misc": "Pong on a grid, against an opponent that follows the ball",
    "FrozenLake-misc": "cross a frozen lake with holes",
}

SUITE = Suite(
    adapter="rollax.environments.suites.gymnax.adapter",
    names=_NAMES,
    descriptions=_DESCRIPTIONS,
    drawing="rollax.environments.suites.gymnax.drawing",
    extra="gymnax",
    module="gymnax",
    packages=("gymnax",),
    converter="from_gymnax(environment, params)",
    unavailable_reasons={
        "MNISTBandit-bsuite": (
            "it downloads images when it is created; all other gymnax environments work offline"
        )
    },
)
