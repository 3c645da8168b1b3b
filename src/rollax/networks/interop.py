"""Adapters for networks of other libraries and for plain functions.

    env = rollax.make("gymnax/CartPole-v1")
    rollax.train("ppo", "gymnax/CartPole-v1", network=from_linen(MyModule(), env))

An adapted network takes one observation of one stream (no batch axis) and returns `(policy,
value)`:

- policy: For `Discrete(n)`, logits `[n]`. For `MultiDiscrete`, logits `[k, max n]`. For a `Box` or
  a `Ball`, the mean with the shape of the action. rollax adds a learned standard deviation, one per
  dimension of a `Box` and one for a `Ball`.
- value: `[]` or `[1]`.

With `initial_carry` the network is recurrent: `(carry, observation) -> (carry, (policy, value))`.
rollax resets the carry at the start of an episode, so the network must not reset it. Adapted
networks apply the "action_mask" of the observation, except for a `Ball`.

Each adapter returns a function from a random key to a network, as algorithms expect. The leaves of
the network are the trained arrays. To use other distributions, or separate optimizers for policy
and critic, implement the methods `initial_carry`, `__call__` and `unroll` of the protocol
`network.Network`.
"""

import contextlib
import importlib
import math
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, NamedTuple, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp

from rollax.environments.environment import Environment
from rollax.errors import UsageError, describe_error
from rollax.networks import distributions, layers
from rollax.networks.network import ActorCriticOutput, Network, StepwiseNetwork
from rollax.runtime.installation import install_command
from rollax.spaces import ActionSpace, Ball, Box, Discrete, MultiDiscrete, Space, make_zeros
from rollax.types import Carry, Observation, Parameters, PyTree


@runtime_checkable
class LinenModule(Protocol):
    """Module of `flax.linen`."""

    def init(self, rngs: jax.Array, *args: PyTree) -> PyTree: ...
    def apply(self, variables: PyTree, *args: PyTree) -> PyTree: ...


MakeNetwork = Callable[[jax.Array], Network]


class NetworkFns(NamedTuple):
    """Functions of an adapted network.

    All networks that one adapter creates share the same function objects, because JAX compares
    functions by identity and would otherwise recompile.

    Attributes:
        apply: Function `(parameters, carry, obs)` that returns `(carry, (policy, value))`.
        initial_carry: Function that returns the memory at the start of an episode.
    """

    apply: Callable[[Any, Any, Any], tuple[Any, Any]]
    initial_carry: Callable[[], Any]


class AdaptedNetwork(eqx.Module):
    """Network of any library, as parameters and a function that applies the parameters.

    Attributes:
        parameters: Pytree of float arrays.
        log_std: Log standard deviation with the shape of the action for a `Box`, or `[]` for a
            `Ball`. `()` for all other spaces.
        functions: Functions of the network.
        action_space: Action space of the environment.
        squash: Whether tanh maps actions to their bounds.
    """

    parameters: Any
    log_std: Any
    functions: NetworkFns = eqx.field(static=True)
    action_space: ActionSpace = eqx.field(static=True)
    squash: bool = eqx.field(static=True)

    def initial_carry(self) -> Any:
        return self.functions.initial_carry()

    def __call__(self, carry: Carry, obs: Observation) -> tuple[Any, ActorCriticOutput]:
        carry, (policy, value) = self.functions.apply(self.parameters, carry, obs)
        policy, value = jnp.asarray(policy, jnp.float32), jnp.asarray(value, jnp.float32)
        return carry, ActorCriticOutput(self._make_distribution(policy, obs), value.reshape(()))

    def _make_distribution(self, policy: jax.Array, obs: Observation) -> Any:
        space = self.action_space
        mask = obs["action_mask"] if isinstance(obs, dict) and "action_mask" in obs else None
        if isinstance(space, Box):
            return layers.make_gaussian(policy, self.log_std, space, self.squash, mask)
        if isinstance(space, Ball):
            return distributions.RadiallySquashedGaussian(
                policy.reshape(space.shape), self.log_std, space
            )
        return layers.make_categorical(policy, space, mask)


def from_function(
    init: Callable[[jax.Array], Parameters],
    apply: Callable[..., PyTree],
    environment: Environment,
    *,
    initial_carry: Carry = None,
    initial_std: float = 1.0,
    squash: bool = False,
) -> MakeNetwork:
    """Build a network from functions `init(key)` and `apply(parameters, [carry,] obs)`.

    Args:
        init: Function that returns the parameters, a pytree of float arrays.
        apply: Function that returns `(policy, value)`, or `(carry, (policy, value))` if
            `initial_carry` is given. See the module docstring for the shapes.
        environment: Environment with the observation and action spaces.
        initial_carry: Memory at the start of an episode, or None for a network without memory.
        initial_std: Initial standard deviation of continuous actions.
        squash: Map continuous actions to their bounds by tanh instead of clipping.

    Returns:
        A function from a random key to a network. It raises UsageError if parameters are not float
        arrays, or if outputs do not fit the environment.

    Raises:
        UsageError: If the action space is not supported.
    """
    space = environment.action_space
    _check_action_space(space, squash)
    has_memory = initial_carry is not None
    carry = jax.tree.map(jnp.asarray, initial_carry) if has_memory else ()

    def with_carry(parameters: Parameters, carry: Carry, obs: Observation) -> tuple[Any, Any]:
        return apply(parameters, carry, obs) if has_memory else (carry, apply(parameters, obs))

    functions = NetworkFns(with_carry, lambda: carry)

    def make(key: jax.Array) -> Network:
        parameters = _validate_parameters(init(key))
        _check_outputs(functions, parameters, environment)
        # A ball has one standard deviation for all directions.
        shape = {Box: space.shape, Ball: ()}.get(type(space))
        log_std = () if shape is None else jnp.full(shape, math.log(initial_std), jnp.float32)
        return StepwiseNetwork(AdaptedNetwork(parameters, log_std, functions, space, squash))

    return make


def from_linen(
    module: LinenModule,
    environment: Environment,
    *,
    initial_carry: Carry = None,
    initial_std: float = 1.0,
    squash: bool = False,
) -> MakeNetwork:
    """Adapt a `flax.linen` module that is called with `([carry,] obs)`.

    Args:
        module: The module.
        environment: The environment.
        initial_carry: Memory at the start of an episode, or None for a network without memory.
        initial_std: Initial standard deviation of continuous actions.
        squash: Map continuous actions to their bounds by tanh instead of clipping.

    Returns:
        A function from a random key to a network. It raises UsageError if the module has variables
        other than "params", such as running statistics, or if outputs do not fit the environment.

    Raises:
        UsageError: If flax is not installed, or the action space is not supported.
    """
    _import_flax("flax.linen", "linen")
    inputs = _example_inputs(environment, initial_carry)

    def init(key: jax.Array) -> Any:
        with explain_network_errors(environment):
            variables = module.init(key, *inputs)
        _reject_statistics(module, sorted(set(variables) - {"params"}))
        return variables.get("params", {})

    def apply(parameters: Parameters, *inputs: PyTree) -> Any:
        return module.apply({"params": parameters}, *inputs)

    return from_function(
        init,
        apply,
        environment,
        initial_carry=initial_carry,
        initial_std=initial_std,
        squash=squash,
    )


def from_nnx(
    make: Callable[..., object],
    environment: Environment,
    *,
    initial_carry: Carry = None,
    initial_std: float = 1.0,
    squash: bool = False,
) -> MakeNetwork:
    """Adapt a `flax.nnx` module that is called with `([carry,] obs)`.

    Only `nnx.Param` is trained. Random number streams keep their initial state.

    Args:
        make: Function `make(rngs)` that returns a module with random weights. Alternatively a
            module, such as a pretrained module. All seeds then start from the weights of this
            module.
        environment: The environment.
        initial_carry: Memory at the start of an episode, or None for a network without memory.
        initial_std: Initial standard deviation of continuous actions.
        squash: Map continuous actions to their bounds by tanh instead of clipping.

    Returns:
        A function from a random key to a network. It raises UsageError if outputs do not fit the
        environment.

    Raises:
        UsageError: If flax is not installed, if the module has batch statistics, or if the action
            space is not supported.
    """
    nnx = _import_flax("flax.nnx", "nnx")
    template_module = make if isinstance(make, nnx.Module) else make(nnx.Rngs(0))
    graph, template, other_state = nnx.split(template_module, nnx.Param, ...)
    _reject_statistics(
        template_module,
        ["batch statistics"] if jax.tree.leaves(nnx.state(template_module, nnx.BatchStat)) else [],
    )

    def init(key: jax.Array) -> Any:
        module = template_module if isinstance(make, nnx.Module) else make(nnx.Rngs(key))
        return _stringify_keys(nnx.to_pure_dict(nnx.state(module, nnx.Param)))

    def apply(parameters: Parameters, *inputs: PyTree) -> Any:
        state = jax.tree.map(lambda x: x, template)
        nnx.replace_by_pure_dict(state, _restore_keys(parameters, nnx.to_pure_dict(template)))
        return nnx.merge(graph, state, other_state)(*inputs)

    return from_function(
        init,
        apply,
        environment,
        initial_carry=initial_carry,
        initial_std=initial_std,
        squash=squash,
    )


def from_equinox(
    make: Callable[[jax.Array], eqx.Module],
    environment: Environment,
    *,
    initial_carry: Carry = None,
    initial_std: float = 1.0,
    squash: bool = False,
) -> MakeNetwork:
    """Adapt an `equinox` module that is called with `([carry,] obs)`.

    Float arrays are trained. All other leaves, such as activation functions and integer arrays, are
    the same for every random key.

    Args:
        make: Function `make(key)` that returns a module.
        environment: The environment.
        initial_carry: Memory at the start of an episode, or None for a network without memory.
        initial_std: Initial standard deviation of continuous actions.
        squash: Map continuous actions to their bounds by tanh instead of clipping.

    Returns:
        A function from a random key to a network. It raises UsageError if outputs do not fit the
        environment.

    Raises:
        UsageError: If the action space is not supported.
    """
    example = make(jax.random.key(0))
    template, static = eqx.partition(example, eqx.is_inexact_array)
    structure = jax.tree.structure(template)

    # The parameters are a list of leaves, because the structure of the module may contain functions
    # that differ between two calls of `make`.
    def init(key: jax.Array) -> list[jax.Array]:
        return jax.tree.leaves(eqx.filter(make(key), eqx.is_inexact_array))

    def apply(parameters: Parameters, *inputs: PyTree) -> Any:
        return eqx.combine(structure.unflatten(parameters), static)(*inputs)

    return from_function(
        init,
        apply,
        environment,
        initial_carry=initial_carry,
        initial_std=initial_std,
        squash=squash,
    )


def _import_flax(module: str, extra: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UsageError(
            f"The package flax is not installed, and networks of {module} need it. "
            f"Run: {install_command(extra)}"
        ) from error


def _example_inputs(environment: Environment, initial_carry: Carry) -> tuple[Any, ...]:
    """Return example inputs of a network: the initial carry, if any, and a zero observation."""
    obs = make_zeros(environment.observation_space)
    return (obs,) if initial_carry is None else (jax.tree.map(jnp.asarray, initial_carry), obs)


def _stringify_keys(tree: PyTree) -> Any:
    """Convert the keys of nested dictionaries to strings, as checkpoints require.

    nnx uses integer keys for the elements of a list of modules.
    """
    return (
        {str(name): _stringify_keys(part) for name, part in tree.items()}
        if isinstance(tree, dict)
        else tree
    )


def _restore_keys(tree: PyTree, template: PyTree) -> Any:
    """Return `tree` with the original keys of `template`. This inverts `_stringify_keys`."""
    return (
        {name: _restore_keys(tree[str(name)], part) for name, part in template.items()}
        if isinstance(template, dict)
        else tree
    )


def _reject_statistics(module: object, statistics: list[str]) -> None:
    if statistics:
        raise UsageError(
            f"{type(module).__name__} has {', '.join(statistics)} in addition to its parameters, "
            "which rollax does not update. Use layers without such state, for example LayerNorm "
            "instead of BatchNorm."
        )


def _check_action_space(space: Space, squash: bool) -> None:
    if not (
        isinstance(space, Ball | Discrete | MultiDiscrete)
        or (isinstance(space, Box) and space.dtype.startswith("float"))
    ):
        raise UsageError(
            "The action space must be Discrete, MultiDiscrete, a Ball or a Box of floats, got "
            f"{space}."
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


def _check_outputs(functions: NetworkFns, parameters: Parameters, environment: Environment) -> None:
    """Raise UsageError if the outputs of a network have a wrong structure, shape or carry.

    Nothing is compiled.
    """
    carry = functions.initial_carry()
    with explain_network_errors(environment):
        output = jax.eval_shape(
            functions.apply, parameters, carry, make_zeros(environment.observation_space)
        )
    if not (_is_pair(output) and _is_pair(output[1])):
        has_memory = bool(jax.tree.leaves(carry))
        expected = "(carry, (policy, value))" if has_memory else "(policy, value)"
        raise UsageError(
            f"The network must return {expected}, got {output if has_memory else output[1]}."
        )
    new_carry, (policy, value) = output
    carry_types = jax.tree.map(lambda x: (x.shape, x.dtype), carry)
    new_carry_types = jax.tree.map(lambda x: (x.shape, x.dtype), new_carry)
    if carry_types != new_carry_types:
        raise UsageError(
            f"The carry must keep its structure, shapes and types, but {carry_types} became "
            f"{new_carry_types}. Change initial_carry."
        )
    expected_shapes = _policy_shapes(environment.action_space)
    if policy.shape not in expected_shapes:
        expected = " or ".join(map(str, dict.fromkeys(expected_shapes)))
        raise UsageError(
            f"The policy output for {environment.action_space} must have shape {expected}, got "
            f"{policy.shape}."
        )
    if math.prod(value.shape) != 1:
        raise UsageError(f"The value must have shape () or (1,), got {value.shape}.")


@contextlib.contextmanager
def explain_network_errors(environment: Environment) -> Iterator[None]:
    """Convert errors raised in the block to a UsageError with the failing module and the input."""
    try:
        yield
    except UsageError:
        raise
    except Exception as error:  # A custom network may raise any error.
        module = _describe_failing_module(error)
        expected = describe_shapes(make_zeros(environment.observation_space))
        first = describe_error(error).split("\n")[0].rstrip(".")
        raise UsageError(
            f"The network must accept one observation of {environment.name}, {expected} without "
            f"a batch axis, but {module} fails with {first}. Change its input size, or flatten "
            "the observation first."
        ) from error


def describe_shapes(value: PyTree) -> str:
    """Return a text of dtypes and shapes, such as `float32[4]` or `{image: uint8[84, 84, 4]}`."""
    if isinstance(value, dict):
        return (
            f"{{{', '.join(f'{name}: {describe_shapes(part)}' for name, part in value.items())}}}"
        )
    return f"{value.dtype}{list(value.shape)}"


_NETWORK_LIBRARIES = ("equinox", "flax")


def _describe_failing_module(error: Exception) -> str:
    """Describe the innermost equinox or flax module in a traceback, or return "it" if none."""
    description, trace = "it", error.__traceback__
    while trace is not None:
        module = trace.tb_frame.f_locals.get("self")
        bases = [kind for kind in type(module).__mro__ if kind.__name__ == "Module"]
        is_library_module = any(
            kind.__module__.split(".")[0] in _NETWORK_LIBRARIES for kind in bases
        )
        if is_library_module and not type(module).__module__.startswith("rollax."):
            description = _describe_module(module)
        trace = trace.tb_next
    return description


def _describe_module(module: object) -> str:
    """Return a text with the class of a module and the shapes of its array attributes."""
    shapes = {name: getattr(value, "shape", None) for name, value in vars(module).items()}
    arrays = ", ".join(
        f"{name} {list(shape)}" for name, shape in shapes.items() if isinstance(shape, tuple)
    )
    return f"its module {type(module).__name__}" + (f" ({arrays})" if arrays else "")


def _is_pair(value: PyTree) -> bool:
    return isinstance(value, tuple | list) and len(value) == 2


def _policy_shapes(space: ActionSpace) -> tuple[tuple[int, ...], ...]:
    if isinstance(space, Discrete):
        return ((space.n,),)
    shape = (
        (len(space.sizes), max(space.sizes)) if isinstance(space, MultiDiscrete) else space.shape
    )
    return shape, (math.prod(shape),)
