"""Our presets on scikit-learn's embedded digits, which need no download and no GPU."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from discover.lab.experiments.config.config import (
    BatchConfig,
    ClustersConfig,
    Config,
    DataConfig,
    ModelConfig,
    TrainingConfig,
)
from discover.lab.experiments.presets.preset import Hyperparameters, Preset

COMPARED = ("momentum", "sgd", "qhm", "igt", "adam", "discover", "discover_qhm", "discover_igt")
"""What the paper compares, in the order of the tables."""
BY_DEFAULT = (*COMPARED[:5], "muon", *COMPARED[5:], "discover_adam", "discover_muon")
"""What `discover compare` trains: each with clusters beside its own baseline."""
DISCOVER_ADAM: Hyperparameters = MappingProxyType({"beta": 0.95, "nu": 0.95, "beta1": 0.0, "beta2": 0.999, "eps": 1e-8})
"""The library's defaults; every preset adds a third of its Adam's learning rate, as docs/adam.md advises."""
MUON: Hyperparameters = MappingProxyType({"beta": 0.95, "nu": 0.95})
"""The library's defaults, for Muon alone and behind Discover."""

OPTIMIZERS_ANYWHERE: Mapping[str, Hyperparameters] = MappingProxyType(
    {
        "momentum": {"learning_rate": 0.1, "beta": 0.9},
        "sgd": {"learning_rate": 0.1},
        "qhm": {"learning_rate": 0.1, "beta": 0.9, "nu": 0.7},
        "igt": {"learning_rate": 0.1, "beta": 0.9, "tail_fraction": 18.0},
        "adam": {"learning_rate": 0.003, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8},
        "discover": {"learning_rate": 0.1, "beta": 0.95, "nu": 0.95},
        "discover_qhm": {"learning_rate": 0.1, "beta": 0.95, "nu": 0.7},
        "discover_igt": {"learning_rate": 0.1, "beta": 0.95, "nu": 0.95, "tail_fraction": 18.0},
        "discover_adam": {"learning_rate": 0.001, **DISCOVER_ADAM},
        "muon": {"learning_rate": 0.03, **MUON},
        "discover_muon": {"learning_rate": 0.03, **MUON},
    }
)
"""Chosen on the digits, and where a user's own data starts."""


def digits() -> Preset:
    return Preset(
        name="digits",
        summary="Embedded 8x8 digits, every batch of one class only: what that costs, and what is won back.",
        config=Config(
            name="digits",
            data=DataConfig(source="digits", validation=0.2),
            clusters=ClustersConfig(by="classes"),
            batches=BatchConfig(composition="random", groups=1, group_size=32),
            model=ModelConfig(name="mlp", arguments={"depth": 2, "width": 64}),
            training=TrainingConfig(
                steps=200, warmup_steps=5, seeds=(0, 1, 2, 3, 4), log_every=5, eval_every=10, steps_per_dispatch=10,
                on_nonfinite="drop",
                member_mode="vmap",  # side by side: many small matrices are quicker as a few large ones, also on a CPU
            ),
        ),
        optimizers=OPTIMIZERS_ANYWHERE,
        compare=BY_DEFAULT,
        learning_rates=(0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0),
        target_accuracy=0.9,
        source="ours; docs/compare.md says how it was chosen",
        cost="about two minutes on 2 CPU cores for the whole comparison",
    )  # fmt: skip


def digits_noise() -> Preset:
    base = digits()
    return Preset(
        name="digits-noise",
        summary="The same digits with 40% of the labels replaced at every sight; clusters go by the noisy label.",
        config=base.config.with_values({"name": "digits-noise", "data.label_noise": 0.4, "training.steps": 400}),
        optimizers=OPTIMIZERS_ANYWHERE,
        compare=base.compare,
        learning_rates=base.learning_rates,
        target_accuracy=0.7,
        source="ours, after the paper's label noise",
        cost="about three minutes on 2 CPU cores for the whole comparison",
    )
