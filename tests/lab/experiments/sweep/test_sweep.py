"""Sweeps: the paper's grids as printed, an honest choice, the test split once, and a line that can be typed."""

from __future__ import annotations

import json
import shlex
import shutil
import signal
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from discover.lab.experiments.folder import FolderError
from discover.lab.experiments.presets.paper_search import SEARCHED_ON_CIFAR
from discover.lab.experiments.presets.presets import get_preset
from discover.lab.experiments.sweep import trials as sweep_trials
from discover.lab.experiments.sweep.optuna_search import MissingExtra, run_study
from discover.lab.experiments.sweep.search import get_space, make_search, parse_axis
from discover.lab.experiments.sweep.train import set_line, sweep, winner
from discover.lab.records import read_metrics, read_summary
from discover.lab.report.sweep import sweep_table, write_sweep_figure
from discover.lab.training.errors import RunStopped
from discover.registry import OPTIMIZERS

SMALL = [
    "model.name=logistic", "model.depth=none", "model.width=none", "training.steps=12", "training.eval_every=4",
    "training.steps_per_dispatch=4", "training.seeds=0,1", "batches.group_size=8",
]  # fmt: skip
PROGRAMS: dict = {}  # compiled once for all tests of this file


def small(**options):
    values = {"axes": ["learning_rate=0.01,0.3", "nu=0,0.95"], "overrides": SMALL} | options
    return make_search(get_preset("digits"), "discover", **values)


# -- the paper's grids ------------------------------------------------------------------------------------------------


def test_the_chosen_values_of_the_paper_lie_on_its_grids():
    for setting in ("classes", "classes-noise02", "classes-noise08"):
        preset = get_preset(f"cifar10-{setting}")
        for optimizer, space in SEARCHED_ON_CIFAR.items():
            own = preset.hyperparameters(optimizer)
            for name, axis in space.items():
                assert any(own[name] == pytest.approx(value) for value in axis.values), (setting, optimizer, name)


def test_every_optimizer_of_every_space_can_be_planned():
    for preset, space in (("cifar10-classes-small", SEARCHED_ON_CIFAR), ("digits", OPTIMIZERS)):
        for optimizer in space:
            if optimizer in get_preset(preset).optimizers:
                plan = make_search(get_preset(preset), optimizer, trials=3)
                assert len(plan.points()) == 3
    assert get_space(get_preset("cifar10-classes"), "paper_discover")[0] == "paper"
    assert get_space(get_preset("cifar10-classes"), "discover")[0] == "ours"  # the paper tuned its own letters


# -- planning ---------------------------------------------------------------------------------------------------------


@settings(max_examples=25)
@given(trials=st.integers(1, 400), seed=st.integers(0, 5))
def test_a_part_of_a_grid_is_drawn_with_the_seed_without_repetition(trials, seed):
    plan = make_search(get_preset("cifar10-classes-small"), "qhm", trials=trials, seed=seed)
    points = plan.points()
    assert len(points) == min(trials, 5 * 2 * 9)
    assert len({tuple(point.values()) for point in points}) == len(points)
    assert points == make_search(get_preset("cifar10-classes-small"), "qhm", trials=trials, seed=seed).points()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "gird"}, "unknown search 'gird': did you mean 'grid'"),
        ({"axes": ["alpha=0.1,0.2"]}, "unknown hyperparameter of discover 'alpha'"),
        ({"axes": ["nu=0.5,1.5"]}, r"optimizer.nu must be in \[0, 1\], got 1.5"),
        ({"axes": ["nu"]}, "expected NAME=VALUE,VALUE, got 'nu'"),
        ({"axes": ["nu=0.5,0.5"]}, "values of nu must differ"),
        ({"axes": ["beta=0.9,1"]}, r"values of beta must be in \[0, 1\)"),
        ({"axes": ["nu=0.5", "nu=0.7"]}, "each hyperparameter can be given once"),
        ({"trials": 0}, "at least 1 trial, got 0"),
        ({"overrides": ["data.validation=0"]}, "add --set data.validation=0.1"),
        ({"overrides": ["optimizer.name=sgd"]}, "use --optimizer"),
        ({"axes": (), "space": "paper"}, "the paper has no grid for 'discover' in 'digits'"),
    ],
)
def test_what_cannot_be_is_said_before_training(options, message):
    with pytest.raises(ValueError, match=message) as error:
        small(**options)
    assert getattr(error.value, "exit_code", None) == 2


def test_axes_are_measured_as_suits_them():
    assert parse_axis("learning_rate=0.1,1")[1].shape == "log"
    assert parse_axis("optimizer.beta=0.9,0.99") == ("beta", parse_axis("beta=0.9,0.99")[1])
    assert parse_axis("nu=0,1")[1].shape == "linear"


# -- running ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    directory = tmp_path_factory.mktemp("sweep") / "s"
    return directory, sweep(small(), directory, programs=PROGRAMS)


def test_the_winner_has_the_highest_mean_validation_accuracy(finished):
    directory, record = finished
    means = [trial["validation_accuracy"]["mean"] for trial in record["trials"]]
    assert record["winner"] == means.index(max(means))
    assert len(record["trials"]) == 4
    assert len(set(means)) > 1
    for trial in record["trials"]:
        summary = read_summary(directory / "trials" / f"{trial['number']:04d}")
        assert trial["validation_accuracy"]["values"] == summary["final"]["validation"]["accuracy"]
    assert json.loads((directory / "sweep.json").read_text()) == record


def test_only_the_winner_sees_the_test_split_and_once(finished):
    directory, record = finished
    for trial in record["trials"]:
        lines = read_metrics(directory / "trials" / f"{trial['number']:04d}")
        assert {line["split"] for line in lines if line["kind"] == "eval"} == {"validation"}
    lines = [line for line in read_metrics(directory / "best") if line["kind"] == "eval"]
    tests = [line for line in lines if line["split"] == "test"]
    assert len(tests) == len(record["seeds"])
    assert record["best"]["test_accuracy"]["values"] == [line["accuracy"] for line in tests]


def test_the_winner_trained_again_repeats_its_validation_accuracy(finished):
    _, record = finished
    won = record["trials"][record["winner"]]
    assert record["best"]["validation_accuracy"] == won["validation_accuracy"]
    assert record["best"]["params"] == won["params"]


def test_the_line_to_type_gives_the_winners_configuration(finished):
    directory, record = finished
    words = shlex.split(record["best"]["set_line"])
    assert words[::2] == ["--set"] * 2
    config = get_preset("digits").config_for("discover").override([*SMALL, *words[1::2]])
    trained = json.loads((directory / "best" / "config.json").read_text())
    assert config.with_values({"training.on_nonfinite": "drop"}).to_dict() == trained
    assert set_line({"learning_rate": 1e-4}) == "--set optimizer.learning_rate=0.0001"


def test_a_finished_sweep_is_read_back_not_trained_again(finished, monkeypatch):
    directory, record = finished
    monkeypatch.setattr(sweep_trials.Trials, "train", lambda *_: pytest.fail("trained again"))
    assert sweep(small(), directory, programs=PROGRAMS) == record


def test_a_damaged_environment_of_a_trial_is_no_reason_to_stop(finished, tmp_path):
    directory, record = finished
    copy = shutil.copytree(directory, tmp_path / "s")
    (copy / "trials/0000/environment.json").write_text("{")
    assert sweep(small(), copy, programs=PROGRAMS)["best"] == record["best"]


def test_another_sweep_is_refused_with_the_difference(finished, tmp_path):
    directory, _ = finished
    with pytest.raises(
        FolderError,
        match=r"holds another sweep \(space.nu.values was 0.0,0.95, now 0.0,1.0\); choose another \(--out\)$",
    ):
        sweep(small(axes=["learning_rate=0.01,0.3", "nu=0,1"]), directory)
    with pytest.raises(FolderError, match=r"holds another sweep \(trials was 4, now 2\)"):
        sweep(small(trials=2), directory)
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(FolderError, match=r"holds no sweep \(thesis.txt\)"):
        sweep(small(), tmp_path)


def test_time_that_is_up_stops_between_trials_and_the_next_call_goes_on(finished, tmp_path):
    stopped = sweep(small(), tmp_path, minutes=1e-9, programs=PROGRAMS)
    assert stopped["status"] == "stopped"
    assert (stopped["trials"], stopped["best"]) == ([], None)
    assert sweep(small(), tmp_path, programs=PROGRAMS)["trials"] == finished[1]["trials"]


def test_a_file_of_trials_that_cannot_be_used_is_one_line(tmp_path):
    pytest.importorskip("optuna")
    (tmp_path / "study.db").write_bytes(b"no database" * 1000)
    with pytest.raises(FolderError, match=r"study\.db cannot be used: file is not a database; mend it"):
        run_study(small(method="tpe"), tmp_path, None, storage=None, check_time=print, say=print)  # pyright: ignore


def test_a_disk_that_is_full_for_the_trials_is_said_like_any_other(tmp_path, monkeypatch):
    pytest.importorskip("optuna")

    def full(*_):
        raise OperationalError(None, None, OSError("database or disk is full"))

    from sqlalchemy.exc import OperationalError

    monkeypatch.setattr("discover.lab.experiments.sweep.optuna_search.open_study", full)
    with pytest.raises(FolderError, match=r"no space left on the disk for .*study\.db: free some space and resume"):
        run_study(small(method="tpe"), tmp_path, None, storage=None, check_time=print, say=print)  # pyright: ignore


@pytest.mark.parametrize("search", ["grid", "tpe"])
def test_a_signal_at_the_end_of_a_trial_stops_the_sweep_after_it_and_the_next_call_goes_on(
    tmp_path, monkeypatch, search
):
    if search == "tpe":
        pytest.importorskip("optuna")
    trained, train = [], sweep_trials.Trials.train

    def with_a_late_signal(self, number, *arguments):
        trained.append(number)
        record = train(self, number, *arguments)
        if number == 1 and trained.count(1) == 1:
            signal.raise_signal(signal.SIGINT)
        return record

    monkeypatch.setattr(sweep_trials.Trials, "train", with_a_late_signal)
    plan = small(method=search, trials=3, prune=False)
    with pytest.raises(RunStopped) as error:
        sweep(plan, tmp_path, programs=PROGRAMS)
    assert error.value.exit_code == 130
    assert trained == [0, 1]
    assert sweep(plan, tmp_path, programs=PROGRAMS)["status"] == "finished"
    assert trained == [0, 1, 2]  # the trial that the signal came in was kept


def test_what_diverges_cannot_win(tmp_path):
    record = sweep(small(axes=["learning_rate=3e38,0.3"]), tmp_path, programs=PROGRAMS)
    assert [trial["state"] for trial in record["trials"]] == ["diverged", "complete"]
    assert record["winner"] == 1
    assert winner(record["trials"][:1]) is None
    assert write_sweep_figure(tmp_path)


def test_equals_go_to_the_first():
    trials = [{"number": n, "state": "complete", "validation_accuracy": {"mean": m}} for n, m in enumerate([1, 2, 2])]
    assert winner(trials)["number"] == 1


def test_a_grid_needs_no_optuna_and_the_search_says_how_to_get_it(finished, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    record = sweep(small(axes=["learning_rate=0.3"]), tmp_path / "grid", programs=PROGRAMS)
    assert record["status"] == "finished"
    with pytest.raises(MissingExtra, match=r"pip install 'discover-optim\[sweep\]'"):
        sweep(small(method="tpe"), tmp_path / "tpe")


def test_the_search_gives_up_what_is_hopeless_and_goes_on_for_longer_if_asked(tmp_path):
    pytest.importorskip("optuna")
    axes = ["learning_rate=0.0001,1", "beta=0.8,0.98"]
    record = sweep(small(method="tpe", trials=9, axes=axes), tmp_path, programs=PROGRAMS)
    states = [trial["state"] for trial in record["trials"]]
    assert states[:5] == ["complete"] * 5  # nobody is judged before there is something to compare with
    assert "pruned" in states
    assert record["trials"][0]["params"] == {"learning_rate": 0.1, "beta": 0.95}  # the preset's own
    for trial in record["trials"]:
        assert 0.0001 <= trial["params"]["learning_rate"] <= 1
        assert 0.8 <= trial["params"]["beta"] <= 0.98
        if trial["state"] == "pruned":
            assert trial["last"]["step"] < 12 * 2
    longer = sweep(small(method="tpe", trials=10, axes=axes), tmp_path, programs=PROGRAMS)
    assert longer["trials"][:9] == record["trials"]
    assert len(longer["trials"]) == 10


# -- showing ----------------------------------------------------------------------------------------------------------


def test_the_table_and_the_figure_come_from_the_record(finished, tmp_path):
    directory, record = finished
    table = sweep_table(record, limit=3)
    assert table.headers == ("trial", "learning rate μ", "ν", "validation accuracy")
    assert len(table.rows) == 3
    assert table.rows[0][0] == str(record["winner"])
    (tmp_path / "sweep.json").write_text((directory / "sweep.json").read_text())
    first = [path.read_bytes() for path in write_sweep_figure(tmp_path)]
    assert [path.read_bytes() for path in write_sweep_figure(tmp_path)] == first
    assert all(first)


def test_the_command_prints_table_winner_and_line(finished, capsys, tmp_path):
    from discover.lab.cli import main

    directory, record = finished
    words = ["sweep", "digits", "--optimizer", "discover", "--out", str(directory), "--json", str(tmp_path / "r.json")]
    words += [part for text in SMALL for part in ("--set", text)]
    with pytest.raises(SystemExit) as ended:
        main([*words, "--axis", "learning_rate=0.01,0.3", "--axis", "nu=0,0.95"])
    output = capsys.readouterr()
    assert ended.value.code == 0, output.err
    assert f"winner: trial {record['winner']}; test accuracy, looked at once" in output.out
    swept = " ".join(f"--set {text}" for text in SMALL)
    assert f"discover train digits --optimizer discover {swept} {record['best']['set_line']}\n" in output.out
    assert json.loads((tmp_path / "r.json").read_text())["winner"] == record["winner"]
