"""Result h: Muon alone and behind Discover."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from discover.lab.experiments.reproduce.panels import Maker, Panel, Rates, Row, plain, so_many
from discover.lab.experiments.reproduce.scales import HEAD_BY_ADAM
from discover.registry import OPTIMIZERS

MUON_RATES = {1: (0.001, 0.002), 2: (0.002, 0.003), 4: (0.002, 0.003), 8: (0.002, 0.003)}
"""By the number of groups: the fewer, the noisier a step, the smaller the best rate."""
MUONS: Sequence[tuple[str, str, Mapping[str, float]]] = (
    ("discover_muon", "", {"beta": 0.95, "nu": 0.95}),
    ("discover_muon", "damped", {"beta": 0.95, "nu": 0.95, "damping": 0.1}),
    ("muon", "", {"beta": 0.95, "nu": 0.95}),
    ("muon", "fresh", {"beta": 0.95, "nu": 0.8}),  # on pure batches Muon alone wants some of the fresh gradient
)
"""Optimizer, variant, hyperparameters."""
MUON_NAMES = {name for name, *_ in MUONS}
DAMPED_BY = (5, 3)
"""How many of the ten clusters take part in the damping at a step, in turn: half the cost, a third."""
OTHERS_RATES: Mapping[str, Mapping[int, tuple[float, ...]]] = {
    "momentum": {1: (0.01, 0.03), 2: (0.03, 0.1)},
    "discover": {1: (0.03, 0.1), 2: (0.1, 0.3)},
    "adam": dict.fromkeys((1, 2), (0.0003, 0.001)),
    "discover_adam": dict.fromkeys((1, 2), (0.00003, 0.0001)),
}
"""What Muon is compared with: by the number of groups, around the best rates of results-d and results-g."""

TEXT_RATES: Rates = {
    "adam": (0.0003, 0.001, 0.003),
    "discover_adam": (0.0001, 0.0003, 0.001),
    "momentum": (0.1, 0.3, 1.0),
    "discover": (0.1, 0.3, 1.0),
    "muon": (0.0003, 0.001, 0.003),
    "discover_muon": (0.0003, 0.001, 0.003),
}
LANGUAGES: Mapping[str, Any] = {"data": "bible16", "clusters": "language", "groups": 1}


def _muons(
    make: Maker,
    groups: int,
    composition: str = "random",
    changes: Mapping[str, Any] | None = None,
    *,
    others: Sequence[str] = tuple(OTHERS_RATES),
) -> list[Row]:
    """Muon alone and behind Discover on class-pure batches of so many groups, then the other optimizers."""
    return make.rows(
        (*MUONS, *plain(others)),
        {**dict.fromkeys(MUON_NAMES, MUON_RATES[groups]), **{name: OTHERS_RATES[name][groups] for name in others}},
        where=so_many(groups) + (" in turn" if composition == "balanced" else ""),
        groups=groups,
        changes={"batches.composition": composition, **(changes or {})},
        facets={"groups": groups},
    )


def _damped_by_some(make: Maker) -> list[Row]:
    """Damping by some of the clusters at each step, and by all."""
    name, damped, values = MUONS[1]
    variants = [(name, damped, values)]
    variants += [(name, f"{damped} by {some}", {**values, "damping_clusters": some}) for some in DAMPED_BY]
    return [
        row
        for groups in (1, 8)
        for row in make.rows(
            variants, {name: MUON_RATES[groups]}, where=so_many(groups), groups=groups, facets={"groups": groups}
        )
    ]


def _other_layers(make: Maker, layers: Mapping[str, Mapping[str, str]], rates: Rates, **setting: Any) -> list[Row]:
    """Muon, alone and behind Discover, and with something other in some layers."""
    return [
        make.row(name, what, hyperparameters=values, rates=rates[name], changes=changes, **setting)
        for name, _, values in (MUONS[0], MUONS[2])
        for what, changes in {"": {}, **layers}.items()
        if OPTIMIZERS[name].clustered or "optimizer.buffered" not in changes
    ]


def before_muon(make: Maker) -> list[Panel]:
    """The panels of result h."""

    def shuffled(**changes: Any) -> Row:
        return make.shuffled("muon", hyperparameters=MUONS[2][2], rates=MUON_RATES[8], changes=changes)

    # β, ν and κ were chosen on seeds 0 to 2 (docs/muon.md): these are others.
    seeds = {key: tuple(3 + seed for seed in getattr(make.scale, key)) for key in ("seeds", "tuning_seeds")}
    groups = [row for number in (8, 1, 2, 4) for row in _muons(make, number, others=())]
    noise = {"data.label_noise": 0.4}
    noisy = [*_muons(make, 1, changes=noise), *_muons(make, 8, changes=noise, others=())]
    turns = [row for number in (1, 2) for row in _muons(make, number, "balanced")]
    head = _other_layers(make, {"head by Adam": HEAD_BY_ADAM}, dict.fromkeys(MUON_NAMES, MUON_RATES[1]), groups=1)
    layers = _other_layers(make, make.scale.text_layers, TEXT_RATES, **LANGUAGES)
    title = "Discover before Muon: accuracy by class-pure groups"
    return [
        make.panel("groups", title, [*groups, shuffled()], figure="groups", **seeds),
        make.panel(
            "noise-0.4", "Label noise 0.4: Muon alone and behind Discover", [*noisy, shuffled(**noise)], **seeds
        ),
        make.panel(
            "one-group", "One class a batch: Muon alone and behind Discover", [*_muons(make, 1), shuffled()], **seeds
        ),
        make.panel("damping", "Damping by some of the clusters at a step", _damped_by_some(make), **seeds),
        make.panel("turns", "Classes in turn: Muon alone and behind Discover", turns, **seeds),
        make.panel("text", "One language a batch: held-out loss", languages(make), measure="loss", **seeds),
        make.panel("head", "One class a batch: who moves the head", head, **seeds),
        make.panel("text-layers", "One language a batch: head and embeddings", layers, measure="loss", **seeds),
    ]


def languages(make: Maker) -> list[Row]:
    """The next byte of a book in 16 languages, one of them a batch; Muon on shuffled batches as the control."""
    shuffled = make.shuffled("muon", hyperparameters=MUONS[2][2], rates=TEXT_RATES["muon"], **LANGUAGES)
    others = plain(name for name in TEXT_RATES if name not in MUON_NAMES)
    return [*make.rows(MUONS, TEXT_RATES, **LANGUAGES), shuffled, *make.rows(others, TEXT_RATES, **LANGUAGES)]
