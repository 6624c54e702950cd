"""Records written by hand, as a comparison would leave them, for the tests of the report."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

CURVES = {  # label: (plateau, speed)
    "momentum": (0.62, 150.0),
    "qhm": (0.66, 150.0),
    "adam": (0.58, 120.0),
    "discover": (0.93, 110.0),
    "discover_qhm": (0.95, 90.0),
    "momentum-shuffled": (0.97, 60.0),
}


def write_run(directory: Path, label: str, *, seeds: int = 3, steps: int = 600) -> list[float]:
    """Write one run directory with smooth made-up curves; returns the last-step test accuracies."""
    plateau, speed = CURVES[label]
    noise = random.Random(label)
    directory.mkdir(parents=True)
    lines = []
    final = []
    for seed in range(seeds):
        offset = noise.uniform(-0.02, 0.02)
        for step in range(1, steps + 1):
            rise = 1 - math.exp(-step / speed)
            if step % 5 == 0:
                loss = 2.3 * (1 - 0.95 * rise * plateau) * noise.uniform(0.85, 1.15)
                lines.append({"kind": "train", "seed": seed, "step": step, "loss": loss, "accuracy": rise * plateau})
            if step % 50 == 0:
                accuracy = 0.1 + (plateau - 0.1) * rise + offset
                line = {"kind": "eval", "split": "validation", "seed": seed, "step": step}
                lines.append({**line, "loss": 2.3 * (1 - accuracy), "accuracy": accuracy})
        final.append(plateau + offset)
    (directory / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    config = {"optimizer": {"name": label.split("-")[0], "learning_rate": 0.1}, "steps": steps}
    (directory / "config.json").write_text(json.dumps(config))
    environment = {"python": "3.11", "cpu": "Some CPU", "cpus": 2, "backend": "cpu", "devices": ["cpu"]}
    (directory / "environment.json").write_text(json.dumps(environment))
    summary = {
        "status": "finished",
        "steps": steps,
        "seeds": list(range(seeds)),
        "final": {"test": {"accuracy": final, "loss": [2.3 * (1 - a) for a in final]}},
        "steps_per_second": 900.0,
    }
    (directory / "summary.json").write_text(json.dumps(summary))
    return final


def write_comparison(directory: Path, labels: tuple[str, ...] = tuple(CURVES), seeds: int = 3) -> Path:
    """Write a comparison directory over ``labels``."""
    rows = []
    for label in labels:
        final = write_run(directory / "runs" / label, label, seeds=seeds)
        mean = sum(final) / len(final)
        std = math.sqrt(sum((a - mean) ** 2 for a in final) / max(1, len(final) - 1))
        spread = {"mean": mean, "std": std, "values": final}
        domains = {
            name: {"accuracy": {**spread, "mean": mean - gap}, "loss": {**spread, "mean": 1 - mean + gap}}
            for name, gap in (("photo", 0.0), ("sketch", 0.2), ("cartoon", 0.1))
        }
        rows.append(
            {
                "clusters": domains,
                "label": label,
                "optimizer": label.split("-")[0],
                "batches": "shuffled" if label.endswith("-shuffled") else "class-pure",
                "control": label.endswith("-shuffled"),
                "learning_rate": 0.1,
                "grid": [
                    {"learning_rate": rate, "validation_accuracy": {"mean": mean * share, "std": std}}
                    for rate, share in ((0.03, 0.8), (0.1, 1.0), (0.3, 0.7))
                ],
                "validation_accuracy": spread,
                "test_accuracy": spread,
                "test_loss": {
                    "mean": 2.3 * (1 - mean),
                    "std": 0.01,
                    "values": [2.3 * (1 - a) for a in final],
                },
                "steps_to_target": {"values": [200 if mean > 0.9 else None] * seeds},
                "steps_per_second": 900.0,
                "relative_speed": 0.9,
                "run": f"runs/{label}",
            }
        )
    comparison = {
        "preset": "digits",
        "description": "Made-up records for the tests.",
        "facts": {"data": "digits", "batches": "2 class-pure groups of 16"},
        "target_accuracy": 0.9,
        "seeds": list(range(seeds)),
        "config": {"model": {"name": "mlp", "widths": [64, 64]}, "data": {"source": "digits", "path": None}},
        "environment": {"cpu": "Some CPU", "cpus": 2, "command": "discover compare digits"},
        "rows": rows,
    }
    (directory / "comparison.json").write_text(json.dumps(comparison))
    return directory
