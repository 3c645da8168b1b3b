"""Catalogue of the XLand-MiniGrid environments."""

from rollax.environments.suites.suite import Suite

XLAND_NAMES = (
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

_MINIGRID_NAMES = (
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

_DESCRIPTIONS = {
    "XLand-*": (
        "a grid world whose rules and goal are sampled per episode; the name gives rooms (R) and "
        "size"
    ),
    "MiniGrid-BlockedUnlockPickUp": "move a ball, open a locked door and pick up the box behind it",
    "MiniGrid-DoorKey-*": "pick up a key, open the door and go to the goal",
    "MiniGrid-EmptyRandom-*": "go to the goal of an empty room from a random start",
    "MiniGrid-Empty-*": "go to the goal of an empty room",
    "MiniGrid-FourRooms": "go to a goal in one of four rooms",
    "MiniGrid-LockedRoom": "find the key of the locked room that contains the goal",
    "MiniGrid-Memory*": "memory: go to the object observed at the start",
    "MiniGrid-Playground": "nine rooms with objects and without a goal",
    "MiniGrid-UnlockPickUp": "open a locked door and pick up the box behind it",
    "MiniGrid-Unlock": "find the key and open the door",
}

SUITE = Suite(
    adapter="rollax.environments.suites.xminigrid.adapter",
    names=(*XLAND_NAMES, *_MINIGRID_NAMES),
    descriptions=_DESCRIPTIONS,
    drawing="rollax.environments.suites.xminigrid.drawing",
    extra="xland",
    module="xminigrid",
    packages=("xminigrid",),
)
