"""Tests that every kind of policy acts the same in every format."""

import json
import operator
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rollax
from laws.table import BY_NAME
from rollax.algorithms.registry import ALGORITHMS
from rollax.errors import UsageError
from rollax.exporting import exporter, numpy_file, numpy_policy, onnx_file, parity
from rollax.exporting.formats import FORMATS
from rollax.exporting.jaxpr_program import run_program, trace_program, used_inputs
from rollax.exporting.policy_function import erf_inv, make_policy_program, replace_key_with_uniforms
from rollax.exporting.primitive_operations import lower_program
from rollax.networks import NetworkConfig
from support.parameters import mark_quick

SMALL = {"num_envs": 2, "num_steps": 2, "num_minibatches": 1, "num_epochs": 1}


def of_row(name: str) -> Any:
    """Return the policy of a row of the table of laws, before any update."""
    row = BY_NAME[name]
    algorithm = row.make(row.environment)
    return _policy(algorithm, row.environment, row.config)


def of_ppo(name: str, **network: Any) -> Any:
    """Return a policy of PPO in the named environment, before any update."""
    environment, kinds = rollax.make(name), ALGORITHMS["ppo"]
    shape = NetworkConfig(**{"hidden": (8,), "embedding": 4, "core_size": 8, **network})
    steps = {"sequence_length": 2} if shape.core != "none" else {}
    algorithm = kinds.make(environment, lambda key: kinds.make_network(environment, shape, key))
    return _policy(algorithm, environment, kinds.config(**SMALL, **steps))


def _policy(algorithm: Any, environment: Any, config: Any) -> Any:
    state = jax.jit(algorithm.init)(jax.random.key(3), config)
    state = jax.tree.map(_spread, algorithm.acting_state(state))
    return SimpleNamespace(algorithm=algorithm, environment=environment, state=state)


def _spread(leaf: jax.Array) -> jax.Array:
    """Add noise to weights, because all actions of new policies have about the same probability."""
    if leaf.dtype != jnp.float32 or leaf.ndim < 2:
        return leaf
    return leaf + jax.random.normal(jax.random.key(leaf.size), leaf.shape)


POLICIES: dict[str, Callable[[], Any]] = {
    **{
        name: (lambda name=name: of_row(name))
        for name in ("ppo", "ppo-lstm", "ppo-blocks", "ppo-normalized", "ppo-squashed")
    },
    **{
        name: (lambda name=name: of_row(name))
        for name in ("ppo-types", "ppo-apart", "dqn-rainbow", "pqn-gru", "sac", "td3")
    },
    "ppo-gtrxl": lambda: of_row("ppo-gtrxl"),
    "masked": lambda: of_ppo("probe/masked"),
    "multi-discrete": lambda: of_ppo("probe/multi-discrete"),
    "memory and attention": lambda: of_ppo(
        "xminigrid/MiniGrid-Empty-5x5", core="gru", attention=2, activation="gelu"
    ),
}
# Policies that take long to trace are tested in fewer formats.
FEWER = {
    "ppo": (
        ("jax", True),
        ("jax", False),
        ("numpy", True),
        ("numpy", False),
        ("onnx", True),
        ("onnx", False),
    ),
    "memory and attention": (("numpy", True), ("onnx", True)),
    "ppo-gtrxl": (("numpy", True), ("onnx", True)),
    "ppo-apart": (("numpy", True), ("onnx", False)),
    "ppo-types": (("onnx", True), ("numpy", False)),
}
# Numbers of arrays in the carry.
NUMBERS = {"ppo-lstm": 2, "ppo-blocks": 2, "ppo-gtrxl": 4, "pqn-gru": 1, "memory and attention": 1}


@pytest.mark.parametrize("name", mark_quick(POLICIES, "ppo-types"))
def test_policies_act_the_same_in_every_format(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It acts on observations of its environment, greedily and by sampling, with its memory."""
    policy, plays = POLICIES[name](), {}
    played = parity.collect_observations
    monkeypatch.setattr(
        parity,
        "collect_observations",
        lambda policy, key: plays.get("obs") or plays.setdefault("obs", played(policy, key)),
    )
    for to, greedy in FEWER.get(
        name, (("jax", True), ("numpy", True), ("onnx", True), ("onnx", False))
    ):
        files, described, found = exporter.make_files(policy, FORMATS[to], None, greedy)
        assert found.is_same, (to, greedy, found)
        names = {side: [one["name"] for one in described[side]] for side in ("inputs", "outputs")}
        carries = NUMBERS.get(name, 0)
        assert len([x for x in names["inputs"] if x.startswith("carry/")]) == carries
        assert names["outputs"] == ["action", *(f"next_carry/{k}" for k in range(carries))]
        assert ("reset" in names["inputs"]) == bool(carries)
        samples = [x for x in names["inputs"] if x.startswith(("key", "uniform/"))]
        assert bool(samples) == (not greedy)
        assert len(files) == (2 if to == "numpy" else 1)
    outputs = parity.compute_reference(*_one(policy), _inputs(policy, plays["obs"]))
    assert len(np.unique(outputs["action"])) > 1, (
        "actions that are all the same would hide a difference"
    )


def _one(policy: Any) -> tuple[Any, Any]:
    exported = make_policy_program(policy, 2, True)
    return exported.unbatched_fn, exported.shapes


def _inputs(policy: Any, plays: Any) -> dict[str, np.ndarray]:
    return {**plays[0], "reset": plays[1]}


def test_stablehlo_and_fixed_batch_sizes() -> None:
    """The text of StableHLO is compiled and compared.

    Batch sizes include 3, which does not divide the number of environments.
    """
    policy = of_row("ppo-gru")
    for to, batch in (("stablehlo", 3), ("jax", 16), ("onnx", 3)):
        files, described, found = exporter.make_files(policy, FORMATS[to], batch, True)
        assert found.is_same, (to, found)
        assert {one["shape"][0] for one in described["inputs"]} == {batch}
    assert (
        b"stablehlo.dot_general"
        in exporter.make_files(policy, FORMATS["stablehlo"], 1, True)[0]["policy.mlir"]
    )
    with pytest.raises(UsageError, match="--batch 1"):
        exporter.make_files(policy, FORMATS["stablehlo"], None, True)


def test_sampling_follows_the_key() -> None:
    """With the same key, an export to JAX samples the same actions as the policy.

    Other keys change them.
    """
    policy = of_row("ppo-continuous")
    files, _, found = exporter.make_files(policy, FORMATS["jax"], None, False)
    assert found.is_same and found.difference < 1e-4
    act = FORMATS["jax"].open(files)
    obs, key = (
        np.zeros((2, *policy.environment.observation_space.shape), np.float32),
        np.arange(4, dtype=np.uint32),
    )
    action = np.asarray(act({"observation": obs, "key": key.reshape(2, 2)})["action"])
    assert not np.array_equal(action[0], action[1])


def test_bfloat16_is_refused() -> None:
    """NumPy and ONNX have no such type."""
    policy = of_row("ppo-bfloat16")
    for to in ("numpy", "onnx"):
        with pytest.raises(UsageError, match="bfloat16.*--to jax or stablehlo"):
            exporter.make_files(policy, FORMATS[to], None, True)


def everything(inputs: dict[str, Any]) -> dict[str, Any]:
    """Return the results of operations, including those that policies rarely use."""
    x, y, n = inputs["x"], inputs["y"], inputs["n"]
    values = [
        *(
            f(x)
            for f in (
                jnp.floor,
                jnp.ceil,
                jnp.sin,
                jnp.cos,
                jnp.sign,
                jnp.expm1,
                jax.lax.erf,
                jnp.abs,
                jax.nn.silu,
                jnp.square,
                jnp.exp,
            )
        ),
        *(f(x) for f in (jnp.tanh, lambda x: jnp.split(x, 2, axis=1)[1], lambda x: x - y)),
        *(f(jnp.abs(x) + 0.1) for f in (jnp.log1p, jnp.sqrt, jax.lax.rsqrt, jnp.log)),
        *(f(x > 0, axis=1) for f in (jnp.all, jnp.any)),
        *(f(x, axis=-1) for f in (jnp.prod, jnp.min, jnp.max, jnp.sum, jnp.argmin, jnp.argmax)),
        *(
            f(x, y)
            for f in (
                jnp.equal,
                jnp.not_equal,
                jnp.less_equal,
                jnp.greater_equal,
                jnp.less,
                jnp.greater,
            )
        ),
        *(f(x > 0, y > 0) for f in (operator.and_, operator.or_)),
        *(
            ~(x > 0),
            jnp.isfinite(x / jnp.where(y > 0, y, 0.0)),
            -n,
            n + 3,
            n * n,
            jnp.maximum(n, 1),
            n == 2,
            jnp.abs(n),
        ),
        *(
            x**3,
            x**-2,
            x[:, ::2],
            x[:, 1:3],
            x[:, None] * y[..., None],
            jnp.clip(x, -0.5, y),
            x.astype(jnp.int32),
        ),
        *(
            jnp.einsum("bi,bi->b", x, y),
            jnp.einsum("bi,bj->bij", x, y),
            x @ jnp.ones((4, 3)),
            jnp.concatenate([x, y], axis=1),
        ),
        *(
            jnp.take(x, jnp.asarray([3, 0, 3]), axis=1),
            jnp.moveaxis(x[:, None, :] * jnp.ones((1, 2, 4)), 0, 2).T,
            n[:, None] + x,
        ),
        jax.nn.one_hot(n, 5) @ jnp.arange(10.0).reshape(5, 2),
        jnp.broadcast_to(x[:, None, :2], (x.shape[0], 3, 2))
        .reshape(3 * x.shape[0], 2)
        .reshape(x.shape[0], 6),
    ]
    return {f"{k:02d}": value for k, value in enumerate(values)}


@pytest.mark.parametrize("module", [numpy_file, onnx_file])
def test_every_operation(module: Any) -> None:
    """Results equal those of JAX for a batch of open size."""
    (batch,) = jax.export.symbolic_shape("batch")
    kinds = {
        "x": ((batch, 4), jnp.float32),
        "y": ((batch, 4), jnp.float32),
        "n": ((batch,), jnp.int32),
    }
    with jax.numpy_rank_promotion("allow"):
        program = trace_program(
            everything, {name: jax.ShapeDtypeStruct(*kind) for name, kind in kinds.items()}, {}
        )
        random = np.random.default_rng(0)
        x, y = random.normal(size=(2, 7, 4)).astype(np.float32)
        inputs = {
            "x": x,
            "y": np.where(x > 1, x, y),
            "n": random.integers(-2, 5, 7).astype(np.int32),
        }
        wanted = everything({name: jnp.asarray(value) for name, value in inputs.items()})
    is_numpy = module is numpy_file
    write = numpy_file.write_numpy if is_numpy else onnx_file.write_onnx
    found = (numpy_file.open_numpy if is_numpy else onnx_file.open_onnx)(write(program))(inputs)
    assert {operation.name for operation in lower_program(program).operations} == set(
        numpy_policy.OPERATIONS
    )
    for name, value in wanted.items():
        assert found[name].dtype == value.dtype and found[name].shape == value.shape, name
        np.testing.assert_allclose(found[name], value, rtol=2e-5, atol=2e-6, err_msg=name)


def test_the_inverse_error_function() -> None:
    """It is exact to single precision, up to arguments that round to 1."""
    x = jnp.concatenate(
        [jnp.linspace(-0.999999, 0.999999, 4001), jnp.asarray([-1 + 1e-7, 1 - 1e-7, 0.0])]
    )
    np.testing.assert_allclose(erf_inv(x), jax.lax.erf_inv(x), rtol=1e-5, atol=1e-6)


def test_constants_are_folded() -> None:
    """A program has no choices between constants, no factors of 1 and no unused operations."""

    def function(inputs: dict[str, Any]) -> dict[str, Any]:
        x = inputs["x"]
        weights = jnp.sin(jnp.arange(3.0)) * jnp.where(jnp.asarray(True), 2.0, jnp.nan)
        unused = jax.nn.softmax(inputs["z"])
        return {"y": jax.jit(lambda x: jnp.where(jnp.ones(3, bool), 1.0 * x * weights, unused))(x)}

    kind = jax.ShapeDtypeStruct((3,), jnp.float32)
    program = trace_program(function, {"x": kind, "z": kind}, {})
    assert [operation.name for operation in program.operations] == ["mul"]
    assert used_inputs(program) == {"x"}
    x = np.arange(3, dtype=np.float32)
    np.testing.assert_allclose(
        run_program(program, {"x": x, "z": x})["y"], x * 2 * np.sin(x), rtol=1e-6
    )


def test_a_uniform_number_of_1_gives_finite_noise() -> None:
    """A uniform number that rounds to 1 would otherwise give infinite noise."""
    program, source = replace_key_with_uniforms(
        make_policy_program(of_row("ppo-continuous"), None, False, {"erf_inv": erf_inv}).program
    )
    assert source is not None and "key" not in program.inputs
    act = numpy_policy.load(_file(program))
    inputs = {"observation": np.zeros((1, 3), np.float32), "uniform/0": np.ones((1, 1), np.float32)}
    inputs = {
        name: np.ones([1, *program.types[n].shape[1:]], np.float32)
        for name, n in program.inputs.items()
    }
    assert np.isfinite(act(inputs)["action"]).all()


def _file(program: Any) -> Any:
    import io

    return io.BytesIO(numpy_file.write_numpy(program)["policy.npz"])


def test_random_integers_are_refused() -> None:
    """They are drawn from bits, which the formats with uniform numbers do not have."""

    def function(inputs: dict[str, Any]) -> dict[str, Any]:
        key = jax.random.wrap_key_data(inputs["key"])
        return {
            "action": jax.random.randint(key, (), 0, 5)
            + 0 * inputs["observation"].astype(jnp.int32)
        }

    kinds = {
        "key": jax.ShapeDtypeStruct((2,), jnp.uint32),
        "observation": jax.ShapeDtypeStruct((), jnp.float32),
    }
    with pytest.raises(UsageError, match="random numbers other than floats"):
        replace_key_with_uniforms(trace_program(function, kinds, {}))


def test_the_reader_reports_errors() -> None:
    """A missing input, an input of the wrong shape, and a file with unknown operations."""
    program = make_policy_program(of_row("ppo"), None, True).program
    act = numpy_policy.load(_file(program))
    with pytest.raises(ValueError, match="'observation' is missing"):
        act({})
    with pytest.raises(ValueError, match=r"must have shape \(2, 3\), got \(2, 5\)"):
        act({"observation": np.zeros((2, 5))})
    with np.load(_file(program)) as file:
        arrays = dict(file)
    text = arrays["program"].tobytes().decode().replace('"argmax"', '"dream"')
    import io

    changed = io.BytesIO()
    np.savez(changed, **(arrays | {"program": np.frombuffer(text.encode(), np.uint8)}))
    changed.seek(0)
    with pytest.raises(ValueError, match="unsupported operations: dream"):
        numpy_policy.load(changed)
    assert json.loads(text)["inputs"]["observation"][1] == ["batch", 3]


def test_differences_are_detected() -> None:
    """Other floats, integers, shapes and types count, and NaN or infinity in one result only."""
    one = {"action": np.asarray([1.0, np.inf, np.nan], np.float32), "n": np.arange(1000)}

    def is_same(**changes: Any) -> bool:
        return parity.measure_parity(one, one | changes).is_same

    assert is_same()
    assert is_same(n=np.arange(1000) + (np.arange(1000) == 5)) and not is_same(
        n=np.arange(1000) + (np.arange(1000) < 5)
    )
    assert is_same(action=one["action"] + np.float32(1e-5)) and not is_same(
        action=one["action"] + np.float32(1e-3)
    )
    assert not is_same(action=np.asarray([1.0, np.inf, 0.0], np.float32))
    one["carry"] = np.asarray([1000.0, 0.0], np.float32)
    assert is_same(carry=one["carry"] + np.float32(0.05)) and not is_same(
        carry=one["carry"] + np.float32(0.2)
    )
    assert str(parity.measure_parity(one, one)).endswith(
        "all actions are the same, the largest difference is 0"
    )
    few = parity.measure_parity({"n": one["n"]}, {"n": one["n"] + (one["n"] < 5)})
    assert few.difference is None and str(few).endswith("0.50% of the actions differ")
    assert not is_same(action=np.asarray([1.0, 5.0, np.nan], np.float32))
    assert not is_same(action=one["action"].astype(float)) and not is_same(action=one["action"][:2])


def test_the_copied_reader_has_no_other_imports() -> None:
    """The reader that is copied into exports imports NumPy and the standard library only."""
    lines = Path(numpy_policy.__file__).read_text().splitlines()
    imported = [line for line in lines if line.startswith(("import", "from"))]
    assert imported == ["import json", "import math", "import numpy as np"]
