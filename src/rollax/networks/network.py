"""Protocol of networks, wrappers, and functions that apply a network to one step."""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, runtime_checkable

import equinox as eqx
import jax

from rollax import tree
from rollax.networks.distributions import Distribution
from rollax.types import Carry, Observation, PyTree


@runtime_checkable
class StepNetwork(Protocol):
    """Network for one time step without batch axes: `(carry, obs) -> (carry, output)`."""

    def initial_carry(self) -> Carry: ...
    def __call__(self, carry: Carry, obs: Observation) -> tuple[Carry, PyTree]: ...


@runtime_checkable
class Network(StepNetwork, Protocol):
    """Network for one time step, which can also process batches of sequences (`unroll`).

    A network is a pytree with arrays as leaves. A call maps `(carry, obs)` without
    batch axes to `(carry, output)`. rollax applies it to several environments and agents with
    `vmap`.

    `unroll` processes B sequences of L steps: `carry` `[B, ...]`, `obs` `[L, B, ...]`, `reset`
    `[L, B]`. If `reset` is true for a step, the observation is the first of an episode, and the
    initial carry replaces the carry. Layers without memory process all L * B steps at once. Only
    the recurrent core is scanned. `StepwiseNetwork` adds `unroll` to a `StepNetwork`.
    """

    def unroll(self, carry: Carry, obs: Observation, reset: jax.Array) -> tuple[Carry, PyTree]: ...


class ActorCriticOutput(NamedTuple):
    """Output of an actor-critic network for one time step, without batch axes."""

    policy: Distribution
    value: jax.Array  # float []


def step_network(
    network: StepNetwork, carry: Carry, obs: Observation, reset: jax.Array
) -> tuple[Any, Any]:
    """Apply a network to one time step of one agent in one environment.

    If `reset` is true, the network receives its initial carry instead of `carry`.

    Returns:
        The carry after the step and the output.
    """
    return network(tree.where(reset, network.initial_carry(), carry), obs)


def evaluate_actions(policy: Distribution, raw_action: PyTree) -> tuple[jax.Array, jax.Array]:
    """Return the log-probabilities of actions and the entropies of their distributions.

    Args:
        policy: Distributions of sequences, `[L, B, ...]`.
        raw_action: Actions as sampled from a distribution, `[L, B, ...]`.

    Returns:
        The log-probabilities and the entropies, float `[L, B]` each.
    """

    def evaluate(policy: Distribution, raw_action: PyTree) -> tuple[jax.Array, jax.Array]:
        return policy.log_prob(raw_action), policy.entropy()

    return tree.vmap_over_steps(evaluate)(policy, raw_action)


class StepwiseNetwork(eqx.Module):
    """Network that adds `unroll` to a `StepNetwork` by calling it for every step.

    If the network has no memory, all steps are processed at once. Otherwise they are scanned.
    """

    network: Any

    def initial_carry(self) -> Any:
        return self.network.initial_carry()

    def __call__(self, carry: Carry, obs: Observation) -> tuple[Any, Any]:
        return self.network(carry, obs)

    def unroll(self, carry: Carry, obs: Observation, reset: jax.Array) -> tuple[Any, Any]:
        if not jax.tree.leaves(carry):
            return carry, tree.vmap_over_steps(lambda o: self.network(carry, o)[1])(obs)
        steps = jax.vmap(lambda c, o, r: step_network(self.network, c, o, r))
        return jax.lax.scan(lambda c, x: steps(c, *x), carry, (obs, reset))


class PreprocessedNetwork(eqx.Module):
    """Network that applies `function` to observations before `network`, such as a normalization."""

    network: Network
    function: Callable[[Any], Any]

    def initial_carry(self) -> Any:
        return self.network.initial_carry()

    def __call__(self, carry: Carry, obs: Observation) -> tuple[Any, Any]:
        return self.network(carry, self.function(obs))

    def unroll(self, carry: Carry, obs: Observation, reset: jax.Array) -> tuple[Any, Any]:
        return self.network.unroll(carry, tree.vmap_over_steps(self.function)(obs), reset)


class RescaledValueNetwork(eqx.Module):
    """Actor-critic that returns mean + std V in place of the values V of `network`."""

    network: Network
    mean: jax.Array
    std: jax.Array

    def initial_carry(self) -> Any:
        return self.network.initial_carry()

    def __call__(self, carry: Carry, obs: Observation) -> tuple[Any, ActorCriticOutput]:
        carry, output = self.network(carry, obs)
        return carry, output._replace(value=self.mean + self.std * output.value)

    def unroll(
        self, carry: Carry, obs: Observation, reset: jax.Array
    ) -> tuple[Any, ActorCriticOutput]:
        carry, output = self.network.unroll(carry, obs, reset)
        return carry, output._replace(value=self.mean + self.std * output.value)


class ActorCriticExtras(NamedTuple):
    """Outputs of an actor-critic in addition to the action, for one time step of one agent.

    Attributes:
        raw_action: Sample before squashing or clipping.
        log_prob: Log-probability of the raw action, float `[]`.
        value: Value, float `[]`, or None if `returns.add_values` computes it after the rollout.
    """

    raw_action: jax.Array
    log_prob: jax.Array
    value: jax.Array | None


def sample_action(
    network: StepNetwork, carry: Carry, obs: Observation, reset: jax.Array, key: jax.Array
) -> tuple[Any, Any, ActorCriticExtras]:
    """Sample the action of one agent in one environment.

    Args:
        network: Network with outputs `ActorCriticOutput`.
        carry: Memory before the step.
        obs: Observation.
        reset: Whether the observation is the first of an episode, bool `[]`.
        key: Random key of the action.

    Returns:
        The memory after the step, the action for the environment, and the extras for learning.
    """
    carry, output = step_network(network, carry, obs, reset)
    raw_action = output.policy.sample(key)
    extras = ActorCriticExtras(raw_action, output.policy.log_prob(raw_action), output.value)
    return carry, output.policy.action(raw_action), extras


def choose_action(
    network: StepNetwork, carry: Carry, obs: Observation, key: jax.Array, greedy: jax.Array
) -> tuple[Any, Any]:
    """Choose one action in evaluation. The caller resets the carry at the start of an episode.

    Args:
        network: Network with outputs `ActorCriticOutput`.
        carry: Memory before the step.
        obs: Observation.
        key: Random key of the action.
        greedy: Whether to return the mode of the policy instead of a sample, bool `[]`.

    Returns:
        The memory after the step and the action for the environment.
    """
    carry, output = network(carry, obs)
    raw_action = tree.where(greedy, output.policy.mode(), output.policy.sample(key))
    return carry, output.policy.action(raw_action)
