"""The comparison: an honest choice, the same batches for all, and nothing lost when it is stopped."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from discover.lab.data import DataError
from discover.lab.experiments.compare import speed
from discover.lab.experiments.compare import train as module
from discover.lab.experiments.compare.comparison import describe_batches, make_comparison
from discover.lab.experiments.compare.scores import choose_rate, first_steps
from discover.lab.experiments.compare.speed import add_speeds
from discover.lab.experiments.compare.train import ComparisonFolder, compare
from discover.lab.experiments.folder import FolderError
from discover.lab.experiments.presets.presets import get_preset
from discover.lab.records import read_metrics, read_summary, spread
from discover.lab.report import load_report
from discover.lab.training.errors import RunStopped
from discover.lab.training.signals import StopRequest

SMALL = [
    "training.steps=20", "training.eval_every=5", "training.steps_per_dispatch=5", "training.seeds=0,1",
    "model.name=logistic", "model.width=none", "model.depth=none", "batches.group_size=8",
]  # fmt: skip


PROGRAMS: dict = {}  # compiled once for all tests of this file


def small(**changes):
    options = {"optimizers": ["momentum", "discover"], "learning_rates": [0.3, 0.03], "target_accuracy": 0.15}
    return make_comparison(get_preset("digits"), overrides=SMALL, **(options | changes))


def without_times(record: dict) -> dict:
    """What must not depend on when and how often a comparison was interrupted."""
    timed = {"steps_per_second", "relative_speed", "compile_seconds", "train_seconds"}
    rows = [{key: value for key, value in row.items() if key not in timed} for row in record["rows"]]
    return {**{key: value for key, value in record.items() if key != "environment"}, "rows": rows}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    directory = tmp_path_factory.mktemp("comparison") / "c"
    return directory, compare(small(), directory, programs=PROGRAMS)


def test_the_table_has_a_row_for_each_optimizer_and_the_control(finished):
    directory, record = finished
    assert [row["label"] for row in record["rows"]] == ["momentum", "discover", "momentum-shuffled"]
    assert [row["batches"] for row in record["rows"]] == ["class-pure", "class-pure", "shuffled"]
    assert record["status"] == "finished"
    assert json.loads((directory / "comparison.json").read_text()) == record
    assert record["rows"][0]["relative_speed"] == 1.0
    assert all(row["relative_speed"] > 0 for row in record["rows"])


def test_each_row_is_the_chosen_rate_of_its_grid_on_the_test_split(finished):
    directory, record = finished
    for row in record["rows"]:
        members = read_summary(directory / "grids" / row["label"])["members"]
        assert [(m["seed"], m["hyperparameters"]["learning_rate"]) for m in members] == [
            (0, 0.03), (1, 0.03), (0, 0.3), (1, 0.3),
        ]  # fmt: skip
        validation = {
            rate: sum(
                m["final"]["validation"]["accuracy"] for m in members if m["hyperparameters"]["learning_rate"] == rate
            )
            for rate in (0.03, 0.3)
        }
        assert row["learning_rate"] == max(validation, key=lambda rate: validation[rate])
        chosen = [m for m in members if m["hyperparameters"]["learning_rate"] == row["learning_rate"]]
        assert row["test_accuracy"]["values"] == [m["final"]["test"]["accuracy"] for m in chosen]
        assert row["test_loss"]["values"] == [m["final"]["test"]["loss"] for m in chosen]


def test_the_chosen_runs_are_run_directories_that_a_report_reads(finished):
    directory, record = finished
    report = load_report(directory)
    assert [run.label for run in report.runs] == [row["label"] for row in record["rows"]]
    for run, row in zip(report.runs, record["rows"]):
        assert run.config["optimizer"]["learning_rate"] == row["learning_rate"]
        assert run.eval_curve()[1].steps == (5, 10, 15, 20)
        assert {line["seed"] for line in read_metrics(directory / row["run"])} == {0, 1}
        assert not (directory / "grids" / row["label"] / "checkpoints").exists()


def test_every_optimizer_gets_the_same_batches_and_the_control_shuffled_ones():
    comparison = small()
    momentum, discover, control = (entry.config for entry in comparison.entries)
    for part in ("data", "clusters", "batches", "model", "training"):
        assert getattr(momentum, part) == getattr(discover, part)
    assert {key for key, _ in control.flat().items() ^ momentum.flat().items()} == {"batches.composition"}


def test_a_finished_comparison_is_read_back_not_trained_again(finished, monkeypatch):
    directory, record = finished
    monkeypatch.setattr(module, "run", lambda *_, **__: pytest.fail("trained again"))
    assert compare(small(), directory) == record


def test_a_comparison_stopped_between_and_within_entries_ends_the_same(finished, tmp_path):
    class Stop(KeyboardInterrupt):
        pass

    class StopsInTheMiddle:
        def start(self, **_): ...

        def advance(self, *, step, **_):
            if step >= 10:
                raise Stop

        def evaluated(self, **_): ...

        def message(self, text): ...

        def finish(self, **_): ...

    def second(entry, number, total):
        return StopsInTheMiddle() if number == 1 else None

    def before_third(entry, number, total):
        if number == 2:
            raise Stop

    for progress in (second, before_third):
        with pytest.raises(Stop):
            compare(small(), tmp_path / "c", progress=progress, programs=PROGRAMS)
        assert json.loads((tmp_path / "c" / "comparison.json").read_text())["status"] == "running"
    assert without_times(compare(small(), tmp_path / "c", programs=PROGRAMS)) == without_times(finished[1])


@pytest.mark.slow
def test_a_comparison_killed_outright_ends_the_same(finished, tmp_path):
    settings = [part for text in SMALL for part in ("--set", text)]
    command = [
        sys.executable, "-m", "discover", "compare", "digits", "--optimizers", "momentum,discover",
        "--learning-rates", "0.03,0.3", "--target", "0.15", "--out", str(tmp_path / "c"), *settings,
    ]  # fmt: skip
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)
    first = tmp_path / "c" / "runs" / "momentum" / "summary.json"
    deadline = time.monotonic() + 120
    while not first.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert process.returncode == -signal.SIGKILL, "it was over before it could be killed"
    assert without_times(compare(small(), tmp_path / "c", programs=PROGRAMS)) == without_times(finished[1])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"optimizers": []}, "at least one optimizer"),
        ({"optimizers": ["momentum", "momentum"]}, "compared once"),
        ({"learning_rates": []}, "at least one learning rate"),
        ({"learning_rates": [0.1, -1.0]}, "must be above 0, got -1, 0.1"),
        ({"learning_rates": [0.1, 0.1]}, "differ from each other"),
        ({"learning_rates": [math.nan]}, "must be above 0"),
        ({"target_accuracy": 0.0}, "above 0 and at most 1, got 0"),
        ({"target_accuracy": 95.0}, "did you mean 0.95"),
        ({"target_accuracy": math.nan}, "above 0 and at most 1, got nan"),
        ({"overrides": ["data.validation=0"]}, "--set data.validation=0.1"),
        ({"overrides": ["optimizer.learning_rate=1"]}, "use --learning-rates"),
        ({"overrides": ["optimizer.name=adam"]}, "use --optimizers"),
    ],
)
def test_an_impossible_comparison_is_refused_in_one_line(changes, message):
    with pytest.raises(ValueError, match=message) as caught:
        make_comparison(get_preset("digits"), **changes)
    assert "\n" not in str(caught.value)


def test_a_hyperparameter_is_set_for_those_that_have_it():
    comparison = make_comparison(get_preset("digits"), overrides=["optimizer.nu=0.5", "optimizer.beta=0.8"])
    configs = {entry.label: entry.config.optimizer for entry in comparison.entries}
    assert [configs[name].get("nu") for name in ("discover", "qhm", "momentum")] == [0.5, 0.5, None]
    assert [configs[name].get("beta") for name in ("momentum", "adam", "sgd")] == [0.8, None, None]


def test_another_comparison_in_the_folder_is_refused_and_names_the_difference(finished):
    directory, _ = finished
    with pytest.raises(FolderError, match=r"target_accuracy was 0.15, now 0.2.*replace it \(--overwrite\)"):
        compare(small(target_accuracy=0.2), directory)
    with pytest.raises(FolderError, match="adam is only in the new one"):
        compare(small(optimizers=["momentum", "discover", "adam"]), directory)


def test_overwriting_deletes_only_what_a_comparison_writes(finished, tmp_path):
    shutil.copytree(finished[0], tmp_path / "c")
    (tmp_path / "c" / "thesis.tex").write_text("years of work")
    (tmp_path / "c" / "runs" / "momentum" / "notes.txt").write_text("mine")
    with ComparisonFolder(tmp_path / "c").claim() as folder:
        assert not folder.open({}, overwrite=True)
        with folder.replace():
            pass
    left = sorted(str(path.relative_to(tmp_path / "c")) for path in (tmp_path / "c").rglob("*"))
    assert left == ["runs", "runs/momentum", "runs/momentum/notes.txt", "thesis.tex"]


def test_overwriting_deletes_nothing_where_the_new_comparison_cannot_start(tmp_path, monkeypatch):
    (tmp_path / "grids" / "momentum").mkdir(parents=True)
    (tmp_path / "comparison.json").write_text("{}")

    def gone(config, **options):
        raise DataError("the data is gone")

    with monkeypatch.context() as patch:
        patch.setattr(module, "build_data", gone)
        with pytest.raises(DataError, match="the data is gone"):
            compare(small(), tmp_path, overwrite=True)
    with ComparisonFolder(tmp_path).claim():
        for overwrite in (False, True):
            with pytest.raises(FolderError, match="is in use by another process"):
                compare(small(), tmp_path, overwrite=overwrite)
    assert (tmp_path / "comparison.json").read_text() == "{}"
    assert (tmp_path / "grids" / "momentum").is_dir()
    assert not list(tmp_path.rglob(".lock"))


def test_a_signal_at_the_end_of_a_grid_stops_the_comparison_after_it(tmp_path, monkeypatch):
    trained = []

    def run(config, directory, **_):
        trained.append(config)
        directory.mkdir(parents=True)
        (directory / "environment.json").write_text("{}")
        with StopRequest():
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(module, "run", run)
    monkeypatch.setattr(module, "_row", lambda *_: {})
    with pytest.raises(RunStopped) as error:
        compare(small(), tmp_path)
    assert error.value.exit_code == 143
    assert len(trained) == 1
    assert not list(tmp_path.rglob(".lock"))


def members(values):
    return [{"final": None if v is None else {"validation": {"accuracy": v}}} for v in values]


def test_a_rate_at_which_a_seed_diverged_is_not_chosen():
    chosen, grid = choose_rate(members([0.5, 0.5, 0.9, None]), [0.1, 0.3], [0, 1])
    assert chosen == 0
    assert grid[1]["validation_accuracy"]["mean"] is None
    assert choose_rate(members([None, None]), [0.1, 0.3], [0])[0] == 0


def test_of_equal_rates_the_smaller_is_chosen():
    assert choose_rate(members([0.5, 0.5]), [0.1, 0.3], [0])[0] == 0


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8), st.integers(1, 4))
def test_the_chosen_rate_has_the_highest_mean(values, seeds):
    rates = [0.01 * (i + 1) for i in range(len(values))]
    chosen, grid = choose_rate(members([v for v in values for _ in range(seeds)]), rates, list(range(seeds)))
    assert values[chosen] == pytest.approx(max(values), abs=1e-12)
    assert len(grid) == len(rates)


def test_spread_is_mean_and_sample_deviation():
    found = spread([0.5, 0.7])
    assert (found["mean"], found["std"]) == pytest.approx((0.6, math.sqrt(0.02)))
    assert found["values"] == [0.5, 0.7]
    assert spread([0.5, None])["mean"] is None
    assert spread([0.5])["std"] == 0.0


def test_steps_to_the_target_count_from_the_first_time_it_is_reached():
    lines = [
        {"kind": "eval", "split": "validation", "seed": 0, "step": step, "accuracy": accuracy}
        for step, accuracy in ((10, 0.5), (20, 0.9), (30, 0.8), (40, 0.95))
    ]
    lines += [{"kind": "eval", "split": "test", "seed": 1, "step": 10, "accuracy": 1.0}]
    lines += [{"kind": "train", "seed": 1, "step": 10, "accuracy": 1.0}]
    assert first_steps(lines, [0, 1], 0.9) == [20, None]


def test_speed_is_the_median_of_ratios_within_a_round_so_a_slow_round_changes_nothing():
    rows = [{"label": label, "steps_per_second": 7.0} for label in ("momentum", "discover")]
    calm = {"momentum": 100.0, "discover": 80.0}
    add_speeds(rows, [calm, {"momentum": 10.0, "discover": 8.0}, calm])
    assert [row["relative_speed"] for row in rows] == [1.0, 0.8]
    assert [row["steps_per_second"] for row in rows] == [100.0, 80.0]


def test_without_rounds_or_momentum_speed_is_that_of_the_training_itself():
    rows = [{"label": "discover", "steps_per_second": 7.0}, {"label": "adam", "steps_per_second": None}]
    add_speeds(rows, [])
    assert [(row["steps_per_second"], row["relative_speed"]) for row in rows] == [(7.0, None), (None, None)]


@pytest.mark.parametrize(("seconds", "rounds"), [(60.0, 3), (0.0, 1)])
def test_speed_is_measured_in_turns_until_that_takes_a_share_of_the_trainings(monkeypatch, seconds, rounds):
    calls = []
    monkeypatch.setattr(speed, "run", lambda config, *_, **__: calls.append(config) or Timed())
    monkeypatch.setattr(speed, "SECONDS", seconds)
    rows = [{"label": label, "steps_per_second": 5.0, "train_seconds": 0.0} for label in ("momentum", "discover")]
    speed.measure_speed(small(), rows, {}, rounds=3)
    assert [config.optimizer.name for config in calls] == ["momentum", "discover"] * rounds
    assert all(row["relative_speed"] == 1.0 for row in rows)


class Timed:
    steps_per_second = 50.0


def test_batches_are_described_in_words():
    config = get_preset("digits").config
    assert describe_batches(config) == "1 class-pure group of 32"
    changed = config.with_values({"clusters.by": "kmeans", "batches.groups": 2})
    assert describe_batches(changed) == "2 cluster-pure groups of 32"


@pytest.mark.slow
def test_discover_is_ahead_of_momentum_on_class_pure_digits_by_more_than_the_spread(tmp_path: Path):
    record = compare(make_comparison(get_preset("digits"), optimizers=["momentum", "discover"]), tmp_path / "c")
    momentum, discover, control = (row["test_accuracy"] for row in record["rows"])
    assert discover["mean"] - momentum["mean"] > discover["std"] + momentum["std"]
    assert discover["mean"] < control["mean"] + control["std"]
