"""Table and picture of the results of `accelerator.py`."""

import datetime
import statistics
from pathlib import Path
from typing import Any, NamedTuple

Record = dict[str, Any]
HEADER = (
    "row",
    "steps/s (quartiles)",
    "whole task",
    "compiling, s",
    "initialization, s",
    "memory predicted / used, MB",
    "of products",
    "of copy",
    "compared with",
)


class Shares(NamedTuple):
    """Rates of an update relative to the limits of the device, or None if unknown."""

    products: float | None
    copy: float | None


def write_report(records: list[Record], path: Path) -> None:
    """Write the table and the picture next to the file of the results."""
    path.with_suffix(".md").write_text(table(records))
    if any("rates" in one for one in records):
        draw(records, path.with_suffix(".png"))


def newest(records: list[Record]) -> dict[str, Record]:
    """Return the last record of each row. Records with results take precedence."""
    with_results = [one for one in records if one["status"] == "measured"]
    return {one["row"]: one for one in [*records, *with_results]}


def table(records: list[Record]) -> str:
    """Return the Markdown page of the results."""
    rows = newest(records)
    lines = [*heading(rows.get("limits", {})), f"| {' | '.join(HEADER)} |", "|---" * 9 + "|"]
    lines += [line(one, rows) for one in rows.values() if "rates" in one]
    if left_out := [one for one in rows.values() if "rates" not in one and one["row"] != "limits"]:
        lines += ["", "Rows without a result:", ""]
        lines += [f"- {one['title']}: {one['status']}, {one['reason']}" for one in left_out]
    return "\n".join([*lines, ""])


def heading(limits: Record) -> list[str]:
    if "product_flops" not in limits:
        return ["The limits of the device are unknown.", ""]
    versions = ", ".join(f"{name} {limits[name]}" for name in ("rollax", "jax", "gymnax"))
    products = " and ".join(
        f"{flops / 1e12:,.3g} TFLOP/s ({name})" for name, flops in limits["product_flops"].items()
    )
    size = " Small sizes, to test the program." if limits.get("small") else ""
    return [
        f"{limits['device']} ({limits['platform']}), {versions}, Python {limits['python']}, "
        f"{limits['date'].split()[0]}, seed 0.{size}",
        "",
        f"Limits: {products} for a large matrix product, "
        f"{limits['copy_bytes'] / 1e9:,.4g} GB/s for a copy.",
        "",
    ]


def line(one: Record, rows: dict[str, Record]) -> str:
    """Return the line of a row with a speed."""
    rate = statistics.median(one["rates"])
    low, high = quartiles(one["rates"])
    shares = shares_of(one, rows.get("limits", {}))
    memory = [one.get("memory_predicted"), one.get("memory_used")]
    initialization = one.get("init_seconds")
    cells = [
        one["title"] + ("" if "reason" not in one else f" ({one['reason']})"),
        f"{rate:,.0f} ({low:,.0f} to {high:,.0f})",
        duration(one["frames"] / rate) + f" for {one['frames']:.3g}" if one["frames"] else "",
        f"{sum(one['compile_seconds'].values()):.1f}",
        "" if initialization is None else f"{initialization:.2f}",
        " / ".join("?" if each is None else f"{each / 1e6:,.1f}" for each in memory)
        if any(each is not None for each in memory)
        else "",
        *("" if share is None else f"{share:.2%}" for share in shares),
        comparison(one, rows),
    ]
    return f"| {' | '.join(cells)} |"


def quartiles(rates: list[float]) -> tuple[float, float]:
    if len(rates) == 1:
        return rates[0], rates[0]
    low, _, high = statistics.quantiles(rates, n=4, method="inclusive")
    return low, high


def shares_of(one: Record, limits: Record) -> Shares:
    """Return the rates of an update relative to a large matrix product and to a copy."""
    seconds = one.get("update_seconds")
    if not seconds or "product_flops" not in limits:
        return Shares(None, None)
    precision = one["task"].get("network", {}).get("precision", "float32")
    flops, parts = one.get("update_flops"), one.get("parts") or {}
    moved = sum(part["bytes"] for part in parts.values())
    return Shares(
        products=None if flops is None else flops / seconds / limits["product_flops"][precision],
        copy=moved / seconds / limits["copy_bytes"] if moved else None,
    )


def comparison(one: Record, rows: dict[str, Record]) -> str:
    """Return the comparison with the row of rollax that does the same work, or a published one."""
    mine = rows.get(one.get("reference", ""), {})
    if "rates" not in mine:
        return one.get("published", "")
    ratio = statistics.median(mine["rates"]) / statistics.median(one["rates"])
    return f"rollax reaches {ratio:.2f} times this speed"


def duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.2g} s"
    return str(datetime.timedelta(seconds=round(seconds)))


def draw(records: list[Record], path: Path) -> None:
    """Draw the speed of each row, and its shares of the limits of the device."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    rows = newest(records)
    shown = [one for one in rows.values() if "rates" in one]
    figure, (left, right) = plt.subplots(
        ncols=2,
        sharey=True,
        figsize=(11, 0.35 * len(shown) + 1.2),
        width_ratios=(2, 1),
        layout="constrained",
    )
    for place, one in enumerate(shown):
        rate = statistics.median(one["rates"])
        left.barh(place, rate, color="C1" if one.get("reference") else "C0")
        left.annotate(
            f"{rate:,.0f}", (rate, place), (4, 0), textcoords="offset points", va="center"
        )
        for share, marker, label in zip(
            shares_of(one, rows.get("limits", {})), "o^", ("products", "copy"), strict=True
        ):
            if share:
                color = "C2" if marker == "o" else "C3"
                right.plot(share, place, marker, color=color, label=label)
    left.set(xscale="log", xlabel="steps/s or evaluations/s")
    left.margins(x=0.2)
    left.set_yticks(range(len(shown)), [one["title"] for one in shown])
    left.invert_yaxis()
    right.set(xscale="log", xlabel="share of the limit of the device")
    labels = dict(zip(*reversed(right.get_legend_handles_labels()), strict=True))
    if labels:
        right.legend(labels.values(), labels.keys(), fontsize="small")
    figure.suptitle(rows.get("limits", {}).get("device", "unknown device"))
    temporary = path.with_name(f"{path.stem}.new.png")
    figure.savefig(temporary, dpi=150)
    temporary.replace(path)  # a stop leaves the previous picture
    plt.close(figure)


if __name__ == "__main__":
    import json
    import sys

    found = Path(sys.argv[1])
    write_report([json.loads(text) for text in found.read_text().splitlines()], found)
