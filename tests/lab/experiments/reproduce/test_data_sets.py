"""Results on several data sets: where they are found, one panel alone, and text, which is judged by its loss."""

from __future__ import annotations

import dataclasses
import json

import pytest

from discover.lab.experiments.compare.scores import choose_rate
from discover.lab.experiments.config.config import ConfigError, DataConfig
from discover.lab.experiments.reproduce.find_data import find_data
from discover.lab.experiments.reproduce.results import get_result
from discover.lab.experiments.reproduce.train import reproduce
from discover.lab.report import load_report
from discover.lab.report.figures import draw, figures_of
from discover.lab.report.tables import comparison_table
from tests.test_docs import load_hook

BOOK = DataConfig("text", "bible16.tar.xz")
CIFAR = DataConfig("cifar10")


def test_a_folder_holds_every_archive_under_its_name(tmp_path, monkeypatch):
    (tmp_path / "cifar10-jpeg.tar.xz").touch()
    assert find_data(BOOK, str(tmp_path)) == str(tmp_path / "bible16.tar.xz")
    assert find_data(CIFAR, str(tmp_path)) == str(tmp_path / "cifar10-jpeg.tar.xz")
    monkeypatch.setenv("DISCOVER_DATA", str(tmp_path))
    assert find_data(BOOK, None) == str(tmp_path / "bible16.tar.xz")


def test_cifar_alone_may_be_named_in_any_of_its_forms_and_the_others_lie_beside_it(tmp_path):
    archive, folder = tmp_path / "mine.tar.gz", tmp_path / "cifar-10-batches-py"
    archive.touch()
    folder.mkdir()
    for path in (archive, folder):
        assert find_data(CIFAR, str(path)) == str(path)
    assert find_data(BOOK, str(archive)) == str(tmp_path / "bible16.tar.xz")


def test_an_archive_that_is_missing_is_told_before_anything_is_trained(tmp_path):
    with pytest.raises(ConfigError, match=r"results-h/text needs .*bible16.tar.xz, which is not there: name"):
        reproduce(get_result("results-h", data=str(tmp_path)), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_one_panel_may_be_asked_for():
    assert [panel.name for panel in get_result("results-h/text").panels] == ["text"]
    assert get_result("results-f/one-group").drift == ()
    with pytest.raises(ValueError, match="unknown panel of results-h 'txt': did you mean 'text'"):
        get_result("results-h/txt")


def test_a_rate_may_be_chosen_by_the_loss():
    losses = (2.0, 1.5, None, 3.0)
    members = [{"final": loss and {"validation": {"loss": loss, "accuracy": loss / 10}}} for loss in losses]
    chosen, grid = choose_rate(members, (0.1, 0.2, 0.3, 0.4), [0], by="loss")
    assert chosen == 1
    assert [point["validation_loss"]["mean"] for point in grid] == list(losses)
    assert choose_rate(members, (0.1, 0.2, 0.3, 0.4), [0])[0] == 3


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The text panel's Muon and its control, on two languages of a few bytes; and a row on digits."""
    folder = tmp_path_factory.mktemp("text")
    (folder / "bible16.tar.xz").mkdir()
    for name, words in (("one", b"in the beginning "), ("two", b"am anfang schuf ")):
        (folder / "bible16.tar.xz" / f"{name}.txt").write_bytes(words * 200)
    sizes = ["model.width=8", "model.depth=1", "model.heads=2", "model.dtype=float32", "batches.group_size=4"]
    steps = ["training.steps=4", "training.eval_every=2", "training.steps_per_dispatch=2", "data.validation=0.2"]
    result = get_result("results-h/text", data=str(folder), overrides=[*sizes, *steps], seeds=[0])
    digits = get_result("results-h/one-group", "digits", overrides=[*steps, "model.width=8"], seeds=[0])
    panels = []
    for panel, start in ((*result.panels, "muon"), (*digits.panels, "momentum")):
        rows = [dataclasses.replace(row, learning_rates=(0.01,)) for row in panel.rows if row.label.startswith(start)]
        panels.append(dataclasses.replace(panel, rows=tuple(rows), extensions=0))
    lines = []
    found = reproduce(dataclasses.replace(result, panels=tuple(panels)), folder / "out", say=lines.append)
    return found["panels"], folder / "out" / "results-h" / "text", lines


@pytest.fixture(scope="module")
def text(trained):
    panels, directory, lines = trained
    return panels["text"], directory, [line for line in lines if "text" in line]


def test_text_is_reported_in_nats(text):
    record, directory, lines = text
    assert record["measure"] == "loss"
    assert record["facts"]["batches"] == "1 language-pure group of 4"
    assert all(0 < row["test_loss"]["mean"] < 6 for row in record["rows"])
    assert all("nats" in line for line in lines)
    report = load_report(directory)
    titles = [draw(report, name).axes[0].get_title(loc="left") for name in figures_of(report)]
    assert titles == ["Training loss", "Validation loss (nats)", "Last-step test loss (nats)"]
    best = min((row for row in record["rows"] if not row["control"]), key=lambda row: row["validation_loss"]["mean"])
    table = comparison_table(record["rows"])
    assert table.labels[table.best] == best["label"]


def test_each_panel_names_its_own_data_and_no_path(trained):
    names = {name: record["facts"]["data"] for name, record in trained[0].items()}
    assert names == {"text": "bible16", "one-group": "digits"}
    assert trained[0]["text"]["config"]["data"]["path"] is None  # nobody else's folder


def test_a_page_has_the_loss_of_a_record_that_is_judged_by_it(text, tmp_path, monkeypatch):
    records, tables, values = (load_hook(name) for name in ("records", "tables", "values"))
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "text.json").write_text(json.dumps(text[0]))
    monkeypatch.setattr(records, "DOCS", tmp_path)
    records.load.cache_clear()
    table = tables.rows("text")
    losses = {row["label"]: f"{row['test_loss']['mean']:.3f}" for row in text[0]["rows"]}
    assert "| optimizer | learning rate | test loss (nats) | test accuracy (%) |" in table
    assert all(loss in table for loss in losses.values())
    assert values.test_loss("text", "muon") == losses["muon"]
    difference = float(losses["muon"]) - float(losses["muon-shuffled"])
    assert float(values.less("text", "muon", "muon-shuffled")) == pytest.approx(abs(difference), abs=2e-3)
    records.load.cache_clear()
