"""A report of runs that tracked their variance has its figure; other reports do not."""

from __future__ import annotations

import json

import pytest

from discover.report import load_report, write_report
from discover.report.diagnosis import variance_curve, write_tracked_variance
from tests.report.synthetic import write_comparison

LABELS = ("momentum", "discover")


def track(directory, label, fields, steps=(50, 100, 150)):
    """Adds variance lines to a run: seed s has the field's value at step t plus s."""
    with (directory / "runs" / label / "metrics.jsonl").open("a") as file:
        for seed in (0, 1):
            for step in steps:
                line = {"kind": "variance", "seed": seed, "step": step}
                file.write(json.dumps({**line, **{name: value / step + seed for name, value in fields.items()}}) + "\n")


@pytest.fixture
def comparison(tmp_path):
    return write_comparison(tmp_path / "c", LABELS, seeds=2)


def test_report_of_tracked_runs_has_the_figure(comparison):
    for label in LABELS:
        track(comparison, label, {"between_paper": 30.0, "between_drawn": 10.0})
    written = write_report(load_report(comparison), interactive=False)
    names = [path.name for path in written.figures]
    assert {"variance.png", "variance.svg"} <= set(names)
    assert all(path.stat().st_size > 1000 for path in written.figures)


def test_report_of_untracked_runs_has_none(comparison):
    assert write_tracked_variance(load_report(comparison), comparison / "figures") == []
    assert not (comparison / "figures").exists()


def test_one_tracked_run_without_as_drawn_is_enough(comparison):
    track(comparison, "discover", {"between_paper": 30.0})
    assert len(write_tracked_variance(load_report(comparison), comparison / "figures", formats=("svg",))) == 1


def test_curve_is_the_mean_over_seeds_of_the_means_per_window(comparison):
    track(comparison, "discover", {"between_paper": 30.0})
    run = next(run for run in load_report(comparison).runs if run.label == "discover")
    steps, means, spread = variance_curve(run, window=100)
    assert steps == [100.0, 200.0]
    assert means == pytest.approx([(30 / 50 + 30 / 100) / 2 + 0.5, 30 / 150 + 0.5])
    assert spread == pytest.approx([0.5, 0.5])
    with pytest.raises(ValueError, match="discover has no between_drawn"):
        variance_curve(run, "between_drawn")
