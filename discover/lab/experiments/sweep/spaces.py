"""The values that a sweep tries: the paper's grids as it lists them, and ours, as data.

A *space* has for each hyperparameter the values of a grid; a search by optuna draws from the range between the smallest
and the largest of them (uniformly in the logarithm where `log`, in log(1 - value) for momenta: `tail`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from discover.lab.experiments.config.values import ConfigError

Shape = Literal["linear", "log", "tail"]


@dataclass(frozen=True)
class Axis:
    """One hyperparameter: its values on a grid, and how a range of it is measured."""

    values: tuple[float, ...]
    shape: Shape = "linear"

    @property
    def low(self) -> float:
        return min(self.values)

    @property
    def high(self) -> float:
        return max(self.values)


Space = Mapping[str, Axis]


def steps(first: float, last: float, step: float) -> tuple[float, ...]:
    """``first``, ``first + step``, … up to ``last``, free of rounding noise.

    >>> steps(0.15, 0.3, 0.05)
    (0.15, 0.2, 0.25, 0.3)
    """
    return tuple(round(first + step * i, 6) for i in range(round((last - first) / step) + 1))


# The paper's sets, CIFAR-10 (appendix). α and α_n of Discover share one set.
_CIFAR_RATES = Axis((0.001, 0.01, 0.03, 0.1, 0.175), "log")
# The paper's IGT adds gradients to its momentum unweighted; ours weighs them by 1 - β = 0.1.
_IGT_RATES = Axis((0.01, 0.1, 0.3, 1.0, 1.75), "log")
_ALPHAS = Axis((0.001, *steps(0.01, 0.1, 0.005), *steps(0.15, 1.0, 0.05)), "log")
_QHM_ALPHAS = Axis((0.6, 0.7, 0.8, 0.9))
_THREE_ALPHA_N = Axis((0.01, 0.1, 0.9), "log")
_IGT_ALPHAS = Axis((0.095, 0.1, 0.6, 0.7, 0.8, 0.9, 0.99))
_TAILS = Axis((18.0, 45.0, 50.0, 60.0, 90.0, 180.0, 360.0), "log")
PAPER_CIFAR: Mapping[str, Space] = {
    "sgd": {"learning_rate": _CIFAR_RATES},
    "momentum": {"learning_rate": _CIFAR_RATES},
    "adam": {"learning_rate": _CIFAR_RATES},
    "igt": {"learning_rate": _IGT_RATES},
    "qhm": {"learning_rate": _CIFAR_RATES, "beta": Axis((0.8, 0.9), "tail"), "nu": Axis(steps(0.1, 0.9, 0.1))},
    "paper_discover": {"learning_rate": _CIFAR_RATES, "alpha": _ALPHAS, "alpha_n": _ALPHAS},
    "paper_discover_qhm": {
        "learning_rate": _CIFAR_RATES,
        "alpha": _QHM_ALPHAS,
        "alpha_n": _THREE_ALPHA_N,
        "nu": Axis((0.6, 0.7, 0.8, 0.9, 0.99)),  # the paper's β there, which is the γ of its tables
    },
    "paper_discover_igt": {
        "learning_rate": _CIFAR_RATES,
        "alpha": _IGT_ALPHAS,
        "alpha_n": _THREE_ALPHA_N,
        "tail_fraction": _TAILS,
    },
}

# ImageNet (appendix). The set of Discover-QHM is printed as "{0, 1, 0.6, 0.7, 0.8}", though the chosen value is 0.9.
_IMAGENET_RATES = Axis((0.03, 0.1, 0.3), "log")
_IMAGENET_ALPHAS = Axis((0.001, 0.01, 0.1, 0.9), "log")
_IMAGENET_MORE_ALPHAS = Axis((0.1, 0.6, 0.7, 0.8, 0.9, 0.99))
PAPER_IMAGENET: Mapping[str, Space] = {
    "momentum": {"learning_rate": _IMAGENET_RATES, "beta": Axis((0.85, 0.9, 0.95, 0.99), "tail")},
    "qhm": {"learning_rate": _IMAGENET_RATES},
    "igt": {"learning_rate": Axis((0.3, 1.0, 3.0), "log")},
    "adam": {"learning_rate": Axis((0.001,), "log")},
    "paper_discover": {"learning_rate": _IMAGENET_RATES, "alpha": _IMAGENET_ALPHAS, "alpha_n": _IMAGENET_ALPHAS},
    "paper_discover_qhm": {
        "learning_rate": _IMAGENET_RATES,
        "alpha": _IMAGENET_MORE_ALPHAS,
        "alpha_n": _THREE_ALPHA_N,
        "nu": Axis((0.0, 1.0, 0.6, 0.7, 0.8)),
    },
    "paper_discover_igt": {
        "learning_rate": _IMAGENET_RATES,
        "alpha": _IMAGENET_MORE_ALPHAS,
        "alpha_n": _THREE_ALPHA_N,
        "tail_fraction": _TAILS,
    },
}

# Ours: the same spacing of learning rates for everyone, Adam's a hundredth of the others'.
_RATES = Axis((0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0), "log")
_ADAM_RATES = Axis((0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1), "log")
_BETAS = Axis((0.8, 0.9, 0.95, 0.98), "tail")
_NUS = Axis((0.0, 0.5, 0.8, 0.95, 1.0))
OURS: Mapping[str, Space] = {
    "sgd": {"learning_rate": _RATES},
    "momentum": {"learning_rate": _RATES, "beta": _BETAS},
    "qhm": {"learning_rate": _RATES, "beta": _BETAS, "nu": _NUS},
    "igt": {"learning_rate": _RATES, "beta": _BETAS, "tail_fraction": Axis((2.0, 18.0, 90.0), "log")},
    "adam": {"learning_rate": _ADAM_RATES, "beta1": _BETAS},
    "discover": {"learning_rate": _RATES, "beta": _BETAS, "nu": _NUS},
    "discover_qhm": {"learning_rate": _RATES, "beta": _BETAS, "nu": _NUS},
    "discover_igt": {
        "learning_rate": _RATES,
        "beta": _BETAS,
        "nu": _NUS,
        "tail_fraction": Axis((2.0, 18.0, 90.0), "log"),
    },
    "discover_adam": {"learning_rate": _ADAM_RATES, "beta": _BETAS, "nu": _NUS},
    "paper_discover": PAPER_CIFAR["paper_discover"],
    "paper_discover_qhm": PAPER_CIFAR["paper_discover_qhm"],
    "paper_discover_igt": PAPER_CIFAR["paper_discover_igt"],
}


def get_space(preset: str, optimizer: str, kind: str = "auto") -> tuple[str, Space]:
    """The space of an optimizer in a preset.

    Args:
        preset: decides which of the paper's grids is meant.
        optimizer: its name.
        kind: `paper`, `ours`, or `auto`: the paper's where it has one for this optimizer and preset.

    Returns:
        Which one it is, and the space.

    Raises:
        ConfigError: the paper has no grid for it.
    """
    paper: Mapping[str, Space] = {}
    if preset.startswith("cifar10"):
        paper = PAPER_CIFAR
    elif preset.startswith("imagenet"):
        paper = PAPER_IMAGENET
    if kind == "paper" or (kind == "auto" and optimizer in paper):
        if optimizer not in paper:
            have = ", ".join(paper) if paper else "none of its optimizers"
            raise ConfigError(
                f"the paper has no grid for {optimizer!r} in {preset!r} (it has: {have}); use --space ours"
            )
        return "paper", paper[optimizer]
    return "ours", OURS[optimizer]


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
