"""Result k: towards the paper's length, with a larger network; its noisy labels, and its augmentations as clusters.

Learning rates are chosen on short runs of the same network, since long ones are too dear to be tuned.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from discover.lab.experiments.presets.preset import Hyperparameters
from discover.lab.experiments.presets.presets import get_preset
from discover.lab.experiments.reproduce.panels import Maker, Panel, Rates, Row

DAMPED = {"beta": 0.95, "nu": 0.95, "damping": 0.1}
EIGHT = ("discover", "momentum", "adam", "discover_qhm", "qhm", "discover_igt", "igt", "sgd")
"""The paper's optimizers, each with clusters beside its own baseline."""
FEW = ("discover", "momentum", "adam")
CLEAN: Rates = {
    **dict.fromkeys(("momentum", "sgd", "igt", "discover", "discover_qhm", "discover_igt"), (0.1, 0.3, 1.0)),
    "qhm": (0.3, 1.0, 3.0),
    "adam": (0.0001, 0.0003, 0.001),
    **dict.fromkeys(("muon", "discover_muon"), (0.001, 0.002, 0.003)),
}
NOISY: Rates = {
    **CLEAN,
    **dict.fromkeys(("momentum", "sgd", "igt", "discover", "discover_qhm", "discover_igt"), (0.03, 0.1, 0.3)),
    "qhm": (0.1, 0.3, 1.0),
    **dict.fromkeys(("muon", "discover_muon"), (0.0003, 0.001, 0.002)),
}
"""Around the best rates of results a, b and h."""
MIXED: Rates = {
    **dict.fromkeys(("momentum", "discover", "qhm"), (0.3, 1.0, 3.0)),
    "adam": (0.0003, 0.001, 0.003),
    **dict.fromkeys(("muon", "discover_muon"), (0.001, 0.003, 0.01)),
}
"""Where clusters are augmentations, which differ little (result c)."""


def long_runs(make: Maker) -> list[Panel]:
    """The panels of result k, the most valuable first."""
    training = get_preset(make.scale.presets["classes"]).config.with_values(make.scale.changes).training
    kind, other = ("epochs", "steps") if training.epochs is not None else ("steps", "epochs")
    short = {f"training.{other}": None, f"training.{kind}": getattr(training, kind) // 2}
    options: dict[str, Any] = {"seeds": make.scale.seeds[:2], "tuning": short}
    options["extensions"] = min(1, make.scale.extensions)

    def labels(noise: float, names: Sequence[str], rates: Rates, **more: Any) -> list[Row]:
        return _rows(make, names, rates, changes={"data.label_noise": noise}, **more)

    # What Discover is without clusters: tells what it gains by its clusters from what it gains by β and ν.
    same = {"qhm": get_preset("digits").hyperparameters("discover")}
    augmented: dict[str, Any] = {"clusters": "augmentations", "rates": MIXED, "instead": same}
    mixed = labels(0.8, (*FEW, "qhm"), **augmented)
    tiny = _rows(make, (*FEW, "qhm"), data="tiny-imagenet", **augmented)
    return [
        make.panel("noise-0.8", "Label noise 0.8, a long run", labels(0.8, EIGHT, NOISY), **options),
        make.panel("clean", "Clean labels, a long run", labels(0.0, EIGHT, CLEAN), **options),
        make.panel("noise-0.2", "Label noise 0.2, a long run", labels(0.2, EIGHT, CLEAN), **options),
        make.panel("augmentations-0.8", "Augmentations as clusters, label noise 0.8, a long run", mixed, **options),
        make.panel("tiny-augmentations", "Tiny ImageNet, augmentations as clusters", tiny, **options),
        make.panel("variance", "The variance between clusters along a run", _tracked(make), extensions=0),
    ]


def _tracked(make: Maker) -> list[Row]:
    """Those of the paper's figure, at one learning rate, which result a found best for each of them."""
    measured = {"training.track_variance": 88}
    return [make.row(name, rates=(0.3,), changes=measured) for name in ("sgd", "momentum", "discover")]


def _rows(
    make: Maker,
    names: Sequence[str],
    rates: Rates,
    *,
    changes: Mapping[str, Any] | None = None,
    instead: Mapping[str, Hyperparameters] | None = None,
    **setting: Any,
) -> list[Row]:
    """These optimizers, then Muon alone and behind damped Discover, in a network of twice the width."""
    wide = {"model.width": 2 * make.scale.changes["model.width"], **(changes or {})}
    others = [(name, "", (instead or {}).get(name)) for name in names]
    who = (*others[:2], ("discover_muon", "damped", DAMPED), ("muon", "", None), *others[2:])
    return make.rows(who, rates, changes=wide, length=make.scale.paper_length, **setting)
