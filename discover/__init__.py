"""Discover: one momentum per cluster, as ordinary optax transformations.

The names below are loaded on first use, so that `discover --help` and `import discover` stay quick.
"""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

if TYPE_CHECKING:
    from discover.clusters import Clusters
    from discover.direction import DiscoverState, scale_by_discover
    from discover.gpu.convolution import grouped_conv_general_dilated
    from discover.groups import accumulate_groups, freeze, group_value_and_grad, mean_over_groups
    from discover.optimizers.discover import discover, discover_adam, discover_igt, discover_qhm
    from discover.optimizers.igt import IgtState, averaging_weight, igt, igt_eval_params, igt_momentum
    from discover.optimizers.muon import discover_muon, muon, scale_by_orthogonal
    from discover.optimizers.paper import (
        FamilySetting,
        map_to_family,
        paper_discover,
        paper_discover_igt,
        paper_discover_qhm,
    )
    from discover.optimizers.plain import adam, momentum, qhm, scale_by_qhm, sgd
    from discover.step import take_step

_HOMES = {
    "clusters": ("Clusters",),
    "direction": ("DiscoverState", "scale_by_discover"),
    "gpu.convolution": ("grouped_conv_general_dilated",),
    "groups": ("accumulate_groups", "freeze", "group_value_and_grad", "mean_over_groups"),
    "optimizers.discover": ("discover", "discover_adam", "discover_igt", "discover_qhm"),
    "optimizers.igt": ("IgtState", "averaging_weight", "igt", "igt_eval_params", "igt_momentum"),
    "optimizers.muon": ("discover_muon", "muon", "scale_by_orthogonal"),
    "optimizers.paper": (
        "FamilySetting",
        "map_to_family",
        "paper_discover",
        "paper_discover_igt",
        "paper_discover_qhm",
    ),
    "optimizers.plain": ("adam", "momentum", "qhm", "scale_by_qhm", "sgd"),
    "step": ("take_step",),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = sorted(_HOME_OF)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name in _HOME_OF:
        return getattr(importlib.import_module(f"discover.{_HOME_OF[name]}"), name)
    raise AttributeError(f"module 'discover' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
