"""Whether the GPU kernels can run on the device that JAX computes on."""

import re

import jax

OLDEST = 8.0  # compute capability: Triton, which compiles the kernels, knows NVIDIA GPUs from Ampere (2020) on


def runs_kernels() -> bool:
    """On every other device the plain versions run, which compute the same."""
    chosen = getattr(jax.config, "jax_default_device", None)  # a device, the name of a platform, or None
    device = jax.local_devices(backend=chosen)[0] if chosen is None or isinstance(chosen, str) else chosen
    capability = str(getattr(device, "compute_capability", ""))  # such as 9.0; gfx942 on a GPU of AMD's, none on a CPU
    return re.fullmatch(r"\d+\.\d+", capability) is not None and float(capability) >= OLDEST
