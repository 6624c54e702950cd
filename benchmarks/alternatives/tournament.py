"""Result i: what people would use instead, each with the same tuning on the same class-pure batches.

The optimizers that are not in the library's table are the reference versions beside this file. `python -m discover
reproduce results-i` trains it in a checkout of the repository.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from discover.lab.experiments.presets.digits import DISCOVER_ADAM
from discover.lab.experiments.presets.preset import Hyperparameters
from discover.lab.experiments.reproduce.panels import Maker, Panel, Rates, Row

BUDGET = 5
"""Trainings on the validation split for each: three learning rates, and two of what is best to try next."""
TUNING_SEED, FIRST_SEED = 3, 4
"""Reported seeds took no part in any choice; 3 is that of result h, which shares some of these trainings."""

ONE, TURNS, EIGHT = "one-group", "one-group-turns", "eight-groups"
SETTINGS: Mapping[str, tuple[int, str, str]] = {
    ONE: (1, "random", "One class a batch, drawn at random"),
    TURNS: (1, "balanced", "One class a batch, in turn"),
    EIGHT: (8, "random", "Eight class-pure groups a batch, drawn at random"),
}
"""By panel: groups, composition, title."""

_OURS = "benchmarks.alternatives"
_WITHOUT_DECAY = {"training.schedule": "constant"}
_MUON = {"beta": 0.95, "nu": 0.95}
_ADAM = {"beta2": 0.999, "eps": 1e-8}


@dataclass(frozen=True)
class Contender:
    """An optimizer with its usual hyperparameters, and the one other number that matters to it."""

    label: str
    optimizer: str  # in the library's table, or `file:function` of this folder
    rates: Rates  # by panel
    usual: Hyperparameters
    other: str  # the name of that number
    values: Sequence[float]  # of that number besides the usual one, the likelier first
    changes: Mapping[str, Any] = field(default_factory=dict)


def _rates(one: float, turns: float, eight: float) -> Rates:
    """Each learning rate, a third of it, and three times as much; in the series 1, 3, 10."""
    series = [float(f"{digit}e{power}") for power in range(-7, 3) for digit in (1, 3)]
    centres = {ONE: one, TURNS: turns, EIGHT: eight}
    return {name: tuple(series[series.index(rate) + near] for near in (-1, 0, 1)) for name, rate in centres.items()}


_MUON_RATES = {ONE: (0.0003, 0.001, 0.002), TURNS: (0.001, 0.002, 0.003), EIGHT: (0.001, 0.002, 0.003)}
"""Those of result h."""

CONTENDERS: Sequence[Contender] = (
    Contender(
        "discover_muon-damped", "discover_muon", {**_MUON_RATES, ONE: (0.001, 0.002, 0.003)}, {**_MUON, "damping": 0.1},
        "damping", (0.03, 0.3),
    ),
    Contender("discover_muon", "discover_muon", _MUON_RATES, _MUON, "nu", (0.9, 0.8)),
    Contender("muon", "muon", _MUON_RATES, _MUON, "nu", (0.8, 0.9)),
    Contender("AdaTask", "per_cluster:adatask", _rates(0.0003, 0.0003, 0.0003), {"beta1": 0.9}, "beta1", (0.5, 0.0)),
    Contender(
        "Muon, accumulated", "averaging:accumulated_muon", _rates(0.01, 0.01, 0.003), {**_MUON, "every": 10},
        "every", (5, 20),
    ),
    Contender("discover_adam", "discover_adam", _rates(0.0001, 0.0001, 0.0001), DISCOVER_ADAM, "nu", (0.9, 0.8)),
    Contender("discover", "discover", _rates(0.1, 0.1, 0.3), {"beta": 0.95, "nu": 0.95}, "nu", (0.9, 0.8)),
    Contender("adam", "adam", _rates(0.0003, 0.001, 0.0003), {"beta1": 0.9, **_ADAM}, "beta1", (0.98, 0.5)),
    Contender("momentum", "momentum", _rates(0.01, 0.1, 0.3), {"beta": 0.9}, "beta", (0.98, 0.8)),
    Contender(
        "Adam per cluster", "per_cluster:adam_per_cluster", _rates(0.0003, 0.001, 0.0003), {"beta1": 0.9},
        "beta1", (0.0, 0.5),
    ),
    Contender(
        "Momentum, accumulated", "averaging:accumulated_momentum", _rates(0.3, 1.0, 0.3), {"beta": 0.9, "every": 10},
        "every", (5, 20),
    ),
    Contender(
        "Schedule-free Adam", "from_optax:schedule_free", _rates(0.001, 0.001, 0.001), {"beta1": 0.9},
        "beta1", (0.98, 0.95), _WITHOUT_DECAY,
    ),
    Contender(
        "AdEMAMix", "from_optax:ademamix", _rates(0.0001, 0.0003, 0.0001), {"beta3": 0.999}, "beta3", (0.99, 0.9999),
    ),
    Contender(
        "Momentum, averaged", "averaging:averaged_momentum", _rates(0.01, 0.1, 0.3), {"beta": 0.9, "memory": 0.99},
        "memory", (0.998, 0.95), _WITHOUT_DECAY,
    ),
    Contender(
        "Lion", "from_optax:lion", _rates(0.00003, 0.0001, 0.00003), {"beta1": 0.9, "beta2": 0.99},
        "beta2", (0.95, 0.98),
    ),
    Contender("MARS", "mars:mars", _rates(0.0003, 0.001, 0.0003), {"gamma": 0.025}, "gamma", (0.005, 0.1)),
    Contender("SAM", "from_optax:sam", _rates(0.01, 0.1, 0.3), {"beta": 0.9, "rho": 0.05}, "rho", (0.2, 0.01)),
    Contender("qhm", "qhm", _rates(0.01, 0.1, 0.3), {"beta": 0.95, "nu": 0.95}, "nu", (0.9, 0.8)),
    Contender("adam-beta1=0", "adam", _rates(0.0003, 0.0003, 0.0003), {"beta1": 0.0, **_ADAM}, "beta2", (0.99, 0.9999)),
)  # fmt: skip
"""In the order in which they are trained: what is likely to be ahead, and what is asked for most, first."""


def tournament(make: Maker) -> list[Panel]:
    """The panels of result i."""
    seeds = tuple(FIRST_SEED + seed for seed in range(len(make.scale.seeds)))
    return [
        make.panel(
            name,
            title,
            [_row(make, name, contender) for contender in CONTENDERS],
            seeds=seeds,
            tuning_seeds=(TUNING_SEED,),
            budget=BUDGET,
            figure="ranking",
        )
        for name, (_, _, title) in SETTINGS.items()
    ]


def _row(make: Maker, panel: str, contender: Contender) -> Row:
    groups, composition, _ = SETTINGS[panel]
    usual, values = contender.usual, contender.values
    if groups > 1 and contender.other == "every":  # every class comes about once in two batches of eight
        usual, values = {**usual, "every": 2}, (5, 10)
    name = contender.optimizer
    return make.row(
        f"{_OURS}.{name}" if ":" in name else name,
        groups=groups,
        hyperparameters=usual,
        rates=contender.rates[panel],
        changes={"batches.composition": composition, **contender.changes},
        facets={"groups": groups},
        label=contender.label,
        further=[{contender.other: value} for value in values],
    )
