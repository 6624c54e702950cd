"""`discover reproduce variance`: the between-cluster variance along training, as in the paper's figure, on digits.

SGD, Momentum and Discover at one learning rate, on clean labels and with label noise 0.8, the variance tracked.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from discover.lab.experiments.config.config import Config
from discover.lab.experiments.presets.presets import get_preset
from discover.lab.experiments.run.run import run

OPTIMIZERS = ("sgd", "momentum", "discover")
"""Whose variance is tracked."""
SETTINGS = {"clean": 0.0, "noise": 0.8}
"""Label noise, by the name of the folder."""


def variance_config(optimizer: str, noise: float, *, quick: bool = False) -> Config:
    """Digits in two class-pure groups of 16, one learning rate for all, β and ν as advised; measured every 20 steps."""
    values: dict[str, Any] = {
        "batches.groups": 2,
        "batches.group_size": 16,
        "data.label_noise": noise,
        "optimizer.name": optimizer,
        "optimizer.learning_rate": 0.03,
        "training.steps": 60 if quick else 1000,
        "training.seeds": (0, 1) if quick else (0, 1, 2, 3, 4),
        "training.schedule": "constant",
        "training.eval_every": 0,
        "training.track_variance": 20,
    }
    own = {"momentum": {"optimizer.beta": 0.9}, "discover": {"optimizer.beta": 0.98, "optimizer.nu": 0.918}}
    return get_preset("digits").config.with_values(values | own.get(optimizer, {}))


def reproduce_variance(
    out_dir: str | Path, *, quick: bool = False, say: Callable[[str], None] = lambda line: None
) -> dict[str, dict[str, Path]]:
    """Trains what is not trained yet, and returns where every run is: by setting, then by optimizer."""
    runs: dict[str, dict[str, Path]] = {}
    programs: dict[str, Any] = {}
    for setting, noise in SETTINGS.items():
        for optimizer in OPTIMIZERS:
            directory = Path(out_dir) / setting / optimizer
            own = variance_config(optimizer, noise, quick=quick)
            result = run(own, directory, resume=True, programs=programs)
            finals = [member.final["test"]["accuracy"] for member in result.members if member.final is not None]
            mean = sum(finals) / max(1, len(finals))
            say(f"{optimizer}, label noise {noise:g}: test accuracy {mean:.1%} over {len(finals)} seeds")
            runs.setdefault(setting, {})[optimizer] = directory
    return runs
