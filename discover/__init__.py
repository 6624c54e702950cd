"""Discover: one momentum per cluster, as ordinary optax transformations.

Every optimizer of the table is here by its function's name. Names are loaded on first use, so that
`import discover` and `discover --help` stay quick; what stands under TYPE_CHECKING is for type checkers.
"""

import importlib
from typing import TYPE_CHECKING, Any

from discover.registry import OPTIMIZERS

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
    "optimizers.igt": ("IgtState", "averaging_weight", "igt", "igt_eval_params"),
    "optimizers.muon": ("scale_by_orthogonal",),
    "optimizers.paper": ("FamilySetting", "map_to_family"),
    "optimizers.plain": ("scale_by_qhm",),
    "step": ("take_step",),
}
_HOME_OF = {name: f"discover.{module}" for module, names in _HOMES.items() for name in names}
_HOME_OF |= {name: module for module, _, name in (entry.factory.partition(":") for entry in OPTIMIZERS.values())}

__all__ = sorted(_HOME_OF)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name in _HOME_OF:
        return getattr(importlib.import_module(_HOME_OF[name]), name)
    raise AttributeError(f"module 'discover' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
