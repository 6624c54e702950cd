"""The figures of the diagnosis page can be made again: settings, records, what is kept between calls."""

import json

import numpy as np
import pytest

from benchmarks.diagnosis import advice, variance
from benchmarks.diagnosis.steps_to_target import Race, until_target
from benchmarks.diagnosis.validate import rank_correlation
from discover.lab.data import Dataset, Split
from discover.lab.experiments.config.config import Config


@pytest.mark.slow
def test_variance_is_reproduced_and_what_is_trained_is_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(variance, "OPTIMIZERS", ("momentum",))
    monkeypatch.setattr(variance, "SETTINGS", {"clean": variance.SETTINGS["clean"]})
    said = []
    assert variance.draw(tmp_path) == []
    variance.run(tmp_path, quick=True, say=said.append)
    assert len(said) == 1
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/*/metrics.jsonl")}
    variance.run(tmp_path, quick=True)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/*/metrics.jsonl")} == before
    assert len(variance.draw(tmp_path)) == 2


def images(number=240):
    rng = np.random.default_rng(0)
    labels = (np.arange(number) % 4).astype(np.int32)
    pixels = rng.integers(0, 60, (number, 8, 8, 1))
    pixels[np.arange(number), labels * 2] += 180
    split = Split(pixels.astype(np.uint8), labels)
    return Dataset("made", split, split, 4)


def test_small_images_are_means_of_four_pixels():
    small = advice.small_images(images(), 100)
    assert small.train.images.shape == (100, 4, 4, 1)
    chosen = np.sort(np.random.default_rng(0).permutation(240)[:100])
    first = images().train.images[chosen[0]].astype(float)
    assert small.train.images[0, 1, 2, 0] == pytest.approx(first[2:4, 4:6, 0].mean(), abs=0.5)
    assert len(small.test) == 0


CONFIG = Config(name="race").with_values(
    {
        "model.name": "mlp", "model.depth": 1, "model.width": 8, "batches.groups": 2, "batches.group_size": 8,
        "optimizer.name": "momentum", "training.eval_every": 5, "training.steps_per_dispatch": 5,
    }
)  # fmt: skip


PROGRAMS: dict = {}  # compiled once for both tests


def test_training_ends_at_the_first_evaluation_that_reaches_the_target():
    data, programs = images().split_validation(0.2), PROGRAMS
    common = {"limit": 100, "dataset": data, "programs": programs}
    step, best = until_target(CONFIG, {"learning_rate": 0.1}, 0, target=0.9, **common)
    assert step is not None
    assert step % 5 == 0
    assert best >= 0.9
    later, _ = until_target(CONFIG, {"learning_rate": 0.1}, 0, target=0.5, **common)
    assert later is not None
    assert later <= step
    assert until_target(CONFIG, {"learning_rate": 1e-9}, 0, target=0.9, **common)[0] is None
    with pytest.raises(ValueError, match="made has none"):
        until_target(CONFIG, {}, 0, target=0.9, limit=5, dataset=images(), programs=programs)


def test_a_race_chooses_the_quickest_rate_on_its_tuning_seeds_and_counts_on_the_others():
    data = images().split_validation(0.2)
    race = Race(data, 60, tuning_seeds=(0, 1), seeds=(2, 3, 4), programs=PROGRAMS)
    found = race.steps(CONFIG, [{"learning_rate": rate} for rate in (1e-9, 0.1, 1e-3)], target=0.9)
    assert found.values == {"learning_rate": 0.1}
    assert len(found.by_seed) == found.reached == 3
    assert found.mean == pytest.approx(np.mean(found.by_seed))
    never = race.steps(CONFIG, [{"learning_rate": rate} for rate in (1e-9, 0.1)], target=1.1)
    assert never.values == {"learning_rate": 0.1}  # none arrives: the one that came closest
    assert never.by_seed == (60, 60, 60)
    assert never.reached == 0


@pytest.mark.slow
def test_advice_is_validated_and_a_second_call_measures_nothing_again(tmp_path, monkeypatch):
    advice.run(tmp_path, quick=True)
    record = json.loads((tmp_path / "validation-digits.json").read_text())
    assert [row["clustering"] for row in record["rows"]] == ["classes", "kmeans", "random"]
    assert len(record["shuffled"]) == 1
    assert len(advice.draw(tmp_path)) == 2
    monkeypatch.setattr("benchmarks.diagnosis.validate._Look", None)  # would measure
    advice.run(tmp_path, quick=True)
    assert json.loads((tmp_path / "validation-digits.json").read_text())["rows"] == record["rows"]


def test_rank_correlation_is_spearmans():
    rows = [{"predicted": p, "measured": m} for p, m in [(1, 1), (2, 4), (3, 9), (4, 16)]]
    assert rank_correlation(rows)["rank_correlation"] == pytest.approx(1.0)
    rows = [{"predicted": p, "measured": m} for p, m in [(1, 3), (2, 2), (3, 1)]]
    assert rank_correlation(rows)["rank_correlation"] == pytest.approx(-1.0)
