"""`discover diagnose`: which clusterings of a data set could help, for the batches as they will be drawn.

Gradients of a sample are taken once at the start and once after a short warm-up; every clustering is then judged from
the same two Gram matrices (`discover.diagnostics.variance`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from numpy.typing import NDArray

from discover import optim
from discover.data import Augmentation, BatchPlan, Clustering, Dataset, LabelNoise
from discover.diagnostics.advisor import Advice, Candidate, advise
from discover.diagnostics.batches import BatchNoise, composed_batch_noise, measured_batch_noise
from discover.diagnostics.embeddings import StreamingKMeans
from discover.diagnostics.gradients import GradientRows, last_layer
from discover.diagnostics.variance import Estimate, estimate, gram_matrix
from discover.experiments.build import build_data, build_network_for
from discover.experiments.config import Config
from discover.experiments.prepare import build_prepare
from discover.models import Network
from discover.training.program import init_key, step_key
from discover.training.step import StepBatch, TrainState, make_step

__all__ = ["Diagnosis", "DiagnosisOptions", "diagnose"]

STAGES = ("start", "warm-up")
LARGEST_ROW = 20_000
"""Gradients of more parameters than this are projected to so many numbers (about 1% error in a variance)."""


@dataclass(frozen=True)
class DiagnosisOptions:
    """How much is measured.

    Attributes:
      sample: examples whose gradients are taken.
      warmup_steps: of Momentum on shuffled batches, before the second look.
      warmup_learning_rate: of that warm-up.
      numbers: the k of k-means; None means half, one and two times the number of classes.
      column: a column of the data set to judge as well.
      stream: examples that k-means on gradients is fitted to.
      seed: of everything that is drawn.
    """

    sample: int = 1000
    warmup_steps: int = 100
    warmup_learning_rate: float = 0.1
    numbers: tuple[int, ...] | None = None
    column: str | None = None
    stream: int = 10_000
    seed: int = 0


@dataclass(frozen=True)
class Diagnosis:
    """What was found: `rows`, the best clustering first, and what it was found on."""

    rows: list[Advice]
    facts: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        """As plain numbers, strings, lists and dictionaries."""
        return {"kind": "diagnosis", **self.facts, "clusterings": [row.to_json() for row in self.rows]}


def diagnose(
    config: Config,
    options: DiagnosisOptions | None = None,
    *,
    dataset: Dataset | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> Diagnosis:
    """Ranks the clusterings of a data set by the share of the gradient's noise that lies between their clusters.

    Judged are: classes (as observed, where there is label noise), superclasses and the given column where the data
    set has them, augmentations for images, random clusters, and k-means with several k on pixels, on gradients of the
    last layer and on the projected full gradient.

    Args:
      config: the data, the model, and the batches as they will be drawn (`batches.groups`, `batches.group_size`).
      options: how much is measured.
      dataset: the data set, if it is loaded already.
      say: takes one line of progress.

    Returns:
      A `Diagnosis`.
    """
    options = options or DiagnosisOptions()
    config = config.check()
    dataset = build_data(config) if dataset is None else dataset
    work = _Measurement(config, dataset, options)
    say(f"gradients of {len(work.chosen)} examples at the start")
    grams = {"start": work.gram(work.start)}
    say(f"{options.warmup_steps} steps of warm-up")
    warm = work.warm_up()
    say(f"gradients of {len(work.chosen)} examples after the warm-up")
    grams["warm-up"] = work.gram(warm)
    candidates = []
    for name, ids, probs in work.partitions(warm, say):
        ids, probs = _judgeable(ids, probs)
        estimates = {stage: _estimate(gram, ids, probs, work) for stage, gram in grams.items()}
        drawn = work.composition(name, ids, len(probs))
        noises = (
            None if drawn is None else {stage: _composed(gram, ids, drawn, config) for stage, gram in grams.items()}
        )
        candidates.append(Candidate(name, len(probs), estimates, tuple(probs), noises))
    if len(dataset.example_shape) == 3 and min(dataset.example_shape[:2]) >= 16:
        say("augmentations as clusters")
        estimates = {stage: work.augmented(params) for stage, params in (("start", work.start), ("warm-up", warm))}
        candidates.append(Candidate("augmentations", 3, estimates))
    batches = config.batches
    rows = advise(
        candidates,
        num_groups=batches.groups,
        group_size=batches.group_size,
        num_parameters=work.network.num_parameters,
    )
    facts = {
        "data": dataset.name,
        "model": config.model.name,
        "parameters": work.network.num_parameters,
        "label_noise": config.data.label_noise,
        "groups": batches.groups,
        "group_size": batches.group_size,
        "composition": batches.composition,
        "sample": len(work.chosen),
        "stages": list(STAGES),
        "measured": work.as_drawn(grams["warm-up"]),
        "summary": _summary(rows, batches.groups) + _about_composition(batches.composition, candidates),
    }
    return Diagnosis(rows, facts)


class _Measurement:
    """The data, the network and the sample that everything is measured on."""

    def __init__(self, config: Config, dataset: Dataset, options: DiagnosisOptions):
        plain = config.with_values({"optimizer.name": "momentum", "clusters.by": "classes"})
        self.config, self.dataset, self.options = plain, dataset, options
        classes = "classes" if config.data.label_noise == 0 else "observed classes"
        self.given_for = classes if config.clusters.by == "classes" else None  # whose ids `batches.given` are
        self.network: Network = build_network_for(plain, dataset)
        self.start = self.network.init(init_key(options.seed))
        self.rng = np.random.default_rng(options.seed)
        train = dataset.train
        self.noise = None
        self.labels = train.labels
        if config.data.label_noise > 0:
            self.noise = LabelNoise(config.data.label_noise, dataset.num_classes, options.seed)
            everything = np.arange(len(train))
            self.labels = self.noise.observe(train.labels, everything, np.zeros(len(train), np.int64))
        size = min(options.sample, len(train))
        self.chosen = np.sort(self.rng.permutation(len(train))[:size])
        _, self.scale = build_prepare(plain, dataset)
        network, classes = self.network, dataset.num_classes

        def loss(params: Any, batch: tuple[jax.Array, jax.Array]) -> jax.Array:
            x, targets = batch
            if targets.ndim == 1:
                targets = jax.nn.one_hot(targets, classes)
            return jnp.mean(optax.softmax_cross_entropy(network.apply(params, x), targets))

        self.loss = loss

    def batch(self, indices: NDArray[np.intp]) -> tuple[jax.Array, NDArray[np.int32]]:
        return self.scale(jnp.asarray(self.dataset.train.images[indices])), self.labels[indices]

    def gram(self, params: Any) -> NDArray[np.float64]:
        rows = GradientRows(self.loss, params, features=LARGEST_ROW, seed=self.options.seed)
        return gram_matrix(np.concatenate(list(rows.stream(self._pieces(self.chosen)))))

    def _pieces(self, indices: NDArray[np.intp], size: int = 512) -> Iterator[Any]:
        for first in range(0, len(indices), size):
            yield self.batch(indices[first : first + size])

    def warm_up(self) -> Any:
        """A short training with Momentum on shuffled batches, which favours no clustering."""
        config, options = self.config, self.options
        if not options.warmup_steps:
            return self.start
        plan = BatchPlan(
            self.dataset.train.labels,
            Clustering.single(len(self.dataset.train)),
            groups=1,
            group_size=config.batches.groups * config.batches.group_size,
            composition="shuffled",
            seed=options.seed,
            noise=self.noise,
        )
        prepare, _ = build_prepare(config, self.dataset)
        tx = optim.momentum(options.warmup_learning_rate, 0.9)
        step = make_step(self.network.apply, lambda hyper: tx, prepare, merge_groups=True)
        images, key = jnp.asarray(self.dataset.train.images), step_key(options.seed)

        @jax.jit
        def train(params: Any, batches: StepBatch) -> Any:
            def body(state: TrainState, inputs: tuple[jax.Array, StepBatch]) -> tuple[TrainState, None]:
                number, batch = inputs
                return step(state, {}, key, number, batch, images)[0], None

            numbers = jnp.arange(options.warmup_steps)
            state, _ = jax.lax.scan(body, TrainState(params, tx.init(params)), (numbers, batches))
            return state.params

        drawn: Any = [jnp.asarray(part) for part in plan.batches(0, options.warmup_steps)]
        return train(self.start, StepBatch(*drawn))

    def partitions(self, params: Any, say: Callable[[str], None]) -> Iterator[tuple[str, NDArray, NDArray[np.float64]]]:
        """Name, the sample's cluster ids and the clusters' probabilities, of every clustering that is a partition."""
        train, options, chosen = self.dataset.train, self.options, self.chosen
        name = "classes" if self.noise is None else "observed classes"
        yield name, *_shares(self.labels, chosen)
        if self.noise is not None:
            yield "true classes", *_shares(train.labels, chosen)
        for column in dict.fromkeys(("superclass", options.column)):
            if column is not None and (column in train.columns or column == options.column):
                ids = Clustering.from_column(train.columns[column]).assignments if column in train.columns else None
                if ids is None:
                    known = ", ".join(sorted(train.columns)) or "none"
                    raise ValueError(f"there is no column {column!r}: the columns are {known}")
                yield f"column {column}" if column != "superclass" else "superclasses", *_shares(ids, chosen)
        classes = self.dataset.num_classes
        ids = Clustering.random(len(train), min(classes, len(train)), options.seed).assignments
        assert ids is not None  # random clusters are a partition
        yield f"random, {classes}", *_shares(ids, chosen)
        fitted = np.sort(self.rng.permutation(len(train))[: min(options.stream, len(train))])
        numbers = options.numbers or tuple(dict.fromkeys((max(2, classes // 2), classes, 2 * classes)))
        embeddings: dict[str, Callable[[NDArray[np.intp]], Iterator[NDArray[np.float32]]]] = {
            "pixels": lambda where: (np.asarray(x).reshape(len(x), -1) for x, _ in self._pieces(where)),
        }
        rows = {
            "last-layer gradients": GradientRows(self.loss, params, features=1024, select=last_layer),
            "projected gradients": GradientRows(self.loss, params, features=256, seed=options.seed + 1),
        }
        for kind, made in rows.items():
            embeddings[kind] = lambda where, made=made: made.stream(self._pieces(where))
        for kind, embed in embeddings.items():
            say(f"k-means on {kind}")
            # The embeddings of the fitted examples are computed once and kept: they are small.
            fit_rows, sample_rows = list(embed(fitted)), np.concatenate(list(embed(chosen)))
            for number in numbers:
                if number > len(chosen) // 4:
                    continue
                model = StreamingKMeans(number, seed=options.seed)
                for piece in fit_rows:
                    model.partial_fit(piece)
                counts = np.bincount(np.concatenate([model.assign(piece) for piece in fit_rows]), minlength=number)
                yield f"k-means on {kind}, {number}", model.assign(sample_rows), counts / counts.sum()

    def augmented(self, params: Any) -> Estimate:
        """The estimate for augmentations as clusters, each from its own third of the sample.

        The estimator takes the clusters' samples as independent: the same images under all three would make their
        means move together, and the variance between them look too small.
        """
        data = self.config.data
        augmentation = Augmentation(
            padding=data.padding, mix="cluster", scale=data.scale, num_classes=self.dataset.num_classes
        )
        # Mixing happens within a group, as in training; the gradients are each mixed example's own.
        size = min(32, len(self.chosen) // 3)
        number = min(len(self.chosen), 1440) // (3 * size) * 3
        # The sample is sorted, and a data set may be sorted by class: in another order the thirds are alike.
        mixed = np.random.default_rng(self.options.seed).permutation(self.chosen)
        indices = mixed[: number * size].reshape(number, size)
        ids = np.arange(number) % 3
        keys = jax.random.split(jax.random.key(self.options.seed), len(ids))
        images, labels = self.dataset.train.images[indices], self.labels[indices]
        x, targets = jax.vmap(augmentation)(keys, jnp.asarray(images), jnp.asarray(labels), jnp.asarray(ids))
        rows = GradientRows(self.loss, params, features=LARGEST_ROW, seed=self.options.seed)
        flat = [a.reshape(-1, *a.shape[2:]) for a in (x, targets)]
        gram = gram_matrix(rows((flat[0], flat[1])))
        return estimate(gram, np.repeat(ids, size), np.full(3, 1 / 3), seed=self.options.seed)

    def composition(self, name: str, ids: NDArray, num_clusters: int) -> NDArray[np.int32] | None:
        """The clusters `[T, G]` of batches that do not draw them independently, for one clustering of the sample.

        None where the formula is right (random; shuffled has its own column), and for given clusters that are those
        of another clustering.
        """
        batches = self.config.batches
        if batches.composition not in ("balanced", "given"):
            return None
        given = np.asarray(batches.given, np.int64) if batches.composition == "given" else None
        if given is not None and (name != self.given_for or given.max(initial=0) >= num_clusters):
            return None
        plan = BatchPlan(
            np.zeros(len(ids), np.int32), Clustering.from_column(ids), groups=batches.groups, group_size=1,
            composition=batches.composition, seed=self.options.seed, given=given,
        )  # fmt: skip
        return plan.batches(0, 400).cluster_ids

    def as_drawn(self, gram: NDArray[np.float64]) -> dict[str, Any] | None:
        """The noise of batches of class-pure groups really drawn from the sample, beside the formula's."""
        batches, ids = self.config.batches, self.labels[self.chosen]
        if batches.composition == "given" or self.noise is not None:
            return None
        clustering = Clustering.from_column(ids)
        plan = BatchPlan(
            ids, clustering, groups=batches.groups, group_size=batches.group_size,
            composition=batches.composition, seed=self.options.seed,
        )  # fmt: skip
        drawn = plan.batches(0, 400).indices.reshape(400, -1)
        dense = np.unique(ids, return_inverse=True)[1]
        found = measured_batch_noise(gram, dense, drawn, clustering.probs)
        return {
            "clustering": "classes",
            "composition": batches.composition,
            "batches": 400,
            "in_cluster": found.in_cluster,
            "between_cluster": found.between_cluster,
            "total": found.total,
            "error": found.error,
        }


def _shares(ids: NDArray, chosen: NDArray[np.intp]) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
    distinct, dense = np.unique(ids, return_inverse=True)
    return dense[chosen], np.bincount(dense, minlength=len(distinct)) / len(ids)


def _judgeable(ids: NDArray, probs: NDArray[np.float64]) -> tuple[NDArray, NDArray[np.float64]]:
    """Clusters with fewer than 2 examples in the sample are put together: nothing can be said about each."""
    counts = np.bincount(ids, minlength=len(probs))
    few = counts < 2
    if not np.any(few):
        return ids, probs
    target = np.where(few, -1, np.cumsum(~few) - 1)
    rest = int(target.max()) + 1
    if counts[few].sum() < 2:  # not even together: their few examples join the last cluster that can be judged
        rest = int(target.max())
    target[few] = rest
    merged = np.zeros(rest + 1)
    np.add.at(merged, target, probs)
    return target[ids], merged


def _estimate(gram: NDArray[np.float64], ids: Any, probs: Any, work: _Measurement) -> Estimate:
    if len(work.chosen) < len(work.dataset.train):
        return estimate(gram, ids, probs, seed=work.options.seed)
    # The sample is the population: its own shares are the probabilities, and nothing is left to chance.
    sizes = np.bincount(ids, minlength=len(probs))
    return estimate(gram, ids, sizes / sizes.sum(), cluster_sizes=sizes, seed=work.options.seed)


def _composed(gram: NDArray[np.float64], ids: NDArray, drawn: NDArray, config: Config) -> BatchNoise:
    return composed_batch_noise(gram, ids, drawn, config.batches.group_size)


def _about_composition(composition: str, candidates: list[Candidate]) -> list[str]:
    """One line where batches do not draw their clusters independently: which rows are for them, and which are not."""
    if composition == "random":
        return []
    if composition == "shuffled":
        return ["Batches are shuffled: their column counts; on them Discover has one cluster and is Momentum (QHM)."]
    others = [candidate.name for candidate in candidates if candidate.noises is None]
    line = f"Batches are {composition}: shares and gains are for 400 batches composed so"
    return [f"{line}, except for independent draws in: {', '.join(others)}." if others else f"{line}."]


def _summary(rows: list[Advice], groups: int) -> list[str]:
    """A few sentences: the best clustering that is given, the best that was found, and the control."""
    given = [row for row in rows if not row.name.startswith(("k-means", "random"))]
    found = [row for row in rows if row.name.startswith("k-means")]
    control = [row for row in rows if row.name.startswith("random")]
    lines = [part[0].text for part in (given, found, control) if part]
    row = (given or rows)[0]
    use, visits = row.setting, groups / row.num_clusters
    capped = " (10% would need a longer memory than 0.98, the most that is advised)" if use.visit_rate > 0.1001 else ""
    lines.append(
        f"Why beta={use.beta:g} for {row.name}: a cluster is visited {visits:.2g} times a step on average; a visit "
        f"then moves its buffer by {use.visit_rate:.0%}{capped}, so that it averages over about "
        f"{1 / use.visit_rate:.0f} visits. Why nu={use.nu:g}: the fresh gradient then weighs 10% in a "
        f"step, as in Momentum with 0.9."
    )
    return lines
