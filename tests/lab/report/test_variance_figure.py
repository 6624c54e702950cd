"""A report of runs that tracked their variance has its figure; other reports do not."""

from __future__ import annotations

import json

import pytest

from discover.lab.report import load_report, write_report
from discover.lab.report.page import render_page
from discover.lab.report.variance import variance_curve, write_tracked_variance
from tests.lab.report.synthetic import write_comparison

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


def test_page_shows_the_figure_of_tracked_runs_only(comparison):
    pytest.importorskip("altair")  # without it the page has three more figures to draw
    words = 'alt="between-cluster variance along training" src="data:image/png;base64,'
    assert words not in render_page(load_report(comparison), interactive=True)
    track(comparison, "discover", {"between_paper": 30.0, "between_drawn": 10.0})
    assert words in render_page(load_report(comparison), interactive=True)


def test_axis_shows_estimates_below_zero_and_is_logarithmic_without_them(comparison):
    from discover.lab.report.plotting import styled
    from discover.lab.report.variance import draw_tracked_variance

    track(comparison, "discover", {"between_paper": 30.0, "between_drawn": -10.0})
    with styled():
        figure = draw_tracked_variance(load_report(comparison))
        assert figure is not None
        above, below = figure.axes
        assert above.get_yscale() == "log"
        assert below.get_yscale() == "symlog"
        assert below.get_ylim()[0] < -10.0 / 50  # the lowest seed's lowest mean is on the figure
        assert "2 seeds" in figure.texts[-1].get_text()


def test_report_of_untracked_runs_has_none(comparison):
    assert write_tracked_variance(load_report(comparison), comparison / "figures") == []
    assert not (comparison / "figures").exists()


def test_one_tracked_run_without_as_drawn_is_enough(comparison):
    track(comparison, "discover", {"between_paper": 30.0})
    assert len(write_tracked_variance(load_report(comparison), comparison / "figures")) == 2


def test_curve_is_the_mean_over_seeds_of_the_means_per_window(comparison):
    track(comparison, "discover", {"between_paper": 30.0})
    run = next(run for run in load_report(comparison).runs if run.label == "discover")
    curve = variance_curve(run, window=100)
    assert curve.steps == [100, 200]
    lowest = [(30 / 50 + 30 / 100) / 2, 30 / 150]
    assert curve.low == pytest.approx(lowest)
    assert curve.means == pytest.approx([value + 0.5 for value in lowest])
    assert curve.high == pytest.approx([value + 1.0 for value in lowest])
    assert curve.seeds == 2
    with pytest.raises(ValueError, match="discover has no between_drawn"):
        variance_curve(run, "between_drawn")
