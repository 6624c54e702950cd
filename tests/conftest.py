"""Eight simulated devices for every test, and programs that compile quickly; set before jax starts."""

import os

# Most of the time goes into compiling programs that run a few times. Flags that are set already come last and win:
# `make test-slow` runs its tests optimized.
FLAGS = "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0"
os.environ["XLA_FLAGS"] = f"{FLAGS} {os.environ.get('XLA_FLAGS', '')}".strip()
os.environ.setdefault("JAX_PLATFORMS", "cpu")
