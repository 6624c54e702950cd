"""The figures: files that are what they claim, and curves that can be told apart without colour."""

from __future__ import annotations

import itertools
import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from discover.lab.report import load_report, style, write_figures
from discover.lab.report.figures import FIGURES, draw, smooth
from discover.lab.report.load import Curve
from discover.lab.report.style import series_styles
from discover.registry import OPTIMIZERS, REFERENCE, Table
from tests.lab.report.synthetic import CURVES, write_comparison

EVERY = [*OPTIMIZERS, f"{REFERENCE}-shuffled", "mine:first", "mine:second", "theirs:first"]


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    return load_report(write_comparison(tmp_path_factory.mktemp("figures") / "c"))


def test_every_figure_is_written_as_png_and_svg(report, tmp_path):
    paths = write_figures(report, tmp_path / "figures")
    assert sorted(p.name for p in paths) == sorted(f"{n}.{s}" for n in FIGURES for s in ("png", "svg"))
    for path in paths:
        if path.suffix == ".png":
            with Image.open(path) as image:
                assert min(image.size) > 600
        else:
            assert ET.parse(path).getroot().tag.endswith("svg")


def test_the_same_records_give_the_same_bytes(report, tmp_path):
    first, second = (write_figures(report, tmp_path / name) for name in "ab")
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]


def test_curves_show_the_recorded_means(report):
    axes = draw(report, "validation-accuracy").axes[0]
    lines = {line.get_label(): line for line in axes.lines}
    assert len(lines) == len(CURVES)
    curve = report.runs[0].eval_curve()[1]
    assert list(lines["Momentum"].get_ydata()) == pytest.approx([100 * v for v in curve.mean])


def test_bars_show_last_step_accuracy_with_whiskers(report):
    axes = draw(report, "last-step-accuracy").axes[0]
    heights = [patch.get_height() for patch in axes.patches]
    assert heights == pytest.approx([100 * row["test_accuracy"]["mean"] for row in report.rows])
    assert len(axes.containers) == 2 * len(CURVES)  # a bar and a whisker each


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_says_what_was_measured_how_often_and_where(report, name):
    comparison = {**report.comparison, "title": "Two groups", "seeds": [0, 1, 2]}
    comparison["environment"] = {"backend": "gpu", "devices": ["NVIDIA H200"]}
    texts = [text.get_text() for text in draw(replace(report, comparison=comparison), name).axes[0].texts]
    assert "Two groups, digits, n\u00a0=\u00a03 seeds, NVIDIA H200" in texts


def test_a_long_line_of_facts_is_broken_where_the_figure_ends(report):
    comparison = {**report.comparison, "title": 8 * "a long title ", "seeds": [0, 1, 2]}
    axes = draw(replace(report, comparison=comparison), "training-loss").axes[0]
    facts = next(text.get_text() for text in axes.texts if "a long title" in text.get_text())
    assert len(facts.splitlines()) == 2
    axes.figure.draw_without_rendering()
    assert max(text.get_window_extent().x1 for text in axes.texts) <= axes.figure.bbox.x1


def test_the_legend_of_many_curves_hides_none_of_them(report):
    runs = tuple(replace(report.runs[0], label=f"discover-{number}") for number in range(7))
    figure = draw(replace(report, runs=runs), "validation-accuracy")
    assert figure.axes[0].get_legend() is None
    assert len(figure.legends) == 1


def test_no_two_series_are_told_apart_by_hue_alone():
    styles = series_styles(EVERY)
    for a, b in itertools.combinations(styles.values(), 2):
        assert (a.dash, a.marker) != (b.dash, b.marker), (a.name, b.name)
        assert a.hatch != b.hatch or a.dash != b.dash, (a.name, b.name)
        assert a.color != b.color, (a.name, b.name)


def test_more_optimizers_with_the_same_baseline_are_drawn_apart(monkeypatch):
    more = [replace(OPTIMIZERS["discover"], name=f"mine{number}") for number in range(3)]
    table = Table("optimizer", (*OPTIMIZERS.values(), *more), OPTIMIZERS.find)
    monkeypatch.setattr(style, "OPTIMIZERS", table)
    looks = [(one.dash, one.marker) for one in series_styles(list(table)).values()]
    assert len(set(looks)) == len(table)


def test_clusters_show_in_the_line_and_a_baseline_in_the_marker():
    styles = series_styles(list(OPTIMIZERS))
    for name, entry in OPTIMIZERS.items():
        assert styles[name].filled == entry.clustered
        assert entry.baseline is None or styles[name].marker == styles[entry.baseline].marker


@given(st.lists(st.text(min_size=1, max_size=12), unique=True, max_size=20))
def test_any_labels_get_a_style_each(labels):
    styles = series_styles(labels)
    assert list(styles) == labels
    looks = [(s.color, s.dash) for s in styles.values()]
    assert len(set(looks)) == len(looks)


@given(st.integers(0, 900), st.integers(1, 200))
def test_smoothing_keeps_the_last_step_and_at_most_so_many_points(length, points):
    curve = Curve(tuple(range(length)), (2.0,) * length, (0.5,) * length)
    small = smooth(curve, points)
    assert len(small) <= points
    assert small.steps[-1:] == curve.steps[-1:]
    assert all(value == pytest.approx(2.0) for value in small.mean)
