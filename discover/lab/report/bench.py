"""The speed figure: steps per second of each optimizer as a share of momentum's."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from discover.lab.report.plotting import INK, save_figure, styled
from discover.lab.report.style import is_clustered
from discover.registry import REFERENCE

PAPER = {"discover": 6.3 / 10.4, "discover_qhm": 5.8 / 10.4, "discover_igt": 5.6 / 10.4}
"""What the paper's table gives for CIFAR-10 on 4 TPUv2, relative to its momentum."""


def write_bench_figure(result: Mapping[str, Any], directory: str | Path) -> list[Path]:
    """Draws the ratios of a `discover bench` result as bars with their range over the repeats, as PNG and SVG."""
    from matplotlib import pyplot as plt

    rows = [row for row in result["rows"] if row["optimizer"] != REFERENCE]
    clustered = [is_clustered({"label": row["optimizer"], **row}) for row in rows]
    several = len({(row["groups"], row["clusters"]) for row, has in zip(rows, clustered) if has}) > 1
    labels = [
        f"{row['optimizer']} {row['variant']}".strip()
        + (f"  G={row['groups']}, N={row['clusters']}" if has and several else "")
        for row, has in zip(rows, clustered)
    ]
    with styled():
        figure, axes = plt.subplots(figsize=(7.2, 1.2 + 0.34 * len(rows)), layout="constrained")
        places = range(len(rows))[::-1]
        ratios = [row["ratio"] for row in rows]
        errors = [
            [ratio - row["ratio_lowest"] for ratio, row in zip(ratios, rows)],
            [row["ratio_highest"] - ratio for ratio, row in zip(ratios, rows)],
        ]
        colours = ["#0072b2" if has else "#9aa1ab" for has in clustered]
        axes.barh(places, ratios, xerr=errors, color=colours, height=0.66, error_kw={"elinewidth": 1, "capsize": 2.5})
        for place, row in zip(places, rows):
            axes.text(0.01, place, f"{row['ratio']:.3f}", va="center", ha="left", color="white", fontsize=9)
            if row["optimizer"] in PAPER:
                axes.plot([PAPER[row["optimizer"]]] * 2, [place - 0.33, place + 0.33], color="#d55e00", linewidth=2)
        axes.plot([], [], color="#d55e00", linewidth=2, label="the paper's ratio (CIFAR-10, 4 TPUv2)")
        axes.axvline(1, color=INK, linewidth=1)
        axes.set_yticks(list(places), labels)
        axes.set_xlim(0, max(1.08, 1.05 * max((row["ratio_highest"] for row in rows), default=1)))
        axes.set_xlabel("steps per second, momentum = 1")
        axes.set_title(f"{result['model']}, {result['parameters']:,} parameters, batch {result['batch']}")
        if any(row["optimizer"] in PAPER for row in rows):
            figure.legend(loc="outside lower right", frameon=False, fontsize=9)
        axes.grid(False)
        return save_figure(figure, Path(directory), "bench")
