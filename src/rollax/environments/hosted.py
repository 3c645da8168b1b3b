"""Environments whose dynamics are simulators on the host, as what algorithms and runs ask for."""

from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

import equinox as eqx
import jax

from rollax.environments.core import Simulator
from rollax.errors import UsageError
from rollax.spaces import ActionSpace, Space


class Translation(NamedTuple):
    """What turns a suite's own observations into ours and our actions into its own, one or a batch, for `Policy.predict`."""

    observation: Callable[[Any], Any]  # raises UsageError for what has other parts than the suite's
    action: Callable[[Any], Any]
    description: str  # of the suite's own observations


class Hosted(eqx.Module):
    """A `HostEnvironment`: spaces and limits as any environment has them, and how its simulators are made."""

    name: str = eqx.field(static=True)
    observation_space: Space = eqx.field(static=True)
    action_space: ActionSpace = eqx.field(static=True)
    time_limit: int | None = eqx.field(static=True)
    info_names: tuple[str, ...] = eqx.field(static=True)
    make_simulator: Callable[..., Simulator] = eqx.field(static=True)  # (shows_frames=False)
    # (num_envs, seed) -> many simulators that step together in threads of their own; None: they are made one by one
    make_pool: Callable[[int, int], Any] | None = eqx.field(static=True, default=None)
    translation: Translation | None = eqx.field(static=True, default=None)  # None: the suite's own are ours
    fps: int = eqx.field(static=True, default=30)  # steps that a picture shows in a second
    num_agents: None = eqx.field(static=True, default=None)

    def reset(self, key: jax.Array) -> NoReturn:
        raise UsageError(_compiled_only(self.name))

    def step(self, key: jax.Array, state: Any, action: Any) -> NoReturn:
        raise UsageError(_compiled_only(self.name))


def _compiled_only(name: str) -> str:
    return (
        f"{name} runs on the host, in Python or C++: it cannot be part of a program of JAX. rollax.train, load and "
        "Policy.evaluate act in it; what compiles whole episodes (archives, views, devices, vmap) needs an environment in JAX: "
        "see rollax envs"
    )
