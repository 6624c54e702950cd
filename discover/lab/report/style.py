"""How each optimizer is called and drawn: the same everywhere, safe for colour-blind readers and in grey.

Names and hues come from the table of optimizers. One with clusters has a solid line and filled markers, a plain one a
dashed line and open markers, and both share a marker where one is the other's baseline; a control is dotted. So no
curve is told apart by hue alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from discover.registry import OPTIMIZERS, REFERENCE, Optimizer, own_label


@dataclass(frozen=True)
class Style:
    """The look of one series."""

    name: str  # as written in figures and tables
    color: str  # ``#rrggbb``
    dash: tuple[float, ...]  # lengths of strokes and gaps in points; empty for a solid line
    marker: str  # a matplotlib marker
    filled: bool  # whether the marker is filled
    hatch: str  # a matplotlib hatch for bars

    @property
    def line(self) -> dict[str, Any]:
        """How matplotlib draws a curve of it."""
        return {
            "color": self.color,
            "linestyle": (0, self.dash) if self.dash else "-",
            "linewidth": 1.8,
            "marker": self.marker,
            "markersize": 5,
            "markerfacecolor": self.color if self.filled else "white",
            "markeredgewidth": 1.2,
            "label": self.name,
        }

    @property
    def bar(self) -> dict[str, Any]:
        """How matplotlib draws a bar of it: the hatch on a tint of its colour."""
        channels = (int(self.color[i : i + 2], 16) for i in (1, 3, 5))
        tint = "#" + "".join(f"{round(c + (255 - c) * 0.62):02x}" for c in channels)
        return {"color": tint, "edgecolor": self.color, "hatch": self.hatch, "linewidth": 1.2}


_SOLID: tuple[float, ...] = ()
_DASHED = (5.0, 2.0)
_DOTTED = (1.2, 2.0)
_DASHES = (_SOLID, (6.0, 2.0, 1.2, 2.0), _DASHED, _DOTTED)
_MARKERS = ("o", "D", "s", "^", "X", "v", "P", "h", "<", ">", "p", "d", "8", "H", "*")
_HATCHES = ("//", "--", "\\\\", "xx", "||", "", "..", "++", "|-", "oo", "OO", "**")
_INK = "#222222"
_COLORS = ("#332288", "#CC6677", "#117733", "#B8A036", "#44AA99", "#AA4499", "#999933", "#882255", "#4477AA", "#7F6000")
"""For labels that are not in the table; Tol's, and none of the table's."""


def optimizer_of(label: str) -> Optimizer | None:
    """The table's entry of a label such as ``momentum-shuffled``; None for others, also for a user's own."""
    return OPTIMIZERS.get(label.partition("-")[0])


def is_clustered(row: Mapping[str, Any]) -> bool:
    """Whether a row of a record was trained with clusters: as it says, or else as the table does."""
    entry = optimizer_of(str(row.get("optimizer") or row["label"]))
    return bool(row.get("clustered", entry is not None and entry.clustered))


def series_name(label: str) -> str:
    """The name to print for a label such as ``discover_qhm``, ``momentum-shuffled`` or ``mine:my_optimizer``.

    >>> series_name("discover_qhm"), series_name("momentum-shuffled"), series_name("mine:my_optimizer")
    ('Discover-QHM', 'Momentum, shuffled', 'My optimizer')
    """
    base, _, variant = label.partition("-")
    entry = optimizer_of(label)
    if entry is None and ":" not in base:
        return label
    name = entry.label if entry is not None else own_label(base)
    return name + (f", {variant}" if variant else "")


def series_styles(labels: Sequence[str]) -> dict[str, Style]:
    """A style for every label; optimizers of the table always look the same, others take a free combination."""
    styles = {label: style for label in labels if (style := _known_style(label)) is not None}
    looks = {(style.dash, style.marker) for style in styles.values()}
    colors = [color for color in _COLORS if color not in {style.color for style in styles.values()}] or [_INK]
    for number, label in enumerate(label for label in labels if label not in styles):
        row, column = divmod(number, len(colors))
        dash = _DASHES[row] if row < len(_DASHES) else (2.0 + row, 2.0)
        marker = next((marker for marker in _MARKERS if (dash, marker) not in looks), "o")
        looks.add((dash, marker))
        hatch = _hatch(len(OPTIMIZERS) + number)
        styles[label] = Style(series_name(label), colors[column], dash, marker, not dash, hatch)
    return {label: styles[label] for label in labels}


def _known_style(label: str) -> Style | None:
    """The look of an optimizer of the table, or of it as a control: dotted, the reference in ink."""
    entry, variant = optimizer_of(label), label.partition("-")[2]
    if entry is None or variant not in ("", "shuffled"):
        return None
    names = list(OPTIMIZERS)
    peers = [one.name for one in OPTIMIZERS.values() if one.clustered and one.baseline == entry.baseline]
    dots = peers.index(entry.name) if entry.clustered else 0
    dash = (6.0, 2.0, *(1.2, 2.0) * dots) if dots else _SOLID if entry.clustered else _DASHED
    marker = _MARKERS[names.index(entry.baseline or entry.name) % len(_MARKERS)]
    style = Style(series_name(label), entry.color, dash, marker, entry.clustered, _hatch(names.index(entry.name)))
    if not variant:
        return style
    return replace(style, color=_INK if entry.name == REFERENCE else entry.color, dash=_DOTTED, filled=False)


def _hatch(number: int) -> str:
    """The hatch of a number, none like another: denser every time that the patterns begin again."""
    again, which = divmod(number, len(_HATCHES))
    return _HATCHES[which] + again * "/."
