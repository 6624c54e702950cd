"""Which device computes: the one place that asks.

Whether a program will run on a GPU is known when it is lowered, not when it is traced: in a process with a GPU, arrays
on the CPU make a program for the CPU. So `by_device` hands JAX all the ways, and JAX takes the one that fits.
"""

import re
from collections.abc import Callable
from typing import Any, TypeVar

import jax
from jax.experimental.layout import Layout, with_layout_constraint

OLDEST = 8.0  # compute capability: Triton, which compiles the kernels, knows NVIDIA GPUs from Ampere (2020) on

T = TypeVar("T")


def by_device(*, cpu: Callable[[], T], gpu: Callable[[], T], other: Callable[[], T]) -> T:
    """What one of these returns: `gpu` where our kernels run, `cpu` on CPUs, `other` on every other device.

    All return trees of the same shapes. AMD's GPUs are among the others: the kernels were never tried on them.
    """
    if is_cpu_only():
        return cpu()
    ways: dict[str, Callable[[], T]] = {"cpu": cpu}
    if runs_kernels():
        ways["cuda"] = gpu
    return jax.lax.platform_dependent(**ways, default=other)


def row_major(params: T) -> T:
    """Keeps XLA for GPUs from carrying parameters through a training loop in the layout of a convolution.

    The update's kernel reads and writes row-major parameters, or steps that are added to them; others need a copy.
    """

    def constrained() -> T:
        return jax.tree.map(lambda p: with_layout_constraint(p, Layout(major_to_minor=tuple(range(p.ndim)))), params)

    return by_device(cpu=lambda: params, gpu=constrained, other=lambda: params)


def is_cpu() -> bool:
    """Whether a computation without arrays of its own would run on a CPU: for choices that are made on the host."""
    return _default().platform == "cpu"


def is_cpu_only() -> bool:
    """Whether this process has no device but CPUs."""
    return jax.local_devices()[0].platform == "cpu"


def runs_kernels() -> bool:
    """Whether this process has GPUs that run our kernels."""
    capability = str(getattr(jax.local_devices()[0], "compute_capability", ""))  # 9.0; gfx942 on a GPU of AMD's
    return re.fullmatch(r"\d+\.\d+", capability) is not None and float(capability) >= OLDEST


def _default() -> Any:
    chosen = getattr(jax.config, "jax_default_device", None)  # a device, the name of a platform, or None
    return jax.local_devices(backend=chosen)[0] if chosen is None or isinstance(chosen, str) else chosen
