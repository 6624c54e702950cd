"""Measures the optimizers on `examples/text_domains.py` over a grid of settings and several seeds.

    python benchmarks/text_domains.py --out text-domains.json             # every setting, seed 0
    python benchmarks/text_domains.py --seeds 1,2,3,4,5 --best text-domains.json --out text-domains-best.json

The first line tries every setting once. The second repeats the best setting of each optimizer on other seeds, so that
what is reported was not chosen on the seeds that it is reported for.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax

import discover
from discover.registry import OPTIMIZERS

EXAMPLE = Path(__file__).parent.parent / "examples" / "text_domains.py"
ADAM_RATES, SGD_RATES = (0.001, 0.003, 0.01, 0.03), (0.3, 1.0, 3.0)
FAMILY = ((0.95, 0.95), (0.98, 0.918), (0.9, 0.5), (0.9, 0.0))  # β, ν

SETTINGS = {  # by optimizer
    "momentum": [{"lr": lr} for lr in SGD_RATES],
    "adam": [{"lr": lr, "beta1": beta1} for lr, beta1 in itertools.product(ADAM_RATES, (0.0, 0.5, 0.9, 0.97))],
    "discover": [{"lr": lr, "beta": b, "nu": n} for lr, (b, n) in itertools.product(SGD_RATES, FAMILY)],
    "discover_adam": [
        {"lr": lr, "beta": b, "nu": n, "beta1": beta1}
        for lr, (b, n), beta1 in itertools.product(ADAM_RATES, FAMILY, (0.0, 0.9))
    ],
}


def optimizer(name: str, hyper: dict[str, Any], clusters: discover.Clusters, steps: int) -> Any:
    """The optimizer of a row; hyperparameters may be traced, so that a row is compiled once."""
    shape = optax.warmup_cosine_decay_schedule(0, 1, steps // 8, steps)
    options = {key: value for key, value in hyper.items() if key != "lr"}

    def rate(step):
        return hyper["lr"] * shape(step)

    entry = OPTIMIZERS[name]
    return entry.make(rate, clusters, **options) if entry.clustered else entry.make(rate, **options)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--best", type=Path, help="take only each row's best setting in this file")
    parser.add_argument("--rows", default="momentum,adam,discover,discover_adam,adam-mixed")
    arguments = parser.parse_args()
    spec = importlib.util.spec_from_file_location("text_domains", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)

    text = np.stack(list(example.load_texts().values()))
    cut = text.shape[1] * 9 // 10
    clusters = discover.Clusters.uniform(len(text))
    results: list[dict[str, Any]] = []
    for name, seed in itertools.product(arguments.rows.split(","), map(int, arguments.seeds.split(","))):

        @jax.jit
        def run(hyper, name=name, seed=seed):
            tx = optimizer(name.partition("-")[0], hyper, clusters, example.STEPS)
            return example.train(tx, text[:, :cut], text[:, cut:], seed, mixed=name.endswith("mixed"))

        chosen = SETTINGS[name.partition("-")[0]]
        if arguments.best:
            earlier = [row for row in json.loads(arguments.best.read_text()) if row["name"] == name]
            best = min(earlier, key=lambda row: row["loss"])
            chosen = [{key: best[key] for key in ("lr", "beta", "nu", "beta1") if key in best}]
        for hyper in chosen:
            start = time.perf_counter()
            losses = np.asarray(run(hyper), float)
            loss = float(losses.mean())
            row = {"name": name, "seed": seed, **hyper, "loss": loss if np.isfinite(loss) else 1e9}
            results.append({**row, "domains": losses.tolist(), "seconds": time.perf_counter() - start})
            print(json.dumps({**row, "loss": round(loss, 4)}), flush=True)
            arguments.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
