"""A border that XLA must not fuse across, in programs for a GPU only."""

from __future__ import annotations

from typing import TypeVar

from jax import lax

Tree = TypeVar("Tree")


def gpu_barrier(values: Tree) -> Tree:
    """The same values, each made once where the program is for a GPU; on other devices XLA may do as it likes.

    Which device it is for is known when it is lowered: arrays on the CPU of a process with a GPU take the CPU's way.
    """
    barrier = lax.optimization_barrier
    return lax.platform_dependent(values, cuda=barrier, rocm=barrier, default=lambda same: same)
