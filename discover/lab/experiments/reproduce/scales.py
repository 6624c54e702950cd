"""How large a rerun of our results is: for one GPU, small networks on a CPU, or a rehearsal in seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from discover.lab.experiments.reproduce.find_data import CIFAR


@dataclass(frozen=True)
class DataSet:
    """What is trained on a data set besides CIFAR-10."""

    changes: Mapping[str, Any]  # of the default configuration, by dotted key; `data.path` is the name of its archive
    batch: int  # examples in a batch, in however many groups


@dataclass(frozen=True)
class Scale:
    """How large everything is."""

    presets: Mapping[str, str]  # which preset stands for which clusters
    changes: Mapping[str, Any]  # of every configuration, by dotted key
    batch: int  # examples in a batch, in however many groups
    seeds: tuple[int, ...]  # of the chosen learning rate
    tuning_seeds: tuple[int, ...]  # of every learning rate
    every_rate: slice  # take each n-th learning rate of the grids
    extensions: int  # how many rates a row may add to its grid
    betas: tuple[float, ...]  # of result e
    nus: tuple[float, ...]  # of result e
    noise_length: float  # how much longer than clean ones runs with label noise are
    long_length: float  # the same for the long run
    paper_length: float  # the same for the runs of result k
    faster: float = 1.0  # how many times larger learning rates are than those of the small scale
    buffered: Mapping[str, str] = field(default_factory=dict)  # which layers have buffers, by what a row calls them
    text_layers: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # what is other in some, by what it is
    others: Mapping[str, DataSet] = field(default_factory=dict)  # by name; one that is not here is stood in for


HEAD_BY_ADAM = {"optimizer.adam_layers": "head"}
BIBLE = DataSet(
    changes={
        "data.source": "text", "data.path": "bible16.tar.xz", "data.validation": 0.01,
        "model.name": "transformer", "model.dtype": "bfloat16", "model.depth": 4, "model.width": 256,
        "training.steps": 1500, "training.warmup_steps": 50, "training.together": 1,
        "training.steps_per_dispatch": 100, "training.log_every": 50, "training.eval_every": 300,
        "training.eval_batch": 500,
    },
    batch=64,
)  # fmt: skip
"""One book in 16 languages, byte by byte, in pieces of 128 bytes."""

_PICTURES: Mapping[str, Any] = {
    "data.source": "folder", "data.validation": 0.1, "data.padding": 4, "data.flip": True,
    "model.name": "wide_resnet", "model.dtype": "bfloat16", "model.depth": 16, "model.width": 2, "model.dropout": 0.0,
    "optimizer.l2": 5e-4, "training.together": 1, "training.steps_per_dispatch": 88, "training.log_every": 44,
    "training.eval_every": 176,
}  # fmt: skip
"""As CIFAR-10 is trained."""
PACS = DataSet(
    changes={
        **_PICTURES, "data.path": "pacs48.tar.xz", "data.layout": "domain/class", "data.size": 32,
        "training.steps": 1056,
    },
    batch=256,
)  # fmt: skip
"""9,991 pictures of 7 classes in 4 domains of unequal size; 20 % are held out to test on."""
TINY_IMAGENET = DataSet(
    changes={**_PICTURES, "data.path": "tiny-imagenet32.tar.xz", "training.steps": None, "training.epochs": 10.0},
    batch=256,
)
"""200 classes of 200 pictures each, 50 more to test on; 32 pixels."""

_LITTLE: Mapping[str, Any] = {
    **_PICTURES, "data.size": 16, "data.padding": 2, "model.name": "cnn", "model.dtype": "float32", "model.depth": 3,
    "model.width": 16, "model.dropout": None, "training.steps_per_dispatch": 100, "training.log_every": 50,
    "training.eval_every": 500, "training.warmup_steps": 50, "training.epochs": None,
}  # fmt: skip
"""Pictures of 16 by 16 pixels in a small network: a training takes some ten seconds on one core of a CPU."""

_NORMS = ",".join(f"blocks/{block}/norm{norm}" for block in range(6) for norm in (1, 2))

_SMALL = Scale(
    presets={
        "classes": "cifar10-classes-small",
        "augmentations": "cifar10-augment-small",
        "random": "cifar10-random-small",
        "kmeans": "cifar10-classes-small",
    },
    changes={
        "model.width": 2, "training.epochs": 10.0, "training.log_every": 44, "training.eval_every": 176,
        "training.steps_per_dispatch": 88, "training.checkpoint_every": 1760, "training.keep": 1,
    },
    batch=256,
    seeds=(0, 1, 2),
    tuning_seeds=(0,),
    every_rate=slice(None),
    extensions=2,
    betas=(0.8, 0.9, 0.95, 0.99),
    nus=(0.0, 0.5, 0.95, 1.0),
    noise_length=1.0,
    long_length=5.0,
    paper_length=4.0,
    others={"bible16": BIBLE, "pacs": PACS, "tiny-imagenet": TINY_IMAGENET},
    text_layers={
        "buffers in the blocks only": {"optimizer.buffered": "blocks"},
        "head by Adam": HEAD_BY_ADAM,
        "embeddings by Adam": {"optimizer.adam_layers": "bytes,places"},
        "head and embeddings by Adam": {"optimizer.adam_layers": "head,bytes,places"},
    },
    buffered={
        "the head": "head,norm",
        "head and norms": f"head,norm,{_NORMS}",
        "the last block": "head,norm,blocks/5",
        "the last two blocks": "head,norm,blocks/5,blocks/4",
        "all but the last two blocks": "stem,blocks/0,blocks/1,blocks/2,blocks/3",
    },
)  # fmt: skip

SCALES: Mapping[str, Scale] = {
    "small": _SMALL,
    "cpu": replace(
        _SMALL,
        presets={**_SMALL.presets, "random": "cifar10-classes-small"},
        changes={**_LITTLE, "data.path": CIFAR, "training.steps": 1500},
        batch=64,
        faster=3.2,
        buffered={
            "the head": "head",
            "head and norms": "head,norms",
            "all but the last convolution": "head,norms,convs/0,convs/1",
            "the last convolution": "head,norms,convs/2",
        },
        others={
            "bible16": DataSet(
                {
                    **BIBLE.changes, "model.dtype": "float32", "model.depth": 2, "model.width": 64,
                    "training.eval_every": 500, "training.eval_batch": 100,
                },
                batch=16,
            ),
            "pacs": DataSet({**_LITTLE, "data.path": "pacs48.tar.xz", "data.layout": "domain/class",
                             "training.steps": 1000}, batch=64),
            "tiny-imagenet": DataSet({**_LITTLE, "data.path": "tiny-imagenet32.tar.xz", "training.steps": 2000},
                                     batch=64),
        },
    ),
    "digits": Scale(
        presets=dict.fromkeys(("classes", "augmentations", "random", "kmeans"), "digits"),
        changes={
            "training.steps": 60, "training.eval_every": 20, "training.log_every": 5,
            "model.depth": 1, "model.width": 16, "training.member_mode": "auto",
        },
        batch=32,
        seeds=(0, 1),
        tuning_seeds=(0,),
        every_rate=slice(3, 5),
        extensions=0,
        betas=(0.9, 0.95),
        nus=(0.0, 0.95),
        noise_length=1.5,
        long_length=2.0,
        paper_length=2.0,
        buffered={"the head": "head"},
        text_layers={"head by Adam": HEAD_BY_ADAM, "buffers in the head only": {"optimizer.buffered": "head"}},
    ),
}  # fmt: skip
