"""Discover: one momentum per cluster, as ordinary optax transformations.

The names below are loaded on first use, so that `discover --help` and `import discover` stay quick.
"""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

if TYPE_CHECKING:
    from discover.clusters import Clusters
    from discover.gpu.convolution import grouped_conv_general_dilated
    from discover.groups import accumulate_groups, freeze, group_value_and_grad, mean_over_groups
    from discover.optimizers.adam import discover_adam
    from discover.optimizers.discover import (
        adam,
        discover,
        discover_igt,
        discover_qhm,
        igt_momentum,
        momentum,
        qhm,
        sgd,
    )
    from discover.optimizers.igt import IgtState, averaging_weight, igt, igt_eval_params
    from discover.optimizers.muon import discover_muon, muon, scale_by_orthogonal
    from discover.optimizers.paper import (
        FamilySetting,
        map_to_family,
        paper_discover,
        paper_discover_igt,
        paper_discover_qhm,
    )
    from discover.optimizers.plain import scale_by_qhm
    from discover.rule import DiscoverState, scale_by_discover
    from discover.stepping import take_step

_HOMES = {
    "clusters": ("Clusters",),
    "gpu.convolution": ("grouped_conv_general_dilated",),
    "groups": ("accumulate_groups", "freeze", "group_value_and_grad", "mean_over_groups"),
    "optimizers.adam": ("discover_adam",),
    "optimizers.discover": (
        "adam",
        "discover",
        "discover_igt",
        "discover_qhm",
        "igt_momentum",
        "momentum",
        "qhm",
        "sgd",
    ),
    "optimizers.igt": ("IgtState", "averaging_weight", "igt", "igt_eval_params"),
    "optimizers.muon": ("discover_muon", "muon", "scale_by_orthogonal"),
    "optimizers.paper": (
        "FamilySetting",
        "map_to_family",
        "paper_discover",
        "paper_discover_igt",
        "paper_discover_qhm",
    ),
    "optimizers.plain": ("scale_by_qhm",),
    "rule": ("DiscoverState", "scale_by_discover"),
    "stepping": ("take_step",),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = sorted(_HOME_OF)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name in _HOME_OF:
        return getattr(importlib.import_module(f"discover.{_HOME_OF[name]}"), name)
    raise AttributeError(f"module 'discover' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
