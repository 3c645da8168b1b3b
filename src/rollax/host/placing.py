"""Where the parts of a run live: on which devices, of which processes."""

import contextlib
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from rollax.acting.evaluate import Episodes
from rollax.algorithm import Algorithm
from rollax.errors import UsageError
from rollax.host.settings import Spec
from rollax.scale import processes, sharding


class Uncompiled(NamedTuple):
    """The functions of a run, one member's or a population's, and what they begin with."""

    algorithm: Algorithm
    evaluate: Callable[[Any, jax.Array], Episodes]
    config: Any
    run_key: Any
    eval_key: jax.Array
    abstract: Any  # shapes and types of the state


class Jitted(NamedTuple):
    """The functions of a run to be compiled, and where things are. None: wherever they are."""

    begin: Any
    run: Any
    evaluate: Any
    placed: Any  # shapes, types and placement of the state
    where: Any  # its placement alone
    all_have: Any  # of what every process gets, where there are several
    over: jax.sharding.Mesh | None
    in_mesh: Callable[[], Any]
    shared: Callable[[Any], Any]  # what every process has as arrays of them all


def jitted(spec: Spec, parts: Uncompiled, run: Callable[..., Any]) -> Jitted:
    is_population, evaluate = spec.num_members > 1, parts.evaluate
    over = mesh(spec, is_population)
    state = placed(parts.algorithm, parts.abstract, over, is_population)
    if over is not None and is_population:
        run = sharding.over_members(run, over, (0, None), (0, 1))
        evaluate = sharding.over_members(evaluate, over, (0, 0), 0)
    in_mesh = (lambda: jax.set_mesh(over)) if over is not None and not is_population else contextlib.nullcontext
    where = jax.tree.map(lambda leaf: leaf.sharding, state) if over is not None else None
    # Over several processes all of them get the numbers, and none holds another's part of the state even once.
    many = over if processes.count() > 1 else None
    all_have = None if many is None else jax.sharding.NamedSharding(many, jax.sharding.PartitionSpec())
    shared = (lambda tree: tree) if many is None else functools.partial(processes.everywhere, over=many)
    return Jitted(
        jax.jit(parts.algorithm.init, out_shardings=None if many is None else where),
        jax.jit(run, donate_argnums=0, out_shardings=None if where is None else (where, all_have)),
        jax.jit(evaluate, out_shardings=all_have),
        *(state, where, all_have, over, in_mesh, shared),
    )


def mesh(spec: Spec, is_population: bool) -> jax.sharding.Mesh | None:
    number = int(spec.options.devices)
    if number == 1 and processes.count() == 1:
        return None
    if is_population and spec.num_members % number:
        raise UsageError(f"the population has {spec.num_members} members, which devices ({number}) does not divide")
    over, num_envs = sharding.mesh(number, "members" if is_population else "environments"), getattr(spec.config, "num_envs", 0)
    if not is_population and num_envs % number:
        raise UsageError(f"num_envs ({num_envs}) must be a multiple of devices ({number})")
    return over


def placed(algorithm: Algorithm, state: Any, over: jax.sharding.Mesh | None, is_population: bool) -> Any:
    if over is None:
        return state
    if is_population:
        where = jax.sharding.NamedSharding(over, jax.sharding.PartitionSpec("members"))
        places = jax.tree.map(lambda _: where, state)
    else:
        places = sharding.single_run_shardings(state, algorithm.placement(state), over)
    return jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), state, places)
