"""Compares optimizers on the digits in many settings, and keeps one record of them for the documentation.

    python benchmarks/digits_settings.py runs/digits-settings     # about ten minutes on two cores; goes on where it was

writes `docs/results/digits-settings.json`. Each setting is a comparison of its own: the same batches for all, the
learning rate the best of the preset's grid on the validation split, five seeds. A row of the record says what was set.
"""

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

from discover.lab.experiments.compare.comparison import make_comparison
from discover.lab.experiments.compare.train import compare
from discover.lab.experiments.presets.presets import get_preset

RECORD = Path(__file__).parent.parent / "docs" / "results" / "digits-settings.json"
TWO = {"batches.groups": 2, "batches.group_size": 16}
FOUR = {"batches.groups": 4, "batches.group_size": 8}
EIGHT = {"batches.groups": 8, "batches.group_size": 4}
SETTINGS: dict[str, tuple[str, dict[str, Any]]] = {  # title: preset, and what is changed in it
    "as shipped: 1 group of 32 and 200 steps": ("digits", {}),
    "2 groups of 16": ("digits", TWO),
    "4 groups of 8": ("digits", FOUR),
    "8 groups of 4": ("digits", EIGHT),
    "100 steps": ("digits", {"training.steps": 100}),
    "400 steps": ("digits", {"training.steps": 400}),
    "1000 steps": ("digits", {"training.steps": 1000}),
    "classes in turn": ("digits", {"batches.composition": "balanced"}),
    "4 hidden layers": ("digits", {"model.depth": 4}),
    "logistic regression": ("digits", {"model.name": "logistic", "model.depth": None, "model.width": None}),
    "label noise 0.4 and 400 steps": ("digits-noise", {}),
    "label noise 0.4 and 1000 steps": ("digits-noise", {"training.steps": 1000}),
}
VARIANTS: dict[str, dict[str, Any]] = {  # label of one optimizer: other values, in the setting as shipped
    **{f"adam-beta1={beta}": {"optimizer.beta1": beta} for beta in (0, 0.5, 0.95, 0.99)},
    "adam-beta1=0 2 groups": {"optimizer.beta1": 0, **TWO},
    "adam-beta1=0 8 groups": {"optimizer.beta1": 0, **EIGHT},
    **{f"discover_adam-beta1={beta}": {"optimizer.beta1": beta} for beta in (0, 0.9)},
    "discover_adam-beta1=0 2 groups": TWO,
    "discover_adam-beta1=0 8 groups": EIGHT,
    **{f"momentum-beta={beta}": {"optimizer.beta": beta} for beta in (0.5, 0.8, 0.95, 0.98, 0.99)},
    **{
        f"{optimizer}-beta={beta} nu={nu}": {"optimizer.beta": beta, "optimizer.nu": nu}
        for optimizer, pairs in {
            "qhm": ((0.9, 0.5), (0.95, 0.7), (0.98, 0.7), (0.99, 0.9)),
            "discover": ((0.9, 0.7), (0.9, 0.95), (0.95, 0), (0.95, 0.5), (0.95, 0.95), (0.95, 1), (0.98, 0.95)),
        }.items()
        for beta, nu in pairs
    },
}
KEPT = ("optimizer", "batches", "learning_rate", "at_grid_edge", "validation_accuracy", "test_accuracy")


def train(name: str, optimizers: list[str], changes: dict[str, Any], folder: Path, control: bool) -> dict[str, Any]:
    """The record of one comparison, trained or read back."""
    preset = get_preset(name)
    for_all = {key: value for key, value in changes.items() if not key.startswith("optimizer.")}
    preset = dataclasses.replace(preset, config=preset.config.with_values(for_all))
    overrides = [f"{key}={value}" for key, value in changes.items() if key.startswith("optimizer.")]
    return compare(make_comparison(preset, optimizers=optimizers, control=control, overrides=overrides), folder)


def main(folder: Path) -> None:
    rows: list[dict[str, Any]] = []
    found: dict[str, Any] = {}
    for title, (preset, changes) in SETTINGS.items():
        print(title, flush=True)
        control = "batches.composition" not in changes
        found = train(preset, ["momentum", "adam", "discover"], changes, folder / title.replace(" ", "-"), control)
        for one in found["rows"]:
            facets = {"setting": title, "optimizer": one["label"]}
            rows.append({"label": f"{one['label']}-{title}", "preset": preset, "set": changes, "facets": facets})
            rows[-1] |= {key: one[key] for key in KEPT}
    for label, changes in VARIANTS.items():
        print(label, flush=True)
        record = train("digits", [label.partition("-")[0]], changes, folder / label.replace(" ", "-"), control=False)
        rows.append({"label": label, "preset": "digits", "set": changes, "facets": {}})
        rows[-1] |= {key: record["rows"][0][key] for key in KEPT}
    environment = {key: value for key, value in found["environment"].items() if key not in ("command", "git")}
    record = {"command": "python benchmarks/digits_settings.py", "seeds": found["seeds"], "environment": environment}
    RECORD.write_text(json.dumps(record | {"rows": rows}, indent=1) + "\n")
    print(f"{len(rows)} rows in {RECORD}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    main(Path(sys.argv[1]))
