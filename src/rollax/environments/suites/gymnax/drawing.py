"""Drawings of gymnax environments."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image, ImageDraw

from rollax.canvas.boards import draw_cell_board
from rollax.canvas.drawing import DrawFn, Drawing
from rollax.canvas.scene import (
    BLUE,
    BOARD_BACKGROUND,
    BOARD_SIZE,
    DARK_GRAY,
    GRAY,
    GREEN,
    LIGHT_GRAY,
    ORANGE,
    RED,
    SCENE_HEIGHT,
    SCENE_WIDTH,
    Color,
    Scene,
)
from rollax.types import Observation, State

if TYPE_CHECKING:
    import rollax.environments.suites.gymnax.adapter

OFF_WHITE, DIM_GRAY, GOLD, LIGHT_BLUE = (
    (240, 240, 240),
    (92, 96, 108),
    (240, 200, 60),
    (86, 180, 233),
)


def draw_cartpole(
    environment: "rollax.environments.suites.gymnax.adapter.Gymnax", state: State, obs: Observation
) -> Image.Image:
    """Draw the cart on its track, with short marks at the limits of an episode."""
    params, x, theta = environment.params, float(state.x), float(state.theta)
    limit, length = float(params.x_threshold), 2 * float(params.length)
    scene = Scene(SCENE_WIDTH / (2.45 * limit), (0.0, 0.6))
    scene.line([(-2 * limit, 0), (2 * limit, 0)], GRAY)
    for end in (-limit, limit):
        scene.line([(end, -0.12), (end, 0.12)], RED, 3)
    scene.box(x, 0.0, 0.7, 0.4, DARK_GRAY)
    tip = (x + length * math.sin(theta), 0.12 + length * math.cos(theta))
    scene.rod((x, 0.12), tip, ORANGE, 0.13)
    scene.disc((x, 0.12), 0.06, BLUE)
    return scene.picture()


def draw_pendulum(
    environment: "rollax.environments.suites.gymnax.adapter.Gymnax", state: State, obs: Observation
) -> Image.Image:
    """Draw the pendulum and an arc whose length and direction show the torque."""
    params, theta, torque = environment.params, float(state.theta), float(np.ravel(state.last_u)[0])
    length = float(params.l)
    scene = Scene(SCENE_HEIGHT / (2.6 * length))
    share = max(-1.0, min(1.0, torque / float(params.max_torque)))
    arc = [
        (0.45 * length * math.cos(a), 0.45 * length * math.sin(a))
        for a in np.linspace(0, share * 2.4, 30) + math.pi / 2
    ]
    if abs(share) > 0.02:
        scene.line(arc, BLUE, 3)
        scene.disc(arc[-1], 0.045 * length, BLUE)
    scene.rod((0, 0), (-length * math.sin(theta), length * math.cos(theta)), RED, 0.17 * length)
    scene.disc((0, 0), 0.05 * length, DARK_GRAY)
    return scene.picture()


def draw_acrobot(
    environment: "rollax.environments.suites.gymnax.adapter.Gymnax", state: State, obs: Observation
) -> Image.Image:
    """Draw both links and the line that the tip must reach."""
    params, first, second = environment.params, float(state.joint_angle1), float(state.joint_angle2)
    length_1, length_2 = float(params.link_length_1), float(params.link_length_2)
    scene = Scene(SCENE_HEIGHT / (2.3 * (length_1 + length_2)))
    scene.line([(-9, 1), (9, 1)], GREEN)
    joint = (length_1 * math.sin(first), -length_1 * math.cos(first))
    tip = (
        joint[0] + length_2 * math.sin(first + second),
        joint[1] - length_2 * math.cos(first + second),
    )
    scene.rod((0, 0), joint, BLUE, 0.2)
    scene.rod(joint, tip, (86, 180, 233), 0.2)
    for point in ((0, 0), joint):
        scene.disc(point, 0.08, ORANGE)
    return scene.picture()


def draw_mountain_car(
    environment: "rollax.environments.suites.gymnax.adapter.Gymnax", state: State, obs: Observation
) -> Image.Image:
    """Draw the car between the hills and the flag at the goal."""
    params, x = environment.params, float(state.position)
    low, high, goal = (
        float(params.min_position),
        float(params.max_position),
        float(params.goal_position),
    )

    def ground(x: float) -> tuple[float, float]:
        return x, 0.45 * math.sin(3 * x)

    scene = Scene(SCENE_WIDTH / (high - low + 0.1), ((low + high) / 2, 0.12))
    ground_points = [ground(position) for position in np.linspace(low - 0.1, high + 0.1, 90)]
    scene.polygon([*ground_points, (high + 0.1, -2), (low - 0.1, -2)], LIGHT_GRAY)
    scene.line(ground_points, GRAY)
    foot = ground(goal)
    scene.line([foot, (goal, foot[1] + 0.2)], DARK_GRAY, 2)
    scene.polygon(
        [(goal, foot[1] + 0.2), (goal + 0.09, foot[1] + 0.16), (goal, foot[1] + 0.12)], ORANGE
    )
    angle = math.atan(1.35 * math.cos(3 * x))
    _draw_car(scene, ground(x), angle)
    return scene.picture()


def _draw_car(scene: Scene, position: tuple[float, float], angle: float) -> None:
    def to_world(forward: float, upward: float) -> tuple[float, float]:
        x = position[0] + forward * math.cos(angle) - upward * math.sin(angle)
        return x, position[1] + forward * math.sin(angle) + upward * math.cos(angle)

    scene.polygon(
        [
            to_world(-0.1, 0.03),
            to_world(0.1, 0.03),
            to_world(0.1, 0.07),
            to_world(0.06, 0.11),
            to_world(-0.06, 0.11),
            to_world(-0.1, 0.07),
        ],
        BLUE,
    )
    for wheel in (-0.055, 0.055):
        scene.disc(to_world(wheel, 0.03), 0.03, DARK_GRAY)


def draw_point_robot(
    environment: "rollax.environments.suites.gymnax.adapter.Gymnax", state: State, obs: Observation
) -> Image.Image:
    """Draw the robot, its goal, and the half circle that contains all goals."""
    params = environment.params
    radius = float(params.circle_radius)
    scene = Scene(SCENE_HEIGHT / (2.2 * radius), (0.0, 0.5 * radius))
    scene.line(
        [(radius * math.cos(a), radius * math.sin(a)) for a in np.linspace(0, math.pi, 60)],
        LIGHT_GRAY,
        3,
    )
    scene.disc(np.asarray(state.goal).tolist(), float(params.goal_radius), (190, 226, 214), GREEN)
    scene.disc(np.asarray(state.pos).tolist(), 0.06 * radius, RED, DARK_GRAY)
    return scene.picture()


def make_board_fn(paints: Sequence[tuple[int, Color]]) -> DrawFn:
    """Build a function that draws an observation `[H, W, C]` as a board.

    Args:
        paints: Pairs of channel index and color. Later pairs are drawn over earlier pairs.

    Returns:
        Function for `Drawing.draw`.
    """

    def draw(
        environment: "rollax.environments.suites.gymnax.adapter.Gymnax",
        state: State,
        obs: Observation,
    ) -> Image.Image:
        board = np.asarray(obs)
        colors = np.full((*board.shape[:2], 3), BOARD_BACKGROUND, np.uint8)
        for channel, color in paints:
            colors[board[..., channel] > 0] = color
        return draw_cell_board(colors)

    return draw


def draw_catch(
    environment: "rollax.environments.suites.gymnax.adapter.Gymnax", state: State, obs: Observation
) -> Image.Image:
    """Draw the falling ball and the paddle."""
    colors = np.full((*np.shape(obs), 3), BOARD_BACKGROUND, np.uint8)
    colors[int(state.ball_y), int(state.ball_x)] = ORANGE
    colors[int(state.paddle_y), int(state.paddle_x)] = BLUE
    return draw_cell_board(colors)


def draw_maze(
    environment: "rollax.environments.suites.gymnax.adapter.Gymnax", state: State, obs: Observation
) -> Image.Image:
    """Draw the whole maze, including cells that the agent does not observe."""
    walls = np.asarray(environment.dynamics.occupied_map) > 0
    colors = np.where(walls[..., None], np.array(DARK_GRAY), np.array((240, 240, 240)))
    for place, color in ((state.goal, GREEN), (state.pos, RED)):
        colors[int(place[0]), int(place[1])] = color
    return draw_cell_board(colors)


def draw_frozen_lake(
    environment: "rollax.environments.suites.gymnax.adapter.Gymnax", state: State, obs: Observation
) -> Image.Image:
    """Draw the ice with its holes, the start, the goal and the agent."""
    from gymnax.environments.misc import frozen_lake as lake

    tiles = np.asarray(environment.dynamics.desc)
    colors = np.full((*tiles.shape, 3), (205, 228, 240))
    colors[tiles == lake.HOLE], colors[tiles == lake.GOAL] = (40, 70, 110), GREEN
    picture = draw_cell_board(colors)
    size = BOARD_SIZE // max(tiles.shape)
    row, column = divmod(int(state.position), tiles.shape[1])
    edge = size // 4
    position = (
        column * size + edge,
        row * size + edge,
        (column + 1) * size - edge,
        (row + 1) * size - edge,
    )
    ImageDraw.Draw(picture).ellipse(position, RED)
    return picture


DRAWINGS: dict[str, Drawing] = {
    "CartPole-*": Drawing(draw_cartpole, 50),
    "Pendulum-*": Drawing(draw_pendulum, 20),
    "Acrobot-*": Drawing(draw_acrobot, 15),
    "MountainCar*": Drawing(draw_mountain_car, 30),
    "PointRobot-*": Drawing(draw_point_robot, 10),
    "Catch-*": Drawing(draw_catch, 5),
    "FourRooms-*": Drawing(draw_maze, 5),
    "MetaMaze-*": Drawing(draw_maze, 5),
    "FrozenLake-*": Drawing(draw_frozen_lake, 5),
    "Pong-*": Drawing(make_board_fn([(2, DIM_GRAY), (0, OFF_WHITE), (1, GOLD)]), 15),
    "Asterix-*": Drawing(make_board_fn([(2, DIM_GRAY), (1, RED), (3, GOLD), (0, BLUE)]), 10),
    "Breakout-*": Drawing(make_board_fn([(3, RED), (2, DIM_GRAY), (0, BLUE), (1, OFF_WHITE)]), 10),
    # Channels 2 to 6 are the trails of the cars. Brighter trails belong to slower cars.
    "Freeway-*": Drawing(
        make_board_fn(
            [
                *((i, (40 + 16 * i, 44 + 16 * i, 56 + 16 * i)) for i in range(2, 7)),
                (1, RED),
                (0, GOLD),
            ]
        ),
        10,
    ),
    # Trails, gauges of oxygen and divers, shots of both sides, fish and enemies, divers, submarine.
    "Seaquest-*": Drawing(
        make_board_fn(
            [
                (3, DIM_GRAY),
                (7, OFF_WHITE),
                (8, GOLD),
                (4, RED),
                (2, GOLD),
                (5, LIGHT_BLUE),
                (6, RED),
                (9, ORANGE),
                (1, (0, 110, 82)),
                (0, GREEN),
            ]
        ),
        10,
    ),
    # Aliens that move left and right, shots of both sides, the cannon.
    "SpaceInvaders-*": Drawing(
        make_board_fn(
            [(1, GREEN), (2, GREEN), (3, LIGHT_BLUE), (4, OFF_WHITE), (5, RED), (0, BLUE)]
        ),
        10,
    ),
}
