"""A run from configuration to records: what it leaves, how it resumes, and every way it can be refused or end."""

import json
import os
import shutil
import signal
import subprocess

import jax
import numpy as np
import pytest

from discover import records
from discover.experiments.build import build_data
from discover.experiments.config import Config, ConfigError
from discover.experiments.run import Member, load_params, run
from discover.experiments.run_directory import RunDirectory
from discover.training.errors import NonFiniteLoss, RunError, RunStopped
from discover.training.progress import Progress, Quiet

PROGRAMS = {}  # compiled once for the whole file: what is tested here is on the host
CONFIG = Config().override(
    [
        "model.name=logistic",
        "optimizer.name=discover",
        "optimizer.learning_rate=0.5",
        "batches.groups=2",
        "batches.group_size=8",
        "training.steps=20",
        "training.seeds=0,1",
        "training.steps_per_dispatch=5",
        "training.log_every=4",
        "training.eval_every=10",
        "training.checkpoint_every=5",
    ]
)
DATA = build_data(CONFIG)


def go(folder, *changes, **options):
    config = CONFIG.override(changes)
    return run(config, folder, programs=PROGRAMS, dataset=DATA, command=["discover", "train"], **options)


class Watcher(Quiet):
    """Remembers what it was told, and can do something at a step."""

    def __init__(self, at=None, action=None):
        self.at, self.action, self.messages, self.events = at, action, [], []

    def start(self, *, step, total_steps, members):
        self.events.append(("start", step))

    def advance(self, *, step, loss, accuracy, steps_per_second):
        self.events.append(("advance", step))
        assert np.isfinite(loss)
        assert 0 <= accuracy <= 1
        if self.at is not None and step >= self.at:
            self.at = None
            self.action()

    def evaluated(self, *, step, split, loss, accuracy):
        self.events.append(("evaluated", step, split))

    def message(self, text):
        self.messages.append(text)

    def finish(self, *, status):
        self.events.append(("finish", status))


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "finished"
    return go(folder), folder


def assert_same_run(folder, other):
    assert (folder / records.METRICS).read_bytes() == (other / records.METRICS).read_bytes()
    for a, b in zip(jax.tree.leaves(load_params(folder)[1]), jax.tree.leaves(load_params(other)[1])):
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


def test_a_run_leaves_its_config_environment_metrics_summary_and_checkpoints(finished):
    result, folder = finished
    assert Config.from_json((folder / records.CONFIG).read_text()) == CONFIG
    environment = records.read_json(folder / records.ENVIRONMENT)
    assert environment["command"] == "discover train"
    assert environment["backend"] == "cpu"
    lines = records.read_metrics(folder)
    assert [(m["step"], m["seed"]) for m in lines if m["kind"] == "train"] == [
        (step, seed) for step in (4, 8, 12, 16, 20) for seed in (0, 1)
    ]
    evaluations = [(m["split"], m["step"], m["seed"]) for m in lines if m["kind"] == "eval"]
    assert evaluations == [
        *[("validation", step, seed) for step in (10, 20) for seed in (0, 1)],
        *[("test", 20, seed) for seed in (0, 1)],
    ]
    summary = records.read_summary(folder)
    assert summary is not None
    assert summary["status"] == "finished"
    assert summary["steps"] == 20
    assert summary["seeds"] == [0, 1]
    assert summary["final"]["test"]["accuracy"] == [m["accuracy"] for m in lines[-2:]]
    assert summary["steps_per_second"] > 0
    assert summary["compile_seconds"] >= 0
    assert [member.final["test"]["accuracy"] for member in result.members] == summary["final"]["test"]["accuracy"]
    assert result.members[1].metrics == [m for m in lines if m["seed"] == 1]


def test_the_loss_falls(finished):
    losses = [m["loss"] for m in finished[0].members[0].metrics if m["kind"] == "train"]
    assert losses[-1] < losses[0] - 0.1


def test_the_same_run_again_gives_the_same_bytes(finished, tmp_path):
    go(tmp_path / "again")
    assert_same_run(tmp_path / "again", finished[1])


def test_without_a_folder_the_numbers_are_the_same_and_nothing_is_written(finished, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = go(None)
    assert [m.metrics for m in result.members] == [m.metrics for m in finished[0].members]
    assert list(tmp_path.iterdir()) == []


def test_a_finished_run_is_recognised_and_not_trained_again(finished):
    watcher = Watcher()
    again = go(finished[1], resume=True, progress=watcher)
    assert watcher.events == []
    assert again.summary == records.read_summary(finished[1])
    assert [m.metrics for m in again.members] == [m.metrics for m in finished[0].members]


def test_the_progress_protocol_is_what_the_loop_calls():
    assert isinstance(Quiet(), Progress)
    watcher = Watcher()
    go(None, progress=watcher)
    assert watcher.events[0] == ("start", 0)
    assert [event for event in watcher.events if event[0] == "advance"] == [("advance", s) for s in (5, 10, 15, 20)]
    assert watcher.events[-1] == ("finish", "finished")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_stops_after_the_dispatch_with_a_checkpoint_and_resuming_ends_the_same(
    finished, tmp_path, number, code
):
    watcher = Watcher(5, lambda: signal.raise_signal(number))
    before = signal.getsignal(number)
    with pytest.raises(RunStopped, match="stopped at step 10 of 20; resume") as error:
        go(tmp_path / "run", progress=watcher)
    assert error.value.exit_code == code
    assert signal.getsignal(number) is before
    summary = records.read_summary(tmp_path / "run")
    assert summary is not None
    assert (summary["status"], summary["steps"]) == ("stopped", 10)
    again = Watcher()
    result = go(tmp_path / "run", resume=True, progress=again)
    assert again.events[0] == ("start", 10)
    assert result.status == "finished"
    assert_same_run(tmp_path / "run", finished[1])


def test_resuming_where_nothing_is_starts_anew(finished, tmp_path):
    go(tmp_path / "run", resume=True)
    assert_same_run(tmp_path / "run", finished[1])


def interrupted(folder, *changes, at=10):
    with pytest.raises(RunStopped):
        go(folder, *changes, progress=Watcher(at, lambda: signal.raise_signal(signal.SIGTERM)))


def test_a_damaged_newest_checkpoint_falls_back_and_ends_the_same(finished, tmp_path):
    interrupted(tmp_path / "run")
    newest = max((tmp_path / "run/checkpoints/part-0").iterdir(), key=lambda p: int(p.name))
    assert newest.name == "15"
    for file in (newest / "state").rglob("d/*"):
        file.write_bytes(b"damaged")
    watcher = Watcher()
    go(tmp_path / "run", resume=True, progress=watcher)
    assert watcher.events[0] == ("start", 10)
    assert len(watcher.messages) == 1
    assert "going back to step 10" in watcher.messages[0]
    assert_same_run(tmp_path / "run", finished[1])


def test_lost_metrics_fall_back_to_the_checkpoint_that_they_still_cover(finished, tmp_path):
    interrupted(tmp_path / "run")
    metrics = tmp_path / "run" / records.METRICS
    os.truncate(metrics, metrics.stat().st_size - 1)
    watcher = Watcher()
    go(tmp_path / "run", resume=True, progress=watcher)
    assert any("does not match its records" in text for text in watcher.messages)
    assert_same_run(tmp_path / "run", finished[1])


def test_resuming_with_another_configuration_is_refused_naming_the_difference(finished):
    with pytest.raises(RunError, match=r"started with optimizer.learning_rate=0.5, not 0.2 \(and 1 more\)"):
        go(finished[1], "optimizer.learning_rate=0.2", "training.keep=1", resume=True)
    with pytest.raises(RunError, match="other members"):
        go(finished[1], resume=True, members=[Member(0)])


def test_folders_that_cannot_be_used_are_refused(finished, tmp_path):
    with pytest.raises(RunError, match=r"already holds a run \(finished, step 20\); resume it or choose another"):
        go(finished[1])
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="is a file"):
        go(tmp_path / "file")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("")
    with pytest.raises(RunError, match="not empty and holds no run"):
        go(tmp_path / "full")
    with pytest.raises(RunError, match="cannot be written"):
        go(tmp_path / "file" / "below")


def test_overwriting_replaces_a_run_only_when_the_new_one_can_start(finished, tmp_path):
    folder = tmp_path / "run"
    go(folder, "training.steps=5")
    (folder / "notes.txt").write_text("mine")
    before = (folder / records.METRICS).read_bytes()
    with pytest.raises(RunError):
        run(CONFIG.override(["data.source=npz", f"data.path={tmp_path / 'none'}"]), folder, overwrite=True)
    with RunDirectory(folder) as held:
        held.take()
        with pytest.raises(RunError, match="in use by another process"):
            go(folder, overwrite=True)
    assert (folder / records.METRICS).read_bytes() == before
    assert (folder / "checkpoints/part-0/5").is_dir()
    go(folder, overwrite=True)
    assert (folder / "notes.txt").exists()
    assert_same_run(folder, finished[1])


def test_overwriting_also_replaces_checkpoints_that_have_lost_their_run(finished, tmp_path):
    (tmp_path / "run/checkpoints/part-0/5").mkdir(parents=True)
    with pytest.raises(RunError, match="has checkpoints but no"):
        go(tmp_path / "run")
    go(tmp_path / "run", overwrite=True)
    assert_same_run(tmp_path / "run", finished[1])
    (tmp_path / "other/checkpoints/mine").mkdir(parents=True)
    with pytest.raises(RunError, match="has checkpoints but no"):
        go(tmp_path / "other", overwrite=True)


def test_two_processes_cannot_have_one_folder(tmp_path):
    def second():
        with pytest.raises(RunError, match="in use by another process"):
            go(tmp_path / "run", resume=True)

    go(tmp_path / "run", progress=Watcher(5, second))


def test_a_loss_that_is_not_finite_stops_the_run_and_leaves_the_last_good_checkpoint(tmp_path):
    members = [Member(0, {"learning_rate": 0.1}), Member(1, {"learning_rate": 3e38})]
    with pytest.raises(NonFiniteLoss, match=r"of seed 1 \(learning rate 3e\+38\) (is|are) no longer finite") as error:
        go(tmp_path / "run", members=members)
    assert error.value.exit_code == 1
    assert "\n" not in str(error.value)
    summary = records.read_summary(tmp_path / "run")
    assert summary is not None
    assert summary["status"] == "failed"
    kept = list((tmp_path / "run/checkpoints/part-0").glob("[0-9]*"))
    assert len(kept) == 0 or "last good checkpoint" in str(error.value)


def test_a_diverged_member_is_dropped_and_the_others_are_not_touched(tmp_path):
    rates = (0.1, 3e38)
    members = [Member(seed, {"learning_rate": rate}) for rate in rates for seed in (0, 1)]
    watcher = Watcher()
    result = go(tmp_path / "run", "training.on_nonfinite=drop", members=members, progress=watcher)
    assert len(watcher.messages) == 2
    assert [member.diverged_at is None for member in result.members] == [True, True, False, False]
    assert [member.final is None for member in result.members] == [False, False, True, True]
    alone = go(None, "training.on_nonfinite=drop", members=members[:2])
    for together, one in zip(result.members, alone.members):
        assert together.final == one.final
    lines = records.read_metrics(tmp_path / "run")
    assert all(np.isfinite(m["loss"]) for m in lines)
    chosen = records.extract_run(tmp_path / "run", tmp_path / "chosen", [0, 1])
    summary = records.read_summary(chosen)
    assert summary is not None
    assert summary["final"]["test"]["accuracy"] == [m.final["test"]["accuracy"] for m in result.members[:2]]


def test_when_every_member_has_diverged_the_run_fails():
    members = [Member(seed, {"learning_rate": 3e38}) for seed in (0, 1)]
    for some, end in ((members, "and no other is left"), (members[:1], r"at step \d+\. A lower")):
        watcher = Watcher()
        with pytest.raises(NonFiniteLoss, match=end):
            go(None, "training.on_nonfinite=drop", members=some, progress=watcher)
        assert not watcher.messages  # nobody goes on


def test_a_grid_of_members_equals_separate_runs_to_the_last_bit():
    grid = [Member(seed, {"learning_rate": rate, "beta": 0.9}) for rate in (0.05, 0.2) for seed in (0, 1)]
    together = go(None, members=grid)
    for rate, pair in ((0.05, together.members[:2]), (0.2, together.members[2:])):
        apart = go(None, f"optimizer.learning_rate={rate}", "optimizer.beta=0.9")
        for one, other in zip(pair, apart.members):
            stripped = [{k: v for k, v in line.items() if k != "member"} for line in one.metrics]
            assert stripped == other.metrics


def test_members_trained_one_after_the_other_equal_members_trained_together(finished, tmp_path):
    config = ("training.together=1",)
    interrupted(tmp_path / "run", *config)
    watcher = Watcher()
    go(tmp_path / "run", *config, resume=True, progress=watcher)
    assert [event for event in watcher.events if event[0] == "start"] == [("start", 15), ("start", 0)]
    by_seed = [m for m in records.read_metrics(finished[1]) if m["seed"] == 0]
    by_seed += [m for m in records.read_metrics(finished[1]) if m["seed"] == 1]
    assert records.read_metrics(tmp_path / "run") == by_seed
    for a, b in zip(jax.tree.leaves(load_params(tmp_path / "run")[1]), jax.tree.leaves(load_params(finished[1])[1])):
        assert np.array_equal(a, b)


def test_resuming_in_a_later_part_keeps_the_checkpoints_of_every_part_and_ends_the_same(tmp_path):
    config = ("training.together=1", "training.seeds=0,1,2")
    go(tmp_path / "whole", *config)

    def stop_in_the_second_part():
        if sum(event[0] == "start" for event in watcher.events) == 2:
            signal.raise_signal(signal.SIGTERM)
        else:
            watcher.at = 5  # once more, in the part after

    watcher = Watcher(20, stop_in_the_second_part)
    with pytest.raises(RunStopped):
        go(tmp_path / "run", *config, progress=watcher)
    again = Watcher()
    go(tmp_path / "run", *config, resume=True, progress=again)
    assert again.messages == []
    starts = [event[1] for event in again.events if event[0] == "start"]
    assert starts[0] == 20
    assert 0 < starts[1] < 20
    assert starts[2:] == [0]
    assert_same_run(tmp_path / "run", tmp_path / "whole")


def test_parameters_of_parts_of_different_sizes_are_those_of_members_trained_together(tmp_path):
    four = "training.seeds=0,1,2,3"
    go(tmp_path / "together", four)
    go(tmp_path / "parts", four, "training.together=3")
    whole, parts = load_params(tmp_path / "together")[1], load_params(tmp_path / "parts")[1]
    jax.tree.map(np.testing.assert_array_equal, whole, parts)
    shutil.rmtree(tmp_path / "parts/checkpoints/part-1")
    with pytest.raises(RunError, match="checkpoints of 1 of its 2 parts: resume it first"):
        load_params(tmp_path / "parts")


def test_a_run_killed_after_its_last_part_but_before_its_summary_trains_nothing_again(tmp_path):
    config = ("training.together=1",)
    go(tmp_path / "run", *config)
    before = (tmp_path / "run" / records.METRICS).read_bytes()
    summary = records.read_summary(tmp_path / "run")
    assert summary is not None
    records.write_json(tmp_path / "run" / records.SUMMARY, {**summary, "status": "running"})
    again = Watcher()
    result = go(tmp_path / "run", *config, resume=True, progress=again)
    assert [event for event in again.events if event[0] == "start"] == [("start", 20), ("start", 20)]
    assert again.messages == []
    assert (tmp_path / "run" / records.METRICS).read_bytes() == before
    assert result.summary["final"] == summary["final"]


@pytest.mark.parametrize(
    ("members", "text"),
    [
        ([], "at least one member"),
        ([Member(0, {"alpha": 0.1})], "'discover' has no alpha"),
        ([Member(0, {"beta": 2.0})], "optimizer.beta must be in"),
        ([Member(0, {"beta": 0.5}), Member(1)], "must all set beta"),
    ],
)
def test_bad_members_are_refused(members, text):
    with pytest.raises(ConfigError, match=text):
        go(None, members=members)


def test_epochs_are_counted_in_examples():
    result = go(None, "training.epochs=0.2")
    assert result.steps == round(0.2 * len(DATA.train) / 16)


def test_without_a_validation_split_the_test_split_is_evaluated_throughout():
    result = run(CONFIG.override(["data.validation=0"]), None)
    evaluations = [(m["split"], m["step"]) for m in result.members[0].metrics if m["kind"] == "eval"]
    assert evaluations == [("test", 10), ("test", 20)]


def test_the_best_checkpoint_is_the_one_with_the_highest_validation_accuracy(finished):
    config, best = load_params(finished[1], which="best")
    assert config == CONFIG
    _, last = load_params(finished[1])
    assert jax.tree.structure(best) == jax.tree.structure(last)
    by_step = {}
    for line in records.read_metrics(finished[1]):
        if line["kind"] == "eval" and line["split"] == "validation":
            by_step.setdefault(line["step"], []).append(line["accuracy"])
    assert max(by_step, key=lambda step: np.mean(by_step[step])) == 20
    jax.tree.map(np.testing.assert_array_equal, best, last)


def test_parameters_of_a_run_without_checkpoints_cannot_be_loaded(tmp_path):
    go(tmp_path / "run", checkpoints=False)
    assert not (tmp_path / "run" / records.CHECKPOINTS).exists()
    with pytest.raises(RunError, match="has no checkpoints"):
        load_params(tmp_path / "run")
    with pytest.raises(RunError, match="holds no run"):
        load_params(tmp_path / "nowhere")


def test_tensorboard_files_hold_the_metrics(tmp_path):
    pytest.importorskip("tensorboardX")
    go(tmp_path / "run", tensorboard=True)
    for seed in (0, 1):
        (events,) = (tmp_path / "run" / "tensorboard" / f"seed-{seed}").iterdir()
        content = events.read_bytes()
        assert b"validation/accuracy" in content
        assert b"train/learning_rate" in content


@pytest.fixture
def tiny_disk(tmp_path):
    """A file system of two megabytes, where the machine lets us make one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = shutil.which("mount")
    options = ["-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)]
    if mount is None or subprocess.run([mount, *options], capture_output=True).returncode != 0:
        pytest.skip("this user cannot mount a small file system to fill up")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_ends_the_run_with_one_line_and_resuming_after_making_room_ends_the_same(
    finished, tiny_disk, capfd
):
    ballast = tiny_disk / "ballast"
    with pytest.raises(RunError, match="no space left on the disk") as error:
        go(tiny_disk / "run", progress=Watcher(5, lambda: fill(ballast)))
    assert error.value.exit_code == 2
    assert "\n" not in str(error.value)
    assert capfd.readouterr().err == ""
    ballast.unlink()
    records.read_metrics(tiny_disk / "run")
    result = go(tiny_disk / "run", resume=True)
    assert result.status == "finished"
    assert_same_run(tiny_disk / "run", finished[1])


def fill(path):
    """Takes all the space that is left."""
    with open(path, "wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 512)
        except OSError:
            pass


def test_the_summary_is_valid_json_even_after_divergence(tmp_path):
    members = [Member(0, {"learning_rate": 0.1}), Member(1, {"learning_rate": 3e38})]
    go(tmp_path / "run", "training.on_nonfinite=drop", members=members)
    json.loads((tmp_path / "run" / records.SUMMARY).read_text(), parse_constant=pytest.fail)
