"""Speeds of programs that train, in any virtual environment: this file imports nothing but the standard library."""

import json
import statistics
import sys
import time
from collections.abc import Callable


def by_calls(learn: Callable[[int], object], before: int, frames: int, repeats: int) -> dict:
    """The speed of a program that goes on learning when it is called: of `frames` frames, so often, after `before` frames in
    which it compiles."""
    started = time.perf_counter()
    learn(before)
    compile_seconds, taken = time.perf_counter() - started, []
    for _ in range(repeats):
        started, processor = time.perf_counter(), time.process_time()
        learn(frames)
        taken.append((time.perf_counter() - started, time.process_time() - processor))
    return _found(compile_seconds, taken, frames)


def by_turns(learn: Callable[[], object], frames: int, compile_seconds: float, jax: str) -> None:
    """Measures a program, of `frames` frames a call, whenever a line comes from standard input, so that several that are begun
    take turns of a second. Prints a line of JSON when it is ready, and one for each measurement."""
    learn()
    print(json.dumps({"compile_seconds": compile_seconds, "jax": jax}), flush=True)
    for _ in sys.stdin:
        started, processor = time.perf_counter(), time.process_time()
        learn()
        wall, processor = time.perf_counter() - started, time.process_time() - processor
        print(json.dumps({"rate": frames / wall, "processor": processor / frames * 1e6}), flush=True)


def by_difference(run: Callable[[int], tuple[float, float]], before: int, frames: int, repeats: int) -> dict:
    """The speed of a program that begins anew each time: `run(n)` is the wall and processor seconds of one of n frames.

    Each pair of runs, of which the second is longer by `frames`, tells what these frames take, without start and compiling.
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
    """Steps in a second, and in a second of a processor."""
    return statistics.median(found["steps_per_second"]), statistics.median(found["steps_per_processor_second"])
