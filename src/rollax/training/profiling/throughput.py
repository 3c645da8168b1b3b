"""Benchmark of training speed and profile of an update."""

import functools
import resource
import statistics
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from rollax.algorithm import Metrics
from rollax.environments.capabilities import is_on_host
from rollax.errors import UsageError
from rollax.training.compile import cache, run_check
from rollax.training.compile import program as programs
from rollax.training.profiling.operations import (
    OperationCost,
    PartCost,
    parse_operations,
    profile_parts,
)
from rollax.training.spec import Spec
from rollax.types import PyTree, State

ROUND_SECONDS = 1.0  # approximate duration of one measurement
MAX_PROFILED_OPERATIONS = 300_000  # a profile has one record per operation
MAX_PROFILE_SECONDS = 0.3


class LimitSizes(NamedTuple):
    """Sizes of the programs that measure the peak rates of a machine.

    Attributes:
        matrix_rows: Rows of the large square matrices.
        num_products: Number of consecutive products in one call.
        copied_elements: Elements of the copied array.
        num_copies: Number of consecutive copies in one call.
    """

    matrix_rows: int
    num_products: int
    copied_elements: int
    num_copies: int


CPU_LIMIT_SIZES = LimitSizes(2048, 1, 1 << 26, 8)
# One product of the size above takes less time on an accelerator than the start of the call.
ACCELERATOR_LIMIT_SIZES = LimitSizes(8192, 8, 1 << 27, 32)


class MachineLimits(NamedTuple):
    """Measured peak rates of this machine.

    Attributes:
        product_flops: FLOP/s of products of large matrices, by default float32 in the default
            precision of JAX (TF32 on recent GPUs).
        copy_bytes: Bytes per second that copying a large array reads and writes.
        product_processors: Number of processors that the matrix product kept busy: processor time
            divided by wall time, or 1 on accelerators.
        copy_processors: Number of processors that the copy kept busy.
    """

    product_flops: float
    copy_bytes: float
    product_processors: float
    copy_processors: float


class BenchmarkResult(NamedTuple):
    """Measurements of training updates after the warm-up.

    `shares` contains the costs of one update, with seconds summed over all threads. The profiler
    slows operations down. On a CPU, the seconds are therefore scaled so that their sum is the
    processor time of an update without the profiler. `shares` is empty if the profiler of the
    platform records no operation, for example without permission to read counters of a GPU.

    Attributes:
        steps_per_second: Environment steps per second in each round.
        processor_seconds: Processor time of all threads per million environment steps.
        update_seconds: Median wall time of one update in seconds.
        compile_seconds: Duration in seconds of each compilation phase, keyed by "tracing",
            "lowering" and "xla".
        memory_predicted: Memory in bytes that the compiler predicts, or None if unknown.
        memory_used: Increase in bytes of the peak memory, of the first accelerator or of the
            process on a CPU. None if unknown.
        shares: Cost of each phase of an update, keyed by its name in `UPDATE_PARTS`.
        limits: Measured peak rates of the machine.
    """

    steps_per_second: list[float]
    processor_seconds: float
    update_seconds: float
    compile_seconds: dict[str, float]
    memory_predicted: int | None
    memory_used: int | None
    shares: dict[str, PartCost]
    limits: MachineLimits


def run_benchmark(spec: Spec, rounds: int, notify_fn: Callable[[str], None]) -> BenchmarkResult:
    """Compile and measure the updates of a run after a warm-up, without writing files.

    Args:
        spec: Specification of the run.
        rounds: Number of measurements.
        notify_fn: Function that shows the current phase.

    Returns:
        The measurements.

    Raises:
        UsageError: If the environment is a host simulator, or the run is invalid (see
            `rollax.training.compile.run_check.check_run`).
    """
    updates = time_updates(spec, rounds, notify_fn)
    notify_fn("profiling")
    return make_result(updates, profile_update(updates), measure_limits())


class TimedUpdates(NamedTuple):
    """Compiled training program whose updates have been timed.

    Attributes:
        program: Compiled program.
        state: List with the newest state as its only element, because `program` donates states.
        steps_per_update: Environment steps of one update of all members.
        num_updates: Number of updates in each round.
        rounds: Wall time and processor time of each round in seconds.
        init_seconds: Wall time of the initialization of all members.
        memory_used: Increase in bytes of the peak memory, or None if unknown.
    """

    program: programs.Program
    state: list[State]
    steps_per_update: int
    num_updates: int
    rounds: list[tuple[float, float]]
    init_seconds: float
    memory_used: int | None

    def advance(self, num_updates: int) -> None:
        """Run a number of updates in as few calls as possible."""
        while num_updates > 0:
            count = min(num_updates, self.program.capacity)
            self.state[0], _ = self.program.advance(self.state[0], count)
            num_updates -= count


def time_updates(spec: Spec, rounds: int, notify_fn: Callable[[str], None]) -> TimedUpdates:
    """Compile and time the updates of a run after a warm-up.

    Args:
        spec: Specification of the run.
        rounds: Number of measurements.
        notify_fn: Function that shows the current phase.

    Returns:
        The program and its times.

    Raises:
        UsageError: If the environment is a host simulator, or the run is invalid.
    """
    cache.disable()
    spec = programs.adapt_to_environment(spec)
    if is_on_host(programs.make_environment(spec)):
        raise UsageError(
            f"{spec.environment} is a simulator on the host, so its run is not one program. "
            "Use the steps/s shown by `rollax train` instead."
        )
    run_check.check_run(spec)
    jax.clear_caches()  # otherwise functions that the check traced would not be traced again
    notify_fn("compiling")
    program = programs.compile_program(spec, should_evaluate=False)
    program.training.make()
    memory_before, started = _peak_memory_bytes(), time.perf_counter()
    state = [program.init()]
    updates = TimedUpdates(
        program=program,
        state=state,
        steps_per_update=spec.config.steps_per_update * spec.num_members,
        num_updates=1,
        rounds=[],
        init_seconds=time.perf_counter() - started,
        memory_used=None,
    )
    updates.advance(_num_warmup_updates(spec))
    num_updates = _choose_num_updates(updates.advance)
    notify_fn(f"measuring {rounds} rounds of {num_updates} updates")
    measured = [_time_updates(updates.advance, num_updates) for _ in range(rounds)]
    memory_after = _peak_memory_bytes()
    return updates._replace(
        num_updates=num_updates,
        rounds=measured,
        memory_used=None
        if memory_before is None or memory_after is None
        else memory_after - memory_before,
    )


def profile_update(updates: TimedUpdates) -> dict[str, PartCost]:
    """Return the cost of each phase of an update, or nothing if the profiler records nothing."""
    program = updates.program
    try:
        shares = _profile_update(
            lambda count: _run_updates(program, updates.state, count),
            parse_operations(program.training.run.as_text()),
            program,
        )
    except UsageError:
        return {}
    if jax.devices()[0].platform != "cpu":
        return shares
    _, processor = _median_round(updates)
    return scale_costs(shares, processor / updates.num_updates)


def make_result(
    updates: TimedUpdates, shares: dict[str, PartCost], limits: MachineLimits
) -> BenchmarkResult:
    """Return the result of a benchmark.

    Args:
        updates: Timed updates.
        shares: Cost of each part of an update, keyed by name.
        limits: Peak rates of the machine.
    """
    steps, (wall, processor) = (
        updates.num_updates * updates.steps_per_update,
        _median_round(updates),
    )
    return BenchmarkResult(
        steps_per_second=[steps / seconds for seconds, _ in updates.rounds],
        processor_seconds=processor / steps * 1e6,
        update_seconds=wall / updates.num_updates,
        compile_seconds=updates.program.training.phase_seconds,
        memory_predicted=updates.program.training.memory_bytes,
        memory_used=updates.memory_used,
        shares=shares,
        limits=limits,
    )


def _median_round(updates: TimedUpdates) -> tuple[float, float]:
    """Return the median wall time and the median processor time of the rounds in seconds."""
    wall, processor = (statistics.median(times) for times in zip(*updates.rounds, strict=True))
    return wall, processor


def _num_warmup_updates(spec: Spec) -> int:
    """Return the number of warm-up updates: until learning starts, plus two."""
    frames = max(spec.derived_settings.learning_starts.values(), default=0.0)
    return int(frames // spec.config.steps_per_update) + 2


def _choose_num_updates(advance: Callable[[int], None]) -> int:
    """Return the number of updates that take about `ROUND_SECONDS`."""
    num_updates = 1
    while True:
        seconds, _ = _time_updates(advance, num_updates)
        if seconds > ROUND_SECONDS / 4:
            return max(1, round(num_updates * ROUND_SECONDS / seconds))
        num_updates *= 2


def _time_updates(advance: Callable[[int], None], num_updates: int) -> tuple[float, float]:
    """Run updates, and return the wall time and processor time in seconds."""
    wall, processor = time.perf_counter(), time.process_time()
    advance(num_updates)
    return time.perf_counter() - wall, time.process_time() - processor


def _run_updates(
    program: programs.Program, state: list[State], updates: jax.Array
) -> tuple[State, Metrics]:
    state[0], metrics = program.training.run(state[0], updates)
    return state[0], metrics


def _profile_update(
    run: Callable[[jax.Array], PyTree],
    known_operations: dict[str, OperationCost],
    program: programs.Program,
) -> dict[str, PartCost]:
    """Return the costs of one update, averaged over as many updates as fit in one profile."""
    single_update, num_updates = jnp.int32(1), 1
    started = time.perf_counter()
    shares = profile_parts(lambda: run(single_update), known_operations)
    seconds, count = time.perf_counter() - started, sum(share.runs for share in shares.values())
    num_updates = int(
        min(
            MAX_PROFILED_OPERATIONS / max(count, 1), MAX_PROFILE_SECONDS / seconds, program.capacity
        )
    )
    if num_updates < 2:
        return shares
    updates = jnp.int32(num_updates)
    shares = profile_parts(lambda: run(updates), known_operations)

    def mean(share):
        return PartCost(
            *(total / num_updates for total in share[:3]), runs=round(share.runs / num_updates)
        )

    return {name: mean(share) for name, share in shares.items()}


def scale_costs(shares: dict[str, PartCost], seconds: float) -> dict[str, PartCost]:
    """Scale the times in costs so that they sum to `seconds`.

    Args:
        shares: Cost of each phase of an update, keyed by phase name.
        seconds: Total time in seconds.

    Returns:
        The costs with scaled times.
    """
    factor = seconds / sum(share.seconds for share in shares.values())
    return {name: share._replace(seconds=share.seconds * factor) for name, share in shares.items()}


def _peak_memory_bytes() -> int | None:
    """Return the peak memory in bytes of the first accelerator, or of this process on a CPU."""
    device = jax.devices()[0]
    if device.platform == "cpu":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (
            1 if sys.platform == "darwin" else 1024
        )
    known = device.memory_stats()
    return None if known is None else known.get("peak_bytes_in_use")


def measure_limits(precision: str = "float32") -> MachineLimits:
    """Measure the peak rates of the first device.

    Args:
        precision: Dtype of the matrices, such as "bfloat16".

    Returns:
        The peak rates.
    """
    is_cpu = jax.devices()[0].platform == "cpu"
    sizes = CPU_LIMIT_SIZES if is_cpu else ACCELERATOR_LIMIT_SIZES
    # Random numbers, because products of constants use less power and run faster on some devices.
    square = jax.random.normal(jax.random.key(0), (sizes.matrix_rows,) * 2, precision)
    factor, row = square / sizes.matrix_rows**0.5, jnp.ones(sizes.copied_elements)

    def multiply(factor: jax.Array, x: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, sizes.num_products, lambda _, x: x @ factor, x)

    def copy(x: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, sizes.num_copies, lambda _, x: x + 1, x)

    product_seconds, product_processor_seconds = _time_fastest_call(
        functools.partial(jax.jit(multiply), factor), square
    )
    copy_seconds, copy_processor_seconds = _time_fastest_call(jax.jit(copy), row)
    num_processors = (
        (product_processor_seconds / product_seconds, copy_processor_seconds / copy_seconds)
        if is_cpu
        else (1.0, 1.0)
    )
    return MachineLimits(
        2.0 * sizes.matrix_rows**3 * sizes.num_products / product_seconds,
        2.0 * row.nbytes * sizes.num_copies / copy_seconds,
        *num_processors,
    )


def _time_fastest_call(
    function: Callable[[jax.Array], jax.Array], x: jax.Array
) -> tuple[float, float]:
    """Return the wall time and processor time of the fastest of three calls in seconds."""
    jax.block_until_ready(function(x))
    return min(_time_updates(lambda _: jax.block_until_ready(function(x)), 1) for _ in range(3))
