"""`python -m discover reproduce advice`: is the expected gain of `discover diagnose` the gain that training shows?

Digits always, CIFAR-10 where its files are. A record is written after every setting, and a second call goes on from it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.diagnosis.figures import write_validation_figure
from benchmarks.diagnosis.validate import Validation, validate
from discover.lab.data import Dataset, Split, load
from discover.lab.experiments.config.config import Config, DataConfig
from discover.lab.experiments.folder import Folder
from discover.lab.experiments.presets.presets import get_preset
from discover.lab.experiments.reproduce.find_data import find_data
from discover.lab.experiments.run.build import build_data
from discover.lab.records import finite, read_json, write_text

DIGITS = Validation()
"""How the advice was checked on the embedded digits."""
SMALL_CIFAR = Validation(
    label_noise=(0.0,),
    steps=1600,
    eval_every=25,
    targets=(0.25,),
    learning_rates=(0.3, 0.1, 1.0, 0.03, 3.0),
    tuning_seeds=(0, 1),
    seeds=(2, 3, 4, 5),
)
"""Targets a little above twice chance: what Momentum can reach on class-pure batches in so many steps."""

_QUICK: dict[str, Any] = {
    "groups": (2,),
    "label_noise": (0.0,),
    "steps": 300,
    "learning_rates": (0.1, 0.3),
    "tuning_seeds": (0,),
    "seeds": (1, 2),
}


def run(out: Path, *, data: str | None = None, quick: bool = False, say: Callable[[str], None] = print) -> None:
    """Validates the advice on digits, and on small CIFAR-10 images where `data` says where CIFAR-10 is."""
    config = get_preset("digits").config
    jobs: dict[str, tuple[Config, Validation, Dataset]] = {"digits": (config, DIGITS, build_data(config))}
    if data is not None:
        model = {"model.name": "cnn", "model.depth": 3, "model.width": 8}
        images = small_images(load("cifar10", find_data(DataConfig("cifar10"), data)), 6000).split_validation(1 / 12)
        jobs["cifar10"] = (Config(name="cifar10").with_values(model), SMALL_CIFAR, images)
    with Folder(out).claim() as folder:
        for name, (own, tried, dataset) in jobs.items():
            if quick:
                tried = replace(tried, **_QUICK, targets=(tried.targets[0],))
            path = folder.path / f"validation-{name}.json"
            done = _earlier(path, tried, dataset)
            validate(
                own, tried, dataset=dataset, rows=done, say=lambda line, name=name: say(f"{name}: {line}"),
                save=lambda record, path=path: write_text(path, json.dumps(finite(record), indent=1) + "\n"),
            )  # fmt: skip


def draw(out: Path) -> list[Path]:
    """The figure of the records in `out`; none where there is none."""
    found = [read_json(path) for name in ("digits", "cifar10") if (path := out / f"validation-{name}.json").is_file()]
    records = {record["data"]: record for record in found if len(record["rows"]) > 1}
    return write_validation_figure(records, out) if records else []


def small_images(dataset: Dataset, number: int) -> Dataset:
    """Some of a data set's training images, averaged down to half their height and width; without test images."""
    train = dataset.train
    chosen = np.sort(np.random.default_rng(0).permutation(len(train))[:number])
    images = train.images[chosen]
    count, height, width, channels = images.shape
    halves = images.reshape(count, height // 2, 2, width // 2, 2, channels)
    small = np.rint(halves.mean(axis=(2, 4))).astype(np.uint8)
    part = Split(small, train.labels[chosen])
    return replace(dataset, train=part, test=part.subset(np.arange(0)), validation=None)


def _earlier(path: Path, tried: Validation, dataset: Dataset) -> list[dict[str, Any]]:
    """The rows of a record of the same settings and data."""
    if not path.is_file():
        return []
    record = json.loads(path.read_text())
    same = record.get("plan") == json.loads(json.dumps(asdict(tried))) and record.get("examples") == len(dataset.train)
    return record["rows"] if same else []
