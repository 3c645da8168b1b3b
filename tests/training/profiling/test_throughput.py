"""Tests of profiling the parts of an update."""

import json
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest

from rollax.cli.bench_command import _format_rates, _format_result
from rollax.scopes import profile_scope
from rollax.training.options import RunOptions
from rollax.training.profiling import throughput as benching
from rollax.training.profiling.operations import PartCost, parse_operations, profile_parts
from rollax.training.profiling.throughput import scale_costs
from rollax.training.profiling.update_parts import UPDATE_PARTS, classify_operation
from rollax.training.spec import make_spec

SMALL = [
    "--num-envs",
    "4",
    "--num-steps",
    "8",
    "--num-minibatches",
    "2",
    "--hidden",
    "8",
    "--rounds",
    "1",
]


@pytest.mark.parametrize(
    ("path", "part"),
    [
        ("jit(run)/while/body/rollax.environment/jit(step)/add", "environment"),
        ("jit(run)/rollax.environment/rollax.bookkeeping/add", "bookkeeping"),
        ("jit(run)/rollax.credit/jvp()/dot_general", "forward"),
        ("jit(run)/jvp(jit(loss))/rollax.credit/mul", "credit"),
        ("jit(run)/rollax.credit/transpose(jvp(jit(loss)))/dot_general", "backward"),
        ("jit(run)/rollax.policy/jit(_uniform)/threefry2x32", "random numbers"),
        ("jit(run)/while/body/add", None),
        ("", None),
    ],
)
def test_classify_operation(path: str, part: str | None) -> None:
    assert classify_operation(path) == part
    assert part is None or part in UPDATE_PARTS


def test_operations_in_loops_are_counted_repeatedly() -> None:
    """Count ten products of [64, 32] by [32, 32] in a loop, and a replaced row of a buffer."""

    @profile_scope("policy")
    def layer(x: jax.Array, weight: jax.Array) -> jax.Array:
        return jnp.tanh(x @ weight)

    def function(x: jax.Array, weight: jax.Array, buffer: jax.Array) -> tuple[jax.Array, jax.Array]:
        x = jax.lax.fori_loop(0, 10, lambda _, x: layer(x, weight), x)
        with profile_scope("replay"):
            return x, buffer.at[3].set(x[0])

    buffer = jnp.zeros((100_000, 32))
    compiled = (
        jax.jit(function, donate_argnums=2)
        .lower(jnp.ones((64, 32)), jnp.ones((32, 32)), buffer)
        .compile()
    )
    shares = profile_parts(
        lambda: compiled(jnp.ones((64, 32)), jnp.ones((32, 32)), buffer),
        parse_operations(compiled.as_text()),
    )
    assert shares["policy"].flops == 10 * 2 * 64 * 32 * 32
    assert (
        10 * 4 * (64 * 32 * 2 + 32 * 32)
        <= shares["policy"].bytes
        <= 10 * 4 * (64 * 32 * 4 + 32 * 32)
    )
    assert 2 * 32 * 4 <= shares["replay"].bytes <= 10 * 32 * 4
    assert list(shares) == [name for name in UPDATE_PARTS if name in shares]


LIBRARY_PRODUCT = """\
ENTRY %main (p: f32[64,32], q: f32[32,16]) -> f32[64,16] {
  %p = f32[64,32]{1,0} parameter(0)
  %q = f32[32,16]{1,0} parameter(1)
  %gemm = (f32[64,16]{1,0}, s8[4096]{0}) custom-call(%p, %q), custom_call_target="__cublas$gemm", \
metadata={op_name="jit(f)/rollax.policy/dot_general"}, backend_config={"gemm_backend_config":\
{"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"],"rhs_contracting_dimensions":["0"]}}}
  ROOT %result = f32[64,16]{1,0} get-tuple-element(%gemm), index=0
}
"""


def test_products_in_a_library_of_a_gpu_are_counted() -> None:
    """The workspace of the library is not part of the product."""
    cost = parse_operations(LIBRARY_PRODUCT)["gemm"]
    assert (cost.part, cost.flops) == ("policy", 2 * 64 * 16 * 32)


def test_a_result_without_a_profile() -> None:
    """The parts are left out if the profiler of the platform records no operation."""
    limits = benching.MachineLimits(1.0, 1.0, 1.0, 1.0)
    result = benching.BenchmarkResult([1.0], 1.0, 1.0, {"xla": 1.0}, None, None, {}, limits)
    spec = make_spec("ppo", "gymnax/CartPole-v1", None, None, None, RunOptions(), None)
    assert "parts: unknown" in list(_format_result(spec, result))[-1]


@pytest.mark.quick
def test_scaled_costs_add_up_to_the_measured_time() -> None:
    shares = scale_costs(
        {"policy": PartCost(3.0, 1.0, 2.0, 4), "credit": PartCost(1.0, 0.0, 2.0, 5)}, 2.0
    )
    assert [share.seconds for share in shares.values()] == [1.5, 0.5]
    assert shares["policy"][1:] == (1.0, 2.0, 4)


def bench(*words: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "rollax", "bench", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("more", [pytest.param([], marks=pytest.mark.slow), ["--seeds", "2"]])
def test_bench_of_ppo(more: list[str]) -> None:
    done = bench("ppo", "gymnax/CartPole-v1", *SMALL, *more, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert len(found["steps_per_second"]) == 1 and found["steps_per_second"][0] > 0
    assert (
        set(found["compile_seconds"]) == {"tracing", "lowering", "xla"}
        and min(found["compile_seconds"].values()) > 0
    )
    assert {
        "environment",
        "policy",
        "random numbers",
        "credit",
        "forward",
        "backward",
        "optimizer",
    } <= set(found["shares"])
    steps = 4 * 8 * (2 if more else 1)
    total = sum(share["seconds"] for share in found["shares"].values())
    assert total == pytest.approx(found["processor_seconds"] * steps / 1e6)
    assert "steps of the environments" in done.stderr and "| forward" in done.stderr


def test_bench_waits_until_learning_from_replay_starts() -> None:
    done = bench("dqn", "gymnax/CartPole-v1", "--warmup", "300", "--hidden", "8", "--rounds", "1")
    assert done.returncode == 0, done.stderr
    shares = json.loads(done.stdout.splitlines()[-1])["shares"]
    assert {"replay", "backward", "credit"} <= set(shares) and shares["backward"]["flops"] > 0


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((), "usage: rollax bench"),
        (("ppo",), "needs an algorithm and an environment"),
        (("ppo", "gymnax/CartPole-v1", "--rounds", "0"), "from 1 to 1000, got '0'"),
        (("ppo", "gymnax/CartPole-v1", "--opponents.agent", "x"), "does not support --opponents"),
        (("ppo", "gymnasium/CartPole-v1"), "simulator on the host"),
        (("ppo", "gymnax/CartPole-v1", "--num-evns", "4"), "num-envs"),
    ],
)
def test_invalid_arguments_of_bench(words: tuple[str, ...], told: str) -> None:
    done = bench(*words)
    assert done.returncode == (2 if words else 0)
    assert told in done.stdout + done.stderr


def test_rates_are_relative_to_one_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Times of parts are summed over threads, so limits are divided by the number of processors."""
    limits = benching.MachineLimits(
        product_flops=100e9, copy_bytes=10e9, product_processors=2.0, copy_processors=0.5
    )
    assert _format_rates(PartCost(1.0, 50e9, 10e9, 3), 2.0, limits) == (
        "1000.000",
        "50.0%",
        "50.0",
        "100%",
        "10.0",
        "50%",
        "3",
    )
    monkeypatch.setattr(benching, "CPU_LIMIT_SIZES", benching.LimitSizes(64, 3, 1 << 12, 8))
    times = iter([(9.0, 9.0), (2.0, 4.0), (3.0, 3.0), (8.0, 2.0), (4.0, 2.0), (9.0, 1.0)])
    monkeypatch.setattr(benching, "_time_updates", lambda *_: next(times))
    assert benching.measure_limits() == (3 * 2 * 64**3 / 2, 2 * 4 * 2**12 * 8 / 4, 2.0, 0.5)
