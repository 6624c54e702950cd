"""Every optimizer of the table, made by one call."""

import discover
from discover.registry import OPTIMIZERS

CLUSTERS = discover.Clusters((0.4, 0.3, 0.2, 0.1))
NEEDED = {"nu": 0.7, "alpha": 0.1, "alpha_n": 0.1, "tail_fraction": 18.0}
"""What has no default that serves the tests."""


def make(name, learning_rate=0.1, *, clusters=CLUSTERS, **options):
    """`name+int8` has 8-bit buffers."""
    name, _, buffer_dtype = name.partition("+")
    options |= {"buffer_dtype": buffer_dtype} if buffer_dtype else {}
    entry = OPTIMIZERS[name]
    needed = (*entry.required, "alpha_n", "tail_fraction")
    given = {key: NEEDED[key] for key in needed if key in entry.arguments} | options
    return entry.make(learning_rate, **({"clusters": clusters} if entry.clustered else {}), **given)
