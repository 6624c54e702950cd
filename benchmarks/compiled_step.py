"""What XLA makes of a training step on an H200, on a machine that has none.

Compiles the step of a preset for a description of the GPU and counts what will run: kernels, library calls, copies,
transposes of arrays with five axes (activations, or weight gradients by group), and what the fusions write. Needs
`pip install 'jax[cuda12]'`, and no GPU. ::

    JAX_PLATFORMS=cpu python benchmarks/compiled_step.py cifar10-classes discover 8 model.depth=10

Algorithms that a GPU would choose by timing them (of convolutions, of matrix products) are the compiler's guess here.
"""

from __future__ import annotations

import math
import os
import re
import sys
from collections import Counter
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"  # and so no look for a GPU

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec

H200 = {
    "threads_per_block_limit": 1024,
    "threads_per_warp": 32,
    "shared_memory_per_block": 49152,
    "shared_memory_per_core": 233472,
    "shared_memory_per_block_optin": 232448,
    "threads_per_core_limit": 2048,
    "core_count": 132,
    "fpus_per_core": 128,
    "block_dim_limit_x": 2**31 - 1,
    "block_dim_limit_y": 65535,
    "block_dim_limit_z": 65535,
    "registers_per_core_limit": 65536,
    "registers_per_block_limit": 65536,
    "memory_bandwidth": 4_800_000_000_000,
    "device_memory_size": 151_397_597_184,
    "l2_cache_size": 52_428_800,
    "clock_rate_ghz": 1.98,
}
STEPS = 10
BYTES = {"pred": 1, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "s32": 4, "u32": 4, "f32": 4, "s64": 8, "f64": 8}


def target() -> str:
    """The GPU as XLA wants it described."""
    facts = "\n".join(f"  {name}: {value}" for name, value in H200.items())
    capability = "  cuda_compute_capability { major: 9 feature_extension: ACCELERATED_FEATURES }"
    versions = 'platform_name: "CUDA"\ndnn_version_info { major: 9 minor: 10 }\ndevice_description_str: "NVIDIA H200"'
    return f"gpu_device_info {{\n{facts}\n{capability}\n}}\n{versions}\n"


def compiled_step(preset: str, optimizer: str, groups: int, overrides: list[str]) -> str:
    """The compiled program of a stretch of training steps, as text."""
    from discover.gpu import device
    from discover.lab.experiments.bench.candidates import adjusted, prepare_step, random_images
    from discover.lab.experiments.presets.presets import get_preset

    gpu = topologies.get_topology_desc("", "cuda", target_config=target(), topology="1x1x1")
    place = NamedSharding(Mesh(np.array(gpu.devices), "device"), PartitionSpec())
    device.runs_kernels, device.is_cpu, device.is_cpu_only = (
        lambda: True,
        lambda: False,
        lambda: False,
    )  # what would be asked on a GPU

    def shapes(tree: Any) -> Any:
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct(np.shape(x), jnp.result_type(x), sharding=place), tree)

    config = get_preset(preset).config_for(optimizer).override(overrides)
    batch = config.batches.groups * config.batches.group_size
    dataset = random_images(config, 10)
    config = adjusted(config, batch, groups, None).with_values({"training.member_mode": "vmap"})  # as on a GPU
    programs, members, batches, _ = prepare_step(config, dataset, STEPS)
    call = (programs.abstract_state(members), members, batches, dataset.train.images)
    return programs.prepare_advance(*map(shapes, call)).as_text() or ""


def count(program: str) -> dict[str, Any]:
    """What one step consists of: the longest loop body in the program."""
    body = max(re.split(r"\n(?=%|ENTRY)", program), key=lambda part: part.count("custom-call("))
    found, written = Counter(), 0
    for line in body.splitlines():
        match = re.match(r"\s+(?:ROOT )?%\S+ = (.*?) (fusion|custom-call|copy)\(", line)
        if match is None:
            continue
        result, kind = match.groups()
        called = re.search(r'custom_call_target="([^"]*)"', line)
        found[called.group(1) if called else kind] += 1
        arrays = [(dtype, [int(n) for n in s.split(",") if n]) for dtype, s in re.findall(r"(\w+)\[([\d,]*)\]", result)]
        if kind != "custom-call":
            written += sum(BYTES.get(dtype, 4) * math.prod(shape) for dtype, shape in arrays)
        real_axes = [sum(n > 1 for n in shape) for _, shape in arrays]
        if "transpose_fusion" in line.split(" = ")[0] and 5 in real_axes:
            found["of them transposes of arrays with five axes"] += 1
    return {**dict(found.most_common()), "GB written by fusions and copies": round(written / 1e9, 3)}


if __name__ == "__main__":
    if len(sys.argv) < 4:
        sys.exit("usage: compiled_step.py PRESET OPTIMIZER GROUPS [KEY=VALUE ...]")
    try:
        text = compiled_step(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4:])
    except NotImplementedError:
        sys.exit("compiled_step.py: jax cannot compile for CUDA here; pip install 'jax[cuda12]'")
    for name, number in count(text).items():
        print(f"{number:>10}  {name}")
