"""Tests of the granular worlds: collisions, friction and rolling in closed form, and symmetries."""

import importlib
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rollax.environments import make
from rollax.environments.native.granular import drawing as view
from rollax.environments.native.granular import lidar, neighbors, physics
from rollax.environments.native.granular.physics import Bodies, Domain, Material, Spheres, World
from rollax.errors import UnknownNameError, UsageError

NUMBERS = {"stiffness": 1e4, "damping": 0.0, "friction": 0.0, "grip": 40.0}


def _world(
    mass: Any,
    dimension: int,
    side: float = 10.0,
    periodic: bool = False,
    gravity: float = 0.0,
    time_step: float = 1e-3,
    **law: Any,
) -> World:
    """Return a world of spheres of radius 0.5 in a box."""
    masses = jnp.asarray(mass, jnp.float32)
    radius = jnp.full(masses.shape, 0.5)
    domain = Domain(jnp.zeros(dimension), jnp.full(dimension, side), (periodic,) * dimension)
    material = Material(
        **{name: jnp.asarray(value, jnp.float32) for name, value in {**NUMBERS, **law}.items()}
    )
    down = jnp.zeros(dimension).at[-1].set(-gravity)
    bodies = Bodies(radius, masses, physics.sphere_inertia(masses, radius))
    return World(
        bodies, material, domain, down, jnp.zeros(()), jnp.zeros(()), jnp.float32(time_step)
    )


def _free(world: World, spheres: Spheres, steps: int) -> Spheres:
    """Advance the spheres without external forces."""
    return physics.advance(
        world, spheres, jnp.zeros_like(spheres.velocity), jnp.zeros_like(spheres.spin), steps
    )


_forces = jax.jit(physics.compute_forces)


def _crowd(key: jax.Array, number: int, dimension: int, side: float = 10.0) -> Spheres:
    """Return spheres at random positions, many of them in contact, that move and spin."""
    keys = jax.random.split(key, 3)
    spins = 1 if dimension == 2 else 3
    return Spheres(
        jax.random.uniform(keys[0], (number, dimension), maxval=side),
        jax.random.normal(keys[1], (number, dimension)),
        jax.random.normal(keys[2], (number, spins)),
    )


def _approach(dimension: int, offset: float = 0.0, spin: float = 0.0) -> Spheres:
    """Return two spheres just before they meet at a speed of 2, off the center by `offset`."""
    position = (
        jnp.zeros((2, dimension)).at[:, 0].set(jnp.array([4.0, 5.01])).at[1, 1].set(offset) + 1.0
    )
    velocity = jnp.zeros((2, dimension)).at[:, 0].set(jnp.array([1.0, -1.0]))
    return Spheres(position, velocity, jnp.full((2, 1 if dimension == 2 else 3), spin))


# --- Collisions ---


@pytest.mark.parametrize("dimension", [2, 3])
def test_elastic_collisions_conserve_energy_and_momentum(dimension: int) -> None:
    """Energy is conserved to 2e-4 with 130 time steps per contact, and momentum to rounding."""
    world, before = _world([1.0, 3.0], dimension, time_step=2e-4), _approach(dimension, offset=0.4)
    after = _free(world, before, 750)
    mass = np.asarray(world.bodies.mass)[:, None]
    energy = [
        float(physics.kinetic_energy(world.bodies, spheres).sum()) for spheres in (before, after)
    ]
    np.testing.assert_allclose(energy[1], energy[0], rtol=2e-4)
    np.testing.assert_allclose(
        (mass * after.velocity).sum(0), (mass * before.velocity).sum(0), atol=1e-5
    )
    # They did collide.
    assert float(jnp.abs(after.velocity - before.velocity).max()) > 0.5


@pytest.mark.parametrize("dimension", [2, 3])
def test_friction_between_spheres_conserves_momenta_and_loses_energy(dimension: int) -> None:
    world, before = (
        _world([1.0, 3.0], dimension, friction=0.5),
        _approach(dimension, offset=0.4, spin=2.0),
    )
    after = _free(world, before, 150)
    mass, inertia = np.asarray(world.bodies.mass), np.asarray(world.bodies.inertia)

    def turning(spheres: Spheres) -> np.ndarray:
        """Return the angular momentum about the origin, of orbit and of spin."""
        pad = ((0, 0), (0, 3 - dimension))
        orbit = (
            np.cross(np.pad(spheres.position, pad), np.pad(spheres.velocity, pad)) * mass[:, None]
        )
        return orbit.sum(0)[(2 if dimension == 2 else 0) :] + (inertia[:, None] * spheres.spin).sum(
            0
        )

    np.testing.assert_allclose(turning(after), turning(before), rtol=1e-4, atol=1e-4)
    momentum = [(mass[:, None] * spheres.velocity).sum(0) for spheres in (before, after)]
    np.testing.assert_allclose(momentum[1], momentum[0], atol=1e-5)
    energy = [
        float(physics.kinetic_energy(world.bodies, spheres).sum()) for spheres in (before, after)
    ]
    assert energy[1] < 0.99 * energy[0]


def test_restitution_is_that_of_the_dashpot() -> None:
    """It is exp(-(pi - 2 phi) tan phi) for a damping of sin phi, for any masses and for walls."""
    dampings = jnp.array([0.0, 0.05, 0.15, 0.4, 0.7, 0.9])

    def ratio(damping: jax.Array, mass: jax.Array) -> jax.Array:
        world = eqx.tree_at(
            lambda w: w.material.damping, _world([1.0, 1.0], 2, time_step=2e-4), damping
        )
        world = eqx.tree_at(lambda w: w.bodies.mass, world, jnp.stack([jnp.ones(()), mass]))
        after = _free(world, _approach(2), 800)
        return (after.velocity[1, 0] - after.velocity[0, 0]) / 2

    def against_wall(damping: jax.Array) -> jax.Array:
        world = eqx.tree_at(lambda w: w.material.damping, _world([1.0], 2, time_step=2e-4), damping)
        before = Spheres(jnp.array([[5.0, 0.51]]), jnp.array([[0.3, -1.0]]), jnp.zeros((1, 1)))
        return _free(world, before, 800).velocity[0]

    expected = jnp.exp(-(jnp.pi - 2 * jnp.arcsin(dampings)) * jnp.tan(jnp.arcsin(dampings)))
    for mass in (1.0, 5.0):
        found = jax.jit(jax.vmap(ratio, (0, None)))(dampings, jnp.float32(mass))
        np.testing.assert_allclose(found, expected, atol=4e-3)
    velocity = jax.jit(jax.vmap(against_wall))(dampings)
    np.testing.assert_allclose(velocity[:, 1], expected, atol=4e-3)
    np.testing.assert_allclose(velocity[:, 0], 0.3, atol=1e-6)


def test_halving_the_time_step_quarters_the_error() -> None:
    """Velocity Verlet is of second order.

    Positions in the middle of a smooth contact are compared.
    """
    start = Spheres(jnp.array([[5.0, 0.45]]), jnp.array([[0.0, -0.2]]), jnp.zeros((1, 1)))

    def height(steps: int) -> float:
        world = _world([1.0], 2, time_step=0.02 / steps, stiffness=2e3)
        return float(_free(world, start, steps).position[0, 1])

    # Closed form: the overlap is a cosine and a sine of the frequency sqrt(k / m).
    frequency = np.sqrt(2e3)
    overlap = 0.05 * np.cos(0.02 * frequency) + 0.2 / frequency * np.sin(0.02 * frequency)
    errors = [abs(height(steps) - (0.5 - overlap)) for steps in (2, 4)]
    assert 3.5 < errors[0] / errors[1] < 4.5


def test_friction_is_within_its_cone_and_opposes_slip() -> None:
    """For contacts of every kind, the normal force only pushes.

    Friction is at most its coefficient times the normal force.
    """

    def contact(key: jax.Array) -> tuple[jax.Array, ...]:
        keys = jax.random.split(key, 6)
        law = Material(
            *(
                10
                ** jax.random.uniform(
                    keys[0],
                    (4,),
                    minval=jnp.array([2.0, -2, -1, 0]),
                    maxval=jnp.array([5.0, 0, 0, 3]),
                )
            )
        )
        overlap, normal = 0.1 * jax.random.normal(keys[1]), jax.random.normal(keys[2], (3,))
        normal = normal / jnp.linalg.norm(normal)
        velocity, turning = jax.random.normal(keys[3], (3,)), jax.random.normal(keys[4], (3,))
        force = physics.contact_force(
            law, jnp.exp(jax.random.normal(keys[5])), overlap, normal, velocity, turning
        )
        push = jnp.dot(force, normal)
        tangential = force - push * normal
        slip = velocity - jnp.dot(velocity, normal) * normal - jnp.cross(turning, normal)
        return push, jnp.linalg.norm(tangential), law.friction, jnp.dot(tangential, slip), overlap

    push, tangential, friction, power, overlap = jax.jit(jax.vmap(contact))(
        jax.random.split(jax.random.key(0), 5000)
    )
    scale = float(jnp.abs(push).max())
    assert (push >= -1e-6 * scale).all() and (push[overlap < 0] == 0).all()
    assert (tangential <= friction * push + 1e-5 * scale).all()
    assert (power <= 1e-5 * scale).all()
    # Both sides of Coulomb's law occur: some contacts slide and some stick.
    sliding = tangential > 0.99 * friction * push
    assert 0.05 < float(sliding[push > 0].mean()) < 0.95


# --- On the floor ---


def _on_the_floor(velocity: float, spin: float, seconds: float, friction: float = 0.3) -> Spheres:
    world = _world([1.0], 3, gravity=10.0, friction=friction, damping=0.2)
    height = 0.5 - 10 / 1e4  # where the floor carries the weight
    start = Spheres(
        jnp.array([[2.0, 5.0, height]]),
        jnp.array([[velocity, 0.0, 0.0]]),
        jnp.array([[0.0, spin, 0.0]]),
    )
    return _free(world, start, round(seconds / 1e-3))


@pytest.mark.parametrize("friction", [0.2, 0.6])
def test_a_sliding_sphere_rolls_with_five_sevenths_of_its_speed(friction: float) -> None:
    """Angular momentum about the floor is conserved for any friction: 7/5 v = v0.

    Before that, it slows down by friction times g.
    """
    sliding = _on_the_floor(3.0, 0.0, 0.1, friction)
    np.testing.assert_allclose(sliding.velocity[0, 0], 3 - 10 * friction * 0.1, rtol=2e-3)
    rolling = _on_the_floor(3.0, 0.0, 1.5, friction)
    np.testing.assert_allclose(rolling.velocity[0], [15 / 7, 0, 0], atol=5e-3)
    np.testing.assert_allclose(rolling.spin[0], [0, 15 / 7 / 0.5, 0], atol=2e-2)


def test_a_rolling_sphere_keeps_rolling() -> None:
    after = _on_the_floor(1.0, 1.0 / 0.499, 3.0)
    np.testing.assert_allclose(after.velocity[0], [1, 0, 0], atol=1e-4)
    np.testing.assert_allclose(after.position[0], [5, 5, 0.499], atol=1e-3)


def test_a_spinning_sphere_rolls_with_two_sevenths_of_its_speed() -> None:
    """From rest with spin w: v = 2/7 w r."""
    after = _on_the_floor(0.0, 10.0, 2.0)
    np.testing.assert_allclose(after.velocity[0, 0], 10 * 0.5 * 2 / 7, rtol=4e-3)


@pytest.mark.quick
def test_rotating_a_quaternion_is_a_rotation() -> None:
    """Half a turn about the third axis and a quarter about the first equal matrices.

    Small steps add up to a large one.
    """
    start = jnp.eye(4)[0]
    half = physics.rotate_orientation(start, jnp.array([0.0, 0.0, np.pi]), jnp.float32(1.0))
    both = physics.rotate_orientation(half, jnp.array([np.pi / 2, 0.0, 0.0]), jnp.float32(1.0))
    expected = np.array([[1, 0, 0], [0, 0, -1], [0, 1, 0]]) @ np.diag([-1, -1, 1])
    np.testing.assert_allclose(view.rotation_matrix(np.asarray(both)), expected, atol=1e-5)
    small = jax.lax.fori_loop(
        0,
        50,
        lambda _, q: physics.rotate_orientation(q, jnp.array([0.0, 0.0, np.pi]), jnp.float32(0.02)),
        start,
    )
    np.testing.assert_allclose(small, half, atol=1e-5)


# --- Symmetries ---


@pytest.mark.parametrize("dimension", [2, 3])
def test_the_order_of_spheres_does_not_matter(dimension: int) -> None:
    law = {"damping": 0.2, "friction": 0.4}
    mass = jnp.linspace(0.5, 2, 12)
    spheres = _crowd(jax.random.key(1), 12, dimension, side=3.0)
    order = np.array([7, 3, 11, 0, 5, 1, 9, 2, 10, 4, 8, 6])
    straight = _forces(_world(mass, dimension, **law), spheres)
    mixed = _forces(
        _world(mass[order], dimension, **law), jax.tree.map(lambda x: x[order], spheres)
    )
    for a, b in zip(straight, mixed, strict=True):
        assert float(jnp.abs(a).max()) > 10
        np.testing.assert_allclose(a[order], b, rtol=1e-4, atol=1e-2)


@pytest.mark.parametrize("dimension", [2, 3])
def test_a_periodic_world_has_no_edge(dimension: int) -> None:
    """Moving everything by one vector, across the edges, changes no force. It would with walls."""
    spheres = _crowd(jax.random.key(2), 60, dimension)
    shift = jnp.array([4.3, -7.7, 2.9])[:dimension]
    moved = spheres._replace(
        position=jnp.mod(spheres.position + jnp.broadcast_to(shift, spheres.position.shape), 10.0)
    )
    world = _world(jnp.ones(60), dimension, periodic=True, friction=0.4)
    scale = float(jnp.abs(_forces(world, spheres)[0]).max())
    for a, b in zip(_forces(world, spheres), _forces(world, moved), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-4 * scale)
    inside = _free(world, spheres, 3).position
    assert (inside >= 0).all() and (inside <= 10).all()


def test_nearest_images_are_those_of_jax_md() -> None:
    space = pytest.importorskip("jax_md.space")
    low, high, points = (
        jnp.zeros(3),
        jnp.array([4.0, 5.0, 6.0]),
        jax.random.uniform(jax.random.key(3), (2, 200, 3), maxval=4.0),
    )
    ours = jax.vmap(Domain(low, high, (True,) * 3).displacement)(points[0], points[1])
    theirs = jax.vmap(space.periodic(high)[0])(points[0], points[1])
    np.testing.assert_allclose(ours, theirs, atol=1e-5)
    mixed = jax.vmap(Domain(low, high, (True, False, True)).displacement)(points[0], points[1])
    np.testing.assert_allclose(mixed[:, 1], (points[0] - points[1])[:, 1])
    np.testing.assert_allclose(mixed[:, ::2], theirs[:, ::2], atol=1e-5)


@pytest.mark.parametrize("dimension, periodic", [(3, True), (2, False)])
def test_neighbor_lists_give_the_forces_of_all_pairs(dimension: int, periodic: bool) -> None:
    """The lists are tested under `vmap`, compiled, and with new positions."""
    pytest.importorskip("jax_md")
    number = 80
    side = 10.0 if dimension == 2 else 6.0
    world = _world(
        jnp.ones(number), dimension, side=side, periodic=periodic, damping=0.1, friction=0.4
    )
    crowds = jax.vmap(lambda key: _crowd(key, number, dimension, side))(
        jax.random.split(jax.random.key(4), 3)
    )
    find = neighbors.make_neighbor_search(number, (side,) * dimension, periodic, 1.2, 24, 0.3)

    def both(spheres: Spheres) -> Any:
        near = find(spheres.position)
        return (
            physics.compute_forces(world, spheres),
            physics.compute_forces(world, spheres, near),
            near.overflow,
        )

    everyone, listed, overflow = jax.jit(jax.vmap(both))(crowds)
    assert not overflow.any()
    for a, b in zip(everyone, listed, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5 * float(jnp.abs(a).max()))


def test_an_overflow_of_neighbor_lists_is_flagged() -> None:
    """It is caused by a sphere with too many neighbors or by a cell with too many spheres."""
    pytest.importorskip("jax_md")
    position = _crowd(jax.random.key(4), 80, 2, side=3.0).position
    for capacity, closest in ((20, 0.1), (79, 1.2)):
        find = neighbors.make_neighbor_search(80, (10.0, 10.0), False, 1.2, capacity, closest)
        assert jax.jit(find)(position).overflow


def test_invalid_neighbor_lists_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="cutoff"):
        neighbors.make_neighbor_search(10, (3.0, 3.0), True, 2.0, 5, 1.0)

    def absent(name: str) -> None:
        raise ModuleNotFoundError(name="jax_md")

    monkeypatch.setattr(importlib, "import_module", absent)
    with pytest.raises(UsageError, match=r"\[granular\]"):
        neighbors.make_neighbor_search(10, (9.0, 9.0), True, 2.0, 6, 1.0)


# --- Lidar ---


def _sees(displacement: Any, other: float = 0.5) -> np.ndarray:
    numbers = (jnp.float32(x) for x in (0.5, other, 4.0))
    return np.asarray(lidar.disc_readings(jnp.asarray(displacement, jnp.float32), *numbers, 8))


def test_a_disc_is_seen_in_its_direction_and_distance() -> None:
    np.testing.assert_allclose(
        _sees([3.0, 0.0]), [0.5, 0, 0, 0, 0, 0, 0, 0], atol=1e-6
    )  # a gap of 2 of 4
    np.testing.assert_allclose(
        _sees([0.0, -1.0]), [0, 0, 0, 0, 0, 1, 1, 1], atol=1e-6
    )  # it touches and covers 60 degrees
    assert (_sees([5.0, 0.1]) == 0).all()
    turned = (
        [3 * np.cos(0.2), 3 * np.sin(0.2)],
        [3 * np.cos(0.2 + np.pi / 4), 3 * np.sin(0.2 + np.pi / 4)],
    )
    np.testing.assert_allclose(_sees(turned[1], 1.0), np.roll(_sees(turned[0], 1.0), 1), atol=1e-6)
    # A disc across a border between sectors is seen in both.
    assert (_sees([3 * np.cos(np.pi / 8), 3 * np.sin(np.pi / 8)])[:2] > 0).all()


def test_walls_are_seen_in_each_direction() -> None:
    numbers = jnp.array([2.0, 5.0]), jnp.array([10.0, 10.0]), jnp.float32(0.5), jnp.float32(10.0)
    diagonal = 2 * np.sqrt(2), 5 * np.sqrt(2)
    gaps = np.array([8, diagonal[1], 5, diagonal[0], 2, diagonal[0], 5, diagonal[1]]) - 0.5
    np.testing.assert_allclose(lidar.wall_readings(*numbers, 8), 1 - gaps / 10, atol=1e-5)


# --- Environments ---


def _play(env: Any, action: Any, steps: int, seed: int = 0) -> tuple[Any, Any]:
    """Return the first state and the transitions `[T, ...]` under one constant action."""
    state, _ = jax.jit(lambda key: env.reset(key))(jax.random.key(seed))

    def step(state: Any, _: None) -> tuple[Any, Any]:
        after = env.step(jax.random.key(0), state, action)
        return after.state, after

    return state, jax.jit(lambda state: jax.lax.scan(step, state, None, steps)[1])(state)


@pytest.mark.parametrize("name", ["single-navigator", "single-roller"])
def test_the_return_is_a_difference_of_potentials(name: str) -> None:
    """It is exp(-d / attraction) at the end minus that at the start, minus the cost of the effort.

    This cost is `effort` times the energy at the end. The time limit truncates.
    """
    env = make(f"granular/{name}", max_steps=8, attraction=2.0, effort=0.02)
    start, after = _play(env, jnp.array([0.6, 0.3, 0.2][: env.action_space.size]), 8)
    end = jax.tree.map(lambda x: x[-1], after.state)
    potential = [
        np.exp(-np.linalg.norm(s.goal - s.spheres.position[0, :2]) / 2) for s in (start, end)
    ]
    energy = float(physics.kinetic_energy(env.world.bodies, end.spheres)[0])
    assert energy > 0.1
    np.testing.assert_allclose(
        after.reward.sum(), potential[1] - potential[0] - 0.02 * energy, atol=1e-5
    )
    assert not after.terminated.any() and after.truncated.tolist() == [False] * 7 + [True]


@pytest.mark.parametrize("dimension", [2, 3])
def test_reached_is_reported_at_every_step(dimension: int) -> None:
    env = make("granular/single-navigator", max_steps=3, dimension=dimension)
    state, _ = env.reset(jax.random.key(0))
    rest = jnp.zeros(dimension)
    step = jax.jit(lambda state: env.step(jax.random.key(0), state, rest))
    for offset, reached in ((0.45, 1.0), (0.55, 0.0)):
        now = state._replace(
            goal=state.spheres.position[0] + jnp.zeros(dimension).at[0].set(offset)
        )
        told = []
        for _ in range(3):
            after = step(now)
            now, told = after.state, [*told, float(after.info["reached"])]
        assert told == [reached] * 3


def test_only_friction_moves_the_roller() -> None:
    """Without friction or about the vertical, a torque does not move the sphere.

    Otherwise it rolls with an acceleration of 5/7 tau / (m r).
    """
    forward = jnp.array([0.0, 0.5, 0.0])
    quiet = {"drag": 0.0, "spin_drag": 0.0, "side": 1e3, "stiffness": 2e3}
    _, smooth = _play(make("granular/single-roller", friction=0.0, **quiet), forward, 10)
    assert float(jnp.abs(smooth.state.spheres.velocity).max()) < 1e-3
    np.testing.assert_allclose(smooth.state.spheres.spin[-1, 0], [0, 10, 0], rtol=1e-4)  # tau t / I
    _, upright = _play(make("granular/single-roller", **quiet), jnp.array([0.0, 0.0, 1.0]), 10)
    assert float(jnp.abs(upright.state.spheres.velocity).max()) < 1e-3
    _, rolling = _play(make("granular/single-roller", **quiet), forward, 10)
    np.testing.assert_allclose(
        rolling.state.spheres.velocity[-1, 0], [5 / 7 * 1.0 / 0.5, 0, 0], atol=0.02
    )


def test_actions_beyond_the_ball_are_projected_to_its_surface() -> None:
    env = make("granular/single-navigator")
    long, short = (_play(env, jnp.array(action), 3)[1] for action in ([3.0, 4.0], [0.6, 0.8]))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), long, short)


def test_physics_can_differ_between_copies() -> None:
    """Under `vmap` over leaves, heavier spheres are slower by Newton's law."""
    env = make("granular/single-navigator", drag=0.0)
    masses = jnp.array([0.5, 1.0, 2.0])
    heavier = eqx.tree_at(lambda e: e.mass, env, masses)
    axes = jax.tree.map(lambda x: 0 if x.ndim else None, heavier)
    start = env.reset(jax.random.key(0))[0]
    middle = start._replace(spheres=start.spheres._replace(position=jnp.full((1, 2), 5.0)))

    def push(env):
        return env.step(jax.random.key(0), middle, jnp.array([1.0, 0.0])).state.spheres.velocity[
            0, 0
        ]

    np.testing.assert_allclose(
        jax.jit(jax.vmap(push, (axes,)))(heavier), 4.0 * 0.1 / masses, rtol=1e-5
    )


def test_start_positions_and_goals_do_not_overlap() -> None:
    env = make("granular/many-navigators", num_agents=9, sectors=8)
    states, _ = jax.jit(jax.vmap(env.reset))(jax.random.split(jax.random.key(0), 20))
    for places in (states.spheres.position, states.goal):
        apart = np.linalg.norm(places[:, :, None] - places[:, None], axis=-1) + 9 * np.eye(9)
        assert apart.min() >= 2 * 0.3 - 1e-5
        assert (np.asarray(places) >= 0.3 - 1e-5).all() and (
            np.asarray(places) <= float(env.side) - 0.3 + 1e-5
        ).all()
    assert env.agent_types == ("navigator",) * 9


def test_agents_can_be_permuted() -> None:
    """Permuting the agents permutes rewards and observations only.

    The last step reports who is at the goal.
    """
    env = make(
        "granular/many-navigators",
        num_agents=6,
        sectors=8,
        max_steps=2,
        global_state=True,
        goal_radius=1e3,
    )
    state, _ = jax.jit(lambda key: env.reset(key))(jax.random.key(0))
    action = jax.random.normal(jax.random.key(1), (6, 2))
    order = np.array([3, 1, 5, 0, 2, 4])
    spheres = jax.tree.map(lambda x: x[order], state.spheres)
    mixed = state._replace(spheres=spheres, goal=state.goal[order])
    step = jax.jit(lambda state, action: env.step(jax.random.key(0), state, action))
    straight, other = step(state, action), step(mixed, action[order])
    np.testing.assert_allclose(straight.reward[order], other.reward, atol=1e-5)
    np.testing.assert_allclose(
        straight.obs["observation"][order], other.obs["observation"], atol=1e-4
    )
    blocks = straight.obs["global_state"].reshape(6, 6, 6)
    assert (np.asarray(blocks) == np.asarray(blocks[0])).all()
    np.testing.assert_allclose(
        blocks[0][order], other.obs["global_state"][0].reshape(6, 6), atol=1e-4
    )
    last = step(straight.state, action)
    assert float(straight.info["at_goal"]) == float(last.info["at_goal"]) == 1.0
    assert last.truncated.all() and not last.terminated.any() and not straight.truncated.any()


def test_neighbor_lists_equal_all_pairs_in_an_environment() -> None:
    """Rewards, observations and physics are equal in a box so full that spheres touch."""
    pytest.importorskip("jax_md")
    full = {"num_agents": 40, "sectors": 8, "spacing": 0.7, "reach": 1.0, "substeps": 2}
    env, listed = (
        make("granular/many-navigators", **full),
        make("granular/many-navigators", pairs="listed", **full),
    )
    action = jnp.broadcast_to(jnp.array([0.6, 0.7]), (40, 2))
    _, expected = _play(env, action, 12)
    _, found = _play(listed, action, 12)
    assert float(found.info["overflow"].sum()) == 0
    spheres = expected.state.spheres.position[-1]
    gaps = np.linalg.norm(spheres[:, None] - spheres[None], axis=-1) + np.eye(40)
    assert (gaps < 0.6).any()
    for a, b in (
        (expected.reward, found.reward),
        (expected.obs, found.obs),
        (expected.state.spheres, found.state.spheres),
    ):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=2e-3), a, b)


def test_invalid_arguments_are_refused() -> None:
    with pytest.raises(UsageError, match="dimension"):
        make("granular/single-navigator", dimension=4)
    with pytest.raises(UsageError, match=r"substeps \(0\)"):
        make("granular/single-roller", substeps=0)
    with pytest.raises(UsageError, match="all or listed"):
        make("granular/many-navigators", pairs="some")
    with pytest.raises(UsageError, match="sectors"):
        make("granular/many-navigators", sectors=2)
    with pytest.raises(UnknownNameError, match="stiffness"):
        make("granular/single-roller", stifness=1)


@pytest.mark.parametrize(
    "name, draw",
    [
        ("single-navigator", view.draw_navigator),
        ("many-navigators", view.draw_navigators),
        ("single-roller", view.draw_roller),
    ],
)
def test_images_show_motion(name: str, draw: Any) -> None:
    env = make(f"granular/{name}", **({"num_agents": 3} if name.startswith("many") else {}))
    state, obs = jax.device_get(env.reset(jax.random.key(0)))
    moved = state._replace(spheres=state.spheres._replace(position=state.spheres.position + 0.3))
    turned = (
        state
        if name != "single-roller"
        else state._replace(orientation=np.array([0.8, 0.6, 0.0, 0.0]))
    )
    pictures = [draw(env, each, obs) for each in (state, moved, turned)]
    assert pictures[0].mode == "RGB" and pictures[0].tobytes() != pictures[1].tobytes()
    assert (pictures[0].tobytes() != pictures[2].tobytes()) == (name == "single-roller")
