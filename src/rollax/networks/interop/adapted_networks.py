"""Networks of any library, as parameters and functions that apply the parameters."""

import contextlib
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from rollax import tree
from rollax.action_spaces import (
    check_discrete,
    discrete_sizes,
    make_normalized_zeros,
    normalize_space,
)
from rollax.environments.environment import Environment
from rollax.errors import UnknownNameError, UsageError
from rollax.networks import critics, policy_heads
from rollax.networks.distributions import (
    Distribution,
    JointDistribution,
    RadiallySquashedGaussian,
)
from rollax.networks.interop import output_checks
from rollax.networks.network import ActorCriticOutput, Network, StepwiseNetwork
from rollax.spaces import (
    ActionSpace,
    Ball,
    Box,
    Dict,
    Discrete,
    MultiDiscrete,
    SimpleActionSpace,
    Space,
    Tuple,
    join_values,
    list_parts,
    list_values,
    make_zeros,
    map_space,
)
from rollax.types import Carry, NetworkFn, Observation, Parameters, PyTree


class ModuleFns(NamedTuple):
    """Functions of a module of any library.

    All networks that one adapter creates share the same function objects, because JAX compares
    functions by identity and would otherwise recompile.

    Attributes:
        name: Name of the module in error messages.
        init: Function `(key, *inputs)` that returns the parameters, where `inputs` are examples.
        apply: Function `(parameters, *inputs)` that returns the outputs.
        init_applies: Whether `init` applies the module to the inputs.
    """

    name: str
    init: Callable[..., Parameters]
    apply: Callable[..., PyTree]
    init_applies: bool = False


class AdapterOptions(NamedTuple):
    """Options of the adapters, which `adapters.from_function` describes."""

    num_critics: int = 2
    initial_carry: Carry = None
    initial_std: float = 1.0
    squash: bool = False


class NetworkFns(NamedTuple):
    """Functions of an adapted network with or without memory.

    Attributes:
        apply: Function `(parameters, carry, obs)` that returns `(carry, outputs)`.
        initial_carry: Function that returns the memory at the start of an episode.
    """

    apply: Callable[[Any, Any, Any], tuple[Any, Any]]
    initial_carry: Callable[[], Any]


class AdaptedModule(eqx.Module):
    """Module of any library without memory.

    Attributes:
        parameters: Pytree of float arrays.
        apply: Function `(parameters, *inputs)` that returns the outputs.
        convert: Function `(outputs, *inputs)` that returns the outputs that algorithms expect.
    """

    parameters: Any
    apply: Callable[..., Any] = eqx.field(static=True)
    convert: Callable[..., Any] = eqx.field(static=True)

    def __call__(self, *inputs: PyTree) -> Any:
        return self.convert(self.apply(self.parameters, *inputs), *inputs)


class AdaptedNetwork(eqx.Module):
    """Policy of any library, with a value unless a separate critic computes the value.

    Attributes:
        parameters: Pytree of float arrays.
        log_std: Log standard deviation with the shape of the action for a `Box`, or `[]` for a
            `Ball`. `()` for discrete actions. A dictionary or tuple for a `Dict` or `Tuple`.
        functions: Functions of the network.
        action_space: Action space of the environment.
        squash: Whether tanh maps actions to their bounds.
        has_value: Whether the network returns `(policy, value)` instead of only the policy.
    """

    parameters: Any
    log_std: Any
    functions: NetworkFns = eqx.field(static=True)
    action_space: ActionSpace = eqx.field(static=True)
    squash: bool = eqx.field(static=True)
    has_value: bool = eqx.field(static=True, default=True)

    def initial_carry(self) -> Any:
        return self.functions.initial_carry()

    def __call__(self, carry: Carry, obs: Observation) -> tuple[Any, Any]:
        carry, output = self.functions.apply(self.parameters, carry, obs)
        if not self.has_value:
            return carry, self._make_distribution(output, obs)
        policy, value = output
        return carry, ActorCriticOutput(self._make_distribution(policy, obs), to_scalar(value))

    def _make_distribution(self, policy: PyTree, obs: Observation) -> Distribution:
        mask = obs["action_mask"] if isinstance(obs, dict) and "action_mask" in obs else None
        return make_distribution(self.action_space, policy, self.log_std, self.squash, mask)


class AdaptedActorCritic(eqx.Module):
    """Adapted policy and a separate critic without memory.

    The optimizer of the critic trains all parameters in the field `critic`.
    """

    actor: Network
    critic: AdaptedModule

    def initial_carry(self) -> Any:
        return self.actor.initial_carry()

    def __call__(self, carry: Carry, obs: Observation) -> tuple[Any, ActorCriticOutput]:
        carry, policy = self.actor(carry, obs)
        return carry, ActorCriticOutput(policy, self.critic(obs))

    def unroll(
        self, carry: Carry, obs: Observation, reset: jax.Array
    ) -> tuple[Any, ActorCriticOutput]:
        carry, policy = self.actor.unroll(carry, obs, reset)
        return carry, ActorCriticOutput(policy, tree.vmap_over_steps(self.critic)(obs))


class AdaptedQNetwork(eqx.Module):
    """Action values of any library for `pqn`, with or without memory."""

    parameters: Any
    functions: NetworkFns = eqx.field(static=True)

    def initial_carry(self) -> Any:
        return self.functions.initial_carry()

    def __call__(self, carry: Carry, obs: Observation) -> tuple[Any, jax.Array]:
        carry, values = self.functions.apply(self.parameters, carry, obs)
        return carry, to_float32(values)


def make_distribution(
    space: Space, policy: PyTree, log_std: PyTree, squash: bool, mask: PyTree
) -> Distribution:
    """Return the distribution over the actions of a space.

    Args:
        space: Action space.
        policy: Logits or mean. A dictionary or tuple for a `Dict` or `Tuple` space.
        log_std: Log standard deviation with the same structure, `()` for discrete actions.
        squash: Whether tanh maps actions to their bounds.
        mask: Mask of legal actions with the same structure, or None.
    """
    if isinstance(space, Dict | Tuple):
        policies, log_stds = list_values(space, policy), list_values(space, log_std)
        masks = {} if mask is None else mask
        parts = {
            name: make_distribution(part, policies[name], log_stds[name], squash, masks.get(name))
            for name, part in list_parts(space).items()
        }
        return JointDistribution(join_values(space, parts))
    policy = jnp.asarray(policy, jnp.float32)
    if isinstance(space, Box):
        return policy_heads.make_gaussian(policy, log_std, space, squash, mask)
    if isinstance(space, Ball):
        return RadiallySquashedGaussian(policy.reshape(space.shape), log_std, space)
    assert isinstance(space, Discrete | MultiDiscrete), "_check_action_space rejects other spaces"
    return policy_heads.make_categorical(policy, space, mask)


def _init_log_std(space: SimpleActionSpace, initial_std: float) -> Any:
    """Return the initial log standard deviation: one per dimension of a box, or one for a ball."""
    if isinstance(space, Discrete | MultiDiscrete):
        return ()
    shape = space.shape if isinstance(space, Box) else ()
    return jnp.full(shape, math.log(initial_std), jnp.float32)


def to_float32(values: PyTree, *inputs: PyTree) -> jax.Array:
    """Return an output as float32."""
    return jnp.asarray(values, jnp.float32)


def to_scalar(value: PyTree, *inputs: PyTree) -> jax.Array:
    """Return an output of one number as float32 `[]`."""
    return jnp.asarray(value, jnp.float32).reshape(())


def make_network_fn(
    algorithm: str,
    actor: ModuleFns,
    critic: ModuleFns | None,
    environment: Environment,
    options: AdapterOptions,
) -> NetworkFn:
    """Return a function from a random key to the network of an algorithm.

    Args:
        algorithm: Name of the algorithm.
        actor: Functions of the policy, or of the action values.
        critic: Functions of a separate critic, or None.
        environment: Environment with the spaces.
        options: Options of the adapter.

    Returns:
        The function. It raises UsageError if parameters are not float arrays, or if outputs do not
        fit the environment.

    Raises:
        UnknownNameError: If adapters do not support the algorithm.
        UsageError: If the action space is not supported, or an option does not apply to the
            algorithm.
    """
    if algorithm not in _KINDS:
        raise UnknownNameError("algorithm of an adapted network", algorithm, list(_KINDS))
    kind = _KINDS[algorithm]
    defaults = AdapterOptions()
    changed = [
        name
        for name, value in options._asdict().items()
        if value is not None and not _is_equal_number(value, getattr(defaults, name))
    ]
    unused = [name for name in changed if name not in kind.options]
    if critic is not None and kind.critic == "none":
        unused.append("critic")
    if unused:
        raise UsageError(f"{unused[0]} does not apply to networks for {algorithm}. Remove it.")
    if options.initial_std <= 0:
        raise UsageError(f"initial_std must be greater than 0, got {options.initial_std}.")
    if critic is None and kind.critic == "required":
        raise UsageError(
            f"{algorithm} needs a critic, a network of an observation and an action. Pass critic=."
        )
    return kind.make(actor, critic, environment, options)


def _is_equal_number(value: object, default: object) -> bool:
    """Return whether a value is the default. Arrays, such as an initial carry, never are."""
    return isinstance(value, bool | int | float) and value == default


def _make_actor_critic(
    actor: ModuleFns, critic: ModuleFns | None, environment: Environment, options: AdapterOptions
) -> NetworkFn:
    """Return the network function of `ppo`, `ppo_rnd`, `impala` and `bc`."""
    space = environment.action_space
    _check_action_space(space, options.squash)
    functions = _add_carry(actor, options.initial_carry)

    def make_policy(key: jax.Array) -> StepwiseNetwork:
        parameters = _init_parameters(actor, environment, key, functions.initial_carry())
        output = _abstract_output(functions, parameters, environment, actor.name)
        if critic is None:
            has_memory = options.initial_carry is not None
            expected = "(carry, (policy, value))" if has_memory else "(policy, value)"
            output, value = output_checks.unpack_pair(actor.name, output, expected)
            output_checks.check_value(actor.name, value)
        output_checks.check_policy(actor.name, output, space)
        log_std = map_space(lambda part: _init_log_std(part, options.initial_std), space)
        return StepwiseNetwork(
            AdaptedNetwork(parameters, log_std, functions, space, options.squash, critic is None)
        )

    if critic is None:
        return make_policy

    def make(key: jax.Array) -> AdaptedActorCritic:
        actor_key, critic_key = jax.random.split(key)
        value = _make_critic(critic, environment, critic_key)
        return AdaptedActorCritic(make_policy(actor_key), value)

    return make


def _make_q_network(
    actor: ModuleFns, critic: ModuleFns | None, environment: Environment, options: AdapterOptions
) -> NetworkFn:
    """Return the network function of `dqn`, whose networks have no memory."""
    make_recurrent = _make_recurrent_q_network(actor, critic, environment, options)

    def make(key: jax.Array) -> AdaptedModule:
        parameters = make_recurrent(key).network.parameters
        return AdaptedModule(parameters, actor.apply, to_float32)

    return make


def _make_recurrent_q_network(
    actor: ModuleFns, critic: ModuleFns | None, environment: Environment, options: AdapterOptions
) -> Callable[[jax.Array], StepwiseNetwork]:
    """Return the network function of `pqn`."""
    space = check_discrete(environment.action_space)
    functions = _add_carry(actor, options.initial_carry)

    def make(key: jax.Array) -> StepwiseNetwork:
        parameters = _init_parameters(actor, environment, key, functions.initial_carry())
        output = _abstract_output(functions, parameters, environment, actor.name)
        output_checks.check_shape(
            actor.name, "array of action values", output, ((space.n,),), f" for {space}"
        )
        return StepwiseNetwork(AdaptedQNetwork(parameters, functions))

    return make


def _make_deterministic_actor(
    actor: ModuleFns, critic: ModuleFns, environment: Environment, options: AdapterOptions
) -> NetworkFn:
    """Return the network function of `td3`."""
    space = normalize_space(environment.action_space)

    def convert(mean: PyTree, obs: Observation) -> jax.Array:
        return critics.squash_action(to_float32(mean), space, obs)

    def check(output: PyTree) -> None:
        output_checks.check_policy(actor.name, output, space)

    return _make_actor_critics(actor, critic, environment, options, convert, check)


def _make_stochastic_actor(
    actor: ModuleFns, critic: ModuleFns, environment: Environment, options: AdapterOptions
) -> NetworkFn:
    """Return the network function of `sac`."""
    space = environment.action_space

    def convert(output: PyTree, obs: Observation) -> Distribution:
        return make_stochastic_policy(space, output, obs)

    def check(output: PyTree) -> None:
        output_checks.check_policy(actor.name, output, space, check_part=check_part)

    def check_part(name: str, output: PyTree, space: SimpleActionSpace, label: str) -> None:
        if isinstance(space, Discrete | MultiDiscrete):
            return output_checks.check_policy_shape(name, output, space, label)
        space = normalize_space(space)
        mean, log_std = output_checks.unpack_pair(name, output, "(mean, log_std)")
        shapes = output_checks.policy_shapes(space)
        output_checks.check_shape(name, "mean", mean, shapes, f" for {space}")
        std_shapes = ((), (1,)) if isinstance(space, Ball) else shapes
        output_checks.check_shape(name, "log_std", log_std, std_shapes, f" for {space}")

    return _make_actor_critics(actor, critic, environment, options, convert, check)


def make_stochastic_policy(space: Space, output: PyTree, obs: Observation) -> Distribution:
    """Return the policy of `sac` over the normalized actions of a space.

    Args:
        space: Action space.
        output: Logits of a discrete space, or the mean and the log standard deviation of a
            continuous space. A dictionary or tuple for a `Dict` or `Tuple` space.
        obs: Observation, which may contain an "action_mask".
    """
    if isinstance(space, Dict | Tuple):
        outputs = list_values(space, output)
        parts = {
            name: make_stochastic_policy(
                part, outputs[name], policy_heads.select_action_mask(obs, name)
            )
            for name, part in list_parts(space).items()
        }
        return JointDistribution(join_values(space, parts))
    if isinstance(space, Discrete | MultiDiscrete):
        return policy_heads.make_categorical(
            to_float32(output), space, critics.get_action_mask(obs)
        )
    mean, log_std = map(to_float32, output)
    return critics.make_squashed_policy(mean, log_std, normalize_space(space), obs)


def _make_actor_critics(
    actor: ModuleFns,
    critic: ModuleFns,
    environment: Environment,
    options: AdapterOptions,
    convert: Callable[..., Any],
    check: Callable[[PyTree], None],
) -> NetworkFn:
    """Return the network function of a policy and critics without shared parameters.

    Args:
        actor: Functions of the policy.
        critic: Functions of one critic.
        environment: Environment with the spaces.
        options: Options of the adapter.
        convert: Function `(outputs, obs)` that returns the action or the distribution.
        check: Function that raises UsageError if the outputs of the policy do not fit.
    """
    if options.num_critics < 1:
        raise UsageError(f"num_critics must be at least 1, got {options.num_critics}.")
    sizes = discrete_sizes(environment.action_space)
    action = make_normalized_zeros(environment.action_space)
    functions = _add_carry(actor, None)

    def make_critic(key: jax.Array) -> Any:
        if not sizes:
            return _make_critic(critic, environment, key, action)
        continuous = critics.concatenate_parts(critics.split_action(action).continuous)
        shape = (math.prod(sizes),)
        network = _make_critic(critic, environment, key, continuous, shape=shape)
        return critics.ChoiceCritic(network, sizes)

    def make(key: jax.Array) -> critics.ActorCritics:
        actor_key, critics_key = jax.random.split(key)
        parameters = _init_parameters(actor, environment, actor_key, ())
        check(_abstract_output(functions, parameters, environment, actor.name))
        critic_keys = jax.random.split(critics_key, options.num_critics)
        return critics.ActorCritics(
            AdaptedModule(parameters, actor.apply, convert),
            tuple(map(make_critic, critic_keys)),
        )

    return make


def _make_critic(
    critic: ModuleFns,
    environment: Environment,
    key: jax.Array,
    *inputs: PyTree,
    shape: tuple[int, ...] = (),
) -> AdaptedModule:
    """Return a critic of an observation and further inputs, such as an action.

    Its output is a value, or values of joint choices with this shape.
    """
    obs = make_zeros(environment.observation_space)
    more = "".join(f" and one action {output_checks.describe_shapes(x)}" for x in inputs)
    parameters = _init_module(critic, environment, key, more, obs, *inputs)
    with output_checks.explain_network_errors(environment, more):
        value = jax.eval_shape(critic.apply, parameters, obs, *inputs)
    if shape:
        output_checks.check_shape(critic.name, "array of values of joint choices", value, (shape,))
        return AdaptedModule(parameters, critic.apply, to_float32)
    output_checks.check_value(critic.name, value)
    return AdaptedModule(parameters, critic.apply, to_scalar)


class _NetworkKind(NamedTuple):
    """Builder of the networks of an algorithm, the options that apply, and the use of a critic."""

    make: Callable[..., NetworkFn]
    options: tuple[str, ...]
    critic: str  # "none", "optional" or "required"


_ACTOR_CRITIC = _NetworkKind(
    _make_actor_critic, ("initial_carry", "initial_std", "squash"), "optional"
)
_KINDS = {
    "ppo": _ACTOR_CRITIC,
    "ppo_rnd": _ACTOR_CRITIC,
    "impala": _ACTOR_CRITIC,
    "bc": _ACTOR_CRITIC,
    "dqn": _NetworkKind(_make_q_network, (), "none"),
    "pqn": _NetworkKind(_make_recurrent_q_network, ("initial_carry",), "none"),
    "sac": _NetworkKind(_make_stochastic_actor, ("num_critics",), "required"),
    "td3": _NetworkKind(_make_deterministic_actor, ("num_critics",), "required"),
}
ADAPTED_ALGORITHMS = tuple(_KINDS)  # algorithms that train adapted networks


def _add_carry(module: ModuleFns, initial_carry: Carry) -> NetworkFns:
    """Return functions with a carry, which is `()` if `initial_carry` is None."""
    has_memory = initial_carry is not None
    carry = jax.tree.map(jnp.asarray, initial_carry) if has_memory else ()

    def with_carry(parameters: Parameters, carry: Carry, obs: Observation) -> tuple[Any, Any]:
        if has_memory:
            return module.apply(parameters, carry, obs)
        return carry, module.apply(parameters, obs)

    return NetworkFns(with_carry, lambda: carry)


def _init_parameters(
    module: ModuleFns, environment: Environment, key: jax.Array, carry: Carry
) -> Parameters:
    obs = make_zeros(environment.observation_space)
    inputs = (carry, obs) if jax.tree.leaves(carry) else (obs,)
    return _init_module(module, environment, key, "", *inputs)


def _init_module(
    module: ModuleFns, environment: Environment, key: jax.Array, more: str, *inputs: PyTree
) -> Parameters:
    """Return the validated parameters. `more` describes inputs in addition to the observation."""
    explain = output_checks.explain_network_errors(environment, more)
    with explain if module.init_applies else contextlib.nullcontext():
        return _validate_parameters(module.init(key, *inputs))


def _abstract_output(
    functions: NetworkFns, parameters: Parameters, environment: Environment, name: str
) -> PyTree:
    """Return the shapes and dtypes of the outputs, and check that the carry keeps its types."""
    carry = functions.initial_carry()
    with output_checks.explain_network_errors(environment):
        result = jax.eval_shape(
            functions.apply, parameters, carry, make_zeros(environment.observation_space)
        )
    new_carry, output = output_checks.unpack_pair(name, result, "(carry, outputs)")
    output_checks.check_carry(name, carry, new_carry)
    return output


def _check_action_space(space: Space, squash: bool) -> None:
    """Raise UsageError for an unsupported space, or if `squash` does not apply to any part."""
    if isinstance(space, Dict | Tuple):
        parts = list_parts(space).values()
        has_boxes = any(isinstance(part, Dict | Tuple | Box) for part in parts)
        for part in parts:
            is_squashed = isinstance(part, Dict | Tuple | Box) or not has_boxes
            _check_action_space(part, squash and is_squashed)
        return
    if not (
        isinstance(space, Ball | Discrete | MultiDiscrete)
        or (isinstance(space, Box) and space.dtype.startswith("float"))
    ):
        raise UsageError(
            "The action space must be Discrete, MultiDiscrete, a Ball, a Box of floats, or a Dict "
            f"or Tuple of these, got {space}."
        )
    if squash and not (isinstance(space, Box) and space.is_bounded):
        raise UsageError(
            f"squash requires an action space with finite bounds, got {space}. Remove squash."
        )


def _validate_parameters(parameters: Parameters) -> Any:
    for path, leaf in jax.tree_util.tree_leaves_with_path(parameters):
        if not eqx.is_inexact_array(leaf):
            name, kind = (
                jax.tree_util.keystr(path) or "it",
                leaf.dtype if eqx.is_array(leaf) else type(leaf).__name__,
            )
            raise UsageError(
                f"Parameters must be float arrays, got {kind} for {name}. Store constants "
                "outside of the parameters."
            )
    return parameters
