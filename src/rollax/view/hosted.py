"""Episodes in environments on the host, which draw themselves."""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from PIL import Image

from rollax.environments.core import Simulator
from rollax.errors import UsageError
from rollax.host import episodes
from rollax.host.api import Policy
from rollax.host.program import eval_steps
from rollax.host.simulators import SimulatorFailed, attempted, check_finite, limited
from rollax.spaces import zeros
from rollax.view.frames import Frame, Play, thinned

LEAST_HEIGHT = 160  # of a picture in pixels: smaller ones are enlarged


def picture(environment: Any, state: np.ndarray, obs: Any) -> Image.Image:
    """The picture that the environment drew."""
    drawn = Image.fromarray(np.asarray(state, np.uint8)).convert("RGB")
    scale = -(-LEAST_HEIGHT // drawn.height)
    return drawn if scale == 1 else drawn.resize((scale * drawn.width, scale * drawn.height), Image.Resampling.NEAREST)


def play_all(policies: Sequence[Policy], keys: jax.Array, greedy: bool, max_frames: int) -> list[list[Play]]:
    """An episode of each policy from the start of every key, each of no more than `max_frames` frames."""
    act = episodes.player(policies[0].algorithm, greedy, False)
    environment: Any = policies[0].environment
    with contextlib.closing(environment.make_simulator(shows_frames=True)) as simulator:
        return [[_play(policy, act, simulator, key, max_frames) for key in keys] for policy in policies]


def _play(policy: Policy, act: episodes.Player, simulator: Simulator, key: jax.Array, max_frames: int) -> Play:
    plan = episodes.plan([key], 1)
    one = lambda tree: jax.tree.map(lambda x: np.asarray(x)[None], tree)  # noqa: E731
    (obs,) = _asked(policy, "reset", lambda: (simulator.reset(int(plan.seeds[0, 0])),))
    carry, zero = one(policy.initial_carry()), np.zeros(())
    last = Frame(0, _drawn(policy, simulator), obs, None, zero, zero, "")
    frames, stride = [last], 1
    for time in range(eval_steps(policy.environment, policy.spec)):
        when = np.full(1, time, np.int32)
        carry, actions = act(policy.state, one(obs), carry, np.full(1, time == 0), plan.keys[0], when)
        action = np.asarray(actions)[0]
        obs, reward, terminated, truncated, _ = _asked(policy, "step", lambda a=action: simulator.step(a))
        end = "terminated" if terminated else "truncated" if truncated else ""
        total = last.total + reward
        # What is not shown is not drawn, which takes most of the time.
        state = _drawn(policy, simulator) if end or (time + 1) % stride == 0 else None
        last = Frame(time + 1, state, obs, action, np.asarray(reward, float), total, end)
        frames, stride = thinned(frames, [last], stride, max_frames)
        if end:
            break
    if last.state is None:
        last = last._replace(state=_drawn(policy, simulator))
    return Play(frames if frames[-1].step == last.step else [*frames, last], stride)


def _asked(policy: Policy, what: str, function: Callable[[], tuple[Any, ...]]) -> tuple[Any, ...]:
    """What a simulator gives, an observation first. Raises SimulatorFailed as in a run: for what it raises, for observations of
    another form or not finite, and where it takes too long."""
    name = f"the simulator of {policy.environment.name}"
    with limited(policy.spec.options.env_timeout, lambda: name):
        given = attempted(name, what, function)
    like = zeros(policy.environment.observation_space)
    if jax.tree.map(np.shape, given[0]) != jax.tree.map(np.shape, like):
        raise SimulatorFailed(f"{name} changed its observations: they are no longer of its space")
    check_finite([np.asarray(leaf)[None] for leaf in jax.tree.leaves(given[0])], None, lambda _: name)
    return given


def _drawn(policy: Policy, simulator: Simulator) -> np.ndarray:
    try:
        drawn = simulator.frame()
    except Exception as error:  # whatever a simulator draws with
        raise UsageError(f"{policy.environment.name} draws no picture: {type(error).__name__}: {error}") from error
    if drawn is None or np.ndim(drawn) != 3:
        raise UsageError(f"{policy.environment.name} draws no picture with render_mode='rgb_array'")
    return np.array(drawn)
