"""Spheres that touch: springs, dashpots and Coulomb friction, walls or periodic images, velocity Verlet.

Units are those of the numbers given; with metres, kilograms and seconds, forces are newtons and torques newton metres. D is
2 or 3 dimensions; a spin has S = 1 number in the plane (counter-clockwise) and S = 3 in space. After Cundall and Strack 1979,
"A discrete numerical model for granular assemblies", with the friction of Haff and Werner 1986, "Computer simulation of the
mechanical sorting of grains". Everything is a pure function, and every number of the physics is a leaf.
"""

import functools
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from rollax.environments.native.granular.neighbors import Neighbors


class Spheres(NamedTuple):
    """What moves."""

    position: jax.Array  # float [N, D]
    velocity: jax.Array  # float [N, D]
    spin: jax.Array  # float [N, S]: radians per second


class Bodies(NamedTuple):
    """What each sphere is made of."""

    radius: jax.Array  # float [N]
    mass: jax.Array  # float [N]
    inertia: jax.Array  # float [N]: moment of inertia about any axis through the center


class Material(NamedTuple):
    """The law of contact, the same for all surfaces. All float []."""

    stiffness: jax.Array  # of the normal spring, N/m
    damping: jax.Array  # of the normal dashpot as a share of the critical one: 0 is elastic; must be below 1
    friction: jax.Array  # Coulomb's coefficient
    grip: jax.Array  # how fast friction ends slip, 1/s: see `contact_force`


class Domain(eqx.Module):
    """A box from `low` to `high`, `[D]` each; along every axis either periodic or between two walls."""

    low: jax.Array
    high: jax.Array
    periodic: tuple[bool, ...] = eqx.field(static=True)

    def displacement(self, a: jax.Array, b: jax.Array) -> jax.Array:
        """From `b` to `a`, `[D]` each: to the nearest image along periodic axes."""
        apart, side = a - b, self.high - self.low
        return jnp.where(jnp.asarray(self.periodic), apart - side * jnp.round(apart / side), apart)

    def wrap(self, position: jax.Array) -> jax.Array:
        """A position `[D]` with its periodic axes back inside the box."""
        inside = self.low + jnp.mod(position - self.low, self.high - self.low)
        return jnp.where(jnp.asarray(self.periodic), inside, position)


class World(eqx.Module):
    """All that does not change while spheres move."""

    bodies: Bodies
    material: Material
    domain: Domain
    gravity: jax.Array  # float [D]: acceleration
    drag: jax.Array  # float []: force against the velocity, per unit of it
    spin_drag: jax.Array  # float []: torque against the spin, per unit of it
    time_step: jax.Array  # float []: seconds; a tenth of `contact_time` or less keeps the laws of collision


def sphere_inertia(mass: jax.Array, radius: jax.Array) -> jax.Array:
    """2/5 m r^2: a solid sphere, in the plane as well as in space."""
    return 0.4 * mass * radius**2


def restitution(damping: jax.Array) -> jax.Array:
    """The speed after a head-on collision as a share of the speed before, for `damping` sin(phi): exp(-(pi - 2 phi) tan(phi)).

    A contact ends when its force does, so that surfaces never pull: Schwager and Poeschel 2007, "Coefficient of
    restitution and linear-dashpot model revisited" (Granular Matter 9, 465), eq. 20 in another notation.
    """
    phi = jnp.arcsin(damping)
    return jnp.exp(-(jnp.pi - 2 * phi) * jnp.tan(phi))


def contact_time(material: Material, mass: jax.Array) -> jax.Array:
    """How long an elastic collision of two bodies of that reduced mass lasts, in seconds."""
    return jnp.pi * jnp.sqrt(mass / material.stiffness)


def length(vector: jax.Array) -> jax.Array:
    """The Euclidean norm, whose gradient at zero is zero and not NaN."""
    square = jnp.sum(vector**2)
    return jnp.where(square > 0, jnp.sqrt(jnp.where(square > 0, square, 1.0)), 0.0)


def spin_cross(spin: jax.Array, arm: jax.Array) -> jax.Array:
    """spin x arm, the velocity `[D]` of a point at `arm` `[D]` from the center."""
    return spin[0] * jnp.stack([-arm[1], arm[0]]) if arm.shape == (2,) else jnp.cross(spin, arm)


def torque_of(arm: jax.Array, force: jax.Array) -> jax.Array:
    """arm x force, `[S]`."""
    return (arm[0] * force[1] - arm[1] * force[0])[None] if arm.shape == (2,) else jnp.cross(arm, force)


def contact_force(
    material: Material, mass: jax.Array, overlap: jax.Array, normal: jax.Array, velocity: jax.Array, turning: jax.Array
) -> jax.Array:
    """The force `[D]` on a body that touches another one.

    Normal: k overlap - c (velocity . normal), with c = 2 damping sqrt(k m), but never a pull.
    Tangential, against the slip s: min(grip m |s|, friction x normal force). It is Coulomb's law but for slips so slow that
    a viscous force stops them: without this regularization the force would jump at rest, and a finite time step
    overshoot. Unlike a division of Coulomb's force by a small speed, it is stable for any normal force (as long as
    grip x time step is below 2/7 for solid spheres), and unlike a tangential spring it needs no memory of
    each contact. The price: what rests under a tangential load creeps.

    Args:
        mass: reduced mass of the two, or that of the body when the other one is a wall.
        overlap: how deep they touch; negative when they do not.
        normal: `[D]`, of length 1, towards the body.
        velocity: `[D]`, of the body relative to the other one.
        turning: `[S]`, the sum of both spins, each times the distance of its center from the contact.
    """
    closing = -jnp.dot(velocity, normal)
    pull = 2 * material.damping * jnp.sqrt(material.stiffness * mass) * closing
    push = jnp.where(overlap > 0, jnp.maximum(material.stiffness * overlap + pull, 0.0), 0.0)
    slip = velocity + closing * normal - spin_cross(turning, normal)
    speed = length(slip)
    held = jnp.minimum(material.grip * mass * speed, material.friction * push)
    return push * normal - held * slip / jnp.where(speed > 0, speed, 1.0)


def _pair(world: World, one: tuple[Spheres, Bodies], other: tuple[Spheres, Bodies]) -> tuple[jax.Array, jax.Array]:
    """Force `[D]` and torque `[S]` on one sphere by another one."""
    (a, body_a), (b, body_b) = one, other
    apart = world.domain.displacement(a.position, b.position)
    distance = length(apart)
    normal = apart / jnp.where(distance > 0, distance, 1.0)
    # Both arms end in one point, so that what one sphere's spin gets and the other's, and their orbit, add up to zero.
    share = distance / (body_a.radius + body_b.radius)
    arm_a, arm_b = share * body_a.radius, share * body_b.radius
    mass = body_a.mass * body_b.mass / (body_a.mass + body_b.mass)
    overlap = body_a.radius + body_b.radius - distance
    turning = arm_a * a.spin + arm_b * b.spin
    force = contact_force(world.material, mass, overlap, normal, a.velocity - b.velocity, turning)
    return force, torque_of(-arm_a * normal, force)


def _pairs(world: World, spheres: Spheres, neighbors: Neighbors | None) -> tuple[jax.Array, jax.Array]:
    """Forces `[N, D]` and torques `[N, S]` of all spheres on each other."""
    number, everything = spheres.position.shape[0], (spheres, world.bodies)
    every = jnp.arange(number)

    def on(i: jax.Array, one: Any, indices: jax.Array, others: Any) -> tuple[jax.Array, jax.Array]:
        by_other = jax.vmap(_pair, (None, None, 0))(world, one, others)
        # Nothing touches itself, and `number` stands for no neighbor.
        touches = (indices != i) & (indices < number)
        return jax.tree.map(lambda x: jnp.sum(jnp.where(touches[:, None], x, 0.0), axis=0), by_other)

    if neighbors is None:
        return jax.vmap(on, (0, 0, None, None))(every, everything, every, everything)
    others = jax.tree.map(lambda x: x[neighbors.indices], everything)
    return jax.vmap(on)(every, everything, neighbors.indices, others)


def _walls(world: World, sphere: Spheres, body: Bodies) -> tuple[jax.Array, jax.Array]:
    """Force `[D]` and torque `[S]` on one sphere by all walls."""
    domain = world.domain
    axes = [axis for axis, is_periodic in enumerate(domain.periodic) if not is_periodic]
    if not axes:
        return jnp.zeros_like(sphere.position), jnp.zeros_like(sphere.spin)
    inward = jnp.eye(len(domain.periodic))[jnp.asarray(axes)]
    normals = jnp.concatenate([inward, -inward])
    gaps = jnp.concatenate([sphere.position - domain.low, domain.high - sphere.position])
    gaps = gaps[jnp.asarray(axes + [len(domain.periodic) + axis for axis in axes])]

    def by(normal: jax.Array, gap: jax.Array) -> tuple[jax.Array, jax.Array]:
        turning = gap * sphere.spin
        force = contact_force(world.material, body.mass, body.radius - gap, normal, sphere.velocity, turning)
        return force, torque_of(-gap * normal, force)

    return jax.tree.map(lambda x: jnp.sum(x, axis=0), jax.vmap(by)(normals, gaps))


def forces(world: World, spheres: Spheres, neighbors: Neighbors | None = None) -> tuple[jax.Array, jax.Array]:
    """Forces `[N, D]` and torques `[N, S]` on all spheres: contacts, gravity and drag.

    Without `neighbors` every sphere is compared with every other one.
    """
    force, torque = jax.vmap(_walls, (None, 0, 0))(world, spheres, world.bodies)
    if spheres.position.shape[0] > 1:
        contacts = _pairs(world, spheres, neighbors)
        force, torque = force + contacts[0], torque + contacts[1]
    weight = jax.vmap(lambda mass: mass * world.gravity)(world.bodies.mass)
    return force + weight - world.drag * spheres.velocity, torque - world.spin_drag * spheres.spin


@functools.partial(jax.jit, static_argnames="steps")
def advance(
    world: World, spheres: Spheres, force: jax.Array, torque: jax.Array, steps: int, neighbors: Neighbors | None = None
) -> Spheres:
    """The spheres `steps` time steps later, under constant `force` `[N, D]` and `torque` `[N, S]` besides those of the world.

    Velocity Verlet. What depends on velocities uses those of the half step, so each step costs one evaluation of the forces.
    """

    def rates(now: Spheres) -> tuple[jax.Array, jax.Array]:
        inner, turn = forces(world, now, neighbors)
        return (inner + force) / world.bodies.mass[:, None], (turn + torque) / world.bodies.inertia[:, None]

    def kick(now: Spheres, rate: tuple[jax.Array, jax.Array]) -> Spheres:
        half = world.time_step / 2
        return now._replace(velocity=now.velocity + half * rate[0], spin=now.spin + half * rate[1])

    def step(carry: tuple[Spheres, Any], _: None) -> tuple[tuple[Spheres, Any], None]:
        now = kick(*carry)
        now = now._replace(position=jax.vmap(world.domain.wrap)(now.position + world.time_step * now.velocity))
        rate = rates(now)
        return (kick(now, rate), rate), None

    (spheres, _), _ = jax.lax.scan(step, (spheres, rates(spheres)), None, steps)
    return spheres


def kinetic_energy(bodies: Bodies, spheres: Spheres) -> jax.Array:
    """Of each sphere, `[N]`: that of its motion and of its spin."""
    motion, spin = jnp.sum(spheres.velocity**2, axis=1), jnp.sum(spheres.spin**2, axis=1)
    return 0.5 * (bodies.mass * motion + bodies.inertia * spin)


def turn(orientation: jax.Array, spin: jax.Array, seconds: jax.Array) -> jax.Array:
    """A quaternion `[4]` (real part first) after turning for that time with a constant spin `[3]`."""
    angle = length(spin) * seconds
    # sin(angle / 2) / |spin|, without a division by zero.
    scale = 0.5 * seconds * jnp.sinc(angle / (2 * jnp.pi))
    w, v = jnp.cos(angle / 2), scale * spin
    a, b = orientation[0], orientation[1:]
    turned = jnp.concatenate([(w * a - jnp.dot(v, b))[None], w * b + a * v + jnp.cross(v, b)])
    return turned / jnp.sqrt(jnp.sum(turned**2))
