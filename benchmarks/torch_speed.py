"""Steps per second in PyTorch: our three optimizers against torch's own, and our JAX step against torch's compiled one.

    python benchmarks/torch_speed.py --out $OUT/torch_speed.json           # WideResNet-26-10, batch 256: 4 minutes
    python benchmarks/torch_speed.py --smoke --out /tmp/speed.json         # WideResNet-10-1, batch 8, on a CPU

One cluster a batch, bfloat16 autocast, channels last, made-up pictures. All optimizers take turns on the same network,
once compiled and once not; a ratio is that of the times of one turn, and the median over the turns is told. The JAX
part runs in a process of its own.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

CLUSTERS = 10
BASELINES = {"Discover": "SGD", "DiscoverAdamW": "AdamW", "DiscoverMuon": "Muon"}


def torch_part(depth: int, width: int, batch: int, steps: int, turns: int) -> dict[str, Any]:
    """Milliseconds of a step and of the optimizer alone, and ratios to the optimizer that ours is compared with."""
    import torch
    from torch.nn.functional import cross_entropy
    from torch_wide_resnet import make

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    model = make(depth, width, device)
    images = torch.randn(batch, 3, 32, 32, device=device).to(memory_format=torch.channels_last)
    labels = torch.randint(10, (batch,), device=device)
    optimizers = torch_optimizers(model)

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize()

    def seconds(work: Callable[[int], None]) -> float:
        wait()
        began = time.perf_counter()
        for number in range(steps):
            work(number)
        wait()
        return (time.perf_counter() - began) / steps

    def stepper(network: Any, opt: Any) -> Callable[[int], None]:
        def step(number: int) -> None:
            with torch.autocast(device.type, torch.bfloat16):
                loss = cross_entropy(network(images), labels)
            loss.backward()
            opt.cluster = number % CLUSTERS
            opt.step()
            opt.zero_grad()

        return step

    def update(opt: Any) -> Callable[[int], None]:
        def step(number: int) -> None:
            opt.cluster = number % CLUSTERS
            opt.step()

        return step

    found: dict[str, Any] = {"parameters": sum(p.numel() for p in model.parameters()), "device": device.type}
    for kind, network in {"compiled": torch.compile(model), "eager": model}.items():
        try:
            stepper(network, optimizers["SGD"])(0)
        except Exception as error:  # no compiler on the machine, for instance: the rest is worth having
            found[kind] = {"error": f"{type(error).__name__}: {error}"[:300]}
            continue
        found[kind] = timed({name: stepper(network, opt) for name, opt in optimizers.items()}, seconds, turns)
    for p in model.parameters():
        p.grad = torch.randn_like(p) * 1e-3
    found["update alone"] = timed({name: update(opt) for name, opt in optimizers.items()}, seconds, turns)
    return found


def timed(
    steppers: dict[str, Callable[[int], None]], seconds: Callable[[Callable[[int], None]], float], turns: int
) -> dict[str, Any]:
    """Everyone in turn, after a first time that does not count."""
    for one in steppers.values():
        seconds(one)
    times: dict[str, list[float]] = {name: [] for name in steppers}
    for _ in range(turns):
        for name, one in steppers.items():
            times[name].append(seconds(one))
    ratios = {
        f"{ours} / {theirs}": round(median(b / a for a, b in zip(times[ours], times[theirs])), 3)
        for ours, theirs in BASELINES.items()
    }
    milliseconds = {name: round(1000 * median(values), 3) for name, values in times.items()}
    return {"milliseconds": milliseconds, "steps per second, relative": ratios, "turns": turns}


def torch_optimizers(model: Any) -> dict[str, Any]:
    """torch's and ours; learning rates that keep the network as it is."""
    import torch

    from discover.torch import Discover, DiscoverAdamW, DiscoverMuon

    params = list(model.parameters())
    return {
        "SGD": torch.optim.SGD(params, lr=1e-6, momentum=0.9, foreach=True),
        "SGD, fused": torch.optim.SGD(params, lr=1e-6, momentum=0.9, fused=True),
        "Discover": Discover(params, lr=1e-6, clusters=CLUSTERS),
        "AdamW": torch.optim.AdamW(params, lr=1e-6, foreach=True),
        "AdamW, fused": torch.optim.AdamW(params, lr=1e-6, fused=True),
        "DiscoverAdamW": DiscoverAdamW(params, lr=1e-6, clusters=CLUSTERS, weight_decay=0.01),
        "Muon": MuonForKernels(params, lr=1e-6),
        "DiscoverMuon": DiscoverMuon(params, lr=1e-6, clusters=CLUSTERS),
        "DiscoverMuon, damped": DiscoverMuon(params, lr=1e-6, clusters=CLUSTERS, damping=0.1),
    }


class MuonForKernels:
    """`torch.optim.Muon`, which takes matrices only, on kernels seen as matrices, and AdamW for the rest."""

    def __init__(self, params: list[Any], lr: float):
        import torch

        self.params = params
        self.matrices = [(p, torch.nn.Parameter(self.matrix(p.detach()))) for p in params if p.ndim > 1]
        assert all(p.data_ptr() == matrix.data_ptr() for p, matrix in self.matrices), "a copy would be moved"
        self.muon = torch.optim.Muon([matrix for _, matrix in self.matrices], lr=lr, adjust_lr_fn="match_rms_adamw")
        self.rest = torch.optim.AdamW([p for p in params if p.ndim < 2], lr=lr, foreach=True)

    @staticmethod
    def matrix(tensor: Any) -> Any:
        """[out, rest] without a copy: the memory of channels-last kernels is [out, height, width, in]."""
        return tensor.movedim(1, -1).reshape(len(tensor), -1)

    def step(self) -> None:
        """One step of both."""
        for p, matrix in self.matrices:
            matrix.grad = self.matrix(p.grad)
        self.muon.step()
        self.rest.step()

    def zero_grad(self) -> None:
        """As an optimizer's."""
        for p in self.params:
            p.grad = None


def jax_part(depth: int, width: int, batch: int, steps: int, turns: int) -> dict[str, Any]:
    """Milliseconds of our momentum step in JAX: the same network and batch, steps in a loop on the device."""
    import jax
    import jax.numpy as jnp
    import optax
    from jax import lax

    import discover
    from discover.gpu import device
    from discover.lab.models import build_network, conv_as_matmul

    on_cpu = device.is_cpu()
    network = build_network(
        "wide_resnet", (32, 32, 3), 10, depth=depth, width=width, dropout=0.0,
        dtype=jnp.float32 if on_cpu else jnp.bfloat16, conv_general_dilated=conv_as_matmul if on_cpu else None,
    )  # fmt: skip
    tx = discover.momentum(1e-6)
    images = jax.random.normal(jax.random.key(0), (1, batch, 32, 32, 3))
    labels = jax.random.randint(jax.random.key(1), (1, batch), 0, 10)

    def loss(params: Any, group: Any) -> Any:
        return optax.softmax_cross_entropy_with_integer_labels(network.apply(params, group[0]), group[1]).mean()

    def step(carry: Any, _: Any) -> Any:
        params, state = carry
        losses, grads = discover.group_value_and_grad(loss)(params, (images, labels))
        return discover.take_step(tx, grads, state, params, cluster_ids=jnp.zeros(1, jnp.int32)), losses.mean()

    go = jax.jit(lambda carry: lax.scan(step, carry, None, length=steps), donate_argnums=0)
    params = network.init(jax.random.key(2))
    carry, _ = jax.block_until_ready(go((params, tx.init(params))))
    times = []
    for _ in range(turns):
        began = time.perf_counter()
        carry, _ = jax.block_until_ready(go(carry))
        times.append((time.perf_counter() - began) / steps)
    found = {"momentum, milliseconds": round(1000 * median(times), 3), "device": jax.devices()[0].device_kind}
    return found | {"parameters": sum(x.size for x in jax.tree.leaves(carry[0])), "jax": jax.__version__}


def environment() -> dict[str, Any]:
    """The hardware and the versions."""
    import torch

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    versions = {"torch": torch.__version__, "numpy": importlib.metadata.version("numpy")}
    return {"gpu": gpu, "machine": platform.machine(), "python": platform.python_version(), **versions}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="a JSON file")
    parser.add_argument("--smoke", action="store_true", help="a small network on a CPU")
    parser.add_argument("--part", choices=("all", "torch", "jax"), default="all")
    arguments = parser.parse_args()
    shape = (10, 1, 8) if arguments.smoke else (26, 10, 256)
    steps, turns = (2, 2) if arguments.smoke else (10, 7)
    if arguments.part == "jax":
        arguments.out.write_text(json.dumps(jax_part(*shape, steps, turns)))
        return
    network = f"WideResNet-{shape[0]}-{shape[1]}, batch {shape[2]}"
    result: dict[str, Any] = {"network": network, "command": " ".join(sys.argv), "environment": environment()}

    def note() -> None:
        arguments.out.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")

    if arguments.part == "all":  # before torch takes memory of the GPU
        other = arguments.out.with_suffix(".jax.json")
        command = [sys.executable, __file__, "--part", "jax", "--out", str(other), *["--smoke"] * arguments.smoke]
        if subprocess.run(command).returncode == 0:
            result["jax"] = json.loads(other.read_text())
            other.unlink()
        note()
    result["torch"] = torch_part(*shape, steps, turns)
    if "jax" in result and "milliseconds" in result["torch"]["compiled"]:
        compiled = result["torch"]["compiled"]["milliseconds"]["SGD"]
        ratio = compiled / result["jax"]["momentum, milliseconds"]
        result["our JAX momentum step / torch's SGD, network compiled: steps per second"] = round(ratio, 3)
    note()
    print(json.dumps(result, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main()
