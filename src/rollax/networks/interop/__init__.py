"""Adapters for networks of other libraries and for plain functions.

    env = rollax.make("gymnax/CartPole-v1")
    rollax.train("ppo", "gymnax/CartPole-v1", network=from_linen(MyModule(), env))
    rollax.train("dqn", "gymnax/CartPole-v1", network=from_linen(Q(), env, algorithm="dqn"))

An adapted network takes one observation without a batch axis. Its outputs depend on the algorithm:

| algorithm | network | critic |
|---|---|---|
| ppo, ppo_rnd, impala, bc | `obs -> (policy, value)` | none |
| ppo, ppo_rnd, impala, bc | `obs -> policy` | `obs -> value` |
| dqn, pqn | `obs -> action values` | none |
| sac | `obs -> (mean, log_std)` | `(obs, action) -> value` |
| td3 | `obs -> mean` | `(obs, action) -> value` |

- policy: For `Discrete(n)`, logits `[n]`. For `MultiDiscrete`, logits `[k, max n]`. For a `Box` or
  a `Ball`, the mean with the shape of the action. rollax adds a learned standard deviation, one per
  dimension of a `Box` and one for a `Ball`. For a `Dict` or a `Tuple`, a dictionary or a tuple of
  these.
- value: `[]` or `[1]`.
- action values: `[n]` for `Discrete(n)`.
- mean, log_std: Arrays with the shape of the action, before tanh maps them to the bounds. The log
  standard deviation is clipped to the range from -5 to 2.
- action: Action in [-1, 1] with the shape of the action space. It is an input of the critics of sac
  and td3, which are `num_critics` networks with independent weights.

With `initial_carry` the network is recurrent: `(carry, observation) -> (carry, outputs)`. rollax
resets the carry at the start of an episode, so the network must not reset it. A separate critic has
no memory. Adapted policies apply the "action_mask" of the observation, except for a `Ball`.

Each adapter returns a function from a random key to a network, as algorithms expect. The leaves of
the network are the trained arrays. To use other distributions with `ppo` or `impala`, implement the
methods `initial_carry`, `__call__` and `unroll` of the protocol `network.Network`.
"""

from rollax.networks.interop.adapters import from_equinox, from_function, from_linen, from_nnx

__all__ = ["from_equinox", "from_function", "from_linen", "from_nnx"]
