"""The page: self-contained, safe against what records contain, and alive in a real browser."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from discover.lab.report import load_report, write_page
from discover.lab.report.against import won_back
from discover.lab.report.page import charts, render_page
from discover.lab.report.page.page import flatten
from tests.lab.report.synthetic import CURVES, write_comparison


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    return load_report(write_comparison(tmp_path_factory.mktemp("page") / "c"))


@pytest.fixture(scope="module")
def page_path(report, tmp_path_factory):
    return write_page(report, tmp_path_factory.mktemp("html") / "report.html", interactive=True)


class Tab:
    """A page that remembers what it said and what it asked for."""

    def __init__(self, browser, path: Path):
        self.page = browser.new_page(viewport={"width": 1200, "height": 900})
        self.said: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda m: self.said.append(f"{m.type}: {m.text}"))
        self.page.on("pageerror", lambda e: self.said.append(f"error: {e}"))
        self.page.on("request", lambda r: self.requests.append(r.url))
        self.page.goto(path.as_uri())

    def lines(self, chart: str) -> int:
        return self.page.locator(f"#chart-{chart} .mark-line path[d]").count()


@pytest.fixture
def tab(browser, page_path):
    tab = Tab(browser, page_path)
    tab.page.evaluate("async () => { await window.report.ready }")
    yield tab
    tab.page.close()


def test_curves_are_drawn_without_errors_and_without_the_network(tab, page_path):
    assert tab.lines("loss") == len(CURVES)
    assert tab.lines("accuracy") == len(CURVES)
    assert tab.page.locator("#chart-final .mark-rect path").count() == len(CURVES)
    assert tab.said == []
    assert [url for url in tab.requests if not url.startswith("data:")] == [page_path.as_uri()]


def test_on_a_phone_the_accuracy_is_in_sight_and_nothing_but_tables_is_wider(browser, page_path):
    page = browser.new_page(viewport={"width": 390, "height": 844})
    page.goto(page_path.as_uri())
    worst = [".by-cluster th:nth-child(3)", ".by-cluster tbody td:nth-child(3)"]  # the accuracy of the worst cluster
    for cell in (page.locator(place).first for place in ("th.answer", "tbody td.answer", *worst)):
        box = cell.bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 390
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    told = "one => [one.scrollWidth > one.clientWidth, getComputedStyle(one, '::after').content !== 'none']"
    tables = [table.evaluate(told) for table in page.locator(".scroll").all()]
    assert all(wider == hinted for wider, hinted in tables)  # a swipe is offered where there is something to see
    assert {True, False} <= {wider for wider, _ in tables}
    page.close()


def test_dark_mode_follows_the_system_and_can_be_read(browser, page_path):
    page = browser.new_page(color_scheme="dark")
    page.goto(page_path.as_uri())

    def light(selector, what):
        color = page.locator(selector).first.evaluate(f"one => getComputedStyle(one).{what}")
        return sum(map(int, re.findall(r"\d+", color)[:3])) / 3

    for selector in ("h1", "td", ".lead", ".note", ".against li"):
        assert light(selector, "color") > 120
    assert light("body", "backgroundColor") < 40
    assert light("section", "backgroundColor") < 40
    page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_on_a_phone_no_word_of_a_chart_is_cut_off(browser, page_path, scheme):
    page = browser.new_page(color_scheme=scheme, viewport={"width": 390, "height": 844})
    page.goto(page_path.as_uri())
    page.evaluate("async () => { await window.report.ready }")
    edge = "one => [one.getBoundingClientRect().right, one.closest('.chart').getBoundingClientRect().right]"
    ends = [word.evaluate(edge) for word in page.locator(".chart svg text").all()]
    assert len(ends) > 20
    assert all(word <= chart for word, chart in ends)
    page.close()


def test_the_page_says_how_each_cluster_fares_and_each_variant_against_its_baseline(report):
    page = render_page(report, interactive=False)
    assert ">By cluster<" in page
    assert re.search(r"<td>sketch</td><td>\d+\.\d ± \d+\.\d %</td>", page)
    assert "points ahead of Momentum" in page


@pytest.mark.slow
def test_clicking_an_optimizer_hides_and_shows_its_curves(tab):
    button = tab.page.get_by_role("button", name="Adam")
    button.click()
    tab.page.wait_for_function("() => document.querySelectorAll('#chart-final .mark-rect path').length === 5")
    assert button.get_attribute("aria-pressed") == "false"
    assert tab.lines("accuracy") == tab.lines("loss") == len(CURVES) - 1
    tab.page.get_by_role("button", name="All").click()
    tab.page.wait_for_function("() => document.querySelectorAll('#chart-final .mark-rect path').length === 6")
    assert tab.lines("accuracy") == len(CURVES)
    tab.page.get_by_role("button", name="Discover", exact=True).click(modifiers=["Shift"])
    tab.page.wait_for_function("() => document.querySelectorAll('#chart-final .mark-rect path').length === 1")
    assert tab.said == []


@pytest.mark.slow
def test_the_log_scale_changes_the_axis_and_keeps_the_choice(tab):
    def axis():
        return tab.page.locator("#chart-accuracy .role-title-text").first.text_content()

    assert axis() == "validation accuracy (%)"
    tab.page.get_by_role("button", name="Adam").click()
    tab.page.get_by_role("button", name="Log scale").click()
    tab.page.wait_for_function("() => document.querySelector('#chart-accuracy').textContent.includes('error')")
    assert axis() == "validation error (%)"
    assert tab.lines("accuracy") == len(CURVES) - 1
    assert tab.said == []


@pytest.mark.slow
def test_hovering_names_every_optimizer_at_that_step(tab):
    chart = tab.page.locator("#chart-accuracy svg")
    chart.scroll_into_view_if_needed()
    box = chart.bounding_box()
    for offset in (0, 3):
        tab.page.mouse.move(box["x"] + box["width"] / 2 + offset, box["y"] + box["height"] / 2)
    tip = tab.page.locator("#vg-tooltip-element.visible")
    tip.wait_for()
    keys = tip.locator("td.key").all_text_contents()
    assert keys == ["step", "Momentum", "QHM", "Adam", "Discover", "Discover-QHM", "Momentum, shuffled"]
    assert re.fullmatch(r"\d+\.\d ± \d+\.\d %", tip.locator("td.value").nth(1).text_content())


NASTY = "</script><script>window.hacked=1</script><img src=x onerror='window.hacked=1'>"


@pytest.fixture(scope="module")
def nasty_path(tmp_path_factory):
    """A page of records whose texts are markup."""
    directory = write_comparison(tmp_path_factory.mktemp("nasty") / "c", labels=("momentum", "discover"))
    path = directory / "comparison.json"
    comparison = json.loads(path.read_text())
    comparison |= {"preset": NASTY, "description": NASTY, "config": {NASTY: NASTY}}
    comparison["rows"][0]["label"] = NASTY
    path.write_text(json.dumps(comparison))
    return write_page(load_report(directory), directory / "report.html", interactive=True)


def test_text_from_records_is_text_on_the_page(nasty_path):
    class Images(HTMLParser):
        found = 0

        def handle_starttag(self, tag, attrs):
            self.found += tag == "img"

    parser = Images()
    parser.feed(nasty_path.read_text())
    assert parser.found == 0
    assert "<script>window.hacked" not in nasty_path.read_text()


@pytest.mark.slow
def test_text_from_records_cannot_become_markup(browser, nasty_path):
    tab = Tab(browser, nasty_path)
    tab.page.evaluate("async () => { await window.report.ready }")
    assert tab.page.evaluate("() => window.hacked") is None
    assert tab.lines("loss") == 2
    assert tab.said == []
    tab.page.close()


def test_both_pages_hold_the_table_the_config_and_the_environment(report, page_path, monkeypatch):
    monkeypatch.setattr(charts, "available", lambda: False)
    static = render_page(report)
    assert static.count("data:image/png;base64,") == 3
    assert "discover-optim[page]" in static
    assert "<script" not in static
    for text in (page_path.read_text(), static):
        assert "model.widths" in text
        assert "Some CPU" in text
        assert "discover compare digits" in text
        assert f"{100 * report.rows[3]['test_accuracy']['mean']:.1f} ± " in text


def test_interactive_curves_without_the_extra_say_what_to_install(report, monkeypatch):
    monkeypatch.setattr(charts, "available", lambda: False)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'discover-optim\[page\]'"):
        render_page(report, interactive=True)


def test_the_page_names_no_other_address(page_path):
    class Links(HTMLParser):
        def __init__(self):
            super().__init__()
            self.found = []

        def handle_starttag(self, tag, attrs):
            self.found += [v for k, v in attrs if k in ("src", "href") and v and not v.startswith("data:")]

    parser = Links()
    parser.feed(page_path.read_text())
    assert parser.found == []


def test_won_back_is_a_share_of_what_clustering_cost():
    def accuracy(value):
        return {"test_accuracy": {"mean": value, "values": [value] * 2}}

    assert won_back(accuracy(0.8), accuracy(0.5), accuracy(0.9)) == pytest.approx(0.75)
    assert won_back(accuracy(0.9), accuracy(0.9), accuracy(0.9)) is None
    assert won_back(accuracy(0.8), accuracy(0.5), None) is None
    assert won_back(accuracy(None), accuracy(0.5), accuracy(0.9)) is None


def test_flatten_names_every_leaf():
    nested = {"a": {"b": 1, "c": {}}, "d": [], "e": None}
    assert dict(flatten(nested)) == {"a.b": "1", "a.c": "{}", "d": "none", "e": "none"}
