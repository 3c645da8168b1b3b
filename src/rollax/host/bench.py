"""How fast a run trains, and what its time goes into."""

import resource
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rollax.environments.core import is_on_host
from rollax.errors import UsageError
from rollax.host import compilation_cache
from rollax.host import program as programs
from rollax.host.profile import Share, operations, profile
from rollax.host.settings import Spec

ROUND_SECONDS = 1.0  # of a measurement, about
MOST_OPERATIONS = 300_000  # in a profile, which has a record of each
PROFILE_SECONDS = 0.3
SIDE, COPIED, COPIES = 2048, 1 << 26, 8  # of the large product's matrices; numbers of the copy, and how often


class Limits(NamedTuple):
    """What this machine reaches on the spot, of all that it could do at most."""

    product_flops: float  # a second, of a product of two large matrices of float32
    copy_bytes: float  # a second, read and written
    # Processors that each kept busy, less than one where other work has them: shares are of seconds of one. 1 on accelerators.
    product_processors: float
    copy_processors: float


class Bench(NamedTuple):
    """What was measured of updates that learn.

    Shares are of one update, their seconds those of all threads together. As a profiler slows down what it records, they are
    scaled on a CPU such that they add up to the processor time of the same updates without it.
    """

    steps_per_second: list[float]  # of each round
    processor_seconds: float  # for a million environment steps, of all threads
    update_seconds: float  # the median
    compile_seconds: dict[str, float]  # tracing, lowering, xla
    memory_predicted: int | None  # bytes, by the compiler
    memory_used: int | None  # bytes that the process, or on an accelerator the first device, had at most beyond those before
    shares: dict[str, Share]  # by the part of an update
    limits: Limits


def bench(spec: Spec, rounds: int, say: Callable[[str], None]) -> Bench:
    """Compiles the updates of a run, trains until it learns, and measures them. Nothing is written.

    Raises: UsageError for environments that are simulators on the host, and what `rollax.host.program.check` raises.
    """
    compilation_cache.off()
    spec = programs.fitted(spec)
    if is_on_host(programs.environment_of(spec)):
        raise UsageError(
            f"{spec.environment} is a simulator on the host, whose run is no one program: `rollax train` shows its steps/s"
        )
    programs.check(spec)
    jax.clear_caches()  # what the check has traced would be missing in what tracing takes
    say("compiling")
    program = programs.compile_program(spec, evaluates=False)
    program.training.make()
    before = _memory()
    state = [program.init()]

    def advance(updates: int) -> None:
        while updates > 0:
            number = min(updates, program.capacity)
            state[0], _ = program.advance(state[0], number)
            updates -= number

    advance(_updates_until_it_learns(spec))
    number = _number(advance)
    say(f"measuring {rounds} rounds of {number} updates")
    measured = [_timed(advance, number) for _ in range(rounds)]
    steps = number * spec.config.steps_per_update * spec.num_members
    used = _memory()
    say("profiling")
    shares = _shares(lambda updates: _run(program, state, updates), operations(program.training.run.as_text()), program)
    wall, processor = (statistics.median(times) for times in zip(*measured, strict=True))
    is_cpu = jax.devices()[0].platform == "cpu"
    return Bench(
        [steps / seconds for seconds, _ in measured],
        processor / steps * 1e6,
        wall / number,
        program.training.phases,
        program.training.memory_bytes,
        None if before is None or used is None else used - before,
        scaled(shares, processor / number) if is_cpu else shares,
        _limits(),
    )


def _updates_until_it_learns(spec: Spec) -> int:
    """The first updates of those that replay only fill their buffer."""
    frames = getattr(spec.config, "warmup", 0.0)
    return int(frames // spec.config.steps_per_update) + 2


def _number(advance: Callable[[int], None]) -> int:
    """How many updates take about ROUND_SECONDS."""
    number = 1
    while True:
        seconds, _ = _timed(advance, number)
        if seconds > ROUND_SECONDS / 4:
            return max(1, round(number * ROUND_SECONDS / seconds))
        number *= 2


def _timed(advance: Callable[[int], None], number: int) -> tuple[float, float]:
    """Seconds of the clock and of processors."""
    wall, processor = time.perf_counter(), time.process_time()
    advance(number)
    return time.perf_counter() - wall, time.process_time() - processor


def _run(program: programs.Program, state: list[Any], updates: jax.Array) -> Any:
    state[0], metrics = program.training.run(state[0], updates)
    return state[0], metrics


def _shares(run: Callable[[jax.Array], Any], known: Any, program: programs.Program) -> dict[str, Share]:
    """Of one update: the mean over as many as a profile can hold."""
    one, several = jnp.int32(1), 1
    started = time.perf_counter()
    shares = profile(lambda: run(one), known)
    seconds, count = time.perf_counter() - started, sum(share.runs for share in shares.values())
    several = int(min(MOST_OPERATIONS / max(count, 1), PROFILE_SECONDS / seconds, program.capacity))
    if several < 2:
        return shares
    updates = jnp.int32(several)
    shares = profile(lambda: run(updates), known)
    mean = lambda share: Share(*(total / several for total in share[:3]), runs=round(share.runs / several))  # noqa: E731
    return {name: mean(share) for name, share in shares.items()}


def scaled(shares: dict[str, Share], seconds: float) -> dict[str, Share]:
    """The shares such that they add up to these seconds."""
    factor = seconds / sum(share.seconds for share in shares.values())
    return {name: share._replace(seconds=share.seconds * factor) for name, share in shares.items()}


def _memory() -> int | None:
    """The most bytes that were in use so far: of the first device, or of this process where that is its memory."""
    device = jax.devices()[0]
    if device.platform == "cpu":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    known = device.memory_stats()
    return None if known is None else known.get("peak_bytes_in_use")


def _limits() -> Limits:
    square, row = jnp.ones((SIDE, SIDE)), jnp.ones(COPIED)
    product, multiplying = _shortest(jax.jit(lambda x: x @ x), square)
    copy, copying = _shortest(jax.jit(lambda x: jax.lax.fori_loop(0, COPIES, lambda _, x: x + 1, x)), row)
    busy = (multiplying / product, copying / copy) if jax.devices()[0].platform == "cpu" else (1.0, 1.0)
    return Limits(2.0 * SIDE**3 / product, 2.0 * row.nbytes * COPIES / copy, *busy)


def _shortest(function: Callable[[jax.Array], jax.Array], x: jax.Array) -> tuple[float, float]:
    """Seconds of the clock and of processors of the fastest of a few calls."""
    jax.block_until_ready(function(x))
    return min(_timed(lambda _: jax.block_until_ready(function(x)), 1) for _ in range(3))
