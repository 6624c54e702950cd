"""A run that was stopped, killed or ran out of disk goes on, and ends as an unbroken one."""

import os
import shutil
import signal
import subprocess

import pytest

from discover.lab import records
from discover.lab.experiments.run.run import Member
from discover.lab.training.errors import RunError, RunStopped
from tests.lab.experiments.running import Watcher, assert_same_run, go, interrupted


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_stops_after_the_dispatch_with_a_checkpoint_and_resuming_ends_the_same(
    finished_run, tmp_path, number, code
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
    assert_same_run(tmp_path / "run", finished_run[1])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_that_comes_too_late_to_stop_the_training_stops_what_comes_after_a_finished_run(tmp_path, number):
    class Stopped(BaseException):
        pass

    def stop(*_):
        raise Stopped

    before = signal.signal(number, stop)
    try:
        with pytest.raises(Stopped):
            go(tmp_path / "run", progress=Watcher(20, lambda: signal.raise_signal(number)))
    finally:
        signal.signal(number, before)
    summary = records.read_summary(tmp_path / "run")
    assert summary is not None
    assert (summary["status"], summary["steps"]) == ("finished", 20)
    assert not list((tmp_path / "run").rglob("*.lock"))


def test_a_damaged_newest_checkpoint_falls_back_and_ends_the_same(finished_run, tmp_path):
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
    assert_same_run(tmp_path / "run", finished_run[1])


def test_lost_metrics_fall_back_to_the_checkpoint_that_they_still_cover(finished_run, tmp_path):
    interrupted(tmp_path / "run")
    metrics = tmp_path / "run" / records.METRICS
    os.truncate(metrics, metrics.stat().st_size - 1)
    watcher = Watcher()
    go(tmp_path / "run", resume=True, progress=watcher)
    assert any("does not match its records" in text for text in watcher.messages)
    assert_same_run(tmp_path / "run", finished_run[1])


def test_resuming_with_another_configuration_is_refused_naming_the_difference(finished_run):
    with pytest.raises(RunError, match=r"another run \(optimizer.learning_rate was 0.5, now 0.2, and 1 more\)"):
        go(finished_run[1], "optimizer.learning_rate=0.2", "training.keep=1", resume=True)
    with pytest.raises(RunError, match=r"another run \(other members\)"):
        go(finished_run[1], resume=True, members=[Member(0)])


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
    finished_run, tiny_disk, capfd
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
    assert_same_run(tiny_disk / "run", finished_run[1])


def fill(path):
    """Takes all the space that is left."""
    with open(path, "wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 512)
        except OSError:
            pass
