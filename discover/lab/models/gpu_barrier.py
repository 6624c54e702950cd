"""A border that XLA must not fuse across, in programs for a GPU."""

from __future__ import annotations

from typing import TypeVar

from jax import lax

from discover.gpu import device

Tree = TypeVar("Tree")


def gpu_barrier(values: Tree) -> Tree:
    """The same values, each made once unless the program is for a CPU, where XLA may do as it likes."""

    def barrier() -> Tree:
        return lax.optimization_barrier(values)

    return device.by_device(cpu=lambda: values, gpu=barrier, other=barrier)
