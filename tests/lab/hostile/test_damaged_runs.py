"""A run folder that was damaged, anywhere: the run goes on from what is whole, says so, and ends with the same bits."""

import contextlib
import json
import os
import resource
import shutil
import signal

import numpy as np
import pytest

from discover.lab import records
from discover.lab.training.errors import RunError
from tests.lab.experiments.running import Watcher, assert_same_run, go, interrupted

# Orbax's other readers of a damaged file are collected after their loop has closed, whichever test that is in.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "run"
    go(folder)
    return folder


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """A run of 20 steps that was stopped, with checkpoints at 5, 10 and 15."""
    folder = tmp_path_factory.mktemp("stopped") / "run"
    interrupted(folder)
    assert sorted(int(path.name) for path in checkpoints(folder).iterdir()) == [5, 10, 15]
    return folder


@pytest.fixture
def run(stopped, tmp_path):
    return shutil.copytree(stopped, tmp_path / "run")


def checkpoints(folder):
    return folder / records.CHECKPOINTS / "part-0"


def files_of_a_checkpoint(folder):
    return sorted(path for path in folder.rglob("*") if path.is_file())


def resume(folder):
    watcher = Watcher()
    result = go(folder, resume=True, progress=watcher)
    assert result.status == "finished"
    assert all("\n" not in text for text in watcher.messages)
    return watcher


WAYS = {
    "empty": lambda raw: b"",
    "cut": lambda raw: raw[: len(raw) // 2],
    "zeros": lambda raw: bytes(len(raw)),
    "garbage": lambda raw: np.random.default_rng(0).bytes(len(raw) + 3),
    "[": lambda raw: b"[" * 100_000,
}


def some(values, *quick):
    """All values; those that are not the `quick` ones are slow."""
    return [value if value in quick else pytest.param(value, marks=pytest.mark.slow) for value in values]


@pytest.mark.parametrize("way", some(WAYS, "garbage", "["))
def test_a_newest_checkpoint_of_which_every_file_is_damaged_falls_back_and_ends_the_same(run, whole, way):
    for path in files_of_a_checkpoint(checkpoints(run) / "15"):
        path.write_bytes(WAYS[way](path.read_bytes()))
    watcher = resume(run)
    assert watcher.events[0] == ("start", 10)
    assert_same_run(run, whole)


NAMES = ("note/metadata", "_CHECKPOINT_METADATA", "state/_METADATA", "state/manifest.ocdbt")


@pytest.mark.parametrize("name", some(NAMES, "note/metadata", "_CHECKPOINT_METADATA"))
@pytest.mark.parametrize("way", some(("empty", "garbage"), "garbage"))
def test_a_damaged_note_or_directory_of_a_checkpoint_costs_that_checkpoint_at_most(run, whole, name, way):
    path = checkpoints(run) / "15" / name
    path.write_bytes(WAYS[way](path.read_bytes()))
    assert resume(run).events[0] in (("start", 10), ("start", 15))
    assert_same_run(run, whole)


@pytest.mark.parametrize("name", [f"{records.CHECKPOINTS}/part-0/15/note/metadata", records.ENVIRONMENT])
def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(run, whole, name):
    (run / name).unlink()
    os.mkfifo(run / name)
    resume(run)
    assert_same_run(run, whole)


@pytest.mark.parametrize("name", [records.CONFIG, records.SUMMARY])
def test_a_pipe_in_the_place_of_what_is_needed_is_one_line(run, name):
    (run / name).unlink()
    os.mkfifo(run / name)
    with pytest.raises(RunError, match=rf"{name} is damaged: it is no ordinary file$"):
        go(run, resume=True)


def test_metrics_that_lead_elsewhere_are_not_written_to(run, tmp_path):
    (tmp_path / "elsewhere").write_text("precious")
    (run / records.METRICS).unlink()
    (run / records.METRICS).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(records.RecordsError, match=r"metrics.jsonl is a link"):
        go(run, resume=True)
    assert (tmp_path / "elsewhere").read_text() == "precious"


def test_a_checkpoint_that_lacks_files_or_is_none_makes_room_for_its_successor(run, whole):
    shutil.rmtree(checkpoints(run) / "15")
    (checkpoints(run) / "15").write_text("a file")
    (checkpoints(run) / "20").mkdir()
    resume(run)
    assert_same_run(run, whole)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, int.from_bytes(os.urandom(4), "little")], ids=["fixed", "fresh"])
def test_any_single_damaged_file_costs_no_more_than_a_checkpoint(stopped, whole, tmp_path, seed):
    rng = np.random.default_rng(seed)
    names = [path.relative_to(stopped) for path in files_of_a_checkpoint(checkpoints(stopped) / "15")]
    for name in (*names, records.METRICS, records.ENVIRONMENT):
        run = shutil.copytree(stopped, tmp_path / "run")
        way = list(WAYS)[int(rng.integers(len(WAYS)))]
        (run / name).write_bytes(WAYS[way]((run / name).read_bytes()))
        least = 5 if name == records.METRICS else 10  # half of the metrics are not even those of step 10
        assert resume(run).events[0][1] >= least, (seed, name, way)
        shutil.rmtree(run)


@pytest.mark.parametrize("place", some((0.0, 0.3, 0.6, 0.9), 0.0, 0.9))
def test_metrics_that_changed_anywhere_cost_at_most_the_lines_after_the_damage(run, whole, place):
    metrics = run / records.METRICS
    raw = metrics.read_bytes()
    length = note(run, 15)["metrics_length"]
    at, covered = int(place * length), note(run, 10)["metrics_length"]
    metrics.write_bytes(raw[:at] + b"\xff\x00{" + raw[at + 3 :])
    watcher = resume(run)
    assert watcher.events[0][1] > 0
    assert any("does not match its records (metrics.jsonl is damaged)" in text for text in watcher.messages)
    lines, expected = records.read_metrics(run), records.read_metrics(whole)
    assert all(line in expected for line in lines)
    if at > covered:  # an older checkpoint has all that was before the damage
        assert_same_run(run, whole)
    assert lines[-1] == expected[-1]


def test_a_digit_that_changed_in_the_metrics_is_noticed(run, whole):
    metrics = run / records.METRICS
    raw = metrics.read_bytes()
    at = raw.index(b'"loss": ', note(run, 10)["metrics_length"]) + 10
    metrics.write_bytes(raw[:at] + (b"1" if raw[at : at + 1] != b"1" else b"2") + raw[at + 1 :])
    resume(run)
    assert_same_run(run, whole)


@pytest.mark.parametrize("left", some((0, 1, 100), 100))
def test_cut_off_metrics_never_start_from_zero(run, whole, left):
    os.truncate(run / records.METRICS, left)
    watcher = resume(run)
    assert watcher.events[0] == ("start", 15)
    assert "going on from step 15 without the lines that are lost" in watcher.messages[-1]
    assert records.read_metrics(run)[-1] == records.read_metrics(whole)[-1]
    summary, expected = records.read_summary(run), records.read_summary(whole)
    assert summary["final"] == expected["final"]


def test_a_finished_run_whose_metrics_are_damaged_is_mended(whole, tmp_path):
    run = shutil.copytree(whole, tmp_path / "run")
    raw = (run / records.METRICS).read_bytes()
    (run / records.METRICS).write_bytes(raw[:-40] + b"}\n" + raw[-38:])
    resume(run)
    assert_same_run(run, whole)


def test_a_finished_run_without_any_metrics_has_its_last_evaluation_made_again(whole, tmp_path):
    run = shutil.copytree(whole, tmp_path / "run")
    for step in ("10", "15"):
        shutil.rmtree(checkpoints(run) / step, ignore_errors=True)
    (run / records.METRICS).write_bytes(b"\xff\n")
    result = go(run, resume=True)
    assert result.summary["final"] == records.read_summary(whole)["final"]


DAMAGED = ("", "{", "[]", "\xff", "[" * 100_000, '{"resumed": 3}')


@pytest.mark.parametrize("text", some(DAMAGED, "{", '{"resumed": 3}'), ids=lambda text: text[:15])
def test_a_damaged_environment_is_no_reason_to_stop(run, whole, text):
    (run / records.ENVIRONMENT).write_text(text, encoding="latin1")
    resume(run)
    assert_same_run(run, whole)
    assert json.loads((run / records.ENVIRONMENT).read_text())["resumed"]


def note(folder, step):
    return json.loads((checkpoints(folder) / str(step) / "note" / "metadata").read_text())


@contextlib.contextmanager
def largest_file(size):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def test_a_file_that_may_not_grow_ends_the_run_like_a_full_disk_and_resuming_ends_the_same(whole, tmp_path):
    limit = contextlib.ExitStack()
    with limit, pytest.raises(RunError, match=r"no space left on the disk.*resume") as error:
        go(tmp_path / "run", progress=Watcher(5, lambda: limit.enter_context(largest_file(300))))
    assert "\n" not in str(error.value)
    resume(tmp_path / "run")
    assert_same_run(tmp_path / "run", whole)
