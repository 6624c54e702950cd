"""Result j: clusters as they are found outside of benchmarks: domains of pictures, and 200 classes."""

from __future__ import annotations

from typing import Any

from discover.lab.experiments.reproduce.panels import Maker, Panel, Rates, Row, plain, so_many
from discover.lab.experiments.reproduce.rows.muon import MUON_NAMES, MUONS

LOW: Rates = {
    "momentum": (0.003, 0.01, 0.03),
    "adam": (0.0001, 0.0003, 0.001),
    "muon": (0.0003, 0.001, 0.003),
    "discover": (0.01, 0.03, 0.1),
    "discover_adam": (0.00003, 0.0001, 0.0003),
    "discover_muon": (0.0003, 0.001, 0.003),
}
"""Where a batch is of one class: a step is mostly noise (results d and h)."""
MIDDLE: Rates = {
    "momentum": (0.03, 0.1, 0.3),
    "adam": (0.0001, 0.0003, 0.001),
    "muon": (0.001, 0.003, 0.01),
    "discover": (0.1, 0.3, 1.0),
    "discover_adam": (0.0001, 0.0003, 0.001),
    "discover_muon": (0.001, 0.003, 0.01),
}
"""Where a batch holds several clusters, or clusters differ less than classes."""
HIGH: Rates = {
    "momentum": (0.1, 0.3, 1.0),
    "adam": (0.0003, 0.001, 0.003),
    "muon": (0.001, 0.003, 0.01),
    "discover": (0.3, 1.0, 3.0),
    "discover_adam": (0.0001, 0.0003, 0.001),
    "discover_muon": (0.001, 0.003, 0.01),
}
"""Where a batch is nearly a shuffled one."""


def real_clusters(make: Maker) -> list[Panel]:
    """The panels of result j."""
    tiny = [
        row
        for groups, rates in ((8, MIDDLE), (32, HIGH), (1, LOW))
        for row in _compared(make, rates, data="tiny-imagenet", groups=groups, damped=False)
    ]
    domains = _compared(make, MIDDLE, data="pacs", clusters="domain", groups=1)
    classes = _compared(make, LOW, data="pacs", groups=1)
    return [
        make.panel(
            "tiny-imagenet",
            "Tiny ImageNet, 200 classes as clusters: accuracy by class-pure groups",
            [*tiny, *_shuffled(make, "tiny-imagenet")],
            figure="groups",
        ),
        make.panel("pacs-domains", "PACS, one domain a batch", [*domains, *_shuffled(make, "pacs")]),
        make.panel("pacs-classes", "PACS, one class a batch", [*classes, *_shuffled(make, "pacs")]),
    ]


def _compared(make: Maker, rates: Rates, *, groups: int, damped: bool = True, **setting: Any) -> list[Row]:
    """Each with clusters beside its own baseline; Muon with its two ν; damping costs too much with many clusters."""
    muons = [one for one in MUONS if damped or "damping" not in one[2]]
    return make.rows(
        (*muons, *plain(name for name in rates if name not in MUON_NAMES)),
        rates,
        where=so_many(groups) if setting["data"] == "tiny-imagenet" else "",
        groups=groups,
        facets={"groups": groups},
        **setting,
    )


def _shuffled(make: Maker, data: str) -> list[Row]:
    """What one would have without clusters."""
    return [make.shuffled(name, data=data, groups=1, rates=HIGH[name]) for name in ("momentum", "muon")]
