"""A setting for one's own data: model, steps and groups that suit its size and shape, on this machine."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from discover.lab.data import SOURCES, Clustering, DataError, Dataset
from discover.lab.data.errors import listed
from discover.lab.data.sources.kinds import left_out, picture_sides
from discover.lab.data.sources.tabular import are_words
from discover.lab.experiments.config.config import Config, ConfigError
from discover.lab.experiments.presets.digits import OPTIMIZERS_ANYWHERE
from discover.lab.experiments.presets.preset import Preset

COMPARED = ("momentum", "adam", "muon", "discover", "discover_adam", "discover_muon")
"""Each with clusters beside its own baseline; the whole table would take twice as long."""
RATES = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3)
FEWER_RATES = (0.003, 0.01, 0.03, 0.1)
"""For pictures and text on a CPU, where the others would make minutes an hour."""
UNEVEN = 100
"""Times 1, or the smallest spread of a feature, from which on the largest is worth a word."""
MANY_CLASSES = 50
"""Up to so many are never too many."""
FEW_EXAMPLES = 5
"""Of each class, on the average: of many classes with fewer nothing is learned."""


def choose_setting(config: Config, overrides: Sequence[str]) -> tuple[Preset, Dataset, tuple[str, ...]]:
    """The setting for the data that a configuration names, the data, and what was chosen.

    That is said in one line, and what is odd about the data in one more each.
    """
    from discover.gpu import device
    from discover.lab.experiments.compare.comparison import describe_batches
    from discover.lab.experiments.run.build import build_clustering, build_data, load_data

    asked = config.override(overrides)
    slow = device.is_cpu()
    size = suitable_size(asked, slow)
    config = config.with_values(size)
    dataset = load_data(config.override(overrides))
    _check_classes(dataset)
    if _has_levels(config) and dataset.train.columns and not any(text.startswith("clusters.") for text in overrides):
        config = config.with_values({"clusters.by": "column", "clusters.column": next(iter(dataset.train.columns))})
    steps = asked.training.steps if any(text.startswith("training.steps=") for text in overrides) else None
    config = config.with_values(suitable(dataset, slow, steps))
    asked = config.override(overrides)
    batch = asked.batches.groups * asked.batches.group_size
    if batch > len(dataset.train):
        told = f"{describe_batches(asked)} is more than the {len(dataset.train):,} training examples of {dataset.name}"
        raise ConfigError(f"a batch of {told}: lower batches.group_size")
    if dataset.next_byte and asked.clusters.by == Config().clusters.by:  # classes
        wrong = f"{dataset.name} has text and no label, so no classes to make clusters of (--label names a label)"
        raise DataError(wrong, clusters="COLUMN")
    clustering = build_clustering(asked, build_data(asked, loaded=dataset))
    what, model = describe_examples(dataset), asked.model.name
    by = asked.clusters.values_of or asked.clusters.by
    seeds = len(asked.training.seeds)
    resized = " (cut square and resized: --image-size)" if size else ""
    summary = f"{what}{resized}; clusters: {by} ({clustering.num_clusters})"
    note = (
        f"{config.name}: {summary}. Chosen for it: {model}, {asked.training.length}, "
        f"batches of {describe_batches(asked)}, {seeds} seed{'s' if seeds > 1 else ''}; --set changes each"
    )
    preset = Preset(
        name=config.name,
        summary=summary,
        config=config,
        optimizers=OPTIMIZERS_ANYWHERE,
        compare=COMPARED,
        learning_rates=FEWER_RATES if slow and (dataset.train.text or len(dataset.example_shape) == 3) else RATES,
        target_accuracy=0.3 if dataset.next_byte else 0.5,
        source="your own data; model, steps and groups were chosen from its size and shape",
    )
    return preset, dataset, (note, *_oddities(asked, dataset, clustering))


def _has_levels(config: Config) -> bool:
    """Whether columns are levels of folders, which are made to be clusters."""
    return "layout" in SOURCES.find(config.data.source).arguments


def suitable_size(config: Config, slow: bool) -> dict[str, Any]:
    """The side to resize pictures to, where they are large or differ in size and the user does not say."""
    pictures = "image_size" in SOURCES.find(config.data.source).arguments
    if not pictures or config.data.size is not None or config.data.path is None:
        return {}
    sides, largest = picture_sides(config.data.path), 32 if slow else 64
    if not sides or (max(sides) <= largest and len(set(sides)) == 1):
        return {}
    return {"data.size": min(largest, *sides)}


def suitable(dataset: Dataset, slow: bool, steps: int | None = None) -> dict[str, Any]:
    """Values of a configuration for data of this size and shape; ``slow`` on a CPU, ``steps`` if the user says so."""
    count, pictures, text = len(dataset.train), len(dataset.example_shape) == 3, dataset.train.text
    group = 2 ** int(math.log2(min(16 if slow and text else 32, max(4, count // 20))))
    most = 200 if slow and text else 300 if slow and pictures else 1000
    steps = round(min(most, max(100, 10 * count // group)), -1) if steps is None else steps
    model: dict[str, Any] = {"model.name": "mlp"}
    if pictures:
        model = {"model.name": "cnn", "model.width": 8 if slow else 16}
    if text:
        model = {"model.name": "transformer", "model.width": 32 if slow else 128, "training.eval_batch": 250}
    return model | {
        "data.validation": min(0.2, (500 if slow else 1000) / count),
        "batches.groups": 1,
        "batches.group_size": group,
        "training.steps": steps,
        "training.seeds": (0, 1, 2),
        "training.log_every": max(1, steps // 40),
        "training.eval_every": max(1, steps // 5),
        "training.steps_per_dispatch": max(1, steps // 20),
        "training.on_nonfinite": "drop",
    }


def _check_classes(dataset: Dataset) -> None:
    """Raises where there are few examples of each class, as of measurements: each would be an output of the network."""
    count = len(dataset.train) + len(dataset.test) + len(dataset.validation or ())
    classes = dataset.num_classes
    if classes > MANY_CLASSES and count < FEW_EXAMPLES * classes and not dataset.next_byte:
        told = f"{dataset.name} has {classes:,} classes for {count:,} examples, too few to learn from"
        raise DataError(f"{told} (measurements are no classes)", label="COLUMN")


def _oddities(config: Config, dataset: Dataset, clustering: Clustering) -> list[str]:
    """What was left out, and what cannot be judged, a line each."""
    source, path, lines = SOURCES.find(config.data.source), config.data.path, []
    if path is not None and Path(path).suffix.lower() != ".txt" and source.files:
        lines += [f"left out: {said}"] if (said := left_out(path, source.name)) else []
    if dataset.next_byte and not _has_levels(config):
        lines.append("no column is called label, so the next byte of the text is learned; --label NAME learns a column")
    if source.words and not dataset.train.text:
        words = [name for name, values in dataset.train.columns.items() if are_words(values.tolist())]
        if unused := [name for name in words if name != config.clusters.values_of]:
            lines.append(f"columns of words are no features: {listed(unused)}")
    if source.as_given and len(dataset.example_shape) == 1 and dataset.train.images.dtype != np.uint8:
        lines += _uneven(np.asarray(dataset.train.images[:10_000], np.float64).std(axis=0))
    if clustering.num_clusters == 1 and not config.clusters.entry.one_cluster:
        lines.append("there is one cluster, and on one cluster Discover is Momentum: --clusters NAME makes others")
    if by_one := int(np.sum(clustering.sizes == 1)):
        lines.append(f"clusters of a single training example: {by_one:,} of {clustering.num_clusters:,}")
    parts = [part.labels for part in (dataset.train, dataset.test, dataset.validation) if part is not None]
    counts = np.bincount(np.concatenate(parts), minlength=dataset.num_classes)
    single = [] if dataset.next_byte else np.flatnonzero(counts == 1).tolist()
    if single:
        names = ", ".join(dataset.class_names[one] for one in single[:5])
        lines.append(f"classes of a single example, which nothing can be said about: {len(single)} ({names})")
    return lines


def _uneven(spreads: NDArray[np.float64]) -> list[str]:
    """What to say about the spreads of features that nobody has standardized, if that is worth a line."""
    some = spreads[spreads > 0]
    if not len(some) or (some.max() < UNEVEN * some.min() and some.max() < UNEVEN):
        return []
    told = f"features are taken as they are, with spreads of {some.min():.2g} to {some.max():.2g}"
    return [f"{told}: standardized ones (as a table's are) are learned better"]


def describe_examples(dataset: Dataset) -> str:
    """How many there are of what, in a few words."""
    shape, count = dataset.example_shape, len(dataset.train) + len(dataset.test) + len(dataset.validation or ())
    if dataset.next_byte:
        return (
            f"{count:,} pieces of {shape[0]} bytes of text, the next byte (loss in nats; bits are 1.44 times as many)"
        )
    if dataset.train.text:
        return f"{count:,} texts of at most {shape[0]} bytes, {dataset.num_classes} classes"
    kind = f"pictures of {shape[1]}×{shape[0]}" if len(shape) == 3 else f"rows of {shape[0]} numbers"
    kind = kind.removesuffix("s") if shape == (1,) else kind
    return f"{count:,} {kind}, {dataset.num_classes} classes"
