"""Program that measures one row of `accelerator.py` and prints its results as JSON lines.

The argument is a JSON object with the task. The program imports its packages, waits for a line on
standard input, and then uses the device. Each printed line replaces the one before.
"""

import dataclasses
import json
import platform
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import jax
import jaxlib
from products import count_products

import rollax
from rollax.algorithms.registry import find_algorithm
from rollax.training.options import RunOptions
from rollax.training.profiling import throughput
from rollax.training.spec import Spec, make_spec

TOTAL_STEPS = 10**10  # so that settings that change during training hardly change while measured
PRECISIONS = "float32", "bfloat16"


def report(**found: Any) -> None:
    print(json.dumps(found), flush=True)


def limits(task: dict[str, Any]) -> None:
    """Report the device, the versions, and the rates of large matrix products and of a copy."""
    device = jax.devices()[0]
    memory = None if device.platform == "cpu" else device.memory_stats()
    found: dict[str, Any] = {
        "device": device.device_kind,
        "platform": device.platform,
        "devices": jax.device_count(),
        "memory_limit": memory and memory.get("bytes_limit"),
        "python": platform.python_version(),
        "jax": jax.__version__,
        "jaxlib": jaxlib.__version__,
        "gymnax": version("gymnax"),
        "rollax": rollax.__version__,
    }
    measured = {precision: throughput.measure_limits(precision) for precision in PRECISIONS}
    found["product_flops"] = {name: one.product_flops for name, one in measured.items()}
    found["copy_bytes"] = max(one.copy_bytes for one in measured.values())
    report(**found)


def specification(task: dict[str, Any]) -> Spec:
    """Return the specification of a training run, without the settings of its preset."""
    name, entry = find_algorithm(task["algorithm"])

    def settings(kind: Any, given: dict[str, Any]) -> Any:
        # JSON has no tuples.
        return kind(**{k: tuple(v) if isinstance(v, list) else v for k, v in given.items()})

    return make_spec(
        name,
        task["environment"],
        None,
        settings(entry.config, task.get("config", {})),
        settings(entry.network_config, task.get("network", {})),
        RunOptions(total_steps=TOTAL_STEPS, seeds=task.get("seeds", 1)),
        None,
    )


def train(task: dict[str, Any]) -> None:
    """Report the speed of updates, and then in addition the cost of their parts."""
    spec = specification(task)
    updates = throughput.time_updates(spec, task["rounds"], lambda text: None)
    unmeasured = throughput.MachineLimits(1.0, 1.0, 1.0, 1.0)  # another row has them
    result = throughput.make_result(updates, {}, unmeasured)
    found = {
        "rates": result.steps_per_second,
        "update_seconds": result.update_seconds,
        "compile_seconds": result.compile_seconds,
        "init_seconds": updates.init_seconds,
        "memory_predicted": result.memory_predicted,
        "memory_used": result.memory_used,
    }
    report(**found)
    # Updates of on-policy algorithms repeat the products of an epoch in a loop of unknown length.
    epochs = dataclasses.asdict(spec.config).get("num_epochs", 1)
    step = jax.make_jaxpr(updates.program.algorithm.step)(updates.program.abstract_state)
    found["update_flops"] = count_products(step.jaxpr, epochs)
    report(**found)
    shares = throughput.profile_update(updates)
    report(**found, parts={name: share._asdict() for name, share in shares.items()})


def steps(task: dict[str, Any]) -> None:
    """Report the speed of an environment of XLand-MiniGrid with random actions."""
    import turns
    import xland

    name, copies, num_steps = task["environment"], task["copies"], 128
    env = rollax.make(f"xminigrid/{name}", previous=False, direction=False, ruleset=0)
    build = {
        "ours": lambda: xland.ours(env, copies, num_steps),
        "theirs": lambda: xland.theirs(env, name, copies, num_steps),
    }
    run, state = build[task["program"]]()
    started = time.perf_counter()
    turns.seconds(run, state)
    compile_seconds = time.perf_counter() - started
    calls = max(1, round(1 / turns.seconds(run, state)))

    def advance() -> None:
        nonlocal state
        for _ in range(calls):
            state, _ = run(state)
        jax.block_until_ready(state)

    rates = [copies * num_steps * calls / taken(advance) for _ in range(task["rounds"])]
    report(rates=rates, compile_seconds={"all": compile_seconds})


def taken(function: Callable[[], None]) -> float:
    """Return the seconds of one call."""
    started = time.perf_counter()
    function()
    return time.perf_counter() - started


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    if sys.stdin.readline():
        {"limits": limits, "train": train, "steps": steps}[given["kind"]](given)
