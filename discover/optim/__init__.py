"""The optimizers: `family` (the rule), `transport` (IGT), `optimizers` (compositions), `paper` (as printed)."""

from discover.optim.adam_style import discover_adam
from discover.optim.clusters import Clusters
from discover.optim.convolution import grouped_conv_general_dilated
from discover.optim.family import DiscoverState, scale_by_discover
from discover.optim.groups import accumulate_groups, freeze, group_value_and_grad, mean_over_groups
from discover.optim.optimizers import (
    adam,
    discover,
    discover_igt,
    discover_qhm,
    igt_momentum,
    momentum,
    qhm,
    sgd,
)
from discover.optim.paper import (
    FamilySetting,
    map_to_family,
    paper_discover,
    paper_discover_igt,
    paper_discover_qhm,
)
from discover.optim.plain import scale_by_qhm
from discover.optim.stepping import take_step
from discover.optim.transport import IgtState, averaging_weight, igt, igt_eval_params

__all__ = [
    "Clusters",
    "DiscoverState",
    "FamilySetting",
    "IgtState",
    "accumulate_groups",
    "adam",
    "averaging_weight",
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
    "map_to_family",
    "mean_over_groups",
    "momentum",
    "paper_discover",
    "paper_discover_igt",
    "paper_discover_qhm",
    "qhm",
    "scale_by_discover",
    "scale_by_qhm",
    "sgd",
    "take_step",
]
