"""How each optimizer is called and drawn: the same everywhere, safe for colour-blind readers and in grey.

The hues are Okabe and Ito's. A plain optimizer and its Discover variant share a marker; Discover variants
have solid lines and filled markers, plain ones dashed lines and open markers, controls dotted lines. So no
curve is told apart by hue alone.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Style:
    """The look of one series.

    Attributes:
        name: as written in figures and tables.
        color: ``#rrggbb``.
        dash: lengths of strokes and gaps in points; empty for a solid line.
        marker: a matplotlib marker.
        filled: whether the marker is filled.
        hatch: a matplotlib hatch for bars.
    """

    name: str
    color: str
    dash: tuple[float, ...]
    marker: str
    filled: bool
    hatch: str


_SOLID: tuple[float, ...] = ()
_DASHED = (5.0, 2.0)
_DOTTED = (1.2, 2.0)
_DASHDOT = (6.0, 2.0, 1.2, 2.0)

_STYLES = {
    "discover": Style("Discover", "#D55E00", _SOLID, "o", True, ""),
    "discover_qhm": Style("Discover-QHM", "#A6478A", _SOLID, "s", True, ".."),
    "discover_igt": Style("Discover-IGT", "#E69F00", _SOLID, "^", True, "++"),
    "discover_adam": Style("Discover-Adam", "#6A51C8", _SOLID, "X", True, "|-"),
    "momentum": Style("Momentum", "#0072B2", _DASHED, "o", False, "//"),
    "qhm": Style("QHM", "#56B4E9", _DASHED, "s", False, "\\\\"),
    "igt": Style("IGT", "#009E73", _DASHED, "^", False, "xx"),
    "sgd": Style("SGD", "#767676", _DASHDOT, "D", False, "--"),
    "adam": Style("Adam", "#3B3B8F", _DASHDOT, "X", False, "||"),
    "paper_discover": Style("Discover (printed)", "#8A3D00", _DOTTED, "o", True, "oo"),
    "paper_discover_qhm": Style("Discover-QHM (printed)", "#6B2D59", _DOTTED, "s", True, "OO"),
    "paper_discover_igt": Style("Discover-IGT (printed)", "#8F6300", _DOTTED, "^", True, "**"),
}
_CONTROL = Style("", "#222222", _DOTTED, "v", False, "..")
_SPARE_COLORS = ("#0072B2", "#D55E00", "#009E73", "#A6478A", "#E69F00", "#56B4E9", "#767676")
_SPARE_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
_SPARE_HATCHES = ("", "//", "..", "xx", "\\\\", "--", "++")
_SPARE_DASHES = (_SOLID, _DASHED, _DOTTED, _DASHDOT)


def series_name(label: str) -> str:
    """The name to print for a label such as ``discover_qhm`` or ``momentum-shuffled``.

    >>> series_name("discover_qhm"), series_name("momentum-shuffled")
    ('Discover-QHM', 'Momentum, shuffled')
    """
    base, _, variant = label.partition("-")
    base = "igt" if base == "igt_momentum" else base
    if base not in _STYLES:
        return label
    return _STYLES[base].name + (f", {variant}" if variant else "")


def series_styles(labels: list[str]) -> dict[str, Style]:
    """A style for every label; known optimizers always look the same, others take a free combination.

    Args:
        labels: unique labels, in the order in which they are drawn.
    """
    styles: dict[str, Style] = {}
    taken: set[tuple[str, tuple[float, ...]]] = set()
    for label in labels:
        base, _, variant = label.partition("-")
        base = "igt" if base == "igt_momentum" else base
        known = _STYLES.get(base)
        if known is not None and not variant:
            styles[label] = known
        elif base == "momentum" and variant == "shuffled":
            styles[label] = Style(series_name(label), *_fields(_CONTROL))
        elif known is not None and variant == "shuffled":  # another control: dotted too, in its optimizer's hue
            styles[label] = Style(series_name(label), known.color, _DOTTED, "P", False, "oo")
        else:
            continue
        taken.add((styles[label].color, styles[label].dash))
    spares = (
        (color, dash, marker, hatch)
        for dash, hatch_shift in zip(_SPARE_DASHES, range(len(_SPARE_DASHES)))
        for color, marker, hatch in zip(
            _SPARE_COLORS, _SPARE_MARKERS, _SPARE_HATCHES[hatch_shift:] + _SPARE_HATCHES[:hatch_shift]
        )
        if (color, dash) not in taken
    )
    for label in labels:
        if label not in styles:
            color, dash, marker, hatch = next(spares, ("#222222", _SOLID, "o", ""))
            styles[label] = Style(series_name(label), color, dash, marker, not dash, hatch)
    return {label: styles[label] for label in labels}


def _fields(style: Style) -> tuple[str, tuple[float, ...], str, bool, str]:
    return style.color, style.dash, style.marker, style.filled, style.hatch
