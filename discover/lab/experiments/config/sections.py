"""The sections of a configuration: data, clusters, batches, model, optimizer, training. One dataclass each.

The model and the optimizer have keys of their own besides: the arguments of the function that makes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from discover.registry import OPTIMIZERS, Optimizer

if TYPE_CHECKING:
    from discover.lab.data.clusterings import ClusteringKind

Argument = float | int | bool | str
"""What an optimizer or a model can be told in a configuration."""


@dataclass(frozen=True)
class DataConfig:
    """Where the examples come from, and what is done to them.

    Attributes:
        source: `digits`, `cifar10`, `cifar100`, `folder`, `npz`, or `module:function` for your own.
        layout: the names of a folder's levels, as in `domain/class`; those that are not the label are columns.
        label: the level, array or column that is the label, where it has another name than usual.
        on_bad_image: `error` to stop at a picture that cannot be read, `skip` to leave it out.
        path: folder or file of the data set, for sources that are read from disk.
        shared: whether all processes see the same data. False: each has data of its own at `path`, and nobody else's;
            class folders and clusters are then those of all of them together, in the order of their names.
        size: side in pixels to which the images of a folder are decoded (None: the source's own).
        validation: share of the training examples held out to choose hyperparameters with, in [0, 1).
        split_seed: seed of that split; the same for all seeds of a run.
        label_noise: probability that a label is replaced, at each sight, by another class.
        padding: zeros around an image before a random crop of its own size (0: no crop).
        crop_size: side of an Inception-style crop (None: no such crop); evaluation crops the centre.
        flip: whether training images are mirrored with probability 1/2.
        mix: `mixup` or `cutmix` for all groups. (With ``clusters.by=augmentations`` the cluster says which.)
        mix_alpha: α of the mixing ratio's Beta(α, α).
        scale: `unit` scales pixels to [0, 1], `signed` to [-1, 1].
    """

    source: str = "digits"
    path: str | None = None
    layout: str | None = None
    label: str | None = None
    on_bad_image: Literal["error", "skip"] = "error"
    shared: bool = True
    size: int | None = None
    validation: float = 0.2
    split_seed: int = 0
    label_noise: float = 0.0
    padding: int = 0
    crop_size: int | None = None
    flip: bool = False
    mix: Literal["none", "mixup", "cutmix"] = "none"
    mix_alpha: float = 1.0
    scale: Literal["unit", "signed"] = "unit"


@dataclass(frozen=True)
class ClustersConfig:
    """What the clusters are.

    Attributes:
        by: `classes`, `superclasses`, `augmentations`, `random`, `kmeans`, `column` (the one of the data set that
            `column` names), `file`, `none` (one cluster), `workers` (the processes, where each has data of its own), or
            `module:function` for your own, ``function(dataset)`` with a cluster id for each training example.
        number: number of clusters, for `random` and `kmeans`.
        labels: with label noise, whether `classes` goes by the `observed` label or by the `true` one.
        column: the column for `column`, or the embedding for `kmeans` (None: pixels).
        path: the file for `file`.
        seed: seed of `random` and `kmeans`.
    """

    by: str = "classes"
    number: int = 10
    labels: Literal["observed", "true"] = "observed"
    column: str | None = None
    path: str | None = None
    seed: int = 0

    @property
    def entry(self) -> ClusteringKind:
        """What the table says about it."""
        from discover.lab.data import CLUSTERINGS

        return CLUSTERINGS.find(self.by)

    @property
    def values_of(self) -> str | None:
        """The column whose values are the clusters; None where they are something else."""
        return self.column if "column" in self.entry.needs else None


@dataclass(frozen=True)
class BatchConfig:
    """How batches are drawn.

    Attributes:
        groups: G, the number of groups in a batch, each of one cluster.
        group_size: b, the number of examples in a group.
        composition: `random` (cluster by its probability, as in the paper), `balanced` (each cluster as near to
            its share as can be), `shuffled` (ordinary batches without regard to clusters: the control), or
            `given` (group k has cluster given[k], always).
        given: a cluster id for each group, for `given`; or for each group of a batch, then of the next, of a cycle.
    """

    composition: Literal["random", "balanced", "shuffled", "given"] = "random"
    groups: int = 8
    group_size: int = 32
    given: tuple[int, ...] = ()

    @property
    def given_ids(self) -> NDArray[np.int64] | None:
        """`given` as a cycle of batches [T, G]; None where nothing is given."""
        return np.reshape(self.given, (-1, self.groups)) if self.given else None


@dataclass(frozen=True)
class ModelConfig:
    """The network.

    Attributes:
        name: one of :data:`discover.lab.models.MODELS`, or `module:function` for your own.
        dtype: of the computation; parameters are float32 always.
        convolution: `lax`, `grouped` (its weight gradient splits by group), `matmul` (quick inside loops on a CPU),
            or `auto`: `matmul` on a CPU; elsewhere `grouped` for optimizers with clusters, `lax` for the others.
        arguments: the model's own options, keys of this section like the others; unset ones are at its defaults. Ours
            have `depth` (hidden layers of mlp; 26 for wide_resnet, 50 for resnet), `width` (hidden units of mlp,
            channels of cnn's first layer, wide_resnet's widening factor: 10) and `dropout` (wide_resnet 0.3, others 0).
    """

    name: str = "mlp"
    dtype: Literal["float32", "bfloat16"] = "float32"
    convolution: Literal["auto", "lax", "grouped", "matmul"] = "auto"
    arguments: Mapping[str, Argument] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class OptimizerConfig:
    """The optimizer and its hyperparameters.

    Attributes:
        name: one of :data:`discover.registry.OPTIMIZERS`, or `module:function` for your own.
        learning_rate: the schedule's peak, μ.
        decay: what weight decay and l2 apply to: `all` parameters, or `kernels` (no biases, no norm scales).
        clip_norm: largest global norm of each gradient that the optimizer is fed (each group's with clusters, else
            the batch's), before l2 is added. 0 is off.
        exchange_dtype: in which gradients travel between devices; None: as they are. `bfloat16` halves those bytes.
        buffered: the layers that have a buffer for each cluster, as `discover diagnose` names them, separated by commas
            (`head,blocks/5`); the others share one momentum. None: all.
        adam_layers: the layers whose matrices Muon leaves to Adam's step, named in the same way. None: none.
        arguments: what else the optimizer takes, keys of this section like the others: `beta`, `nu`, `weight_decay`,
            `l2`, `buffer_dtype` and so on, see its own page. Unset ones are at its defaults.
    """

    name: str = "discover"
    learning_rate: float = 0.1
    decay: Literal["all", "kernels"] = "all"
    clip_norm: float = 0.0
    exchange_dtype: Literal["float32", "bfloat16"] | None = None
    buffered: str | None = None
    adam_layers: str | None = None
    arguments: Mapping[str, Argument] = field(default_factory=dict, hash=False)

    @property
    def entry(self) -> Optimizer:
        """What the table says about it."""
        return OPTIMIZERS.find(self.name)

    def get(self, key: str) -> Any:
        """The value of a key of this section; None where it is unset."""
        return self.arguments.get(key, getattr(self, key, None))

    def numbers(self) -> dict[str, float]:
        """The hyperparameters that are set, the learning rate first; clipping where it is on."""
        own = {name: self.arguments[name] for name in self.entry.hyperparameters if name in self.arguments}
        clip = {"clip_norm": self.clip_norm} if self.clip_norm else {}
        return {"learning_rate": self.learning_rate, **own, **clip}  # pyright: ignore[reportReturnType]


@dataclass(frozen=True)
class TrainingConfig:
    """How long, how often, how many.

    Attributes:
        steps: number of steps; or give `epochs` (of the training examples) and leave this None.
        epochs: length in passes over as many examples as there are.
        warmup_steps: steps of linear warm-up.
        schedule: after the warm-up, `cosine` to zero or `constant`.
        seeds: one run trains all of them. A seed decides the initial parameters, the batches, the label
            noise, the augmentation and dropout.
        together: how many seeds (members) train at once in one program; None: all for small models, else 1.
        member_mode: `vmap` computes the members side by side, `map` one after the other in one program; a
            member's numbers depend on the others in their rounding at the most. `auto`: `map` on a CPU, else `vmap`.
        group_mode: the same for the gradients of the groups.
        steps_per_dispatch: steps in one call of the compiled program.
        log_every: steps that one training line of the metrics averages over.
        eval_every: steps between evaluations (0: only at the end).
        eval_batch: examples in one evaluation batch.
        track_variance: steps between measurements of the between-cluster variance (0: none).
        checkpoint_every: steps between checkpoints (0: only at the end and when stopped).
        keep: how many of the newest checkpoints are kept, besides the best one.
        on_nonfinite: `stop` the run, or `drop` the member and let the others finish (for grids).
    """

    steps: int | None = 300
    epochs: float | None = None
    warmup_steps: int = 5
    schedule: Literal["cosine", "constant"] = "cosine"
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    together: int | None = None
    member_mode: Literal["auto", "vmap", "map"] = "auto"
    group_mode: Literal["vmap", "map"] = "vmap"
    steps_per_dispatch: int = 50
    log_every: int = 10
    eval_every: int = 50
    eval_batch: int = 1000
    track_variance: int = 0
    checkpoint_every: int = 0
    keep: int = 3
    on_nonfinite: Literal["stop", "drop"] = "stop"

    @property
    def length(self) -> str:
        """How long it is, in words."""
        return f"{self.steps} steps" if self.steps is not None else f"{self.epochs:g} epochs"
