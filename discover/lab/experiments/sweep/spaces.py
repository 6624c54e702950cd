"""The values that a sweep tries: those that a preset's source searched, or the table's, or given ones.

A *space* has for each hyperparameter the values of a grid; a search by optuna draws from the range between the smallest
and the largest of them (uniformly in the logarithm where `log`, in log(1 - value) for momenta: `tail`).
"""

from __future__ import annotations

from discover.lab.experiments.config.values import ConfigError
from discover.lab.experiments.presets.preset import Preset, Space
from discover.registry import OPTIMIZERS, Axis, Shape


def get_space(preset: Preset, optimizer: str, kind: str = "auto") -> tuple[str, Space]:
    """The space of an optimizer in a preset."""
    paper = preset.search
    if kind == "paper" or (kind == "auto" and optimizer in paper):
        if optimizer not in paper:
            have = ", ".join(paper) if paper else "none of its optimizers"
            raise ConfigError(
                f"the paper has no grid for {optimizer!r} in {preset.name!r} (it has: {have}); use --space ours"
            )
        return "paper", paper[optimizer]
    return "ours", OPTIMIZERS.find(optimizer).search


def parse_axis(text: str) -> tuple[str, Axis]:
    """Reads ``beta=0.9,0.95`` as an axis, for the command line.

    >>> parse_axis("beta=0.9,0.95")
    ('beta', Axis(values=(0.9, 0.95), shape='tail'))
    """
    name, _, values = text.partition("=")
    name = name.strip().removeprefix("optimizer.")
    try:
        numbers = tuple(float(part) for part in values.split(",") if part.strip())
    except ValueError:
        numbers = ()
    if not name or not numbers:
        raise ConfigError(f"expected NAME=VALUE,VALUE, got {text!r}")
    if len(set(numbers)) != len(numbers):
        raise ConfigError(f"values of {name} must differ from each other, got {values}")
    shapes: dict[str, Shape] = {"nu": "linear", "beta": "tail", "beta1": "tail", "beta2": "tail"}
    positive = min(numbers) > 0
    shape: Shape = shapes.get(name, "log" if positive else "linear")
    if shape == "tail" and not all(0 <= number < 1 for number in numbers):
        raise ConfigError(f"values of {name} must be in [0, 1), got {values}")
    return name, Axis(numbers, shape)
