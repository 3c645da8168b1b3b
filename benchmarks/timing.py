"""Measurement of training speed. Imports only the standard library, for any virtual environment."""

import json
import statistics
import sys
import time
from collections.abc import Callable


def by_calls(learn: Callable[[int], object], before: int, frames: int, repeats: int) -> dict:
    """Measure a program that continues training in each call.

    Args:
        learn: Function that trains for a number of frames.
        before: Frames of the first call, which compiles.
        frames: Frames of each measured call.
        repeats: Number of measured calls.

    Returns:
        Compile time and speeds, as in `by_difference`.
    """
    started = time.perf_counter()
    learn(before)
    compile_seconds, taken = time.perf_counter() - started, []
    for _ in range(repeats):
        started, processor = time.perf_counter(), time.process_time()
        learn(frames)
        taken.append((time.perf_counter() - started, time.process_time() - processor))
    return _found(compile_seconds, taken, frames)


def by_turns(learn: Callable[[], object], frames: int, compile_seconds: float, jax: str) -> None:
    """Measure one call for every line on standard input, so that several programs can take turns.

    Prints one JSON line when the program is ready and one JSON line per measurement.

    Args:
        learn: Function that trains for `frames` frames.
        frames: Frames per call.
        compile_seconds: Compile time in seconds, which is printed.
        jax: Version of JAX, which is printed.
    """
    learn()
    print(json.dumps({"compile_seconds": compile_seconds, "jax": jax}), flush=True)
    for _ in sys.stdin:
        started, processor = time.perf_counter(), time.process_time()
        learn()
        wall, processor = time.perf_counter() - started, time.process_time() - processor
        print(
            json.dumps({"rate": frames / wall, "processor": processor / frames * 1e6}), flush=True
        )


def by_difference(
    run: Callable[[int], tuple[float, float]], before: int, frames: int, repeats: int
) -> dict:
    """Measure a program that starts from scratch in each call.

    The difference between a short run and a run with `frames` more frames excludes startup and
    compilation.

    Args:
        run: Function from a number of frames to wall time and CPU time in seconds.
        before: Frames of the short runs.
        frames: Additional frames of the long runs.
        repeats: Number of pairs of runs.

    Returns:
        Compile time in seconds, and for each repeat the steps per second and per CPU second.
    """
    compile_seconds, taken = run(before)[0], []
    for _ in range(repeats):
        short, long = run(before), run(before + frames)
        taken.append((long[0] - short[0], long[1] - short[1]))
    return _found(compile_seconds, taken, frames)


def _found(compile_seconds: float, taken: list[tuple[float, float]], frames: int) -> dict:
    return {
        "compile_seconds": compile_seconds,
        "steps_per_second": [frames / wall for wall, _ in taken],
        "steps_per_processor_second": [frames / processor for _, processor in taken],
    }


def medians(found: dict) -> tuple[float, float]:
    """Return the median steps per second and the median steps per CPU second."""
    return statistics.median(found["steps_per_second"]), statistics.median(
        found["steps_per_processor_second"]
    )
