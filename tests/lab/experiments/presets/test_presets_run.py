"""The paper's presets run end to end, on data that the tests write: every part of them but the size."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from discover.lab.experiments.presets.presets import get_preset
from discover.lab.experiments.run.run import run

TINY = ["batches.groups=3", "batches.group_size=4", "training.steps_per_dispatch=2", "training.eval_every=2"]
SHORT = ["training.steps=4", "training.seeds=0", "training.checkpoint_every=0", "training.log_every=1"]
NO_LAYERS = ["model.depth=none", "model.width=none", "model.dropout=none"]
SMALL_MODEL = ["model.name=logistic", *NO_LAYERS, "model.dtype=float32"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Three classes of small pictures, in the layout of ImageNet."""
    root = tmp_path_factory.mktemp("images")
    rng = np.random.default_rng(0)
    for split, count in (("train", 8), ("val", 3)):
        for label in range(3):
            target = root / split / f"class{label}"
            target.mkdir(parents=True)
            for number in range(count):
                pixels = rng.integers(0, 60, (40, 40, 3)) + 60 * label
                Image.fromarray(pixels.astype(np.uint8)).save(target / f"{number}.png")
    return root


def run_preset(name: str, optimizer: str, folder: Path, out: Path, *changes: str):
    config = get_preset(name).config_for(optimizer)
    data = ["data.source=folder", f"data.path={folder}", "data.size=40"]
    return run(config.override([*data, *TINY, *SHORT, *changes]).check(), out)


@pytest.mark.parametrize(
    ("name", "optimizer", "changes"),
    [
        ("imagenet-augment-noise08", "discover", ["data.crop_size=32"]),
        pytest.param("cifar10-classes-noise08-small", "paper_discover_qhm", [], marks=pytest.mark.slow),
    ],
)
def test_a_preset_trains_on_a_folder_of_images(name, optimizer, changes, folder, tmp_path):
    result = run_preset(name, optimizer, folder, tmp_path / "run", *SMALL_MODEL, *changes)
    assert result.status == "finished"
    assert result.steps == 4
    recorded = json.loads((tmp_path / "run" / "config.json").read_text())
    assert recorded["data"]["label_noise"] == 0.8
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in lines if line["kind"] == "train"]
    assert len(losses) == 4
    assert np.isfinite(losses).all()
    assert 0 <= result.members[0].final["test"]["accuracy"] <= 1


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["momentum", "discover_igt"])
def test_imagenet_trains_with_its_own_network(optimizer, folder, tmp_path):
    changes = ["data.crop_size=32", "model.dtype=float32"]
    assert run_preset("imagenet-augment", optimizer, folder, tmp_path / "run", *changes).status == "finished"


@pytest.mark.slow
def test_cifar_trains_with_its_own_small_network(folder, tmp_path):
    changes = ["model.dtype=float32"]
    result = run_preset("cifar10-augment-small", "discover", folder, tmp_path / "run", *changes)
    assert result.status == "finished"
