"""Adapters that convert modules of other libraries, and plain functions, to networks."""

import importlib
import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any, Protocol, runtime_checkable

import equinox as eqx
import jax

from rollax.environments.environment import Environment
from rollax.errors import UsageError
from rollax.networks.interop.adapted_networks import AdapterOptions, ModuleFns, make_network_fn
from rollax.runtime.installation import install_command
from rollax.types import Carry, NetworkFn, Parameters, PyTree


@runtime_checkable
class LinenModule(Protocol):
    """Module of `flax.linen`."""

    def init(self, rngs: jax.Array, *args: PyTree) -> PyTree: ...
    def apply(self, variables: PyTree, *args: PyTree) -> PyTree: ...


FunctionPair = tuple[Callable[[jax.Array], Parameters], Callable[..., PyTree]]


def from_function(
    init: Callable[[jax.Array], Parameters],
    apply: Callable[..., PyTree],
    environment: Environment,
    *,
    algorithm: str = "ppo",
    critic: FunctionPair | None = None,
    num_critics: int = 2,
    initial_carry: Carry = None,
    initial_std: float = 1.0,
    squash: bool = False,
) -> NetworkFn:
    """Build a network from functions `init(key)` and `apply(parameters, [carry,] obs)`.

    Args:
        init: Function that returns the parameters, a pytree of float arrays.
        apply: Function that returns the outputs of `algorithm`, such as `(policy, value)`, or
            `(carry, outputs)` if `initial_carry` is given.
        environment: Environment with the observation and action spaces.
        algorithm: Algorithm that trains the network, which determines the outputs: "ppo",
            "ppo_rnd", "impala", "bc", "dqn", "pqn", "sac" or "td3".
        critic: Functions `(init, apply)` of a separate critic, or None.
        num_critics: Number of critics of "sac" and "td3".
        initial_carry: Memory at the start of an episode, or None for a network without memory.
        initial_std: Initial standard deviation of continuous actions. Only for "ppo",
            "ppo_rnd", "impala" and "bc".
        squash: Whether tanh maps continuous actions to their bounds, instead of clipping. Only for
            "ppo", "ppo_rnd", "impala" and "bc".

    Returns:
        A function from a random key to a network. It raises UsageError if parameters are not float
        arrays, or if outputs do not fit the environment.

    Raises:
        UsageError: If the action space is not supported, or if an option does not apply to
            the algorithm.
    """
    actor = _function_fns(init, apply)
    separate = None if critic is None else _function_fns(*critic)
    options = AdapterOptions(num_critics, initial_carry, initial_std, squash)
    return make_network_fn(algorithm, actor, separate, environment, options)


def from_linen(
    module: LinenModule,
    environment: Environment,
    *,
    algorithm: str = "ppo",
    critic: LinenModule | None = None,
    num_critics: int = 2,
    initial_carry: Carry = None,
    initial_std: float = 1.0,
    squash: bool = False,
) -> NetworkFn:
    """Adapt a `flax.linen` module that is called with `([carry,] obs)`.

    Args:
        module: The module.
        environment: Environment with the observation and action spaces.
        algorithm: Algorithm that trains the network, which determines the outputs: "ppo",
            "ppo_rnd", "impala", "bc", "dqn", "pqn", "sac" or "td3".
        critic: Module of a separate critic, or None.
        num_critics: Number of critics of "sac" and "td3".
        initial_carry: Memory at the start of an episode, or None for a network without memory.
        initial_std: Initial standard deviation of continuous actions. Only for "ppo",
            "ppo_rnd", "impala" and "bc".
        squash: Whether tanh maps continuous actions to their bounds, instead of clipping. Only for
            "ppo", "ppo_rnd", "impala" and "bc".

    Returns:
        A function from a random key to a network. It raises UsageError if the module has variables
        other than "params", such as running statistics, or if outputs do not fit the environment.

    Raises:
        UsageError: If flax is not installed, if the action space is not supported, or if an option
            does not apply to the algorithm.
    """
    _import_flax("flax.linen", "linen")
    actor = _linen_fns(module)
    separate = None if critic is None else _linen_fns(critic)
    options = AdapterOptions(num_critics, initial_carry, initial_std, squash)
    return make_network_fn(algorithm, actor, separate, environment, options)


def from_nnx(
    make: Callable[..., object],
    environment: Environment,
    *,
    algorithm: str = "ppo",
    critic: Callable[..., object] | None = None,
    num_critics: int = 2,
    initial_carry: Carry = None,
    initial_std: float = 1.0,
    squash: bool = False,
) -> NetworkFn:
    """Adapt a `flax.nnx` module that is called with `([carry,] obs)`.

    Only `nnx.Param` is trained. Random number streams keep their initial state.

    Args:
        make: Function `make(rngs)` that returns a module with random weights, or a module, for
            example a pretrained one. With a module, all seeds start from its weights.
        environment: Environment with the observation and action spaces.
        algorithm: Algorithm that trains the network, which determines the outputs: "ppo",
            "ppo_rnd", "impala", "bc", "dqn", "pqn", "sac" or "td3".
        critic: Function `make(rngs)` of a separate critic, or None. For algorithms with one critic
            also a module.
        num_critics: Number of critics of "sac" and "td3".
        initial_carry: Memory at the start of an episode, or None for a network without memory.
        initial_std: Initial standard deviation of continuous actions. Only for "ppo",
            "ppo_rnd", "impala" and "bc".
        squash: Whether tanh maps continuous actions to their bounds, instead of clipping. Only for
            "ppo", "ppo_rnd", "impala" and "bc".

    Returns:
        A function from a random key to a network. It raises UsageError if outputs do not fit the
        environment.

    Raises:
        UsageError: If flax is not installed, if the module has batch statistics, if the action
            space is not supported, or if an option does not apply to the algorithm.
    """
    nnx = _import_flax("flax.nnx", "nnx")
    if isinstance(critic, nnx.Module) and algorithm in ("sac", "td3") and num_critics > 1:
        raise UsageError(
            f"critic must be a function make(rngs), so that the {num_critics} critics of "
            f"{algorithm} have different weights, got a module."
        )
    actor = _nnx_fns(nnx, make)
    separate = None if critic is None else _nnx_fns(nnx, critic)
    options = AdapterOptions(num_critics, initial_carry, initial_std, squash)
    return make_network_fn(algorithm, actor, separate, environment, options)


def from_equinox(
    make: Callable[[jax.Array], eqx.Module],
    environment: Environment,
    *,
    algorithm: str = "ppo",
    critic: Callable[[jax.Array], eqx.Module] | None = None,
    num_critics: int = 2,
    initial_carry: Carry = None,
    initial_std: float = 1.0,
    squash: bool = False,
) -> NetworkFn:
    """Adapt an `equinox` module that is called with `([carry,] obs)`.

    Float arrays are trained. All other leaves, such as activation functions and integer arrays, are
    the same for every random key.

    Args:
        make: Function `make(key)` that returns a module.
        environment: Environment with the observation and action spaces.
        algorithm: Algorithm that trains the network, which determines the outputs: "ppo",
            "ppo_rnd", "impala", "bc", "dqn", "pqn", "sac" or "td3".
        critic: Function `make(key)` of a separate critic, or None.
        num_critics: Number of critics of "sac" and "td3".
        initial_carry: Memory at the start of an episode, or None for a network without memory.
        initial_std: Initial standard deviation of continuous actions. Only for "ppo",
            "ppo_rnd", "impala" and "bc".
        squash: Whether tanh maps continuous actions to their bounds, instead of clipping. Only for
            "ppo", "ppo_rnd", "impala" and "bc".

    Returns:
        A function from a random key to a network. It raises UsageError if outputs do not fit the
        environment.

    Raises:
        UsageError: If the action space is not supported, or if an option does not apply to
            the algorithm.
    """
    actor = _equinox_fns(make)
    separate = None if critic is None else _equinox_fns(critic)
    options = AdapterOptions(num_critics, initial_carry, initial_std, squash)
    return make_network_fn(algorithm, actor, separate, environment, options)


def _function_fns(
    init: Callable[[jax.Array], Parameters], apply: Callable[..., PyTree]
) -> ModuleFns:
    name = apply.__qualname__ if inspect.isfunction(apply) else type(apply).__name__
    return ModuleFns(name, lambda key, *inputs: init(key), apply)


def _linen_fns(module: LinenModule) -> ModuleFns:
    def init(key: jax.Array, *inputs: PyTree) -> Any:
        variables = module.init(key, *inputs)
        _reject_statistics(module, sorted(set(variables) - {"params"}))
        return variables.get("params", {})

    def apply(parameters: Parameters, *inputs: PyTree) -> Any:
        return module.apply({"params": parameters}, *inputs)

    return ModuleFns(type(module).__name__, init, apply, init_applies=True)


def _nnx_fns(nnx: ModuleType, make: Callable[..., object]) -> ModuleFns:
    template_module = make if isinstance(make, nnx.Module) else make(nnx.Rngs(0))
    graph, template, other_state = nnx.split(template_module, nnx.Param, ...)
    _reject_statistics(
        template_module,
        ["batch statistics"] if jax.tree.leaves(nnx.state(template_module, nnx.BatchStat)) else [],
    )

    def init(key: jax.Array, *inputs: PyTree) -> Any:
        module = template_module if isinstance(make, nnx.Module) else make(nnx.Rngs(key))
        return _stringify_keys(nnx.to_pure_dict(nnx.state(module, nnx.Param)))

    def apply(parameters: Parameters, *inputs: PyTree) -> Any:
        state = jax.tree.map(lambda x: x, template)
        nnx.replace_by_pure_dict(state, _restore_keys(parameters, nnx.to_pure_dict(template)))
        return nnx.merge(graph, state, other_state)(*inputs)

    return ModuleFns(type(template_module).__name__, init, apply)


def _equinox_fns(make: Callable[[jax.Array], eqx.Module]) -> ModuleFns:
    example = make(jax.random.key(0))
    template, static = eqx.partition(example, eqx.is_inexact_array)
    structure = jax.tree.structure(template)

    # The parameters are a list of leaves, because the structure of the module may contain functions
    # that differ between two calls of `make`.
    def init(key: jax.Array, *inputs: PyTree) -> list[jax.Array]:
        return jax.tree.leaves(eqx.filter(make(key), eqx.is_inexact_array))

    def apply(parameters: Parameters, *inputs: PyTree) -> Any:
        return eqx.combine(structure.unflatten(parameters), static)(*inputs)

    return ModuleFns(type(example).__name__, init, apply)


def _import_flax(module: str, extra: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UsageError(
            f"The package flax is not installed, and networks of {module} need it. "
            f"Run: {install_command(extra)}"
        ) from error


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
