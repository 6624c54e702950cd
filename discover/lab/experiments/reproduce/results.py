"""Each of our results as data: optimizers, settings, seeds, learning rates.

Those from h on are in `rows`, result i is beside its optimizers in `benchmarks`.

Rows that several results have in common are trained once.

Scales: `small` is for one GPU (WideResNet-16-2 on CIFAR-10), `digits` rehearses the same on a CPU in seconds.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from discover.lab.data import CLUSTERINGS
from discover.lab.experiments.compare.comparison import override_own
from discover.lab.experiments.config.config import ConfigError
from discover.lab.experiments.presets.digits import COMPARED
from discover.lab.experiments.presets.paper import PAPERS
from discover.lab.experiments.presets.presets import get_preset
from discover.lab.experiments.reproduce.evidence import in_checkout
from discover.lab.experiments.reproduce.find_data import find_data
from discover.lab.experiments.reproduce.panels import Maker, Panel, Result, Row, so_many
from discover.lab.experiments.reproduce.rows.long_runs import long_runs
from discover.lab.experiments.reproduce.rows.muon import MUON_RATES, before_muon
from discover.lab.experiments.reproduce.rows.real_clusters import real_clusters
from discover.lab.experiments.reproduce.scales import SCALES
from discover.registry import choose

DRIFT: Mapping[str, tuple[tuple[str, str], ...]] = {
    "results-f": (
        *(("eight-groups", f"paper_{name}") for name in PAPERS),
        ("eight-groups", "discover-mapped"),
        ("one-group", "paper_discover-one group"),
        ("one-group", "discover-one group"),
    )
}


RESULTS: Mapping[str, str] = {
    "results-a": "Classes as clusters, clean labels: eight optimizers on class-pure batches (G = 8); shuffled ones.",
    "results-b": "The same with label noise 0.4, and a long run at 0.8 for Momentum and Discover.",
    "results-c": "Cluster structures: classes, augmentations, random, k-means.",
    "results-d": "Purity: 1, 2, 4 or 8 class-pure groups in a batch, for Momentum, Adam and Discover; classes in turn.",
    "results-e": "ν and β: a grid for Discover.",
    "results-f": "The printed equations beside ours: where they drift, and where they hold.",
    "results-g": "Discover before Adam: Adam alone and behind Discover, 8 or 2 class-pure groups in a batch.",
    "results-h": "Discover before Muon: Muon alone and behind Discover, damped too, at random and in turn; text.",
    "results-i": "A tournament: what people would use instead, with the same tuning on the same class-pure batches.",
    "results-j": "Real clusters: the domains and the classes of PACS, the 200 classes of Tiny ImageNet.",
    "results-k": "Long runs with a larger network: label noise 0.8, clean labels, 0.2; augmentations as clusters.",
}


def get_result(
    name: str,
    scale: str = "small",
    *,
    data: str | None = None,
    overrides: Sequence[str] = (),
    seeds: Sequence[int] | None = None,
) -> Result:
    """The result of that name, every configuration checked.

    Args:
        name: one of :data:`RESULTS`; `results-h/text` is one panel of it.
        scale: one of :data:`SCALES`.
        data: CIFAR-10, or the folder that holds the archives of all data sets; see :func:`find_data`.
        overrides: ``key=value`` texts applied to every configuration.
        seeds: instead of the panels' own; the first one tunes.

    Raises:
        ConfigError: an unknown name, or a value that cannot be.
    """
    name, _, only = name.partition("/")
    choose("result", name, RESULTS)
    size = SCALES[choose("scale", scale, SCALES)]
    panels = _BUILDERS[name](Maker(size))
    if only:
        choose(f"panel of {name}", only, [panel.name for panel in panels])
        panels = [panel for panel in panels if panel.name == only]
    for text in overrides:
        key = text.partition("=")[0].strip()
        if key in ("optimizer.name", "optimizer.learning_rate", "training.seeds", "name"):
            raise ConfigError(f"{key} is what {name} varies; it cannot be set")
    if seeds is not None and not seeds:
        raise ConfigError("a result needs at least one seed, got none")
    changed = []
    for panel in panels:
        rows = []
        for row in panel.rows:
            config = row.config.with_values({"data.path": find_data(row.config.data, data)})
            rows.append(dataclasses.replace(row, config=override_own(config, overrides).check()))
        own = panel.seeds if seeds is None else tuple(seeds)
        tuning = panel.tuning_seeds if seeds is None else tuple(seeds)[:1]
        changed.append(dataclasses.replace(panel, rows=tuple(rows), seeds=own, tuning_seeds=tuning))
    return Result(name, RESULTS[name], tuple(changed), () if only else DRIFT.get(name, ()))


def _all_optimizers(make: Maker, **options: Any) -> list[Row]:
    """The eight on class-pure batches; then the control. (Discover on shuffled batches is QHM, exactly.)"""
    pure = [make.row(name, **options) for name in COMPARED]
    return [*pure, *(make.shuffled(name, **options) for name in ("momentum", "adam"))]


def _results_a(make: Maker) -> list[Panel]:
    return [make.panel("clean", "Classes as clusters, clean labels", _all_optimizers(make))]


def _results_b(make: Maker) -> list[Panel]:
    options: dict[str, Any] = {"changes": {"data.label_noise": 0.4}, "lowest_rate": False}
    noisy = _all_optimizers(make, length=make.scale.noise_length, **options)
    options = {"changes": {"data.label_noise": 0.8}, "length": make.scale.long_length, "rates": (0.1, 0.3)}
    long = [make.row(name, **options) for name in ("momentum", "discover")]
    return [
        make.panel("noise-0.4", "Classes as clusters, label noise 0.4", noisy),
        make.panel("noise-0.8-long", "Label noise 0.8, a long run", long, seeds=(0,), tuning_seeds=(0,),
                   checkpoints=True),
    ]  # fmt: skip


def _results_c(make: Maker) -> list[Panel]:
    rows = []
    for clusters in ("classes", "augmentations", "random", "kmeans"):
        for optimizer in ("momentum", "discover"):
            changes = {"clusters.number": 10} if "num_clusters" in CLUSTERINGS[clusters].arguments else {}
            options: dict[str, Any] = {"changes": changes, "facets": {"clusters": clusters}, "lowest_rate": False}
            rows.append(make.row(optimizer, clusters, clusters=clusters, **options))
    rows.append(make.shuffled("momentum", lowest_rate=False))
    # What Discover is without clusters: tells what it gains by its clusters from what it gains by β and ν.
    same = get_preset("digits").hyperparameters("discover")
    rows.append(make.shuffled("qhm", hyperparameters=same, lowest_rate=False))
    return [make.panel("structures", "Test accuracy by what the clusters are", rows, figure="structures")]


def _by_groups(make: Maker, optimizers: Sequence[str], numbers: Sequence[int], **options: Any) -> list[Row]:
    """Each optimizer on class-pure batches of so many groups, the examples of a batch always the same number."""
    return [
        make.row(optimizer, so_many(groups), groups=groups, facets={"groups": groups}, **options)
        for optimizer in optimizers
        for groups in numbers
    ]


def _results_d(make: Maker) -> list[Panel]:
    rows = _by_groups(make, ("momentum", "adam", "discover"), (1, 2, 4, 8))
    rows += [make.shuffled(name) for name in ("momentum", "adam")]
    width = {"model.width": 2 * make.scale.changes["model.width"]}
    even = {**width, "batches.composition": "balanced"}
    wider = [
        make.row(
            "discover",
            f"beta={beta:g} nu={nu:g}",
            groups=2,
            hyperparameters={"beta": beta, "nu": nu},
            rates=(0.03, 0.05, 0.1),
            changes=width,
        )
        for beta, nu in ((0.95, 0.95), (0.97, 0.93), (0.95, 0.9))
    ]
    momentum_rates = (0.01, 0.03, 0.1)
    wider += [
        make.row("momentum", "random", groups=2, rates=momentum_rates, changes=width),
        make.row("discover", "balanced", groups=2, rates=(0.05, 0.1, 0.2), changes=even),
        make.row("momentum", "balanced", groups=2, rates=momentum_rates, changes=even),
    ]
    return [
        make.panel("purity", "Test accuracy by the number of class-pure groups", rows, figure="groups"),
        make.panel("wider", "Two groups in a batch, classes at random and in turn, network of twice the width", wider),
    ]


def _results_e(make: Maker) -> list[Panel]:
    rows = [
        make.row(
            "discover",
            f"beta={beta:g} nu={nu:g}",
            hyperparameters={"beta": beta, "nu": nu},
            rates=(0.1, 0.3, 1.0),
            facets={"beta": beta, "nu": nu},
        )
        for beta in make.scale.betas
        for nu in make.scale.nus
    ]
    pairs = [
        make.row(
            "discover", f"beta={beta:g}", groups=2, hyperparameters={"beta": beta, "nu": 0.95}, rates=(0.03, 0.1, 0.3)
        )
        for beta in sorted({*make.scale.betas, 0.98})  # which is what the advisor says for ten clusters and two groups
    ]
    halves = make.row("discover", "bfloat16 buffers", changes={"optimizer.buffer_dtype": "bfloat16"})
    return [
        make.panel("nu-beta", "Discover: test accuracy by β and ν", rows, seeds=(0, 1), figure="grid"),
        make.panel("beta-2-groups", "Discover with two groups in a batch: test accuracy by β, ν = 0.95", pairs),
        make.panel("buffers", "Discover: float32 buffers and bfloat16 ones", [make.row("discover"), halves]),
        make.panel(
            "buffers-int8", "Buffers in float32 and in 8 bits, eight groups in a batch and one", _in_8_bits(make)
        ),
        make.panel("buffered", "One class a batch: buffers in some layers only", _in_some_layers(make)),
    ]


def _in_8_bits(make: Maker) -> list[Row]:
    """Each on the learning rates around the best ones of results d and h."""
    grids = {
        "discover": {8: (0.1, 0.3, 1.0), 1: (0.01, 0.03, 0.1)},
        "discover_muon": {8: (0.001, 0.002, 0.003), 1: (0.0003, 0.001, 0.002)},
    }
    int8 = {"optimizer.buffer_dtype": "int8"}
    return [
        make.row(name, f"{so_many(groups)} {kind}".strip(), groups=groups, rates=rates, changes=changes)
        for name, grid in grids.items()
        for groups, rates in grid.items()
        for kind, changes in (("", {}), ("int8", int8))
    ]


def _in_some_layers(make: Maker) -> list[Row]:
    """Each with buffers in all layers, in some and in none, which is its baseline with the same β and ν."""
    same = {"beta": 0.95, "nu": 0.95}
    chosen = {"": None, **make.scale.buffered}
    grids = (("discover_muon", "muon", (0.0003, *MUON_RATES[1])), ("discover", "qhm", (0.01, 0.03, 0.1)))
    return [
        make.row(name, where, groups=1, hyperparameters=same, rates=rates, changes=changes)
        for clustered, baseline, rates in grids
        for name, where, changes in (
            *((clustered, where, {"optimizer.buffered": layers}) for where, layers in chosen.items()),
            (baseline, "", {}),
        )
    ]


def _results_f(make: Maker) -> list[Panel]:
    paper = get_preset("cifar10-classes")
    rows = []
    for name in PAPERS:
        printed = f"paper_{name}"
        rows += [
            make.row(printed, hyperparameters=paper.hyperparameters(printed), lowest_rate=False),
            make.row(name, "mapped", hyperparameters=paper.hyperparameters(name), lowest_rate=False),
            make.row(name, lowest_rate=False),
        ]
    alpha = 0.05
    one = [
        make.row("paper_discover", "one group", groups=1, hyperparameters={"alpha": alpha}),
        make.row("discover", "one group", groups=1, hyperparameters={"beta": 1 - alpha, "nu": 0.0}),
    ]
    return [
        make.panel("eight-groups", "The paper's values as printed and mapped to ours, and our defaults", rows),
        make.panel("one-group", "One group in a batch: printed and ours (ν = 0) are one algorithm", one),
    ]


def _results_g(make: Maker) -> list[Panel]:
    behind = _by_groups(make, ("discover_adam",), (2, 8))
    # `discover_adam` leaves Adam's own momentum out, which helps on pure batches by itself: hence the second panel.
    without = {**get_preset("digits").hyperparameters("adam"), "beta1": 0.0}
    usual = [*_by_groups(make, ("adam",), (2, 8)), *behind, make.shuffled("adam")]
    fair = [
        *_by_groups(make, ("adam",), (2, 8), hyperparameters=without),
        *behind,
        make.shuffled("adam", hyperparameters=without),
    ]
    title = "Discover before Adam: accuracy by class-pure groups"
    return [
        make.panel("before-adam", title, usual, figure="groups"),
        make.panel("before-adam-same-beta1", f"{title}, β1 = 0 in both", fair, figure="groups"),
    ]


def _results_i(make: Maker) -> list[Panel]:
    return in_checkout("results-i", "alternatives.tournament").tournament(make)


_OURS = (_results_a, _results_b, _results_c, _results_d, _results_e, _results_f, _results_g)
_BUILDERS: Mapping[str, Callable[[Maker], list[Panel]]] = dict(
    zip(RESULTS, (*_OURS, before_muon, _results_i, real_clusters, long_runs), strict=True)
)
