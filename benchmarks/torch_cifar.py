"""CIFAR-10 (JPEG) in PyTorch, one class a batch, drawn at random: as in `docs/results/results-h-one-group.json`.

    python benchmarks/torch_cifar.py --out $OUT                 # WideResNet-16-2, 1,758 steps of 256, three seeds
    python benchmarks/torch_cifar.py --out $OUT --before done.jsonl   # goes on: what that file has is not trained again
    python benchmarks/torch_cifar.py --smoke --out /tmp/cifar   # made-up pictures, a small network, ten steps, a CPU

Each training is printed when it ends, and appended to `OUT/torch_cifar.jsonl`; the means come last. No training
starts that would not end within `LIMIT` seconds (an environment variable, 300 unless told). The pictures are read from
`.data/cifar10-jpeg.tar.xz` with the laboratory, and a tenth of the training pictures is left out, as in the record.
Settings and learning rates are the record's: none was tuned here.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"  # the laboratory reads the pictures, and is to leave the GPU alone

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch_wide_resnet import make

from discover.torch import Discover, DiscoverMuon

SETTINGS: dict[str, tuple[Any, dict[str, Any]]] = {
    "discover_muon": (DiscoverMuon, {"lr": 0.001}),
    "discover_muon-damped": (DiscoverMuon, {"lr": 0.002, "damping": 0.1}),
    "discover": (Discover, {"lr": 0.03}),
}
COMMON = {"clusters": 10, "beta": 0.95, "nu": 0.95, "l2": 5e-4}
SEEDS, STEPS, BATCH, WARMUP, PADDING = (0, 1, 2), 1758, 256, 5, 4
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def pictures(smoke: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Training and test pictures, uint8 [n, 3, H, W], with their labels, on the device."""
    if smoke:
        rng = np.random.default_rng(0)
        labels = np.arange(200) % 10
        images = (20 * labels[:, None, None, None] + rng.integers(0, 60, (200, 32, 32, 3))).astype(np.uint8)
        arrays = [images, labels, images[:100], labels[:100]]
    else:
        from discover.lab.data import load

        data = load("cifar10", ".data/cifar10-jpeg.tar.xz")
        kept = np.random.default_rng(0).permutation(len(data.train.labels))[len(data.train.labels) // 10 :]
        arrays = [np.asarray(data.train.images)[kept], np.asarray(data.train.labels)[kept]]
        arrays += [np.asarray(data.test.images), np.asarray(data.test.labels)]
    train, labels, test, test_labels = (torch.as_tensor(array).to(DEVICE) for array in arrays)
    return train.permute(0, 3, 1, 2), labels.long(), test.permute(0, 3, 1, 2), test_labels.long()


def batches(images: Tensor, labels: Tensor, steps: int, size: int, seed: int) -> Iterator[tuple[int, Tensor, Tensor]]:
    """(class, pictures, labels): random crops after padding, mirrored or not, in [0, 1]."""
    choose = torch.Generator().manual_seed(1000 + seed)  # on the host: the optimizer is told the class there
    draw = torch.Generator(DEVICE).manual_seed(seed)
    members = [torch.nonzero(labels == c)[:, 0] for c in range(10)]
    padded = torch.nn.functional.pad(images, (PADDING,) * 4)
    side = torch.arange(images.shape[-1], device=DEVICE)
    for _ in range(steps):
        label = int(torch.randint(10, (), generator=choose))
        rows = members[label][torch.randint(len(members[label]), (size,), generator=draw, device=DEVICE)]
        top, left = torch.randint(2 * PADDING + 1, (2, size, 1), generator=draw, device=DEVICE)
        mirrored = torch.randint(2, (size, 1), generator=draw, device=DEVICE).bool()
        columns = left + torch.where(mirrored, side.flip(0), side)
        crops = padded[rows[:, None, None], :, (top + side)[:, :, None], columns[:, None, :]]  # [b, H, W, 3]
        x = (crops.float() / 255).permute(0, 3, 1, 2)  # channels last, as it lies in memory
        yield label, x, labels[rows]


def train(setting: str, seed: int, data: tuple[Tensor, ...], *, steps: int, size: int, width: int) -> dict[str, Any]:
    """One training: its accuracy in %, its losses, and how long it took."""
    kind, options = SETTINGS[setting]
    images, labels, test, test_labels = data
    torch.manual_seed(seed)
    model = make(16 if steps > 10 else 10, width, DEVICE)
    opt = kind(model.parameters(), **COMMON, **options)

    def factor(t: int) -> float:
        if t < WARMUP:
            return (t + 1) / WARMUP
        return 0.5 * (1 + math.cos(math.pi * (t - WARMUP) / max(1, steps - WARMUP)))

    schedule = torch.optim.lr_scheduler.LambdaLR(opt, factor)
    losses, began = [], time.perf_counter()
    for label, x, y in batches(images, labels, steps, size, seed):
        with torch.autocast(DEVICE.type, torch.bfloat16):
            loss = cross_entropy(model(x), y)
        loss.backward()
        opt.cluster = label
        opt.step()
        opt.zero_grad()
        schedule.step()
        losses.append(loss.detach())
    with torch.no_grad(), torch.autocast(DEVICE.type, torch.bfloat16):
        guesses = [model(part.float() / 255).argmax(1) for part in test.split(500)]
    accuracy = 100 * (torch.cat(guesses) == test_labels).double().mean().item()
    seconds = time.perf_counter() - began
    fifths = [round(part.mean().item(), 4) for part in torch.stack(losses).float().tensor_split(5)]
    numbers = {"accuracy": round(accuracy, 2), "losses": fifths, "seconds": round(seconds, 1)}
    return {"setting": setting, "seed": seed, "steps": steps, **options, **numbers}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="a folder")
    parser.add_argument("--before", type=Path, help="trainings of an earlier run")
    parser.add_argument("--settings", default=",".join(SETTINGS))
    parser.add_argument("--seeds", default=",".join(map(str, SEEDS)))
    parser.add_argument("--smoke", action="store_true")
    arguments = parser.parse_args()
    began, limit = time.monotonic(), float(os.environ.get("LIMIT", "300"))
    arguments.out.mkdir(parents=True, exist_ok=True)
    file = arguments.out / "torch_cifar.jsonl"
    if arguments.before:
        file.write_text(arguments.before.read_text())
    records = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    records = [record for record in records if "seed" in record]
    done = {(record["setting"], record["seed"]) for record in records}
    data = pictures(arguments.smoke)
    sizes = {"steps": 10, "size": 8, "width": 1} if arguments.smoke else {"steps": STEPS, "size": BATCH, "width": 2}
    gpu = torch.cuda.get_device_name() if DEVICE.type == "cuda" else "CPU"
    where = {"device": gpu, "torch": torch.__version__, "python": platform.python_version()}
    print(f"{gpu}, torch {torch.__version__}: data after {time.monotonic() - began:.0f} s", flush=True)
    longest = 0.0
    for seed in map(int, arguments.seeds.split(",")):
        for setting in arguments.settings.split(","):
            if (setting, seed) in done:
                continue
            if time.monotonic() - began + longest > limit:
                print(f"out of time before {setting}, seed {seed}", flush=True)
                continue
            records.append(train(setting, seed, data, **sizes) | where)
            longest = max(longest, records[-1]["seconds"])
            with file.open("a") as lines:
                lines.write(json.dumps(records[-1]) + "\n")
            print(json.dumps(records[-1]), flush=True)
    for setting in SETTINGS:
        found = [record["accuracy"] for record in records if record["setting"] == setting]
        if len(found) > 1:
            print(f"{setting:22s} {statistics.mean(found):.1f} ± {statistics.stdev(found):.1f} %, n = {len(found)}")


if __name__ == "__main__":
    main()
