"""The protocol of networks, and how a network is applied to a step and to a sequence."""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import equinox as eqx
import jax

from rollax import tree
from rollax.networks.distributions import Distribution


class Network(Protocol):
    """A pytree whose leaves are arrays only: `(carry, obs) -> (carry, output)`, one step of one stream. The library vmaps it.

    `unroll` is the same over a batch of sequences: `carry` `[B, ...]`, `obs` `[L, B, ...]`, `reset` `[L, B]`; where `reset`,
    the observation begins an episode and the carry before it is the initial one. Layers without memory take all L * B steps at
    once, only the recurrent core is scanned. `Stepwise` gives `unroll` to any network that has only the other two.
    """

    def initial_carry(self) -> Any: ...
    def __call__(self, carry: Any, obs: Any) -> tuple[Any, Any]: ...
    def unroll(self, carry: Any, obs: Any, reset: jax.Array) -> tuple[Any, Any]: ...


class ActorCriticOutput(NamedTuple):
    """What a network for an actor-critic algorithm returns for one step of one stream."""

    policy: Distribution
    value: jax.Array  # float []


def step(network: Network, carry: Any, obs: Any, reset: jax.Array) -> tuple[Any, Any]:
    """One step of one stream; where `reset`, from the initial carry."""
    return network(tree.where(reset, network.initial_carry(), carry), obs)


class Stepwise(eqx.Module):
    """Gives `unroll` to a network that has only `initial_carry` and `__call__`: without memory all at once, else a scan."""

    network: Any

    def initial_carry(self) -> Any:
        return self.network.initial_carry()

    def __call__(self, carry: Any, obs: Any) -> tuple[Any, Any]:
        return self.network(carry, obs)

    def unroll(self, carry: Any, obs: Any, reset: jax.Array) -> tuple[Any, Any]:
        if not jax.tree.leaves(carry):
            return carry, tree.over_steps(lambda o: self.network(carry, o)[1])(obs)
        steps = jax.vmap(lambda c, o, r: step(self.network, c, o, r))
        return jax.lax.scan(lambda c, x: steps(c, *x), carry, (obs, reset))


class Preprocessed(eqx.Module):
    """A network applied to a function of the observation, such as its normalization or a part of it."""

    network: Network
    function: Callable[[Any], Any]

    def initial_carry(self) -> Any:
        return self.network.initial_carry()

    def __call__(self, carry: Any, obs: Any) -> tuple[Any, Any]:
        return self.network(carry, self.function(obs))

    def unroll(self, carry: Any, obs: Any, reset: jax.Array) -> tuple[Any, Any]:
        return self.network.unroll(carry, tree.over_steps(self.function)(obs), reset)


class Rescaled(eqx.Module):
    """An actor-critic with the values `mean + std V`, where `network` has V."""

    network: Network
    mean: jax.Array
    std: jax.Array

    def initial_carry(self) -> Any:
        return self.network.initial_carry()

    def __call__(self, carry: Any, obs: Any) -> tuple[Any, ActorCriticOutput]:
        carry, output = self.network(carry, obs)
        return carry, output._replace(value=self.mean + self.std * output.value)

    def unroll(self, carry: Any, obs: Any, reset: jax.Array) -> tuple[Any, ActorCriticOutput]:
        carry, output = self.network.unroll(carry, obs, reset)
        return carry, output._replace(value=self.mean + self.std * output.value)


class Extras(NamedTuple):
    """What an actor-critic gives besides the action, for one step of one stream."""

    raw_action: jax.Array  # what was sampled: of a squashed policy before the squash, of a clipped one before the clip
    log_prob: jax.Array  # float []: of the raw action
    value: jax.Array | None  # float []; None where it is computed later


def sample_action(network: Network, carry: Any, obs: Any, reset: jax.Array, key: jax.Array) -> tuple[Any, Any, Extras]:
    """One step of one stream by an actor-critic (outputs `ActorCriticOutput`): its memory, a sampled action, and the rest."""
    carry, output = step(network, carry, obs, reset)
    raw_action = output.policy.sample(key)
    extras = Extras(raw_action, output.policy.log_prob(raw_action), output.value)
    return carry, output.policy.action(raw_action), extras


def choose_action(network: Network, carry: Any, obs: Any, key: jax.Array, greedy: jax.Array) -> tuple[Any, Any]:
    """As `sample_action` within an episode, or the mode of the policy where `greedy`: memory and action."""
    carry, output = network(carry, obs)
    raw_action = tree.where(greedy, output.policy.mode(), output.policy.sample(key))
    return carry, output.policy.action(raw_action)
