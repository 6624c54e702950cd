"""The sections of a configuration: data, clusters, batches, model, optimizer, training. One dataclass each."""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

OPTIMIZERS: Mapping[str, tuple[str, ...]] = types.MappingProxyType(
    {
        "sgd": (),
        "momentum": ("beta",),
        "qhm": ("beta", "nu"),
        "igt": ("beta", "tail_fraction"),
        "adam": ("beta1", "beta2", "eps"),
        "discover": ("beta", "nu"),
        "discover_qhm": ("beta", "nu"),
        "discover_igt": ("beta", "nu", "tail_fraction"),
        "discover_adam": ("beta", "nu", "beta1", "beta2", "eps"),
        "paper_discover": ("alpha", "alpha_n"),
        "paper_discover_qhm": ("alpha", "alpha_n", "nu"),
        "paper_discover_igt": ("alpha", "alpha_n", "tail_fraction"),
    }
)
"""Which hyperparameters each optimizer has besides `learning_rate`, `l2`, `weight_decay` and `clip_norm`."""

REQUIRED: Mapping[str, tuple[str, ...]] = types.MappingProxyType(
    {
        "discover_qhm": ("nu",),
        "paper_discover": ("alpha",),
        "paper_discover_qhm": ("alpha", "nu"),
        "paper_discover_igt": ("alpha",),
    }
)
"""Hyperparameters without a default of the optimizer's own."""

CLUSTERED = tuple(name for name in OPTIMIZERS if "discover" in name)
"""The optimizers that keep a buffer per cluster, and so need one gradient per group."""

HYPERPARAMETERS = (
    "learning_rate",
    "beta",
    "nu",
    "tail_fraction",
    "alpha",
    "alpha_n",
    "beta1",
    "beta2",
    "eps",
    "weight_decay",
    "l2",
    "clip_norm",
)
"""Hyperparameters that are arguments of the compiled program, so that members of one run may differ in them."""


@dataclass(frozen=True)
class DataConfig:
    """Where the examples come from, and what is done to them.

    Attributes:
        source: `digits`, `cifar10`, `cifar100`, `folder` or `npz`.
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
        by: the clustering; `column` takes the one of the data set that `column` names, `none` is one cluster, `workers`
            are the processes where each has data of its own.
        number: number of clusters, for `random` and `kmeans`.
        labels: with label noise, whether `classes` goes by the `observed` label or by the `true` one.
        column: the column for `column`, or the embedding for `kmeans` (None: pixels).
        path: the file for `file`.
        seed: seed of `random` and `kmeans`.
    """

    by: Literal["classes", "superclasses", "augmentations", "random", "kmeans", "column", "file", "none", "workers"] = (
        "classes"
    )
    number: int = 10
    labels: Literal["observed", "true"] = "observed"
    column: str | None = None
    path: str | None = None
    seed: int = 0


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


@dataclass(frozen=True)
class ModelConfig:
    """The network. None means the model's own default.

    Attributes:
        name: `logistic`, `mlp`, `cnn`, `wide_resnet` or `resnet`.
        depth: hidden layers (mlp), or depth (wide_resnet: 26; resnet: 50).
        width: hidden units (mlp), channels of the first layer (cnn), widening factor (wide_resnet: 10).
        dropout: rate (wide_resnet: 0.3 by default, the others 0).
        dtype: of the computation; parameters are float32 always.
        convolution: `lax`, `grouped` (its weight gradient splits by group), `matmul` (quick inside loops on a CPU),
            or `auto`: `matmul` on a CPU; elsewhere `grouped` for the Discover family, `lax` for the others.
    """

    name: Literal["logistic", "mlp", "cnn", "wide_resnet", "resnet"] = "mlp"
    depth: int | None = None
    width: int | None = None
    dropout: float | None = None
    dtype: Literal["float32", "bfloat16"] = "float32"
    convolution: Literal["auto", "lax", "grouped", "matmul"] = "auto"


@dataclass(frozen=True)
class OptimizerConfig:
    """The optimizer and its hyperparameters. None means the optimizer's own default.

    Attributes:
        name: one of :data:`OPTIMIZERS`.
        learning_rate: the schedule's peak, μ.
        beta: β, how long a momentum (of a cluster, for the Discover family) remembers.
        nu: ν, how much of the step is momentum (the paper's tables call it γ).
        tail_fraction: IGT averages over about the last 1/tail_fraction of the steps; None: over all.
        alpha: α of the printed equations (`paper_…`).
        alpha_n: α_n of the printed equations; None: α/p_n.
        beta1: Adam's β₁.
        beta2: Adam's β₂.
        eps: Adam's ε.
        weight_decay: decoupled; every parameter times (1 − weight_decay·μ_t) each step.
        l2: added to the gradient as l2·θ.
        decay: what both of them apply to: `all` parameters, or `kernels` (no biases, no norm scales).
        clip_norm: largest global norm of each gradient that the optimizer is fed (each group's for the
            Discover family, the batch's for the others), before l2 is added. 0 is off.
        rate: the Discover family's buffer rate, `proportional` or `per_visit`.
        buffer_dtype: of the Discover family's buffers.
        exchange_dtype: in which gradients travel between devices; None: as they are. `bfloat16` halves those bytes.
        estimate_probs: let the Discover family estimate the clusters' probabilities from what it sees.
    """

    name: str = "discover"
    learning_rate: float = 0.1
    beta: float | None = None
    nu: float | None = None
    tail_fraction: float | None = None
    alpha: float | None = None
    alpha_n: float | None = None
    beta1: float | None = None
    beta2: float | None = None
    eps: float | None = None
    weight_decay: float = 0.0
    l2: float = 0.0
    decay: Literal["all", "kernels"] = "all"
    clip_norm: float = 0.0
    rate: Literal["proportional", "per_visit"] = "proportional"
    buffer_dtype: Literal["float32", "bfloat16"] | None = None
    exchange_dtype: Literal["float32", "bfloat16"] | None = None
    estimate_probs: bool = False


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
