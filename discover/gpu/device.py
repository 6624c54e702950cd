"""What the device that JAX computes on can do."""

import re
from typing import Any

import jax

OLDEST = 8.0  # compute capability: Triton, which compiles the kernels, knows NVIDIA GPUs from Ampere (2020) on


def runs_kernels() -> bool:
    """Whether it runs the GPU kernels; on every other device the plain versions run, which compute the same.

    That includes AMD's GPUs, on which the kernels were never tried.
    """
    capability = str(getattr(_device(), "compute_capability", ""))  # such as 9.0; gfx942 on a GPU of AMD's
    return re.fullmatch(r"\d+\.\d+", capability) is not None and float(capability) >= OLDEST


def is_cpu() -> bool:
    """Whether it is a CPU."""
    return _device().platform == "cpu"


def _device() -> Any:
    chosen = getattr(jax.config, "jax_default_device", None)  # a device, the name of a platform, or None
    return jax.local_devices(backend=chosen)[0] if chosen is None or isinstance(chosen, str) else chosen
