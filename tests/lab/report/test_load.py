"""Reading records: curves over seeds, comparisons, and what is not there or damaged."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from discover.lab.records import mean_std
from discover.lab.report import RecordsError, load_report, load_run
from discover.lab.report.load import RunRecord
from tests.lab.report.synthetic import write_comparison, write_run


def record(lines: list[dict]) -> RunRecord:
    return RunRecord(label="discover", config={}, environment={}, summary={}, metrics=tuple(lines))


def test_a_curve_is_the_mean_and_sample_deviation_over_seeds():
    lines = [{"kind": "train", "seed": s, "step": 5, "loss": v} for s, v in ((0, 1.0), (1, 3.0))]
    curve = record(lines).curve("loss")
    assert curve.steps == (5,)
    assert curve.mean == (2.0,)
    assert curve.std == pytest.approx((math.sqrt(2),))


def test_a_step_written_twice_counts_once_with_its_later_value():
    lines = [{"kind": "train", "seed": 0, "step": 5, "loss": v} for v in (9.0, 1.0)]
    assert record(lines).curve("loss").mean == (1.0,)


def test_the_validation_curve_is_preferred_to_the_test_curve():
    lines = [
        {"kind": "eval", "split": split, "seed": 0, "step": 1, "accuracy": value}
        for split, value in (("test", 0.1), ("validation", 0.9))
    ]
    assert record(lines).eval_curve() == ("validation", record(lines).curve("accuracy", "eval", "validation"))
    assert record(lines[:1]).eval_curve()[0] == "test"


@pytest.mark.parametrize("values", [[], [0.5, None], [0.5, math.nan], [math.inf]])
def test_a_seed_that_diverged_is_not_averaged_away(values):
    assert all(math.isnan(v) for v in mean_std(values))


def test_a_comparison_lists_its_runs_in_the_order_of_its_rows(tmp_path):
    report = load_report(write_comparison(tmp_path / "c", labels=("momentum", "discover")))
    assert [run.label for run in report.runs] == ["momentum", "discover"]
    assert [row["label"] for row in report.rows] == ["momentum", "discover"]


def test_one_run_and_a_folder_of_runs_are_reports_too(tmp_path):
    final = write_run(tmp_path / "momentum", "momentum")
    write_run(tmp_path / "discover", "discover")
    one = load_report(tmp_path / "momentum")
    assert one.title == "Momentum on momentum"  # its folder, where the record does not say what it was trained on
    assert [run.label for run in one.runs] == ["momentum"]
    assert one.rows[0]["test_accuracy"]["values"] == final
    assert [run.label for run in load_report(tmp_path).runs] == ["discover", "momentum"]


def test_a_metrics_file_cut_short_by_a_kill_is_read_up_to_the_cut(tmp_path):
    write_run(tmp_path / "r", "discover", steps=50)
    path = tmp_path / "r" / "metrics.jsonl"
    whole = load_run(tmp_path / "r").metrics
    path.write_bytes(path.read_bytes()[:-7])
    assert load_run(tmp_path / "r").metrics == whole[:-1]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda d: None, "no records in"),
        (lambda d: d.rmdir(), "no such directory"),
        (lambda d: (d / "comparison.json").write_text("{"), "comparison.json is damaged"),
        (lambda d: (d / "comparison.json").write_text("[]"), "must hold a JSON object, got list"),
        (lambda d: (d / "comparison.json").write_text(json.dumps({"rows": []})), "no finished run yet"),
        (lambda d: (d / "metrics.jsonl").write_text("oops\n{}\n"), "metrics.jsonl is damaged at line 1"),
    ],
)
def test_what_cannot_be_read_is_named_in_one_line(tmp_path: Path, damage, message):
    directory = tmp_path / "d"
    directory.mkdir()
    damage(directory)
    with pytest.raises(RecordsError, match=message) as caught:
        load_report(directory)
    assert "\n" not in str(caught.value)


def test_the_folder_that_one_is_in_has_a_name_in_the_title(tmp_path, monkeypatch):
    write_run(tmp_path / "mine" / "discover", "discover")
    write_run(tmp_path / "mine" / "momentum", "momentum")
    monkeypatch.chdir(tmp_path / "mine")
    assert load_report(".").title == "Runs in mine"
