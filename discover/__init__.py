"""Discover: one momentum per cluster, as ordinary optax transformations.

The names below are loaded on first use, so that `discover --help` and `import discover` stay quick.
"""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from discover.optim import (
        Clusters,
        DiscoverState,
        accumulate_groups,
        adam,
        discover,
        discover_adam,
        discover_igt,
        discover_qhm,
        freeze,
        group_value_and_grad,
        grouped_conv_general_dilated,
        igt,
        igt_eval_params,
        igt_momentum,
        mean_over_groups,
        momentum,
        paper_discover,
        paper_discover_igt,
        paper_discover_qhm,
        qhm,
        scale_by_discover,
        sgd,
        take_step,
    )

__all__ = [
    "Clusters",
    "DiscoverState",
    "accumulate_groups",
    "adam",
    "discover",
    "discover_adam",
    "discover_igt",
    "discover_qhm",
    "freeze",
    "group_value_and_grad",
    "grouped_conv_general_dilated",
    "igt",
    "igt_eval_params",
    "igt_momentum",
    "mean_over_groups",
    "momentum",
    "paper_discover",
    "paper_discover_igt",
    "paper_discover_qhm",
    "qhm",
    "scale_by_discover",
    "sgd",
    "take_step",
]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(importlib.import_module("discover.optim"), name)
    raise AttributeError(f"module 'discover' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
