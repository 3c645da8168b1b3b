"""Networks of other libraries, and plain functions, as networks of rollax.

    env = rollax.make("gymnax/CartPole-v1")
    rollax.train("ppo", "gymnax/CartPole-v1", network=from_linen(MyModule(), env))

A network of another library takes one observation of one stream (no batch axis) and returns `(policy, value)`:

- policy: logits `[n]` for `Discrete(n)`, `[k, max n]` for `MultiDiscrete`, the mean of the action's shape for a `Box`
  (with a learned standard deviation a dimension, stored beside the parameters) or a `Ball` (one for all directions).
- value: `[]` or `[1]`.

With `initial_carry` it has a memory: `(carry, observation) -> (carry, (policy, value))`. The library resets the carry at the
start of an episode, so the network never does. An "action_mask" in the observation is respected.

Each adapter returns what algorithms ask for, a function from a key to a network whose leaves are the trained arrays. For
another distribution, or optimizers apart for policy and critic, write the three functions of the protocol `Network`.
"""

import importlib
import math
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from rollax.environments.core import Environment
from rollax.errors import UsageError
from rollax.networks import distributions, layers
from rollax.networks.core import ActorCriticOutput, Network, Stepwise
from rollax.spaces import ActionSpace, Ball, Box, Discrete, MultiDiscrete, Space, zeros

MakeNetwork = Callable[[jax.Array], Network]


class Functions(NamedTuple):
    """What an adapted network calls; the same objects for all networks of one adapter, as they are part of the program."""

    apply: Callable[[Any, Any, Any], tuple[Any, Any]]  # (parameters, carry, obs) -> (carry, (policy, value))
    initial_carry: Callable[[], Any]


class Adapted(eqx.Module):
    """Parameters of any library with the function that applies them."""

    parameters: Any
    log_std: Any  # [shape of the action] for a box, [] for a ball, else ()
    functions: Functions = eqx.field(static=True)
    action_space: ActionSpace = eqx.field(static=True)
    squash: bool = eqx.field(static=True)

    def initial_carry(self) -> Any:
        return self.functions.initial_carry()

    def __call__(self, carry: Any, obs: Any) -> tuple[Any, ActorCriticOutput]:
        carry, (policy, value) = self.functions.apply(self.parameters, carry, obs)
        policy, value = jnp.asarray(policy, jnp.float32), jnp.asarray(value, jnp.float32)
        return carry, ActorCriticOutput(self._distribution(policy, obs), value.reshape(()))

    def _distribution(self, policy: jax.Array, obs: Any) -> Any:
        space = self.action_space
        mask = obs["action_mask"] if isinstance(obs, dict) and "action_mask" in obs else None
        if isinstance(space, Box):
            return layers.gaussian(policy, self.log_std, space, self.squash, mask)
        if isinstance(space, Ball):
            return distributions.RadialSquash(policy.reshape(space.shape), self.log_std, space)
        return layers.categorical(policy, space, mask)


def from_function(
    init: Callable[[jax.Array], Any],
    apply: Callable[..., Any],
    environment: Environment,
    *,
    initial_carry: Any = None,
    initial_std: float = 1.0,
    squash: bool = False,
) -> MakeNetwork:
    """Two functions: `init(key) -> parameters` (a pytree of float arrays) and `apply(parameters, [carry,] obs)`.

    `initial_std` and `squash` concern continuous actions: their standard deviation at the start, and tanh to the bounds instead
    of a clip.

    Raises UsageError here for an action space without a policy, and when the network is made for parameters that are not
    arrays of floats or outputs that do not fit the environment.
    """
    space = environment.action_space
    _check_space(space, squash)
    has_memory = initial_carry is not None
    carry = jax.tree.map(jnp.asarray, initial_carry) if has_memory else ()

    def with_carry(parameters: Any, carry: Any, obs: Any) -> tuple[Any, Any]:
        return apply(parameters, carry, obs) if has_memory else (carry, apply(parameters, obs))

    functions = Functions(with_carry, lambda: carry)

    def make(key: jax.Array) -> Network:
        parameters = _checked_parameters(init(key))
        _check_outputs(functions, parameters, environment)
        shape = {Box: space.shape, Ball: ()}.get(type(space))  # a ball has one for all directions
        log_std = () if shape is None else jnp.full(shape, math.log(initial_std), jnp.float32)
        return Stepwise(Adapted(parameters, log_std, functions, space, squash))

    return make


def from_linen(
    module: Any, environment: Environment, *, initial_carry: Any = None, initial_std: float = 1.0, squash: bool = False
) -> MakeNetwork:
    """A `flax.linen` module that is called with `([carry,] obs)`. Further arguments and errors as for `from_function`.

    Raises UsageError as well when flax is not installed, and when the module keeps more than parameters (running statistics).
    """
    _flax("flax.linen", "linen")
    inputs = _inputs(environment, initial_carry)

    def init(key: jax.Array) -> Any:
        variables = module.init(key, *inputs)
        _refuse_statistics(module, sorted(set(variables) - {"params"}))
        return variables.get("params", {})

    def apply(parameters: Any, *inputs: Any) -> Any:
        return module.apply({"params": parameters}, *inputs)

    return from_function(init, apply, environment, initial_carry=initial_carry, initial_std=initial_std, squash=squash)


def from_nnx(
    make: Any, environment: Environment, *, initial_carry: Any = None, initial_std: float = 1.0, squash: bool = False
) -> MakeNetwork:
    """A `flax.nnx` module that is called with `([carry,] obs)`: a function `make(rngs) -> module`, or a module.

    A function gives every seed weights of its own, a module (trained before, say) gives all seeds its weights. Only
    `nnx.Param` is trained; streams of random numbers stay as they were made. Further arguments and errors as for `from_linen`.
    """
    nnx = _flax("flax.nnx", "nnx")
    example = make if isinstance(make, nnx.Module) else make(nnx.Rngs(0))
    graph, template, rest = nnx.split(example, nnx.Param, ...)
    _refuse_statistics(example, ["batch statistics"] if jax.tree.leaves(nnx.state(example, nnx.BatchStat)) else [])

    def init(key: jax.Array) -> Any:
        module = example if isinstance(make, nnx.Module) else make(nnx.Rngs(key))
        return _text_keys(nnx.to_pure_dict(nnx.state(module, nnx.Param)))

    def apply(parameters: Any, *inputs: Any) -> Any:
        state = jax.tree.map(lambda x: x, template)
        nnx.replace_by_pure_dict(state, _like_keys(parameters, nnx.to_pure_dict(template)))
        return nnx.merge(graph, state, rest)(*inputs)

    return from_function(init, apply, environment, initial_carry=initial_carry, initial_std=initial_std, squash=squash)


def from_equinox(
    make: Callable[[jax.Array], Any],
    environment: Environment,
    *,
    initial_carry: Any = None,
    initial_std: float = 1.0,
    squash: bool = False,
) -> MakeNetwork:
    """An `equinox` module that is called with `([carry,] obs)`: a function `make(key) -> module`.

    Its arrays of floats are trained; all else (activations, tables of integers) is the same for every key. Further
    arguments and errors as for `from_function`.
    """
    example = make(jax.random.key(0))
    template, rest = eqx.partition(example, eqx.is_inexact_array)
    structure = jax.tree.structure(template)

    # A list of leaves rather than the module, whose structure may hold functions that differ from one making to the next.
    def init(key: jax.Array) -> list[jax.Array]:
        return jax.tree.leaves(eqx.filter(make(key), eqx.is_inexact_array))

    def apply(parameters: Any, *inputs: Any) -> Any:
        return eqx.combine(structure.unflatten(parameters), rest)(*inputs)

    return from_function(init, apply, environment, initial_carry=initial_carry, initial_std=initial_std, squash=squash)


def _flax(module: str, extra: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UsageError(f'a {module} network needs flax, which is not installed: pip install "rollax[{extra}]"') from error


def _inputs(environment: Environment, initial_carry: Any) -> tuple[Any, ...]:
    """What a network is called with, all zero."""
    obs = zeros(environment.observation_space)
    return (obs,) if initial_carry is None else (jax.tree.map(jnp.asarray, initial_carry), obs)


def _text_keys(tree: Any) -> Any:
    """Names as text throughout: checkpoints know no others, and nnx numbers the elements of a list."""
    return {str(name): _text_keys(part) for name, part in tree.items()} if isinstance(tree, dict) else tree


def _like_keys(tree: Any, like: Any) -> Any:
    """The inverse of `_text_keys`, by the names in `like`."""
    return {name: _like_keys(tree[str(name)], part) for name, part in like.items()} if isinstance(like, dict) else tree


def _refuse_statistics(module: Any, found: list[str]) -> None:
    if found:
        raise UsageError(
            f"{type(module).__name__} keeps {', '.join(found)} besides its parameters, which rollax does not update: "
            "use layers without such state, for example LayerNorm for BatchNorm"
        )


def _check_space(space: Space, squash: bool) -> None:
    if not (isinstance(space, Ball | Discrete | MultiDiscrete) or (isinstance(space, Box) and space.dtype.startswith("float"))):
        raise UsageError(
            f"no policy for the action space {space}: it must be Discrete, MultiDiscrete, a Ball or a Box of floats"
        )
    if squash and not (isinstance(space, Box) and space.is_bounded):
        raise UsageError(f"squash needs an action space with finite bounds, but it is {space}: leave squash off")


def _checked_parameters(parameters: Any) -> Any:
    for path, leaf in jax.tree_util.tree_leaves_with_path(parameters):
        if not eqx.is_inexact_array(leaf):
            name, kind = jax.tree_util.keystr(path) or "it", leaf.dtype if eqx.is_array(leaf) else type(leaf).__name__
            raise UsageError(f"parameters must be arrays of floats, but {name} is {kind}: keep constants outside of them")
    return parameters


def _check_outputs(functions: Functions, parameters: Any, environment: Environment) -> None:
    """Shapes and structures, before anything is compiled."""
    carry = functions.initial_carry()
    output = jax.eval_shape(functions.apply, parameters, carry, zeros(environment.observation_space))
    if not (_is_pair(output) and _is_pair(output[1])):
        has_memory = bool(jax.tree.leaves(carry))
        wanted = "(carry, (policy, value))" if has_memory else "(policy, value)"
        raise UsageError(f"the network must return {wanted}, but it returned {output if has_memory else output[1]}")
    new_carry, (policy, value) = output
    before = jax.tree.map(lambda x: (x.shape, x.dtype), carry)
    after = jax.tree.map(lambda x: (x.shape, x.dtype), new_carry)
    if before != after:
        raise UsageError(f"the carry must keep its structure, shapes and types, but {before} became {after}: see initial_carry")
    wanted_shapes = _policy_shapes(environment.action_space)
    if policy.shape not in wanted_shapes:
        wanted = " or ".join(map(str, dict.fromkeys(wanted_shapes)))
        raise UsageError(f"the policy's output for {environment.action_space} must have shape {wanted}, not {policy.shape}")
    if math.prod(value.shape) != 1:
        raise UsageError(f"the value must be one number, shape () or (1,), not {value.shape}")


def _is_pair(value: Any) -> bool:
    return isinstance(value, tuple | list) and len(value) == 2


def _policy_shapes(space: ActionSpace) -> tuple[tuple[int, ...], ...]:
    if isinstance(space, Discrete):
        return ((space.n,),)
    shape = (len(space.sizes), max(space.sizes)) if isinstance(space, MultiDiscrete) else space.shape
    return shape, (math.prod(shape),)
