"""Recording of episodes in host environments, which render themselves."""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from PIL import Image

from rollax.environments.environment import MultiAgentSimulator, Simulator
from rollax.errors import UsageError
from rollax.policy import Policy
from rollax.spaces import make_zeros
from rollax.training.compile.evaluators import max_eval_steps
from rollax.training.simulators import episodes
from rollax.training.simulators.restarts import SimulatorError
from rollax.training.simulators.value_checks import check_finite
from rollax.training.simulators.vectorized import (
    call_simulator,
    enforce_timeout,
    step_agents,
    step_simulator,
)
from rollax.types import Observation
from rollax.visualization.render.frames import Frame, RecordedEpisode, thin_frames

MIN_HEIGHT = 160  # pixels. Smaller pictures are enlarged.


def draw_host_frame(environment: Any, state: np.ndarray, obs: Observation) -> Image.Image:
    """Return the image that the environment rendered, enlarged to a height of `MIN_HEIGHT` or more.

    Args:
        environment: Host environment (unused).
        state: Rendered image, `[H, W, 3]` or `[H, W, 4]`.
        obs: Observation (unused).
    """
    drawn = Image.fromarray(np.asarray(state, np.uint8)).convert("RGB")
    scale = -(-MIN_HEIGHT // drawn.height)
    return (
        drawn
        if scale == 1
        else drawn.resize((scale * drawn.width, scale * drawn.height), Image.Resampling.NEAREST)
    )


def record_host_episodes(
    policies: Sequence[Policy], keys: jax.Array, greedy: bool, max_frames: int
) -> list[list[RecordedEpisode]]:
    """Record one episode per key with each policy.

    Args:
        policies: Policies of one run.
        keys: Random keys, one per episode.
        greedy: Whether the policy takes its most likely action instead of sampling.
        max_frames: Maximum number of frames per episode.

    Returns:
        The episodes of each policy.

    Raises:
        UsageError: If the environment cannot be rendered.
        SimulatorError: If the simulator raises an error or returns invalid observations.
    """
    act = episodes.make_evaluation_act_fn(policies[0].algorithm, greedy, False)
    environment: Any = policies[0].environment
    with contextlib.closing(_make_simulator(environment)) as simulator:
        return [
            [_record_episode(policy, act, simulator, key, max_frames) for key in keys]
            for policy in policies
        ]


def _make_simulator(environment: Any) -> Simulator | MultiAgentSimulator:
    """Create a simulator that renders frames. Raise UsageError if the environment cannot render."""
    try:
        return environment.make_simulator(shows_frames=True)
    except UsageError as error:
        if "render_mode" in str(error):  # the constructor does not accept render_mode or this value
            raise _not_drawable_error(
                environment, "it cannot be made with render_mode='rgb_array'"
            ) from error
        raise


def _not_drawable_error(environment: Any, reason: str) -> UsageError:
    return UsageError(
        f"{environment.name} cannot be drawn: {reason}. Rendering requires a constructor that "
        "accepts render_mode='rgb_array' and a method render() that returns a picture of shape "
        "[height, width, 3]. Add both to the environment, or inspect the run with rollax eval and "
        "rollax plot. Environments that are compiled in JAX can always be drawn."
    )


def _record_episode(
    policy: Policy, act: episodes.ActFn, simulator: Any, key: jax.Array, max_frames: int
) -> RecordedEpisode:
    """Record one episode until it ends or reaches the time limit of evaluations."""
    plan, agents = episodes.plan_episodes([key], 1), policy.environment.num_agents
    step_fn = step_simulator if agents is None else step_agents

    def add_stream_axis(tree):
        return jax.tree.map(lambda x: np.asarray(x)[None], tree)

    (obs,) = _call_and_check(policy, "reset", lambda: (simulator.reset(int(plan.seeds[0, 0])),))
    carry, zero = add_stream_axis(policy.initial_carry()), np.zeros(agents or ())
    reset = np.ones(zero.shape, bool)
    last = Frame(0, _read_frame(policy, simulator), obs, None, zero, zero, "")
    frames, stride = [last], 1
    for time in range(max_eval_steps(policy.environment, policy.spec)):
        stream_time = np.full(1, time, np.int32)
        carry, actions = act(
            policy.state,
            add_stream_axis(obs),
            carry,
            reset[None],
            plan.keys[0],
            stream_time,
        )
        action = jax.tree.map(lambda x: np.asarray(x)[0], actions)
        step = _call_and_check(policy, "step", lambda a=action: step_fn(simulator, a, ()))
        obs, reward = step.obs, step.reward
        if agents is None:
            reset, has_ended = np.zeros((), bool), step.terminated or step.truncated
        else:  # agents may return
            reset = simulator.active & (step.terminated | step.truncated)
            has_ended = not simulator.active.any()
        end = "" if not has_ended else "terminated" if np.all(step.terminated) else "truncated"
        total = last.total + reward
        # Frames that are not shown are not rendered, because rendering takes most of the time.
        state = _read_frame(policy, simulator) if end or (time + 1) % stride == 0 else None
        last = Frame(time + 1, state, obs, action, np.asarray(reward, float), total, end)
        frames, stride = thin_frames(frames, [last], stride, max_frames)
        if end:
            break
    if last.state is None:
        last = last._replace(state=_read_frame(policy, simulator))
    return RecordedEpisode(frames if frames[-1].step == last.step else [*frames, last], stride)


def _call_and_check(policy: Policy, method: str, function: Callable[[], Any]) -> Any:
    """Call the simulator with the checks that training uses, and return its result.

    The first entry of the result is an observation. Raise SimulatorError if the call fails or times
    out, or if the observation is not finite or does not match the observation space.
    """
    environment: Any = policy.environment
    name = f"the simulator of {environment.name}"
    with enforce_timeout(policy.spec.options.env_timeout, lambda: name):
        result = call_simulator(name, method, function)
    example = make_zeros(environment.observation_space, environment.num_agents)
    if jax.tree.map(np.shape, result[0]) != jax.tree.map(np.shape, example):
        raise SimulatorError(
            f"{name} returned observations that do not match its observation space."
        )
    check_finite(
        [np.asarray(leaf)[None] for leaf in jax.tree.leaves(result[0])], None, lambda _: name
    )
    return result


def _read_frame(policy: Policy, simulator: Simulator | MultiAgentSimulator) -> np.ndarray:
    """Return the image that the simulator renders, `[H, W, 3]` or `[H, W, 4]`.

    Raise UsageError if rendering fails or the result is not an image.
    """
    try:
        picture = simulator.frame()
    except Exception as error:  # simulators render with arbitrary libraries
        reason = str(error).strip() or "no message"
        if isinstance(error, ImportError) or type(error).__name__ == "DependencyNotInstalled":
            raise UsageError(
                f"{policy.environment.name} cannot be drawn: {reason}. Install that package."
            ) from error
        raise _not_drawable_error(
            policy.environment, f"its render() raises {type(error).__name__}: {reason}"
        ) from error
    if np.ndim(picture) != 3 or np.shape(picture)[2] not in (3, 4):
        returned = (
            "None"
            if picture is None
            else f"a {type(picture).__name__} of shape {np.shape(picture)}"
        )
        raise _not_drawable_error(policy.environment, f"its render() returns {returned}")
    return np.array(picture)
