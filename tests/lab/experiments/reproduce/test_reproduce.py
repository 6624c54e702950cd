"""Our results as data, and their rerun: nothing trained twice, nothing lost, a clean stop when the time is up."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from discover.lab.experiments.compare.comparison import describe_batches
from discover.lab.experiments.config.config import Config
from discover.lab.experiments.reproduce import units as module
from discover.lab.experiments.reproduce.results import RESULTS, SCALES, get_result
from discover.lab.experiments.reproduce.train import _tune, _tune_further, reproduce
from discover.lab.experiments.reproduce.units import is_done, unit_config, unit_name
from discover.lab.records import read_metrics, read_summary
from discover.lab.report.results import write_drift, write_panel

TINY = [
    "model.name=logistic", "model.depth=none", "model.width=none", "training.steps=8", "training.eval_every=4",
    "training.steps_per_dispatch=4",
]  # fmt: skip
PROGRAMS: dict = {}  # compiled once for all tests of this file


def tiny(name, *more, **options):
    return get_result(name, "digits", overrides=[*TINY, *more], **options)


def run(result, out, **options):
    return reproduce(result, out, programs=PROGRAMS, **options)


def first_panel(result, *labels):
    """The result with its first panel only, and of that the rows of these labels only."""
    part = result.panels[0]
    rows = tuple(row for row in part.rows if not labels or row.label in labels)
    return dataclasses.replace(result, panels=(dataclasses.replace(part, rows=rows),), drift=())


def panel(name, which, scale="small"):
    return next(p for p in get_result(name, scale).panels if p.name == which)


# -- the plans --------------------------------------------------------------------------------------------------------


def test_the_small_networks_of_the_cpu_have_larger_learning_rates_in_the_same_series():
    small, cpu = (panel("results-h", "groups", scale).rows for scale in ("small", "cpu"))
    assert [row.label for row in cpu] == [row.label for row in small]
    assert {row.learning_rates for row in small} == {(0.001, 0.002), (0.002, 0.003)}
    assert {row.learning_rates for row in cpu} == {(0.003, 0.006), (0.006, 0.01)}


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", RESULTS)
def test_every_row_can_be_trained_and_has_the_budget_of_its_neighbours(name, scale):
    for part in get_result(name, scale).panels:
        labels = [row.label for row in part.rows]
        assert len(set(labels)) == len(labels)
        assert len({len(row.learning_rates) for row in part.rows}) == 1
        assert set(part.tuning_seeds) <= set(part.seeds) or not set(part.tuning_seeds) & set(part.seeds)
        assert len({len(row.further) for row in part.rows}) == 1
        assert part.budget is None or part.budget == len(part.rows[0].learning_rates + part.rows[0].further)
        for row in part.rows:
            config = row.config.check()
            assert 0 < config.data.validation < 1, "learning rates are chosen on a validation split"
            assert len({r.config.batches.groups * r.config.batches.group_size for r in part.rows}) == 1
            assert len({(r.config.training.epochs, r.config.training.steps) for r in part.rows}) == 1


def test_overrides_reach_those_they_concern_and_impossible_ones_are_refused():
    rows = {row.label: row.config.optimizer for row in tiny("results-a", "optimizer.nu=0.3").panels[0].rows}
    assert [rows[name].get("nu") for name in ("discover", "qhm", "momentum")] == [0.3, 0.3, None]
    for text, message in (
        ("optimizer.learning_rate=1", "is what results-a varies"),
        ("training.epoch=1", "did you mean 'training.epochs'"),
        ("batches.groups=0", "at least 1"),
    ):
        with pytest.raises(ValueError, match=message):
            get_result("results-a", "digits", overrides=[text])
    with pytest.raises(ValueError, match="did you mean 'results-a'"):
        get_result("result-a")


def test_a_unit_is_known_by_what_it_trains_not_by_where_the_data_lies():
    config = unit_config(panel("results-a", "clean").rows[0], 0.1, 0)
    assert unit_name(config.with_values({"data.path": "elsewhere"})) == unit_name(config)
    others = [unit_config(panel("results-a", "clean").rows[0], 0.1, 1), config.with_values({"optimizer.l2": 0.0})]
    assert len({unit_name(other) for other in (config, *others)}) == 3


def test_a_field_added_later_leaves_the_names_of_trained_units_alone(monkeypatch):
    config = unit_config(panel("results-a", "clean").rows[0], 0.1, 0)
    before = unit_name(config)
    whole = Config.to_dict

    def with_a_new_field(self):
        tree = whole(self)
        tree["data"]["added_later"] = 7
        return tree

    monkeypatch.setattr(Config, "to_dict", with_a_new_field)
    assert unit_name(config) == before


@pytest.mark.parametrize("best", [0.0001, 0.003, 0.01, 0.03, 0.3, 1.0, 3.0, 30.0])
@pytest.mark.parametrize("extensions", [0, 2])
def test_a_grid_goes_on_while_the_best_rate_is_at_its_end(best, extensions):
    tried = []

    class Known:
        def member(self, config, _):
            tried.append(config.optimizer.learning_rate)
            score = -abs(math.log(config.optimizer.learning_rate / best))
            return {"final": {"validation": {"accuracy": score}}}

    part = panel("results-a", "clean")
    rates = part.rows[0].learning_rates
    part = dataclasses.replace(part, extensions=extensions)
    chosen, grid = _tune(part, part.rows[0], Known())
    found = [point["learning_rate"] for point in grid]
    assert found == sorted(set(tried))
    assert set(rates) <= set(found)
    assert len(found) <= len(rates) + extensions
    assert found[chosen] == min(found, key=lambda rate: abs(math.log(rate / best)))
    if extensions == 0:
        assert found == list(rates)
    elif 0.003 <= best <= 3:
        assert 0 < chosen < len(found) - 1


def test_rates_of_long_runs_are_chosen_on_short_ones():
    lengths = []

    class Known:
        def member(self, config, _):
            lengths.append(config.training.epochs)
            return {"final": {"validation": {"accuracy": -abs(math.log(config.optimizer.learning_rate / 0.3))}}}

    part = next(p for p in get_result("results-k", overrides=["training.epochs=200"]).panels if p.name == "clean")
    chosen, grid = _tune(part, part.rows[0], Known())
    assert grid[chosen]["learning_rate"] == 0.3
    assert set(lengths) == {5.0}
    assert part.rows[0].config.training.epochs == 200
    assert part.num_trainings == sum(len(row.learning_rates) + len(part.seeds) for row in part.rows)


@pytest.mark.parametrize("best", [0.0001, 0.003, 0.01, 0.03, 0.3, 30.0])
@pytest.mark.parametrize("number", [0.98, 0.9, 0.8])
def test_a_budget_is_used_up_exactly_and_ends_at_the_best_of_what_was_tried(best, number):
    tried = {}

    class Known:
        def member(self, config, _):
            rate, beta = config.optimizer.learning_rate, config.optimizer.get("beta")
            tried[rate, beta] = -abs(math.log(rate / best)) - abs(beta - number)
            return {"final": {"validation": {"accuracy": tried[rate, beta]}}}

    part = panel("results-i", "one-group")
    row = next(row for row in part.rows if row.label == "momentum")
    chosen, grid = _tune(part, row, Known())
    found, further = _tune_further(part, row, grid[chosen]["learning_rate"], len(grid), Known())
    assert len(tried) == part.budget == len(grid) + len(further)
    assert further[0]["hyperparameters"] == row.further[0]
    ended = (grid[chosen]["learning_rate"], found.config.optimizer.get("beta"))
    assert tried[ended] == max(tried.values())


# -- running ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def grid(tmp_path_factory):
    out = tmp_path_factory.mktemp("reproduce")
    return out, run(first_panel(tiny("results-e")), out)


def test_a_row_is_the_best_learning_rate_by_validation_over_all_seeds(grid):
    out, found = grid
    assert found["status"] == "finished"
    for row in found["panels"]["nu-beta"]["rows"]:
        scores = [point["validation_accuracy"]["mean"] for point in row["grid"]]
        assert row["learning_rate"] == row["grid"][scores.index(max(scores))]["learning_rate"]
        directory = out / "results-e" / "nu-beta" / row["run"]
        assert read_summary(directory)["seeds"] == [0, 1]
        lines = [line for line in read_metrics(directory) if line["kind"] == "eval" and line["split"] == "test"]
        tests = [line["accuracy"] for line in lines]
        assert row["test_accuracy"]["values"] == tests
        assert len(tests) == 2


def test_what_is_trained_is_never_trained_again_also_by_another_result(grid, monkeypatch):
    out, found = grid
    monkeypatch.setattr(module.Pool, "_train", lambda *_: pytest.fail("trained again"))
    again = run(first_panel(tiny("results-e")), out)
    assert again["panels"]["nu-beta"]["rows"] == found["panels"]["nu-beta"]["rows"]
    shared = tiny("results-a").panels[0].rows[5]  # Discover at its defaults is a point of the grid
    assert shared.label == "discover"
    assert is_done(out / "units" / unit_name(unit_config(shared, 0.3, 0)))


def test_time_that_is_up_stops_between_units_and_the_next_call_goes_on(grid, tmp_path, monkeypatch):
    trained = []
    original = module.Pool._train

    def counted(self, *arguments):
        original(self, *arguments)
        trained.append(arguments)
        if len(trained) == 4:
            self.limit.seconds = 0.0

    monkeypatch.setattr(module.Pool, "_train", counted)
    stopped = run(first_panel(tiny("results-e")), tmp_path)
    assert stopped["status"] == "stopped"
    assert len(trained) == 4
    assert len(stopped["panels"]["nu-beta"]["rows"]) == 1  # four units a row
    assert json.loads((tmp_path / "results-e/nu-beta/comparison.json").read_text())["status"] == "stopped"
    finished = run(first_panel(tiny("results-e")), tmp_path, minutes=60)
    assert finished["status"] == "finished"
    assert len(trained) == len(list((grid[0] / "units").glob("*/summary.json")))
    assert without_times(finished) == without_times(grid[1])


def without_times(found):
    rows = found["panels"]["nu-beta"]["rows"]
    return [{key: value for key, value in row.items() if key != "steps_per_second"} for row in rows]


def test_a_learning_rate_that_diverges_is_not_chosen_and_not_tried_again(tmp_path, monkeypatch):
    result = tiny("results-e")
    part = result.panels[0]
    row = dataclasses.replace(part.rows[0], learning_rates=(0.3, 3e38))
    lost = dataclasses.replace(part.rows[1], learning_rates=(3e38,))
    result = dataclasses.replace(result, panels=(dataclasses.replace(part, rows=(row, lost)),))
    first, second = run(result, tmp_path)["panels"]["nu-beta"]["rows"]
    assert first["learning_rate"] == 0.3
    assert first["grid"][1]["validation_accuracy"]["mean"] is None
    assert second["test_accuracy"]["mean"] is None
    monkeypatch.setattr(module.Pool, "_train", lambda *_: pytest.fail("trained again"))
    assert run(result, tmp_path)["status"] == "finished"
    assert write_panel(tmp_path / "results-e" / "nu-beta")


@pytest.mark.slow
def test_printed_and_ours_are_one_algorithm_with_one_group_and_drift_apart_with_eight(tmp_path):
    result = tiny("results-f", seeds=[0])
    eight, one = result.panels
    eight = dataclasses.replace(eight, rows=tuple(row for row in eight.rows if row.label == "paper_discover"))
    drift = (("eight-groups", "paper_discover"), ("one-group", "discover-one group"))
    found = run(dataclasses.replace(result, panels=(eight, one), drift=drift), tmp_path)["panels"]
    printed, ours = found["one-group"]["rows"]
    for key in ("learning_rate", "validation_accuracy", "test_accuracy"):
        assert printed[key] == ours[key]
    assert printed["test_loss"]["mean"] == pytest.approx(ours["test_loss"]["mean"], rel=1e-4)
    last = {row["label"]: row["lines"][-1]["drift"] for row in found["drift"]["rows"]}
    assert last["paper_discover"] > 0.05
    assert last["discover-one group"] < 1e-5
    assert write_drift(tmp_path / "results-f" / "drift")
    assert not list(tmp_path.rglob("*lock*"))


def test_clusters_by_kmeans_are_found_once_and_read_from_a_file(tmp_path):
    found = run(first_panel(tiny("results-c"), "momentum-kmeans"), tmp_path)
    assert len(found["panels"]["structures"]["rows"]) == 1
    assert len(list((tmp_path / "clusters").glob("*.npz"))) == 1
    assert write_panel(tmp_path / "results-c" / "structures")


def test_the_figure_of_a_grid_is_the_same_bytes_for_the_same_records(grid):
    directory = grid[0] / "results-e" / "nu-beta"
    first = [path.read_bytes() for path in write_panel(directory)]
    assert [path.read_bytes() for path in write_panel(directory)] == first
    assert all(first)


@pytest.mark.slow
def test_a_killed_rerun_goes_on_to_the_same_rows(grid, tmp_path):
    words = [sys.executable, "-m", "discover", "reproduce", "results-e", "--scale", "digits", "--out", str(tmp_path)]
    words += [part for text in TINY for part in ("--set", text)]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    root = Path(__file__).parents[4]
    process = subprocess.Popen(words, env=environment, cwd=root, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not list(tmp_path.glob("units/*/metrics.jsonl")):
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    rows = without_times(run(first_panel(tiny("results-e")), tmp_path))
    for mine, theirs in zip(rows, without_times(grid[1]), strict=True):
        assert mine["learning_rate"] == theirs["learning_rate"]
        assert math.isclose(mine["test_accuracy"]["mean"], theirs["test_accuracy"]["mean"])


def test_two_rows_of_every_panel_run_end_to_end_and_are_drawn(tmp_path):
    """Of one result; `test_command.py` runs all of them whole."""
    result = tiny("results-g")
    panels = tuple(dataclasses.replace(part, rows=(part.rows[0], part.rows[-1])) for part in result.panels)
    found = run(dataclasses.replace(result, panels=panels, drift=()), tmp_path)
    assert found["status"] == "finished"
    for part in panels:
        record = found["panels"][part.name]
        assert [row["label"] for row in record["rows"]] == [row.label for row in part.rows]
        assert all(0 <= row["test_accuracy"]["mean"] <= 1 for row in record["rows"])
        assert record["facts"]["data"] == "digits"
        batches = record["facts"]["batches"].split("; ")
        assert set(batches) == {describe_batches(row.config) for row in part.rows if not row.reference}
        written = write_panel(tmp_path / "results-g" / part.name)
        assert {path.suffix for path in written} >= {".png", ".svg"}
