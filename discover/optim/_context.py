"""What the code that is being traced runs on."""

from contextvars import ContextVar

in_slices: ContextVar[bool] = ContextVar("in_slices", default=False)
"""Whether an update is being traced on slices that are spread over devices (`sharding.py`).

The compiler partitions ordinary operations over devices, but not a kernel of our own: it would gather all buffers on
every device first. So kernels stay away while this is true.
"""
