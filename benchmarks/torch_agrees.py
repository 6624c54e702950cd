"""PACS, one class a batch at random, trained in JAX and in PyTorch: do they reach the same?

    python benchmarks/torch_agrees.py .data/pacs48.tar.xz docs/results/torch-agrees.json      # a CPU, some minutes

The JAX side is `discover train`, whose command is in the record. The other side is a loop of PyTorch's own: the
laboratory's `cnn` written once more, and `discover.torch`. From the laboratory it has the pictures, their split and
which pictures make a batch; from the JAX run the configuration. It trains twice: "torch" with other seeds and initial
values of its own from the same distributions, so that the two samples are independent, and "same start" with the seeds
and initial values of JAX, so that only rounding differs. Needs PyTorch and the laboratory in one environment.

The learning rates were chosen in JAX on the validation split, seeds 0 and 1, from 0.001, 0.003, … 1:

    discover compare pacs48.tar.xz --layout domain/class --clusters classes --optimizers muon,discover_muon,discover \
      --learning-rates 0.001,0.003,0.01,0.03,0.1,0.3,1 --seeds 2 --no-control --set optimizer.l2=0.0005 \
      --set training.steps=400
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, pad, relu

from discover.lab import records
from discover.lab.data import BatchPlan, Dataset
from discover.lab.experiments.config.config import Config
from discover.lab.experiments.run.build import build_data, build_network_for, build_plan
from discover.lab.report.against import can_tell
from discover.lab.training.programs import init_key
from discover.torch import Discover, DiscoverMuon

# The optimizer, its learning rate, what else JAX and torch are told, and torch's class.
SETTINGS: dict[str, tuple[str, float, dict[str, float], Any]] = {
    "muon": ("muon", 0.003, {}, DiscoverMuon),  # with one cluster, Discover before Muon is Muon
    "discover_muon": ("discover_muon", 0.003, {}, DiscoverMuon),
    "discover_muon-damped": ("discover_muon", 0.003, {"damping": 0.1}, DiscoverMuon),
    "discover": ("discover", 0.1, {}, Discover),
}
SEEDS, STEPS = 5, 400
MEASURES = ("accuracy", "loss")


class CNN(nn.Module):
    """`discover/lab/models/small.py`; at a stride of 2 its "SAME" padding is below and at the right only."""

    def __init__(self, channels: int, num_classes: int, width: int, depth: int = 3):
        super().__init__()
        sizes = [channels, *(width * 2**layer for layer in range(depth))]
        strides = [1] + [2] * (depth - 1)
        self.convs = nn.ModuleList([nn.Conv2d(*two, 3, s, bias=False) for two, s in zip(pairwise(sizes), strides)])
        self.norms = nn.ModuleList([nn.GroupNorm(math.gcd(8, size), size) for size in sizes[1:]])
        self.head = nn.Linear(sizes[-1], num_classes)
        for conv, size in zip(self.convs, sizes[1:]):
            nn.init.normal_(conv.weight, std=math.sqrt(2 / (9 * size)))  # pyright: ignore[reportArgumentType]
        # flax's lecun_normal: cut at two standard deviations, then widened to a variance of 1/size
        nn.init.trunc_normal_(self.head.weight, std=1, a=-2, b=2)
        with torch.no_grad():
            self.head.weight.mul_(1 / math.sqrt(sizes[-1]) / 0.87962566103423978)
        nn.init.zeros_(self.head.bias)

    def forward(self, x: Tensor) -> Tensor:
        for number, (conv, norm) in enumerate(zip(self.convs, self.norms)):
            x = relu(norm(conv(pad(x, (0, 1, 0, 1) if number else (1, 1, 1, 1)))))
        return self.head(x.mean((2, 3)))


def start_as_in_jax(model: CNN, config: Config, data: Dataset, seed: int) -> None:
    """Gives the network the initial values that the JAX run has with this seed."""
    start: Any = build_network_for(config, data).init(init_key(seed))
    with torch.no_grad():
        for number, conv in enumerate(model.convs):
            kernel: Any = np.array(start["convs"][number]["kernel"]).transpose(3, 2, 0, 1)
            conv.weight.copy_(torch.as_tensor(kernel))  # pyright: ignore[reportCallIssue]
        model.head.weight.copy_(torch.as_tensor(np.array(start["head"]["kernel"]).T))


def train(
    config: Config, data: Dataset, kind: Any, options: dict[str, float], seed: int, *, same_start: bool = False
) -> dict[str, float]:
    """One training in PyTorch: its accuracy and loss on the test split."""
    pictures = torch.as_tensor(np.asarray(data.train.images)).permute(0, 3, 1, 2)
    plan: BatchPlan = build_plan(config, data, seed)
    clustered = config.optimizer.entry.clustered
    torch.manual_seed(seed)
    model = CNN(pictures.shape[1], data.num_classes, config.model.arguments["width"])
    if same_start:
        start_as_in_jax(model, config, data, seed)
    rate, rest = config.optimizer.learning_rate, {name: config.optimizer.get(name) for name in ("beta", "nu", "l2")}
    opt = kind(model.parameters(), rate, list(plan.probs) if clustered else 1, **rest, **options)
    warmup, steps = config.training.warmup_steps, STEPS

    def factor(t: int) -> float:
        return (t + 1) / warmup if t < warmup else 0.5 * (1 + math.cos(math.pi * (t - warmup) / (steps - warmup)))

    schedule = torch.optim.lr_scheduler.LambdaLR(opt, factor)
    for step in range(steps):
        batch = plan.batch(step)
        chosen = torch.as_tensor(batch.indices[0].astype(np.int64))
        labels = torch.as_tensor(batch.labels[0].astype(np.int64))
        cross_entropy(model(pictures[chosen].float() / 255), labels).backward()
        opt.cluster = int(batch.cluster_ids[0]) if clustered else 0
        opt.step()
        opt.zero_grad()
        schedule.step()
    test = torch.as_tensor(np.asarray(data.test.images)).permute(0, 3, 1, 2).float() / 255
    labels = torch.as_tensor(np.asarray(data.test.labels).astype(np.int64))
    with torch.no_grad():
        logits = torch.cat([model(part) for part in test.split(500)])
    return {
        "accuracy": (logits.argmax(1) == labels).double().mean().item(),
        "loss": cross_entropy(logits, labels).item(),
    }


def trained_in_jax(data: Path, name: str, folder: Path) -> tuple[str, Config, dict[str, list[float]]]:
    """The command, its configuration, and the values of its seeds."""
    optimizer, rate, options, _ = SETTINGS[name]
    said = [f"optimizer.{key}={value}" for key, value in {"l2": 0.0005, **options}.items()]
    said += [f"training.steps={STEPS}", f"training.eval_every={STEPS}"]
    words = ["train", str(data), "--layout", "domain/class", "--clusters", "classes", "--optimizer", optimizer]
    words += ["--learning-rate", str(rate), "--seeds", str(SEEDS), *(word for one in said for word in ("--set", one))]
    subprocess.run([sys.executable, "-m", "discover", *words, "--out", str(folder)], check=True)
    members = (records.read_summary(folder) or {})["members"]
    values = {measure: [one["final"]["test"][measure] for one in members] for measure in MEASURES}
    config = Config.from_dict(json.loads((folder / "config.json").read_text()))
    return " ".join(["discover", *words]).replace(str(data), data.name), config, values


def spread(values: list[float]) -> dict[str, Any]:
    return {"mean": statistics.mean(values), "std": statistics.stdev(values), "values": values}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="pacs48.tar.xz")
    parser.add_argument("record", type=Path, help="a file to write")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # a network this small gains nothing by a second, and waits for it where others compute
    rows = []
    for name, (_, rate, options, kind) in SETTINGS.items():
        with tempfile.TemporaryDirectory() as folder:
            command, config, in_jax = trained_in_jax(arguments.data, name, Path(folder) / name)
        data = build_data(config)
        ends = [train(config, data, kind, options, seed) for seed in range(SEEDS, 2 * SEEDS)]
        same = [train(config, data, kind, options, seed, same_start=True) for seed in range(SEEDS)]
        row: dict[str, Any] = {"label": name, "learning_rate": rate, "command": command}
        for measure in MEASURES:
            in_torch = [end[measure] for end in ends]
            row[measure] = {"jax": spread(in_jax[measure]), "torch": spread(in_torch)}
            row[measure]["same start"] = spread([end[measure] for end in same])
            row[measure]["seeds_can_tell"] = can_tell(in_jax[measure], in_torch)
        rows.append(row)
        print(json.dumps(row), flush=True)
    environment = records.environment(["cpu"], "cpu")
    environment["packages"]["torch"] = torch.__version__
    environment["command"] = f"python benchmarks/torch_agrees.py {arguments.data.name} {arguments.record.name}"
    seeds = {"jax": [*range(SEEDS)], "same start": [*range(SEEDS)], "torch": [*range(SEEDS, 2 * SEEDS)]}
    record = {"data": arguments.data.name, "seeds": seeds}
    records.write_json(arguments.record, {**record, "steps": STEPS, "rows": rows, "environment": environment})


if __name__ == "__main__":
    main()
