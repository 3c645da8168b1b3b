"""Tests of contacts of feet with the ground, the descriptors of Brax environments."""

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("brax")

from brax import contact, kinematics

from rollax.environments import make
from rollax.environments.suites.brax import adapter

pytestmark = pytest.mark.usefixtures("as_strict_as_the_suite")


FEET = {"ant": 4, "halfcheetah": 2, "hopper": 1, "walker2d": 2}
HEIGHTS = {-0.005: 1.0, 0.0005: 1.0, 0.002: 0.0, 0.3: 0.0}


def play(env: Any, actions: np.ndarray, seed: int = 0) -> tuple[Any, Any]:
    """Return the first state and the transitions of `actions`, `[T, ...]`.

    The loop runs in Python, so that all environments of a name share one compiled step.
    """
    key = jax.random.key(seed)
    with jax.debug_key_reuse(False):
        first, _ = env.reset(key)
        state, told = first, []
        for action in actions:
            told.append(jax.device_get(env.step(key, state, jnp.asarray(action))))
            state = told[-1].state
    return first, jax.tree.map(lambda *rows: np.stack(rows), *told)


@pytest.mark.parametrize("name", [*FEET])
def test_contacts_depend_on_the_height_of_the_feet(name: str) -> None:
    """At rest, bodies are slightly below or above the ground, and both count as contact.

    In the air there is no contact. The distances equal those of the suite's own contacts.
    """
    env = make(f"brax/{name}")
    assert env.descriptor_space.shape == (FEET[name],) and env.descriptor_extraction == "mean"
    system = env.dynamics.sys
    q = jnp.asarray(system.init_q) + 0.1 * jax.random.normal(jax.random.key(0), (system.q_size(),))
    links, _ = jax.jit(lambda q: kinematics.forward(system, q, jnp.zeros(system.qd_size())))(q)
    lowest = float(adapter.foot_clearance(env.feet, links).min())
    places = [links.replace(pos=links.pos.at[:, 2].add(height - lowest)) for height in HEIGHTS]
    contacts = jax.jit(lambda places: [contact.get(system, links) for links in places])(places)
    for (height, touches), links, own in zip(HEIGHTS.items(), places, contacts, strict=True):
        raw = SimpleNamespace(pipeline_state=SimpleNamespace(x=links))
        found = np.asarray(
            env.descriptor(adapter.BraxState(raw, jnp.zeros((), jnp.int32), jnp.zeros(3)))
        )
        assert found.shape == (FEET[name],) and found.max() == touches
        clearance = np.asarray(adapter.foot_clearance(env.feet, links))
        assert clearance.min() == pytest.approx(height, abs=1e-5)
        np.testing.assert_array_equal(found, clearance < adapter.CONTACT_DISTANCE)
        # There is one contact for a sphere and two for the ends of a capsule.
        link, distance = np.asarray(own.link_idx[1]), np.asarray(own.dist)
        np.testing.assert_allclose(
            clearance, [distance[link == foot].min() for foot in env.feet.link], atol=1e-5
        )


@pytest.mark.parametrize("backend", ["spring", pytest.param("positional", marks=pytest.mark.slow)])
def test_a_body_at_rest_stays_in_contact_with_the_ground(backend: str) -> None:
    """An ant without actions comes to rest on its four feet."""
    env = make("brax/ant", backend=backend)
    _, told = play(env, np.zeros((150, 8), np.float32))
    feet = np.asarray(jax.vmap(env.descriptor)(jax.tree.map(jnp.asarray, told.state)))
    np.testing.assert_array_equal(feet[-30:], 1.0)
