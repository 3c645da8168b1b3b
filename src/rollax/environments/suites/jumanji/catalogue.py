"""Catalogue of the Jumanji environments."""

from rollax.environments.suites.suite import Suite

_NAMES = (
    "BinPack-v2",
    "Cleaner-v0",
    "Connector-v3",
    "CVRP-v1",
    "FlatPack-v0",
    "Game2048-v1",
    "GraphColoring-v1",
    "JobShop-v0",
    "Knapsack-v1",
    "LevelBasedForaging-v0",
    "Maze-v0",
    "Minesweeper-v0",
    "MMST-v0",
    "MultiCVRP-v0",
    "PacMan-v1",
    "RobotWarehouse-v0",
    "RubiksCube-partly-scrambled-v0",
    "RubiksCube-v0",
    "SearchAndRescue-v0",
    "SlidingTilePuzzle-v0",
    "Snake-v1",
    "Sudoku-v0",
    "Sudoku-very-easy-v0",
    "Tetris-v0",
    "TSP-v1",
)

_DESCRIPTIONS = {
    "BinPack-*": "pack items into the free spaces of a container",
    "Cleaner-*": "agents clean all tiles of a maze",
    "Connector-*": "agents connect their endpoints on a grid by paths that do not cross",
    "CVRP-*": "a vehicle serves customers and returns to reload; the reward is minus the distance",
    "FlatPack-*": "fill a grid with blocks",
    "Game2048-*": "merge tiles of a 4 x 4 board",
    "GraphColoring-*": "color a graph with few colors, one node at a time",
    "JobShop-*": "schedule jobs on machines; the reward is minus the total time",
    "Knapsack-*": "choose valuable items within a weight limit",
    "LevelBasedForaging-*": "agents cooperate to collect food",
    "Maze-*": "find the way through a fully observed maze",
    "Minesweeper-*": "uncover all cells without a mine",
    "MMST-*": "agents connect their nodes of a graph by disjoint trees",
    "MultiCVRP-*": "vehicles serve customers within time windows",
    "PacMan-*": "collect pellets in a maze and avoid ghosts",
    "RobotWarehouse-*": "robots deliver requested shelves without collisions",
    "RubiksCube-*": "solve a scrambled cube",
    "SearchAndRescue-*": "searchers in continuous space find moving targets",
    "SlidingTilePuzzle-*": "slide tiles into order",
    "Snake-*": "eat fruit, grow, and avoid the walls and the snake's body",
    "Sudoku-*": "solve a Sudoku",
    "Tetris-*": "place falling pieces to complete lines",
    "TSP-*": "visit all cities on a short tour",
}

SUITE = Suite(
    adapter="rollax.environments.suites.jumanji.adapter",
    names=_NAMES,
    descriptions=_DESCRIPTIONS,
    drawing="rollax.environments.suites.jumanji.drawing",
    extra="jumanji",
    module="jumanji",
    packages=("jumanji",),
    converter="from_jumanji(environment)",
    unavailable_reasons={
        "Sokoban-v0": (
            "it downloads levels when it is created; all other Jumanji environments work offline"
        )
    },
)
