"""What `diagnose` and `find_clusters` share: a network, a sample, gradients of it, a warm-up.

Examples are read from the host a piece at a time: of a data set whose images are read when they are asked for
(`build_data(config, lazy=True)`), neither the host's memory nor the device's ever holds more than one piece.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from numpy.typing import NDArray

import discover
from discover.lab.data import Augmentation, BatchPlan, Clustering, Dataset, LabelNoise
from discover.lab.data.limits import free_memory
from discover.lab.diagnostics.gradients import GradientRows, last_layer, project_rows
from discover.lab.diagnostics.layers import Layer, layer_variances
from discover.lab.diagnostics.variance import Estimate, estimate, gram_matrix
from discover.lab.experiments.config.config import Config, ConfigError
from discover.lab.experiments.run.build import build_network_for
from discover.lab.experiments.run.prepare_examples import build_prepare
from discover.lab.models import Network
from discover.lab.training.programs import init_key, step_key
from discover.lab.training.step import StepBatch, TrainState, make_step

__all__ = ["PIECE", "DiagnosisOptions", "GradientSample", "judgeable", "shares"]

PIECE = 512
"""The most examples that are read at once."""
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


class GradientSample:
    """The examples, the network and the sample that everything is measured on."""

    def __init__(self, config: Config, dataset: Dataset, options: DiagnosisOptions):
        self.dataset = dataset
        self.config = config.with_values({"optimizer.name": "momentum", "clusters.by": "classes"})
        self.options, self.size = options, len(dataset.train)
        self.network: Network = build_network_for(self.config, dataset)
        _check_memory(self.network.num_parameters, dataset)
        self.start = self.network.init(init_key(options.seed))
        self.rng = np.random.default_rng(options.seed)
        self.noise, self.labels = None, dataset.train.labels
        if config.data.label_noise > 0:
            self.noise = LabelNoise(config.data.label_noise, self.dataset.num_classes, options.seed)
            self.labels = self.noise.observe(self.labels, np.arange(self.size), np.zeros(self.size, np.int64))
        self.classes = "classes" if self.noise is None else "observed classes"
        same = config.clusters.by == self.config.clusters.by
        self.given_for = self.classes if same else None  # whose ids `batches.given` are
        self.chosen = np.sort(self.rng.permutation(self.size)[: min(options.sample, self.size)])
        self._prepare, self.scale = build_prepare(self.config, dataset)
        network, number = self.network, self.dataset.num_classes

        def loss(params: Any, batch: tuple[jax.Array, jax.Array]) -> jax.Array:
            x, targets = batch
            if dataset.next_byte:
                targets = jax.nn.one_hot(x, number)
            elif targets.ndim == 1:
                targets = jax.nn.one_hot(targets, number)
            return jnp.mean(optax.softmax_cross_entropy(network.apply(params, x), targets))

        self.loss = loss
        self._rows = GradientRows(loss, self.start, features=LARGEST_ROW, seed=options.seed)

    def pieces(self, indices: NDArray[np.integer], size: int = PIECE) -> Iterator[tuple[jax.Array, NDArray[np.int32]]]:
        """Scaled examples and their labels, `size` at a time."""
        for first in range(0, len(indices), size):
            some = indices[first : first + size]
            yield self.scale(jnp.asarray(self.dataset.train.images[some])), self.labels[some]

    def pixels(self, indices: NDArray[np.integer]) -> Iterator[NDArray[np.float32]]:
        """Scaled pixels as rows, a piece at a time; those of large images projected."""
        for x, _ in self.pieces(indices):
            yield project_rows(np.asarray(x).reshape(len(x), -1), LARGEST_ROW, self.options.seed)

    def embedding(self, by: str, params: Any) -> Callable[[NDArray[np.integer]], Iterator[NDArray[np.float32]]]:
        """Rows to cluster by: gradients of the `last-layer`, or of everything, `projected`."""
        if by == "last-layer":
            rows = GradientRows(self.loss, params, features=1024, select=last_layer)
        else:
            rows = GradientRows(self.loss, params, features=256, seed=self.options.seed + 1)
        return lambda indices: rows.stream(self.pieces(indices))

    def gradients(self, params: Any, indices: NDArray[np.integer]) -> NDArray[np.float32]:
        """Gradients as rows, projected where they are long."""
        return np.concatenate(list(self._rows.at(params).stream(self.pieces(indices))))

    def gram(self, params: Any) -> NDArray[np.float64]:
        """The Gram matrix of the sample's gradients."""
        return gram_matrix(self.gradients(params, self.chosen))

    def layers(self, params: Any, ids: NDArray, probs: NDArray[np.float64]) -> list[Layer]:
        """The variances of each layer's gradient, for a partition of the sample."""

        def pieces() -> Iterator[tuple[Any, NDArray[np.integer]]]:
            size = self._rows.chunk
            for first in range(0, len(self.chosen), size):
                own = np.arange(first, first + size)
                (batch,) = self.pieces(self.chosen[own % len(self.chosen)], size)
                yield batch, np.where(own < len(self.chosen), ids[own % len(self.chosen)], -1)

        sizes = self.whole_sizes(ids, len(probs))
        probs = probs if sizes is None else sizes / sizes.sum()
        return layer_variances(self.loss, params, pieces(), probs, cluster_sizes=sizes, seed=self.options.seed)

    @property
    def can_be_augmented(self) -> bool:
        """Whether the examples are pictures that are large enough to be cropped and mixed."""
        shape = self.dataset.example_shape
        return len(shape) == 3 and min(shape[:2]) >= 16

    def warm_up(self) -> Any:
        """Parameters after a short training with Momentum on shuffled batches, which favours no clustering."""
        config, options = self.config, self.options
        batch_size = config.batches.groups * config.batches.group_size
        plan = BatchPlan(
            self.dataset.train.labels,
            Clustering.single(self.size),
            groups=1,
            group_size=batch_size,
            composition="shuffled",
            seed=options.seed,
            noise=self.noise,
        )
        tx = discover.momentum(options.warmup_learning_rate, 0.9)
        step = make_step(self.network.apply, self._prepare, merge_groups=True)
        key = step_key(options.seed)

        @jax.jit
        def train(state: TrainState, batches: StepBatch, images: jax.Array, first: Any, count: Any) -> TrainState:
            def body(i: jax.Array, state: TrainState) -> TrainState:
                batch = jax.tree.map(lambda a: a[i], batches)
                return step(tx, state, key, first + i, batch, images)[0]

            return jax.lax.fori_loop(0, count, body, state)

        state = TrainState(self.start, tx.init(self.start))
        at_once = max(1, PIECE // batch_size)
        for first in range(0, options.warmup_steps, at_once):
            # Always as many batches, of which the last time not all are used: one shape, one compilation.
            drawn = plan.batches(first, at_once)
            images = jnp.asarray(self.dataset.train.images[drawn.indices.ravel()])
            own = np.arange(drawn.indices.size, dtype=np.int32).reshape(drawn.indices.shape)
            parts: Any = (own, drawn.labels, drawn.cluster_ids, drawn.group_sizes)
            count = min(at_once, options.warmup_steps - first)
            state = train(state, StepBatch(*map(jnp.asarray, parts)), images, jnp.int32(first), jnp.int32(count))
        return state.params

    def augmented(self, params: Any) -> Estimate:
        """The estimate for augmentations as clusters, each from its own third of the sample.

        The estimator takes the clusters' samples as independent: the same images under all three would make their
        means move together, and the variance between them look too small.
        """
        data, options = self.config.data, self.options
        augmentation = Augmentation(
            padding=data.padding, mix="cluster", scale=data.scale, num_classes=self.dataset.num_classes
        )
        # Mixing happens within a group, as in training; the gradients are each mixed example's own.
        size = min(32, len(self.chosen) // 3)
        number = min(len(self.chosen), 1440) // (3 * size) * 3
        # The sample is sorted, and a data set may be sorted by class: in another order the thirds are alike.
        mixed = np.random.default_rng(options.seed).permutation(self.chosen)
        indices = mixed[: number * size].reshape(number, size)
        ids = np.arange(number) % 3
        keys = jax.random.split(jax.random.key(options.seed), number)
        augment = jax.jit(jax.vmap(augmentation))

        def batches() -> Iterator[tuple[jax.Array, jax.Array]]:
            for first in range(0, number, 3):
                some = slice(first, first + 3)
                images = self.dataset.train.images[indices[some]]
                labels = jnp.asarray(self.labels[indices[some]])
                x, targets = augment(keys[some], jnp.asarray(images), labels, jnp.asarray(ids[some]))
                yield x.reshape(-1, *x.shape[2:]), targets.reshape(-1, targets.shape[-1])

        gram = gram_matrix(np.concatenate(list(self._rows.at(params).stream(batches()))))
        return estimate(gram, np.repeat(ids, size), np.full(3, 1 / 3), seed=options.seed)

    def estimate(self, gram: NDArray[np.float64], ids: NDArray, probs: NDArray[np.float64]) -> Estimate:
        """The estimate for a partition, from the sample's Gram matrix and cluster ids."""
        sizes = self.whole_sizes(ids, len(probs))
        if sizes is not None:
            probs = sizes / sizes.sum()
        return estimate(gram, ids, probs, cluster_sizes=sizes, seed=self.options.seed)

    def whole_sizes(self, ids: NDArray, num_clusters: int) -> NDArray[np.intp] | None:
        """The clusters' sizes where the sample is the population, which leaves nothing to chance; None elsewhere."""
        return np.bincount(ids, minlength=num_clusters) if len(self.chosen) == self.size else None


def _check_memory(parameters: int, dataset: Dataset) -> None:
    """Raises before a network is made that the machine cannot hold."""
    # Parameters, momentum and gradient; a piece of the examples, as they are, with their outputs and targets.
    need = 4 * (3 * parameters + PIECE * (math.prod(dataset.example_shape) + 2 * dataset.num_classes))
    if need > (free := free_memory()):
        holds = f"{parameters:,} parameters, {dataset.num_classes:,} classes"
        told = f"{need / 1e9:.2g} GB, of {free / 1e9:.2g} GB that are free"
        raise ConfigError(f"the network ({holds}) takes {told}: less with fewer classes or a smaller model")


def shares(ids: NDArray, chosen: NDArray[np.intp]) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
    """The sample's cluster ids, from 0 without gaps, and the probabilities of all clusters."""
    distinct, dense = np.unique(ids, return_inverse=True)
    return dense[chosen], np.bincount(dense, minlength=len(distinct)) / len(ids)


def judgeable(ids: NDArray, probs: NDArray[np.float64]) -> tuple[NDArray, NDArray[np.float64]]:
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
