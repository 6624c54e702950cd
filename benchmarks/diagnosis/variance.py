"""`python -m discover reproduce variance`: the between-cluster variance along training, as in the paper's figure.

On digits, the variance tracked: SGD, Momentum and Discover at one learning rate, on clean labels and on noisy ones.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from discover.lab.experiments.config.config import Config
from discover.lab.experiments.presets.presets import get_preset
from discover.lab.experiments.run.run import run as train
from discover.lab.report import load_run
from discover.lab.report.plotting import save_figure, styled
from discover.lab.report.variance import variance_figure

OPTIMIZERS = ("sgd", "momentum", "discover")
"""Whose variance is tracked."""


class Setting(NamedTuple):
    """What the labels are."""

    noise: float
    title: str


SETTINGS = {"clean": Setting(0.0, "clean labels"), "noise": Setting(0.8, "label noise 0.8")}
"""By the name of the folder."""


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


def run(out: Path, *, data: str | None = None, quick: bool = False, say: Callable[[str], None] = print) -> None:
    """Trains what is not trained yet, each in a folder by setting and optimizer; it needs no `data`."""
    del data
    programs: dict[str, Any] = {}
    for name, setting in SETTINGS.items():
        for optimizer in OPTIMIZERS:
            config = variance_config(optimizer, setting.noise, quick=quick)
            result = train(config, out / name / optimizer, resume=True, programs=programs)
            finals = [member.final["test"]["accuracy"] for member in result.members if member.final is not None]
            mean = sum(finals) / max(1, len(finals))
            say(f"{optimizer}, {setting.title}: test accuracy {mean:.1%} over {len(finals)} seeds")


def draw(out: Path) -> list[Path]:
    """The figure of the runs in `out`; none where a setting has none."""
    runs = {
        setting.title: {one: load_run(path, one) for one in OPTIMIZERS if (path := out / name / one).is_dir()}
        for name, setting in SETTINGS.items()
    }
    if not all(runs.values()):
        return []
    with styled():
        return save_figure(variance_figure(runs, 100), out, "variance")
