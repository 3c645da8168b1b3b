"""The command that measures: bench."""

import platform
import statistics
from collections.abc import Iterator
from typing import Any

from rollax.cli import training
from rollax.cli.shared import Shared
from rollax.cli.words import close, take_value
from rollax.errors import UsageError

HELP = """\
usage: rollax bench ALGORITHM ENVIRONMENT [--rounds N] [--json] [any options of rollax train]

Trains for a few seconds without leaving anything, and says how fast, and what the time of an update goes into: steps/s,
processor time, compile time by phase, memory, and for each part of an update its share, the rate of its matrix products
and of the memory that it reads and writes, beside what a large product and a copy reach on this machine. Options of train that
are of its folder, its evaluations or its end have no effect.

  rollax bench ppo gymnax/CartPole-v1
  rollax bench ppo gymnax/CartPole-v1 --seeds 64 --num-envs 4
  rollax bench sac gymnax/Pendulum-v1 --json

  --rounds N   measurements of about a second each; the median counts [5]
  --json       end with one JSON object; all else goes to standard error
"""


def bench(arguments: list[str], shared: Shared) -> int:
    rest, names = list(arguments), []
    while rest and not rest[0].startswith("-"):
        names.append(rest.pop(0))
    if any(word in rest for word in training.HELP) or not arguments:
        print(HELP, end="")
        return 0
    if len(names) != 2:
        raise UsageError("bench takes an algorithm and an environment: rollax bench ppo gymnax/CartPole-v1")
    rest, rounds = take_value(rest, "--rounds")
    words, wants_json = training.given(names, rest)
    if words["opponents"]:
        raise UsageError("bench takes no --opponents: their policies are part of a run's folder")

    from rollax.host import bench as benching
    from rollax.host.progress import display
    from rollax.host.settings import make_spec

    spec = make_spec(
        *names,
        *(words[name] for name in ("arguments", "config", "network", "options", "sweep", "eval_arguments")),
        evolve=words["evolve"],
        imports=shared.imports,
    )
    show = display(stderr=wants_json)
    try:
        found = benching.bench(spec, _rounds(rounds), show.status)
        for line in _lines(spec, found):
            show.message(line)
    finally:
        show.close()
    close(_summary(found), wants_json)
    return 0


def _rounds(text: str | None) -> int:
    if text is None:
        return 5
    if not text.isdecimal() or not 1 <= int(text) <= 1000:
        raise UsageError(f"--rounds takes a whole number from 1 to 1000, not {text!r}")
    return int(text)


def _lines(spec: Any, found: Any) -> Iterator[str]:
    """The figures in words, and the parts of an update as a table."""
    import jax

    from rollax.host.progress import size
    from rollax.host.settings import entry

    unit = entry(spec.algorithm).unit.split()[0]  # steps, or evaluations of solutions
    device = jax.devices()[0]
    members = f", {spec.num_members} members" if spec.num_members > 1 else ""
    yield f"{spec.algorithm} on {spec.environment}{members}: {spec.config.steps_per_update:,} {unit} an update"
    yield f"  {len(jax.devices())} x {device.device_kind}, {platform.machine()}, jax {jax.__version__}"
    rates, median = sorted(found.steps_per_second), statistics.median(found.steps_per_second)
    yield (
        f"  {median:,.0f} {unit}/s ({rates[0]:,.0f} to {rates[-1]:,.0f}), "
        f"{found.processor_seconds:.2f} s of processors for a million {unit}, {found.update_seconds * 1e3:.3g} ms an update"
    )
    phases = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in found.compile_seconds.items())
    yield f"  compiled in {sum(found.compile_seconds.values()):.1f} s: {phases}"
    memory = {"predicted": found.memory_predicted, "used": found.memory_used}
    told = ", ".join(f"{name} {size(number)}" for name, number in memory.items() if number is not None)
    yield f"  memory: {told}" if told else "  memory: not known"
    limits = found.limits
    product, copy = f"{limits.product_flops / 1e9:.0f} GFLOP/s", f"{limits.copy_bytes / 1e9:.0f} GB/s"
    on = [f"on {busy:.1f} processors" for busy in (limits.product_processors, limits.copy_processors)]
    yield f"  limits: {product} of a large product {on[0]}, {copy} of a copy {on[1]}; shares are of what one processor does"
    yield ""
    yield from _table(found)


def _table(found: Any) -> Iterator[str]:
    from rollax.scopes import PARTS

    total = sum(share.seconds for share in found.shares.values())
    heads = ("part of an update", "ms", "share", "GFLOP/s", "of limit", "GB/s", "of limit", "operations", "")
    rows: list[tuple[str, ...]] = [heads]
    for name, share in found.shares.items():
        rows.append((name, *_figures(share, total, found.limits), PARTS[name]))
    whole = [sum(values) for values in zip(*found.shares.values(), strict=True)]
    rows.append(("all, over all threads", *_figures(type(next(iter(found.shares.values())))(*whole), total, found.limits), ""))
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for index, row in enumerate(rows):
        cells = [text.ljust(w) if i in (0, 8) else text.rjust(w) for i, (text, w) in enumerate(zip(row, widths, strict=True))]
        yield f"| {' | '.join(cells)} |"
        if index == 0:
            yield "|" + "|".join("-" * (w + 1) + ("-" if i in (0, 8) else ":") for i, w in enumerate(widths)) + "|"


def _figures(share: Any, total: float, limits: Any) -> tuple[str, ...]:
    flops, size = (x / share.seconds if share.seconds else 0.0 for x in (share.flops, share.bytes))
    of_product, of_copy = limits.product_flops / limits.product_processors, limits.copy_bytes / limits.copy_processors
    rates = (f"{flops / 1e9:.1f}", f"{flops / of_product:.0%}") if share.flops else ("", "")
    moved = f"{size / 1e9:.1f}", f"{size / of_copy:.0%}"
    return f"{share.seconds * 1e3:.3f}", f"{share.seconds / total:.1%}", *rates, *moved, f"{share.runs:,}"


def _summary(found: Any) -> dict[str, Any]:
    """The figures as JSON has them."""
    summary = {name: value for name, value in found._asdict().items() if name not in ("shares", "limits")}
    summary["shares"] = {name: share._asdict() for name, share in found.shares.items()}
    return summary | {"limits": found.limits._asdict()}
