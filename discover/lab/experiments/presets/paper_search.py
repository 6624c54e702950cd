"""The values that the paper's authors searched, as its appendix lists them."""

from __future__ import annotations

from collections.abc import Mapping

from discover.lab.experiments.presets.preset import Space
from discover.registry import Axis


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
SEARCHED_ON_CIFAR: Mapping[str, Space] = {
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
SEARCHED_ON_IMAGENET: Mapping[str, Space] = {
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
