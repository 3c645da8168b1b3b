"""Physics of spheres in contact with springs, dashpots and Coulomb friction.

Boundaries are walls or periodic images, and the integrator is velocity Verlet. Units follow from
the parameters. With meters, kilograms and seconds, forces are in newtons and torques in newton
meters. D is the number of dimensions, 2 or 3. A spin has S = 1 component in the plane
(counterclockwise) and S = 3 in space. All functions are pure, and all physical parameters are
leaves.

The model follows Cundall and Strack 1979, "A discrete numerical model for granular assemblies",
with the friction of Haff and Werner 1986, "Computer simulation of the mechanical sorting of
grains".
"""

import functools
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from rollax.environments.native.granular.neighbors import Neighbors


class Spheres(NamedTuple):
    """Moving state of N spheres.

    Attributes:
        position: Positions of the centers, float [N, D].
        velocity: Velocities, float [N, D].
        spin: Angular velocities in radians per second, float [N, S].
    """

    position: jax.Array
    velocity: jax.Array
    spin: jax.Array


class Bodies(NamedTuple):
    """Constant properties of N spheres.

    Attributes:
        radius: Radii, float [N].
        mass: Masses, float [N].
        inertia: Moments of inertia about any axis through the center, float [N].
    """

    radius: jax.Array
    mass: jax.Array
    inertia: jax.Array


class Material(NamedTuple):
    """Parameters of the contact law. They are the same for all surfaces.

    Attributes:
        stiffness: Stiffness of the normal spring in N/m, float [].
        damping: Damping of the normal dashpot as a fraction of critical damping, float []. 0 is
            elastic. It must be below 1.
        friction: Coulomb coefficient of friction, float [].
        grip: Rate at which friction stops slip in 1/s, float [] (see `contact_force`).
    """

    stiffness: jax.Array
    damping: jax.Array
    friction: jax.Array
    grip: jax.Array


class Domain(eqx.Module):
    """Box that is periodic or bounded by two walls along each axis.

    Attributes:
        low: Lower corner, `[D]`.
        high: Upper corner, `[D]`.
        periodic: Whether each axis is periodic.
    """

    low: jax.Array
    high: jax.Array
    periodic: tuple[bool, ...] = eqx.field(static=True)

    def displacement(self, a: jax.Array, b: jax.Array) -> jax.Array:
        """Return the displacement `[D]` from `b` to the nearest image of `a`."""
        difference, side = a - b, self.high - self.low
        return jnp.where(
            jnp.asarray(self.periodic), difference - side * jnp.round(difference / side), difference
        )

    def wrap(self, position: jax.Array) -> jax.Array:
        """Wrap a position `[D]` into the box along periodic axes."""
        wrapped = self.low + jnp.mod(position - self.low, self.high - self.low)
        return jnp.where(jnp.asarray(self.periodic), wrapped, position)


class World(eqx.Module):
    """Constants of a simulation.

    Attributes:
        bodies: Properties of the spheres.
        material: Parameters of the contact law.
        domain: Box of the simulation.
        gravity: Gravitational acceleration, float [D].
        drag: Force against the velocity, per unit of velocity, float [].
        spin_drag: Torque against the spin, per unit of spin, float [].
        time_step: Time step in seconds, float []. Use at most a tenth of `contact_duration` for
            accurate collisions.
    """

    bodies: Bodies
    material: Material
    domain: Domain
    gravity: jax.Array
    drag: jax.Array
    spin_drag: jax.Array
    time_step: jax.Array


def sphere_inertia(mass: jax.Array, radius: jax.Array) -> jax.Array:
    """Return the moment of inertia of a solid sphere, 2/5 m r^2, for D = 2 and D = 3."""
    return 0.4 * mass * radius**2


def contact_duration(material: Material, mass: jax.Array) -> jax.Array:
    """Return the duration of an elastic collision in seconds.

    Args:
        material: Parameters of the contact law.
        mass: Reduced mass of the two bodies.

    Returns:
        Duration, with the shape of `mass`.
    """
    return jnp.pi * jnp.sqrt(mass / material.stiffness)


def safe_norm(vector: jax.Array) -> jax.Array:
    """Return the Euclidean norm with a gradient of zero instead of NaN at zero."""
    square = jnp.sum(vector**2)
    return jnp.where(square > 0, jnp.sqrt(jnp.where(square > 0, square, 1.0)), 0.0)


def rotational_velocity(spin: jax.Array, arm: jax.Array) -> jax.Array:
    """Return spin x arm, the velocity `[D]` of a point at `arm` `[D]` from the center."""
    return spin[0] * jnp.stack([-arm[1], arm[0]]) if arm.shape == (2,) else jnp.cross(spin, arm)


def compute_torque(arm: jax.Array, force: jax.Array) -> jax.Array:
    """Return the torque arm x force, `[S]`."""
    return (
        (arm[0] * force[1] - arm[1] * force[0])[None]
        if arm.shape == (2,)
        else jnp.cross(arm, force)
    )


def contact_force(
    material: Material,
    mass: jax.Array,
    overlap: jax.Array,
    normal: jax.Array,
    velocity: jax.Array,
    total_spin: jax.Array,
) -> jax.Array:
    """Return the force on a body that touches another one.

    The normal force is k overlap - c (velocity . normal), with c = 2 damping sqrt(k m), but never
    attractive. The tangential force acts against the slip s and is min(grip m |s|, friction x
    normal force). This is Coulomb's law, except that a viscous force stops slow slip. Without this
    regularization the force would be discontinuous at rest, and a finite time step would overshoot.
    For solid spheres, it is stable for any normal force if grip x time step is below 2/7, whereas
    Coulomb's force divided by a small speed is not. In contrast to a tangential spring, contacts
    have no state. The disadvantage is that bodies at rest under a tangential load creep.

    Args:
        material: Parameters of the contact law.
        mass: Reduced mass of the two bodies, or the mass of the body if the other one is a wall.
        overlap: Depth of the contact, negative without contact.
        normal: Unit vector towards the body, `[D]`.
        velocity: Velocity of the body relative to the other one, `[D]`.
        total_spin: Sum of both spins, each times the distance of its center from the contact,
            `[S]`.

    Returns:
        Force, `[D]`.
    """
    closing = -jnp.dot(velocity, normal)
    damping_force = 2 * material.damping * jnp.sqrt(material.stiffness * mass) * closing
    normal_force = jnp.where(
        overlap > 0, jnp.maximum(material.stiffness * overlap + damping_force, 0.0), 0.0
    )
    slip_velocity = velocity + closing * normal - rotational_velocity(total_spin, normal)
    speed = safe_norm(slip_velocity)
    friction_force = jnp.minimum(material.grip * mass * speed, material.friction * normal_force)
    return normal_force * normal - friction_force * slip_velocity / jnp.where(speed > 0, speed, 1.0)


def _compute_pair_contact(
    world: World, first: tuple[Spheres, Bodies], second: tuple[Spheres, Bodies]
) -> tuple[jax.Array, jax.Array]:
    """Return the force `[D]` and torque `[S]` that sphere `second` exerts on sphere `first`."""
    (a, body_a), (b, body_b) = first, second
    displacement = world.domain.displacement(a.position, b.position)
    distance = safe_norm(displacement)
    normal = displacement / jnp.where(distance > 0, distance, 1.0)
    # Both arms end in the same point, which conserves the total angular momentum.
    overlap_ratio = distance / (body_a.radius + body_b.radius)
    arm_a, arm_b = overlap_ratio * body_a.radius, overlap_ratio * body_b.radius
    mass = body_a.mass * body_b.mass / (body_a.mass + body_b.mass)
    overlap = body_a.radius + body_b.radius - distance
    total_spin = arm_a * a.spin + arm_b * b.spin
    force = contact_force(
        world.material, mass, overlap, normal, a.velocity - b.velocity, total_spin
    )
    return force, compute_torque(-arm_a * normal, force)


def _compute_all_contacts(
    world: World, spheres: Spheres, neighbors: Neighbors | None
) -> tuple[jax.Array, jax.Array]:
    """Return the forces `[N, D]` and torques `[N, S]` on all spheres from contacts between them."""
    num_spheres, all_spheres = spheres.position.shape[0], (spheres, world.bodies)
    all_indices = jnp.arange(num_spheres)

    def sum_contacts(
        index: jax.Array,
        sphere: tuple[Spheres, Bodies],
        indices: jax.Array,
        others: tuple[Spheres, Bodies],
    ) -> tuple[jax.Array, jax.Array]:
        contacts = jax.vmap(_compute_pair_contact, (None, None, 0))(world, sphere, others)
        # Exclude the sphere itself and unused entries, which are `num_spheres`.
        is_other = (indices != index) & (indices < num_spheres)
        return jax.tree.map(
            lambda x: jnp.sum(jnp.where(is_other[:, None], x, 0.0), axis=0), contacts
        )

    if neighbors is None:
        return jax.vmap(sum_contacts, (0, 0, None, None))(
            all_indices, all_spheres, all_indices, all_spheres
        )
    others = jax.tree.map(lambda x: x[neighbors.indices], all_spheres)
    return jax.vmap(sum_contacts)(all_indices, all_spheres, neighbors.indices, others)


def _compute_wall_contacts(
    world: World, sphere: Spheres, body: Bodies
) -> tuple[jax.Array, jax.Array]:
    """Return the force `[D]` and torque `[S]` on one sphere from contacts with the walls."""
    domain = world.domain
    axes = [axis for axis, is_periodic in enumerate(domain.periodic) if not is_periodic]
    if not axes:
        return jnp.zeros_like(sphere.position), jnp.zeros_like(sphere.spin)
    inward = jnp.eye(len(domain.periodic))[jnp.asarray(axes)]
    normals = jnp.concatenate([inward, -inward])
    gaps = jnp.concatenate([sphere.position - domain.low, domain.high - sphere.position])
    gaps = gaps[jnp.asarray(axes + [len(domain.periodic) + axis for axis in axes])]

    def wall_contact(normal: jax.Array, gap: jax.Array) -> tuple[jax.Array, jax.Array]:
        turning = gap * sphere.spin
        force = contact_force(
            world.material, body.mass, body.radius - gap, normal, sphere.velocity, turning
        )
        return force, compute_torque(-gap * normal, force)

    return jax.tree.map(lambda x: jnp.sum(x, axis=0), jax.vmap(wall_contact)(normals, gaps))


def compute_forces(
    world: World, spheres: Spheres, neighbors: Neighbors | None = None
) -> tuple[jax.Array, jax.Array]:
    """Return the forces and torques on all spheres from contacts, gravity and drag.

    Args:
        world: Constants of the simulation.
        spheres: State of the spheres.
        neighbors: Neighbors of each sphere, or None to compare all pairs.

    Returns:
        Forces `[N, D]` and torques `[N, S]`.
    """
    force, torque = jax.vmap(_compute_wall_contacts, (None, 0, 0))(world, spheres, world.bodies)
    if spheres.position.shape[0] > 1:
        contacts = _compute_all_contacts(world, spheres, neighbors)
        force, torque = force + contacts[0], torque + contacts[1]
    weight = jax.vmap(lambda mass: mass * world.gravity)(world.bodies.mass)
    return force + weight - world.drag * spheres.velocity, torque - world.spin_drag * spheres.spin


@functools.partial(jax.jit, static_argnames="steps")
def advance(
    world: World,
    spheres: Spheres,
    force: jax.Array,
    torque: jax.Array,
    steps: int,
    neighbors: Neighbors | None = None,
) -> Spheres:
    """Advance the spheres by several time steps under constant external forces and torques.

    The integrator is velocity Verlet. Velocity-dependent forces use the half-step velocities, so
    each step evaluates the forces once.

    Args:
        world: Constants of the simulation.
        spheres: State of the spheres.
        force: External forces, `[N, D]`.
        torque: External torques, `[N, S]`, where S is 1 in the plane and 3 in space.
        steps: Number of time steps.
        neighbors: Neighbors of each sphere, or None to compare all pairs.

    Returns:
        State of the spheres after the last step.
    """

    def compute_rates(current: Spheres) -> tuple[jax.Array, jax.Array]:
        contact_force_sum, contact_torque_sum = compute_forces(world, current, neighbors)
        return (contact_force_sum + force) / world.bodies.mass[:, None], (
            contact_torque_sum + torque
        ) / world.bodies.inertia[:, None]

    def apply_half_step(current: Spheres, rate: tuple[jax.Array, jax.Array]) -> Spheres:
        half = world.time_step / 2
        return current._replace(
            velocity=current.velocity + half * rate[0], spin=current.spin + half * rate[1]
        )

    def step(
        carry: tuple[Spheres, tuple[jax.Array, jax.Array]], _: None
    ) -> tuple[tuple[Spheres, Any], None]:
        current = apply_half_step(*carry)
        current = current._replace(
            position=jax.vmap(world.domain.wrap)(
                current.position + world.time_step * current.velocity
            )
        )
        rate = compute_rates(current)
        return (apply_half_step(current, rate), rate), None

    (spheres, _), _ = jax.lax.scan(step, (spheres, compute_rates(spheres)), None, steps)
    return spheres


def kinetic_energy(bodies: Bodies, spheres: Spheres) -> jax.Array:
    """Return the translational plus rotational kinetic energy of each sphere, `[N]`."""
    motion, spin = jnp.sum(spheres.velocity**2, axis=1), jnp.sum(spheres.spin**2, axis=1)
    return 0.5 * (bodies.mass * motion + bodies.inertia * spin)


def rotate_orientation(orientation: jax.Array, spin: jax.Array, seconds: jax.Array) -> jax.Array:
    """Rotate an orientation by a constant spin.

    Args:
        orientation: Quaternion with the real part first, `[4]`.
        spin: Angular velocity, `[3]`.
        seconds: Duration.

    Returns:
        Unit quaternion, `[4]`.
    """
    angle = safe_norm(spin) * seconds
    # sin(angle / 2) / |spin|, without a division by zero.
    scale = 0.5 * seconds * jnp.sinc(angle / (2 * jnp.pi))
    w, v = jnp.cos(angle / 2), scale * spin
    a, b = orientation[0], orientation[1:]
    rotated = jnp.concatenate([(w * a - jnp.dot(v, b))[None], w * b + a * v + jnp.cross(v, b)])
    return rotated / jnp.sqrt(jnp.sum(rotated**2))
