"""What the code that is being traced runs on."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from discover.sharding.slices import Slices

in_slices: ContextVar[Slices | None] = ContextVar("in_slices", default=None)
"""The slices that an update is being traced on where they are spread over devices (`sharding.py`), else None.

The compiler partitions ordinary operations over devices, but not a kernel of our own: it would gather all buffers on
every device first. So kernels are mapped over the devices: `Slices.on_each_device`.
"""
