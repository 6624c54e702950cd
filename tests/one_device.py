"""The environment of a program that has one device, as a user has it, and compiles as quickly as the tests do."""

import os
from pathlib import Path

ROOT = Path(__file__).parent.parent


def environment(**others):
    flags = [flag for flag in os.environ["XLA_FLAGS"].split() if "device_count" not in flag]
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "XLA_FLAGS": " ".join(flags), "JAX_PLATFORMS": "cpu", "PYTHONPATH": path, **others}
