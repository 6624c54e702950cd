"""Steps per second in PyTorch: our three optimizers against torch's own, and our JAX step against torch's compiled one.

    python benchmarks/torch_speed.py --out $OUT/torch_speed.json           # WideResNet-26-10, batch 256: two minutes
    python benchmarks/torch_speed.py --only compiled --out speed.json      # without the eager network, and the update
    python benchmarks/torch_speed.py --smoke --out /tmp/speed.json         # WideResNet-10-1, batch 8, on a CPU

One cluster a batch, bfloat16 autocast, channels last, made-up pictures. All optimizers take turns on the same network,
once compiled and once not; a ratio is that of the times of one turn, and the median over the turns is told. "none" is
a step without an optimizer's. The JAX part is a process of its own: both compile at the same time, and nothing is timed
while the other works. What is known is written to the file after each part.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import time
from collections import ChainMap
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch.nn.functional import cross_entropy
from torch_wide_resnet import make

from discover.torch import Discover, DiscoverAdamW, DiscoverMuon

SMALL, LARGE = (10, 1, 8), (26, 10, 256)  # depth, width and batch
CLUSTERS = 10
KINDS = ["compiled", "eager", "update alone"]
BASELINES = {"Discover": "SGD", "DiscoverAdamW": "AdamW", "DiscoverMuon": "Muon"}


class TorchPart:
    """Milliseconds of a step and of the optimizer alone, and ratios to the optimizer that ours is compared with."""

    def __init__(self, depth: int, width: int, batch: int, steps: int, turns: int):
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.steps, self.turns = steps, turns
        torch.manual_seed(0)
        self.model = make(depth, width, self.device)
        images = torch.randn(batch, 3, 32, 32, device=self.device)
        self.images = images.to(memory_format=torch.channels_last)
        self.labels = torch.randint(10, (batch,), device=self.device)
        self.optimizers = torch_optimizers(self.model)
        self.compiled = torch.compile(self.model)

    def compile(self) -> None:
        """Takes a first step with the compiled network."""
        self.stepper(self.compiled, self.optimizers["none"])(0)
        self.wait()

    def measured(self, kinds: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
        """Each of these kinds of times when it is known, and at the end the memory."""
        paired = [name for pair in BASELINES.items() for name in pair]
        if "compiled" in kinds:
            times = self.timed({name: self.stepper(self.compiled, opt) for name, opt in self.optimizers.items()})
            yield "compiled", times
        if "eager" in kinds:
            yield "eager", self.timed({name: self.stepper(self.model, self.optimizers[name]) for name in paired})
        if "update alone" in kinds:
            for p in self.model.parameters():
                p.grad = torch.randn_like(p) * 1e-3
            yield "update alone", self.timed({name: self.update(opt) for name, opt in self.optimizers.items()})
        yield "megabytes on the device", {name: self.megabytes(opt) for name, opt in self.optimizers.items()}

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def seconds(self, work: Callable[[int], None]) -> float:
        self.wait()
        began = time.perf_counter()
        for number in range(self.steps):
            work(number)
        self.wait()
        return (time.perf_counter() - began) / self.steps

    def stepper(self, network: Any, opt: Any) -> Callable[[int], None]:
        def step(number: int) -> None:
            with torch.autocast(self.device.type, torch.bfloat16):
                loss = cross_entropy(network(self.images), self.labels)
            loss.backward()
            opt.cluster = number % CLUSTERS
            opt.step()
            opt.zero_grad()

        return step

    def update(self, opt: Any) -> Callable[[int], None]:
        def step(number: int) -> None:
            opt.cluster = number % CLUSTERS
            opt.step()

        return step

    def timed(self, steppers: dict[str, Callable[[int], None]]) -> dict[str, Any]:
        """Everyone in turn, after a first time that does not count."""
        for one in steppers.values():
            self.seconds(one)
        times: dict[str, list[float]] = {name: [] for name in steppers}
        for _ in range(self.turns):
            for name, one in steppers.items():
                times[name].append(self.seconds(one))
        ratios = {
            f"{ours} / {theirs}": round(median(b / a for a, b in zip(times[ours], times[theirs])), 3)
            for ours, theirs in BASELINES.items()
        }
        milliseconds = {name: round(1000 * median(values), 3) for name, values in times.items()}
        return {"milliseconds": milliseconds, "steps per second, relative": ratios, "turns": self.turns}

    def megabytes(self, opt: Any) -> float:
        """What an optimizer remembers there."""
        kept = [x for memory in opt.state.values() for x in memory.values() if hasattr(x, "device")]
        return round(sum(x.numel() * x.element_size() for x in kept if x.device.type == self.device.type) / 1e6, 1)


def torch_optimizers(model: Any) -> dict[str, Any]:
    """torch's and ours; learning rates that keep the network as it is."""
    params = list(model.parameters())
    return {
        "none": NoOptimizer(params),
        "SGD": torch.optim.SGD(params, lr=1e-6, momentum=0.9, foreach=True),
        "SGD, fused": torch.optim.SGD(params, lr=1e-6, momentum=0.9, fused=True),
        "Discover": Discover(params, lr=1e-6, clusters=CLUSTERS),
        "Discover, buffers on the CPU": Discover(params, lr=1e-6, clusters=CLUSTERS, buffers="cpu"),
        "AdamW": torch.optim.AdamW(params, lr=1e-6, foreach=True),
        "AdamW, fused": torch.optim.AdamW(params, lr=1e-6, fused=True),
        "DiscoverAdamW": DiscoverAdamW(params, lr=1e-6, clusters=CLUSTERS, weight_decay=0.01),
        "Muon": MuonForKernels(params, lr=1e-6),
        "DiscoverMuon": DiscoverMuon(params, lr=1e-6, clusters=CLUSTERS),
        "DiscoverMuon, damped": DiscoverMuon(params, lr=1e-6, clusters=CLUSTERS, damping=0.1),
    }


class NoOptimizer:
    """Only clears the gradients."""

    def __init__(self, params: list[Any]):
        self.params, self.state = params, {}

    def step(self) -> None:
        """Nothing."""

    def zero_grad(self) -> None:
        """As an optimizer's."""
        for p in self.params:
            p.grad = None


class MuonForKernels(NoOptimizer):
    """`torch.optim.Muon`, which takes matrices only, on kernels seen as matrices, and AdamW for the rest."""

    def __init__(self, params: list[Any], lr: float):
        super().__init__(params)
        self.matrices = [(p, torch.nn.Parameter(self.matrix(p.detach()))) for p in params if p.ndim > 1]
        assert all(p.data_ptr() == matrix.data_ptr() for p, matrix in self.matrices), "a copy would be moved"
        self.muon = torch.optim.Muon([matrix for _, matrix in self.matrices], lr=lr, adjust_lr_fn="match_rms_adamw")
        self.rest = torch.optim.AdamW([p for p in params if p.ndim < 2], lr=lr, foreach=True)
        self.state = ChainMap(self.muon.state, self.rest.state)

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


def start_jax(*shape: int) -> subprocess.Popen[str]:
    """The process of the JAX part, which compiles and waits for a line."""
    command = [sys.executable, str(Path(__file__).with_name("torch_speed_jax.py")), *map(str, shape)]
    memory = {"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.4"}  # of the GPU's: torch needs some at the same time
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env={**os.environ, **memory})


def environment() -> dict[str, Any]:
    """The hardware and the versions."""
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    versions = {"torch": torch.__version__, "numpy": importlib.metadata.version("numpy")}
    return {"gpu": gpu, "machine": platform.machine(), "python": platform.python_version(), **versions}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="a JSON file")
    parser.add_argument("--smoke", action="store_true", help="a small network on a CPU")
    parser.add_argument("--only", choices=KINDS, nargs="+", default=KINDS, metavar="KIND", help=", ".join(KINDS))
    arguments = parser.parse_args()
    shape = SMALL if arguments.smoke else LARGE
    steps, turns = (2, 2) if arguments.smoke else (6, 7)
    network = f"WideResNet-{shape[0]}-{shape[1]}, batch {shape[2]}"
    result: dict[str, Any] = {"network": network, "command": " ".join(sys.argv), "environment": environment()}
    began = time.monotonic()

    def note(what: str) -> None:
        arguments.out.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")
        print(f"{time.monotonic() - began:.0f} s: {what}", flush=True)

    jax = start_jax(*shape)
    part = TorchPart(*shape, steps, turns)
    part.compile()
    note("torch has compiled")
    answer, _ = jax.communicate("measure\n")
    if jax.returncode == 0:
        result["jax"] = json.loads(answer)
    note("JAX has measured" if "jax" in result else "JAX failed, and is left out")
    parameters = sum(p.numel() for p in part.model.parameters())
    found = result["torch"] = {"parameters": parameters, "device": part.device.type}
    for kind, times in part.measured(arguments.only):
        found[kind] = times
        if kind == "compiled" and "jax" in result:
            ratio = times["milliseconds"]["SGD"] / result["jax"]["momentum, milliseconds"]
            result["our JAX momentum step / torch's SGD, network compiled: steps per second"] = round(ratio, 3)
        note(kind)
    print(json.dumps(result, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main()
