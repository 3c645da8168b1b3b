"""Pictures of environments: small functions of an environment, its state and its observation.

`DRAWINGS` has them by the environment's name, or by that of the environment within its views; every other environment is
drawn by the shape of its observation. Another suite adds its own:
`DRAWINGS["mine/Maze-*"] = Drawing(function, frames_per_second)`.
"""

import fnmatch
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
from PIL import Image, ImageDraw
from rich.text import Text

from rollax.environments.core import is_on_host
from rollax.environments.view_base import inner_state, innermost, unwrap
from rollax.view import agents, bodies, bodies_page, cards, granular, grid, hosted, navix, suites, worlds
from rollax.view.observations import cells, observation
from rollax.view.scene import (
    BLUE,
    BOARD,
    CHANNELS,
    GREEN,
    GREY,
    HEIGHT,
    INK,
    LIGHT,
    NIGHT,
    ORANGE,
    PAPER,
    RED,
    WIDTH,
    Color,
    Scene,
    Sign,
    font,
)

T = TypeVar("T")

Draw = Callable[..., Image.Image]  # (environment, env_state, obs) -> RGB; with `cameras` a fourth argument: one of these


class Drawing(NamedTuple):
    """How an environment is drawn. All functions take the environment within all views, its state and its observation."""

    draw: Draw
    fps: int  # steps that are shown in a second
    text: Callable[[Any, Any, Any], Text] | None = None  # the same in characters, where there is a way to
    notes: Callable[[Any, Any, Any], list[str]] | None = None  # lines on what a picture does not tell
    actions: tuple[str, ...] = ()  # what discrete actions are called
    palette: Callable[[], Sequence[Color]] = tuple  # colors that must not be lost, however small what has them
    legend: Callable[[Any, Any, Any], list[Sign]] | None = None  # what colors stand for; that of an episode's start is shown
    acted: Callable[[Any, int, Any], str] | None = None  # (environment, agent, its action) -> what it did, in words
    # (environment, states of an episode) -> from where each is seen, so that the view does not jump
    cameras: Callable[[Any, list[Any]], list[Any]] | None = None
    # (environment, every n-th state, frames in a second or None, n) -> a page in HTML that plays them
    page: Callable[[Any, list[Any], int | None, int], str] | None = None

    def drawn(self, environment: Any, states: list[Any], observations: list[Any]) -> list[Image.Image]:
        """Pictures of an episode, in one view."""
        seen = zip(states, observations, strict=True)
        if self.cameras is None:
            return [self.draw(environment, state, obs) for state, obs in seen]
        cameras = self.cameras(environment, states)
        return [self.draw(environment, *both, camera) for both, camera in zip(seen, cameras, strict=True)]


def drawing_of(environment: Any) -> Drawing:
    """The drawing for the environment's name, for that of the one within its views, or else one of its observation.

    The functions of the result take the environment, states and observations with all views.
    """
    if is_on_host(environment):
        return Drawing(hosted.picture, environment.fps)
    names = (environment.name, innermost(environment).name)
    for name, (pattern, drawing) in ((name, entry) for name in names for entry in DRAWINGS.items()):
        if fnmatch.fnmatchcase(name, pattern):
            seen = {part: getattr(drawing, part) for part in ("draw", "text", "notes", "legend")}
            over_time = {part: getattr(drawing, part) for part in ("cameras", "page")}
            return drawing._replace(
                acted=drawing.acted and _of_agent(drawing.acted),
                **{part: function and _of_innermost(function) for part, function in seen.items()},
                **{part: function and _of_inner_states(function) for part, function in over_time.items()},
            )
    return Drawing(observation, 10)


def _of_innermost(function: Callable[..., T]) -> Callable[..., T]:
    """A function of the environment within all views as one of the environment with them."""
    return lambda environment, state, obs, *camera: function(*unwrap(environment, state, obs), *camera)


def _of_agent(function: Callable[..., T]) -> Callable[..., T]:
    """The same of a function of an agent and its action."""
    return lambda environment, agent, action: function(innermost(environment), agent, action)


def _of_inner_states(function: Callable[..., T]) -> Callable[..., T]:
    """The same of a function of the states of an episode."""

    def of_states(environment: Any, states: list[Any], *more: Any) -> T:
        return function(innermost(environment), [inner_state(environment, state) for state in states], *more)

    return of_states


def cartpole(environment: Any, state: Any, obs: Any) -> Image.Image:
    """The cart on its track; short marks stand where an episode ends."""
    params, x, theta = environment.params, float(state.x), float(state.theta)
    limit, length = float(params.x_threshold), 2 * float(params.length)
    scene = Scene(WIDTH / (2.45 * limit), (0.0, 0.6))
    scene.line([(-2 * limit, 0), (2 * limit, 0)], GREY)
    for end in (-limit, limit):
        scene.line([(end, -0.12), (end, 0.12)], RED, 3)
    scene.box(x, 0.0, 0.7, 0.4, INK)
    tip = (x + length * math.sin(theta), 0.12 + length * math.cos(theta))
    scene.rod((x, 0.12), tip, ORANGE, 0.13)
    scene.disc((x, 0.12), 0.06, BLUE)
    return scene.picture()


def pendulum(environment: Any, state: Any, obs: Any) -> Image.Image:
    """The pendulum, and an arc that shows the torque: as long as it is strong, on the side it turns to."""
    params, theta, torque = environment.params, float(state.theta), float(np.ravel(state.last_u)[0])
    length = float(params.l)
    scene = Scene(HEIGHT / (2.6 * length))
    share = max(-1.0, min(1.0, torque / float(params.max_torque)))
    arc = [(0.45 * length * math.cos(a), 0.45 * length * math.sin(a)) for a in np.linspace(0, share * 2.4, 30) + math.pi / 2]
    if abs(share) > 0.02:
        scene.line(arc, BLUE, 3)
        scene.disc(arc[-1], 0.045 * length, BLUE)
    scene.rod((0, 0), (-length * math.sin(theta), length * math.cos(theta)), RED, 0.17 * length)
    scene.disc((0, 0), 0.05 * length, INK)
    return scene.picture()


def acrobot(environment: Any, state: Any, obs: Any) -> Image.Image:
    """Both links, and the line that the tip must rise above."""
    params, first, second = environment.params, float(state.joint_angle1), float(state.joint_angle2)
    length_1, length_2 = float(params.link_length_1), float(params.link_length_2)
    scene = Scene(HEIGHT / (2.3 * (length_1 + length_2)))
    scene.line([(-9, 1), (9, 1)], GREEN)
    joint = (length_1 * math.sin(first), -length_1 * math.cos(first))
    tip = (joint[0] + length_2 * math.sin(first + second), joint[1] - length_2 * math.cos(first + second))
    scene.rod((0, 0), joint, BLUE, 0.2)
    scene.rod(joint, tip, (86, 180, 233), 0.2)
    for point in ((0, 0), joint):
        scene.disc(point, 0.08, ORANGE)
    return scene.picture()


def mountain_car(environment: Any, state: Any, obs: Any) -> Image.Image:
    """The car between the hills, and the flag that it should reach."""
    params, x = environment.params, float(state.position)
    low, high, goal = float(params.min_position), float(params.max_position), float(params.goal_position)

    def ground(x: float) -> tuple[float, float]:
        return x, 0.45 * math.sin(3 * x)

    scene = Scene(WIDTH / (high - low + 0.1), ((low + high) / 2, 0.12))
    hills = [ground(at) for at in np.linspace(low - 0.1, high + 0.1, 90)]
    scene.polygon([*hills, (high + 0.1, -2), (low - 0.1, -2)], LIGHT)
    scene.line(hills, GREY)
    foot = ground(goal)
    scene.line([foot, (goal, foot[1] + 0.2)], INK, 2)
    scene.polygon([(goal, foot[1] + 0.2), (goal + 0.09, foot[1] + 0.16), (goal, foot[1] + 0.12)], ORANGE)
    angle = math.atan(1.35 * math.cos(3 * x))
    _car(scene, ground(x), angle)
    return scene.picture()


def _car(scene: Scene, place: tuple[float, float], angle: float) -> None:
    def at(along: float, up: float) -> tuple[float, float]:
        x = place[0] + along * math.cos(angle) - up * math.sin(angle)
        return x, place[1] + along * math.sin(angle) + up * math.cos(angle)

    scene.polygon([at(-0.1, 0.03), at(0.1, 0.03), at(0.1, 0.07), at(0.06, 0.11), at(-0.06, 0.11), at(-0.1, 0.07)], BLUE)
    for wheel in (-0.055, 0.055):
        scene.disc(at(wheel, 0.03), 0.03, INK)


def point_robot(environment: Any, state: Any, obs: Any) -> Image.Image:
    """The robot, its goal, and the half circle that goals lie on."""
    params = environment.params
    radius = float(params.circle_radius)
    scene = Scene(HEIGHT / (2.2 * radius), (0.0, 0.5 * radius))
    scene.line([(radius * math.cos(a), radius * math.sin(a)) for a in np.linspace(0, math.pi, 60)], LIGHT, 3)
    scene.disc(np.asarray(state.goal).tolist(), float(params.goal_radius), (190, 226, 214), GREEN)
    scene.disc(np.asarray(state.pos).tolist(), 0.06 * radius, RED, INK)
    return scene.picture()


def board(paints: Sequence[tuple[int, Color]]) -> Draw:
    """A drawing of an observation `[H, W, C]` by (channel, color), the later above the earlier."""

    def draw(environment: Any, state: Any, obs: Any) -> Image.Image:
        shown = np.asarray(obs)
        colors = np.full((*shown.shape[:2], 3), NIGHT, np.uint8)
        for channel, color in paints:
            colors[shown[..., channel] > 0] = color
        return cells(colors)

    return draw


def catch(environment: Any, state: Any, obs: Any) -> Image.Image:
    """The falling ball and the paddle."""
    colors = np.full((*np.shape(obs), 3), NIGHT, np.uint8)
    colors[int(state.ball_y), int(state.ball_x)] = ORANGE
    colors[int(state.paddle_y), int(state.paddle_x)] = BLUE
    return cells(colors)


def maze(environment: Any, state: Any, obs: Any) -> Image.Image:
    """Walls, the goal and the agent, whatever of them the agent observes."""
    walls = np.asarray(environment.dynamics.occupied_map) > 0
    colors = np.where(walls[..., None], np.array(INK), np.array((240, 240, 240)))
    for place, color in ((state.goal, GREEN), (state.pos, RED)):
        colors[int(place[0]), int(place[1])] = color
    return cells(colors)


def frozen_lake(environment: Any, state: Any, obs: Any) -> Image.Image:
    """Ice with its holes, start and goal, and the agent upon it."""
    from gymnax.environments.misc import frozen_lake as lake

    tiles = np.asarray(environment.dynamics.desc)
    colors = np.full((*tiles.shape, 3), (205, 228, 240))
    colors[tiles == lake.HOLE], colors[tiles == lake.GOAL] = (40, 70, 110), GREEN
    picture = cells(colors)
    size = BOARD // max(tiles.shape)
    row, column = divmod(int(state.position), tiles.shape[1])
    edge = size // 4
    place = (column * size + edge, row * size + edge, (column + 1) * size - edge, (row + 1) * size - edge)
    ImageDraw.Draw(picture).ellipse(place, RED)
    return picture


def symbols(environment: Any, state: Any, obs: Any) -> Image.Image:
    """The symbols shown so far, the newest on the right: the next action, not that of this frame, is to repeat the left one."""
    edge, gap = min(64, (WIDTH - 16) // len(state.recent)), 4
    picture = Image.new("RGB", (WIDTH, 120), PAPER)
    pen = ImageDraw.Draw(picture)
    left, top = (WIDTH - edge * len(state.recent)) / 2, 60 - edge / 2
    number = min(int(state.time) + 1, len(state.recent))
    for place, symbol in enumerate(np.asarray(state.recent).tolist()):
        is_shown = place >= len(state.recent) - number
        corner = left + place * edge
        box = (corner + gap / 2, top, corner + edge - gap / 2, top + edge - gap)
        pen.rectangle(box, CHANNELS[symbol % len(CHANNELS)] if is_shown else PAPER, LIGHT)
        if is_shown and edge >= 20:
            pen.text((corner + edge / 2, 60 - gap / 2), str(symbol), PAPER, font(edge / 2.5), anchor="mm")
    middle = 32  # at least so far from the edges of the picture are words that have their middle there
    if int(state.time) < environment.time_limit:
        pen.text((max(left + edge / 2, middle), top - 6), "asked next", INK, font(11), anchor="md")
    newest = min(left + edge * (len(state.recent) - 0.5), WIDTH - middle)
    pen.text((newest, top + edge + 2), "on show", GREY, font(11), anchor="ma")
    return picture


WHITE, DIM, GOLD, FISH = (240, 240, 240), (92, 96, 108), (240, 200, 60), (86, 180, 233)

DRAWINGS: dict[str, Drawing] = {
    "gymnax/CartPole-*": Drawing(cartpole, 50),
    "gymnax/Pendulum-*": Drawing(pendulum, 20),
    "gymnax/Acrobot-*": Drawing(acrobot, 15),
    "gymnax/MountainCar*": Drawing(mountain_car, 30),
    "gymnax/PointRobot-*": Drawing(point_robot, 10),
    "gymnax/Catch-*": Drawing(catch, 5),
    "gymnax/FourRooms-*": Drawing(maze, 5),
    "gymnax/MetaMaze-*": Drawing(maze, 5),
    "gymnax/FrozenLake-*": Drawing(frozen_lake, 5),
    "gymnax/Pong-*": Drawing(board([(2, DIM), (0, WHITE), (1, GOLD)]), 15),
    "gymnax/Asterix-*": Drawing(board([(2, DIM), (1, RED), (3, GOLD), (0, BLUE)]), 10),
    "gymnax/Breakout-*": Drawing(board([(3, RED), (2, DIM), (0, BLUE), (1, WHITE)]), 10),
    # Channels 2 to 6 are the cars' trails: the brighter, the slower.
    "gymnax/Freeway-*": Drawing(
        board([*((i, (40 + 16 * i, 44 + 16 * i, 56 + 16 * i)) for i in range(2, 7)), (1, RED), (0, GOLD)]), 10
    ),
    # Trails, gauges of oxygen and divers, both shots, fish and enemies, divers, the submarine's back and front.
    "gymnax/Seaquest-*": Drawing(
        board(
            [
                (3, DIM),
                (7, WHITE),
                (8, GOLD),
                (4, RED),
                (2, GOLD),
                (5, FISH),
                (6, RED),
                (9, ORANGE),
                (1, (0, 110, 82)),
                (0, GREEN),
            ]
        ),
        10,
    ),
    # Aliens that go left and right, both shots, the cannon.
    "gymnax/SpaceInvaders-*": Drawing(board([(1, GREEN), (2, GREEN), (3, FISH), (4, WHITE), (5, RED), (0, BLUE)]), 10),
    "memory/repeat-previous": Drawing(symbols, 3),
    **dict.fromkeys(
        ("memory/repeat-first", "memory/autoencode", "memory/count-recall", "memory/higher-lower"), Drawing(cards.table, 5)
    ),
    "hunting/*": Drawing(worlds.hunting, 25, legend=worlds.hunting_signs),
    "control/point-maze": Drawing(worlds.point_maze, 10),
    "granular/single-navigator": Drawing(granular.navigator, 15),
    "granular/many-navigators": Drawing(granular.navigators, 15, legend=granular.navigator_signs),
    "granular/single-roller": Drawing(granular.roller, 15),
    # These two move in steps of 0.008 seconds.
    "brax/hopper": Drawing(bodies.drawn, 60, cameras=bodies.cameras, page=bodies_page.document),
    "brax/walker2d": Drawing(bodies.drawn, 60, cameras=bodies.cameras, page=bodies_page.document),
    "brax/*": Drawing(bodies.drawn, 20, cameras=bodies.cameras, page=bodies_page.document),
    "craftax/*": Drawing(suites.craftax, 5, actions=suites.CRAFTAX_ACTIONS),
    "navix/*": Drawing(navix.picture, 8, notes=navix.notes, actions=navix.ACTIONS),
    "playground/*": Drawing(bodies.drawn, 40, cameras=bodies.cameras, page=bodies_page.document),
    "jumanji/Game2048-*": Drawing(suites.jumanji, 4, actions=suites.JUMANJI_MOVES),
    "jumanji/Snake-*": Drawing(suites.jumanji, 8, actions=suites.JUMANJI_MOVES),
    "jumanji/Maze-*": Drawing(suites.jumanji, 5, actions=suites.JUMANJI_MOVES),
    "jumanji/SlidingTilePuzzle-*": Drawing(suites.jumanji, 4, actions=suites.JUMANJI_MOVES),
    "jumanji/*": Drawing(suites.jumanji, 4),
    **{
        f"pgx/{name}": Drawing(suites.stones, 2, legend=suites.stone_signs, acted=suites.moved)
        for name in ("connect_four", "go_*", "othello", "tic_tac_toe")
    },
    "pgx/*": Drawing(observation, 10, acted=suites.moved),
    "jaxmarl/MPE_*": Drawing(agents.particles, 8, legend=agents.particle_signs, cameras=agents.particle_cameras),
    "jaxmarl/*SMAX": Drawing(agents.battle, 6, notes=agents.forces, legend=agents.battle_signs, cameras=agents.battle_cameras),
    "jaxmarl/overcooked": Drawing(suites.kitchen, 6, legend=suites.kitchen_signs, actions=suites.KITCHEN_MOVES),
    "jaxmarl/overcooked_v2": Drawing(suites.kitchen_v2, 6, legend=suites.kitchen_signs, actions=suites.KITCHEN_V2_MOVES),
    "xminigrid/*": Drawing(grid.picture, 8, grid.text, grid.notes, grid.ACTIONS, grid.palette, cameras=grid.cameras),
    "rl2/*": Drawing(grid.picture, 8, grid.text, grid.notes, grid.ACTIONS, grid.palette, cameras=grid.cameras),
}
