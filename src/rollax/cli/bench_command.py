"""Command `rollax bench`."""

import platform
import statistics
from collections.abc import Iterator

from rollax.cli import train_command
from rollax.cli.command_output import print_summary
from rollax.cli.parsing.dynamic_options import take_option_value
from rollax.cli.parsing.shared_options import SharedOptions
from rollax.errors import UsageError
from rollax.training.console.progress import format_bytes, make_display
from rollax.training.profiling import throughput as benching
from rollax.training.profiling.operations import PartCost
from rollax.training.profiling.throughput import BenchmarkResult, MachineLimits
from rollax.training.profiling.update_parts import UPDATE_PARTS
from rollax.training.spec import Spec, get_algorithm_entry, make_spec
from rollax.types import Record

HELP_TEXT = """\
usage: rollax bench ALGORITHM ENVIRONMENT [--rounds N] [--json] [any options of rollax train]

Trains for a few seconds without writing files, and reports steps per second, processor time,
compile time by phase and memory. For each part of an update, it reports the share of time, the rate
of matrix products and the memory bandwidth, relative to a large matrix product and a copy on this
machine. Training options about folders, evaluation and the end of training have no effect.

  rollax bench ppo gymnax/CartPole-v1
  rollax bench ppo gymnax/CartPole-v1 --seeds 64 --num-envs 4
  rollax bench sac gymnax/Pendulum-v1 --json

  --rounds N   number of measurements of about one second; the median is reported [5]
  --json       end with one JSON object; everything else goes to standard error
"""

RATE_COLUMNS = (
    "part of an update",
    "ms",
    "share",
    "GFLOP/s",
    "of limit",
    "GB/s",
    "of limit",
    "operations",
    "",
)
TABLE_WIDTH = 500  # columns, so that no cell is wrapped


def bench(arguments: list[str], shared: SharedOptions) -> int:
    """Run `rollax bench` and return its exit code."""
    rest, names = list(arguments), []
    while rest and not rest[0].startswith("-"):
        names.append(rest.pop(0))
    if any(word in rest for word in train_command.HELP_FLAGS) or not arguments:
        print(HELP_TEXT, end="")
        return 0
    if len(names) != 2:
        raise UsageError(
            "bench needs an algorithm and an environment. "
            "Run, for example, `rollax bench ppo gymnax/CartPole-v1`."
        )
    rest, rounds = take_option_value(rest, "--rounds")
    words, wants_json = train_command.parse_train_words(names, rest)
    if words["opponents"] or words["options"].opponent_pool_runs:
        raise UsageError(
            "bench does not support --opponents and --opponent-pool-runs, because their policies "
            "are part of a run folder."
        )

    del words["opponents"]
    spec = make_spec(*names, **words, imports=shared.imports)
    show = make_display(stderr=wants_json)
    try:
        result = benching.run_benchmark(spec, _parse_rounds(rounds), show.status)
        for line in _format_result(spec, result):
            show.message(line)
    finally:
        show.close()
    print_summary(_result_to_dictionary(result), wants_json)
    return 0


def _parse_rounds(text: str | None) -> int:
    if text is None:
        return 5
    if not text.isdecimal() or not 1 <= int(text) <= 1000:
        raise UsageError(f"--rounds must be an integer from 1 to 1000, got {text!r}.")
    return int(text)


def _format_result(spec: Spec, result: BenchmarkResult) -> Iterator[str]:
    """Yield the lines of the report: measurements, and the cost of each phase of an update."""
    import jax

    unit = get_algorithm_entry(spec.algorithm).unit.split()[0]  # steps, or evaluations of solutions
    device = jax.devices()[0]
    members = f", {spec.num_members} members" if spec.num_members > 1 else ""
    yield (
        f"{spec.algorithm} on {spec.environment}{members}: "
        f"{spec.config.steps_per_update:,} {unit} per update"
    )
    yield (
        f"  {len(jax.devices())} x {device.device_kind}, {platform.machine()}, "
        f"jax {jax.__version__}"
    )
    rates, median = sorted(result.steps_per_second), statistics.median(result.steps_per_second)
    yield (
        f"  {median:,.0f} {unit}/s ({rates[0]:,.0f} to {rates[-1]:,.0f}), "
        f"{result.processor_seconds:.2f} s of processor time per million {unit}, "
        f"{result.update_seconds * 1e3:.3g} ms per update"
    )
    phases = ", ".join(
        f"{name} {seconds:.1f} s" for name, seconds in result.compile_seconds.items()
    )
    yield f"  compiled in {sum(result.compile_seconds.values()):.1f} s: {phases}"
    memory = {"predicted": result.memory_predicted, "used": result.memory_used}
    memory_text = ", ".join(
        f"{name} {format_bytes(number)}" for name, number in memory.items() if number is not None
    )
    yield f"  memory: {memory_text}" if memory_text else "  memory: unknown"
    limits = result.limits
    product, copy = (
        f"{limits.product_flops / 1e9:.0f} GFLOP/s",
        f"{limits.copy_bytes / 1e9:.0f} GB/s",
    )
    on = [
        f"on {busy:.1f} processors" for busy in (limits.product_processors, limits.copy_processors)
    ]
    yield (
        f"  limits: {product} for a large matrix product {on[0]}, {copy} for a copy {on[1]}; "
        "shares are relative to one processor"
    )
    if not result.shares:
        yield "  parts: unknown, because the profiler of this platform recorded no operation"
        return
    yield ""
    yield from _format_part_table(result)


def _format_part_table(result: BenchmarkResult) -> list[str]:
    """Format the cost of each phase of an update (acting, learning, ...) as a Markdown table."""
    from rich.box import MARKDOWN
    from rich.console import Console
    from rich.table import Table

    table = Table(box=MARKDOWN)
    for title in RATE_COLUMNS:
        table.add_column(title, justify="right" if title in RATE_COLUMNS[1:-1] else "left")
    total_cost = PartCost(*(sum(values) for values in zip(*result.shares.values(), strict=True)))
    rows = [(name, share, UPDATE_PARTS[name]) for name, share in result.shares.items()]
    for name, share, meaning in [*rows, ("all, over all threads", total_cost, "")]:
        rates = _format_rates(share, total_cost.seconds, result.limits)
        table.add_row(name, *rates, meaning)
    console = Console(width=TABLE_WIDTH, no_color=True)
    with console.capture() as captured:
        console.print(table)
    return captured.get().strip().splitlines()


def _format_rates(share: PartCost, total: float, limits: MachineLimits) -> tuple[str, ...]:
    """Format the cells of `RATE_COLUMNS[1:-1]` for one phase of an update.

    `total` is the time of all phases in seconds.
    """
    flops, size = (x / share.seconds if share.seconds else 0.0 for x in (share.flops, share.bytes))
    of_product = limits.product_flops / limits.product_processors
    of_copy = limits.copy_bytes / limits.copy_processors
    rates = (f"{flops / 1e9:.1f}", f"{flops / of_product:.0%}") if share.flops else ("", "")
    moved = f"{size / 1e9:.1f}", f"{size / of_copy:.0%}"
    return (
        f"{share.seconds * 1e3:.3f}",
        f"{share.seconds / total:.1%}",
        *rates,
        *moved,
        f"{share.runs:,}",
    )


def _result_to_dictionary(result: BenchmarkResult) -> Record:
    """Convert the measurements to a dictionary for JSON."""
    summary = {
        name: value for name, value in result._asdict().items() if name not in ("shares", "limits")
    }
    summary["shares"] = {name: share._asdict() for name, share in result.shares.items()}
    return summary | {"limits": result.limits._asdict()}
