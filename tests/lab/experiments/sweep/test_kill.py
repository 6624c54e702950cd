"""A sweep that is killed, wherever, ends with the same trials and the same winner; processes share one in peace."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import one_device

HARNESS = Path(__file__).with_name("kill_harness.py")


def run_harness(folder, kills):
    pytest.importorskip("optuna")
    done = subprocess.run(
        [sys.executable, str(HARNESS), str(folder), "0", str(kills)],
        env=one_device.environment(JAX_COMPILATION_CACHE_DIR=str(folder / "cache")),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads((folder / "report.json").read_text())


@pytest.fixture(scope="module")
def thorough(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sweeps")
    return folder, run_harness(folder, 18)


def read(folder, name):
    return json.loads((folder / name / "sweep.json").read_text())


def assert_ends_the_same(folder, report, search, at_least, points=1):
    killed = [kill for kill in report["kills"] if kill[0] == search and kill[3] == -signal.SIGKILL]
    assert len(killed) >= at_least, report["kills"]
    assert len({point for _, point, _, _ in killed}) == points, report["kills"]
    unbroken, broken = read(folder, f"{search}-unbroken"), read(folder, f"{search}-broken")
    assert unbroken["status"] == broken["status"] == "finished"
    assert broken["trials"] == unbroken["trials"]
    assert broken["winner"] == unbroken["winner"] is not None
    assert broken["best"] == unbroken["best"]
    assert not list((folder / f"{search}-broken").rglob("*.lock"))


def test_a_killed_search_has_the_same_trials_and_the_same_winner(tmp_path):
    assert_ends_the_same(tmp_path, run_harness(tmp_path, 1), "tpe", 1)


@pytest.mark.slow
@pytest.mark.parametrize(("search", "kills", "points"), [("grid", 2, 2), ("tpe", 9, 6)])
def test_a_sweep_killed_wherever_has_the_same_trials_and_the_same_winner(thorough, search, kills, points):
    assert_ends_the_same(*thorough, search, kills, points)


@pytest.mark.slow
@pytest.mark.parametrize("search", ["grid", "tpe"])
def test_processes_on_one_folder_share_the_trials_even_if_one_dies(thorough, search):
    folder, report = thorough
    assert report[f"{search}-shared"] == [-signal.SIGKILL, 0, 0]
    shared, alone = read(folder, f"{search}-shared"), read(folder, f"{search}-unbroken")
    ended = [int(n) for path in folder.glob(f"{search}-shared.*.ended") for n in path.read_text().split()]
    assert sorted(ended) == [trial["number"] for trial in shared["trials"]] == list(range(len(alone["trials"])))
    if search == "grid":  # with optuna the order in which trials end decides what is tried next
        assert shared["trials"] == alone["trials"]
        assert shared["winner"] == alone["winner"]


def test_a_trial_that_another_process_ends_while_we_look_is_not_taken_again(tmp_path, monkeypatch):
    pytest.importorskip("optuna")
    from discover.lab.experiments.presets.presets import get_preset
    from discover.lab.experiments.sweep import optuna_search as sweep_optuna
    from discover.lab.experiments.sweep.search import make_search

    plan = make_search(get_preset("digits"), "discover", axes=["learning_rate=0.1,0.3"], method="tpe", trials=2)

    class Recorder:
        def lock(self, number):
            return tmp_path / "locks" / f"{number:04d}.lock"

        def train(self, number, params, judge):
            return {"number": number, "state": "complete", "validation_accuracy": {"mean": 0.6}}

        def write(self, record):
            pass

    with sweep_optuna.open_study(plan, tmp_path, None) as study:
        theirs = study.ask()
        claim = sweep_optuna.claim

        def claim_later(path, **options):
            if path.name == "0000.lock":  # at this moment they tell and let go
                study.tell(theirs, 0.5)
            return claim(path, **options)

        monkeypatch.setattr(sweep_optuna, "claim", claim_later)
        ended = []
        sweep_optuna._take_one(plan, tmp_path, Recorder(), study, ended.append)
    assert [record["number"] for record in ended] == [1]
