"""Many devices: any optimizer here with its state cut by parameter, and no more sent than momentum sends."""

from discover.sharding.optimizer import (
    pad_groups,
    shard_by_parameter,
    sharded_eval_params,
    sharded_group_value_and_grad,
    state_shardings,
)
from discover.sharding.slices import Slices

__all__ = [
    "Slices",
    "pad_groups",
    "shard_by_parameter",
    "sharded_eval_params",
    "sharded_group_value_and_grad",
    "state_shardings",
]
