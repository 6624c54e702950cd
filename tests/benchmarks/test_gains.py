"""The gain that is expected against the one that the results show: who is compared with whom, and by what."""

from __future__ import annotations

import dataclasses
import math
import shutil
from pathlib import Path

import pytest

from benchmarks.diagnosis import gains as module
from benchmarks.diagnosis.gains import gains
from discover.lab.experiments.diagnose.gradient_sample import DiagnosisOptions
from discover.lab.experiments.reproduce.results import get_result
from discover.lab.experiments.reproduce.train import reproduce
from discover.lab.records import read_json

RECORDS = Path(__file__).parents[2] / "docs" / "results"


def place(folder, result, panel):
    (folder / result / panel).mkdir(parents=True)
    shutil.copy(RECORDS / f"{result}-{panel}.json", folder / result / panel / "comparison.json")


@pytest.fixture
def expected(monkeypatch):
    """Nothing is measured: the fewer groups, the more is expected."""

    def expect(trained, known, options):
        for key, (config, _) in trained.items():
            if key not in known:
                yield key, {"predicted": 4 / config.batches.groups}

    monkeypatch.setattr(module, "_expected", expect)


def test_each_is_compared_with_its_own_baseline_in_the_same_setting_also_of_another_result(tmp_path, expected):
    place(tmp_path, "results-d", "purity")  # Momentum, Adam, Discover
    place(tmp_path, "results-g", "before-adam")  # Discover before Adam
    place(tmp_path, "results-h", "groups")  # Muon with two ν, Discover before it
    record = gains(tmp_path)
    rows = {(row["optimizer"], row["groups"]): row for row in record["rows"]}
    assert set(rows) == {
        *(("discover", groups) for groups in (1, 2, 4, 8)),
        *(("discover_muon", groups) for groups in (1, 2, 4, 8)),
        *(("discover_adam", groups) for groups in (2, 8)),
    }
    assert rows["discover_muon", 1]["baseline"] == "muon-fresh 1 group"  # the better one on the validation split
    assert rows["discover_muon", 1]["label"] == "discover_muon-damped 1 group"
    found = {
        row["label"]: row["test_accuracy"]["values"] for row in read_json(RECORDS / "results-d-purity.json")["rows"]
    }
    odds = [[math.log(a / (1 - a)) for a in found[f"{name}-8 groups"]] for name in ("discover", "momentum")]
    gain = sum(odds[0]) / 3 - sum(odds[1]) / 3
    assert rows["discover", 8]["measured"] == pytest.approx(math.exp(gain))
    assert rows["discover", 8]["measured_low"] < rows["discover", 8]["measured"] < rows["discover", 8]["measured_high"]
    muon, plain = (record["families"][name] for name in ("discover_muon", "discover"))
    assert muon["rank_correlation"] == pytest.approx(1.0)  # in the order of the groups
    assert (muon["pairs_in_order"], muon["pairs"]) == (6, 6)
    assert plain["pairs_in_order"] < plain["pairs"] == 6
    assert {path.suffix for path in module.draw(tmp_path / "gains")} == {".png", ".svg"}


def test_a_record_of_printed_means_counts_without_an_interval(tmp_path, expected):
    (tmp_path / "results-h" / "turns").mkdir(parents=True)
    shutil.copy(RECORDS / "results-h-turns-printed.json", tmp_path / "results-h" / "turns" / "comparison.json")
    rows = gains(tmp_path)["rows"]
    assert [(row["optimizer"], row["groups"]) for row in rows if row["composition"] == "balanced"] == [
        (name, groups) for groups in (1, 2) for name in ("discover", "discover_adam", "discover_muon")
    ]
    assert all(row["measured_low"] == row["measured"] == row["measured_high"] for row in rows)


def test_of_text_the_gain_is_a_ratio_of_likelihoods():
    ours, plain = ({"measure": "loss", "test_loss": {"mean": loss, "values": [loss, loss]}} for loss in (1.5, 1.7))
    assert module._measured(ours, plain)["measured"] == pytest.approx(math.exp(0.2))


def test_what_is_expected_is_measured_once(tmp_path, monkeypatch):
    small = ["model.name=logistic", "model.depth=none", "model.width=none", "training.steps=4", "training.eval_every=4"]
    result = get_result("results-h/one-group", "digits", overrides=small, seeds=[0])
    wanted = ("momentum-1 group", "discover-1 group")
    rows = [dataclasses.replace(row, learning_rates=(0.1,)) for row in result.panels[0].rows if row.label in wanted]
    result = dataclasses.replace(result, panels=(dataclasses.replace(result.panels[0], rows=tuple(rows)),))
    reproduce(result, tmp_path, overrides=small)
    options = DiagnosisOptions(sample=100, warmup_steps=5)
    (row,) = gains(tmp_path, scale="digits", options=options)["rows"]
    assert (row["data"], row["clusters"], row["groups"], row["model"]) == ("digits", "classes", 1, "logistic")
    assert row["predicted"] > 1.2  # one class a batch
    monkeypatch.setattr(module, "Outlook", None)  # would measure
    assert gains(tmp_path, scale="digits", options=options)["rows"] == [row]
