"""Real processes on this machine: the trajectory of one device, faults, and resuming on as many or fewer.

Starting processes is what costs time here, so each of them does several runs, one after the other. Two of them are
what every test run starts; the rest is slow.
"""

import functools
import json
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
from PIL import Image

from discover.lab import records
from discover.lab.data import load
from discover.lab.experiments.config.config import Config
from discover.lab.experiments.run.run import load_params, run
from tests.lab.distributed.launch import job, launch

LOST = 75
CONFIG = Config().override(
    [
        "model.name=logistic",
        "batches.groups=4",
        "batches.group_size=8",
        "training.seeds=0",
        "training.steps=20",
        "training.steps_per_dispatch=5",
        "training.eval_every=10",
        "training.checkpoint_every=5",
        "optimizer.learning_rate=0.3",
        "data.validation=0",
    ]
)
SHORT = ["training.steps=10", "training.eval_every=0", "training.checkpoint_every=0"]
GIVEN = ["batches.composition=given", "batches.group_size=4"]
PICTURES = 5  # of each class: fewer than are drawn
# Worker 0 has classes 0 and 1, worker 1 has 2 and 3; each draws one of its own, then the other.
OWN = CONFIG.override(["data.shared=false", *SHORT, *GIVEN, "batches.groups=2", "batches.given=0,2,1,3"])


def make_pictures(folder):
    """Writes pictures of four classes, two for each of two workers; returns the configuration to train on them."""
    for part, count in (("train", PICTURES), ("test", 2)):
        for label, name in enumerate("abcd"):
            (folder / part / name).mkdir(parents=True, exist_ok=True)
            for k in range(count):
                pixels = np.full((6, 6, 3), 60 * label + 5 * k, np.uint8)
                Image.fromarray(pixels).save(folder / part / name / f"{k}.png")
    source = ["data.source=folder", f"data.path={folder}", "data.size=6"]
    return CONFIG.override([*source, *SHORT, *GIVEN, "batches.groups=4", "batches.given=0,1,2,3"])


def make_own_data(folder):
    """Writes the data of two workers, 0.npz and 1.npz, and that of both, all.npz."""
    digits = load("digits")
    rows = {}
    for part, split in (("train", digits.train), ("test", digits.test)):
        for worker, labels in enumerate([(0, 1), (2, 3)]):
            chosen = np.flatnonzero(np.isin(split.labels, labels))[: 60 if part == "train" else 7 + 6 * worker]
            rows[part, worker] = split.subset(chosen)
    folder.mkdir()
    for name, workers in (("0", [0]), ("1", [1]), ("all", [0, 1])):
        arrays = {}
        for part in ("train", "test"):
            arrays[f"{part}_images"] = np.concatenate([rows[part, worker].images for worker in workers])
            arrays[f"{part}_labels"] = np.concatenate([rows[part, worker].labels for worker in workers])
        np.savez(folder / f"{name}.npz", **arrays)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("processes")


@pytest.fixture(scope="module")
def alone(folder):
    """The same run on one device."""
    return run(CONFIG, folder / "alone")


@pytest.fixture(scope="module")
def two(folder):
    """How two processes ended that did a whole run, and then one in which worker 1 died after step 10."""
    return launch(2, job(CONFIG, folder / "unbroken"), job(CONFIG, folder / "killed", fault="kill:1:10"), timeout=24)


@pytest.fixture(scope="module")
def slurm(folder, two):
    """How two processes ended, which Slurm told of each other, after three more runs."""
    del two
    shutil.copytree(folder / "killed", folder / "killed-copy")
    jobs = [
        job(CONFIG, folder / "killed-copy", resume=True),
        job(make_pictures(folder / "pictures"), folder / "pictures-run"),
        job(OWN, folder / "own-run", own_data=str(make_own_data(folder / "own"))),
    ]
    return launch(2, *jobs, slurm=True)


def losses(folder):
    return [(line["kind"], line["step"], line["loss"]) for line in records.read_metrics(folder)]


@functools.cache
def params_of(folder, dataset=None):
    return load_params(folder, dataset=dataset)[1]


def assert_same_records(folder, alone):
    """The records of the run on one device, to rounding."""
    told = [line for line in alone.members[0].metrics if line["kind"] != "cluster"]  # which one device tells alone
    expected = [(line["kind"], line["step"], line["loss"]) for line in told]
    assert [line[:2] for line in losses(folder)] == [line[:2] for line in expected]
    np.testing.assert_allclose([x[2] for x in losses(folder)], [x[2] for x in expected], rtol=1e-5)


def assert_same_run(folder, alone, dataset=None):
    """The records and the parameters of the run on one device, to rounding."""
    assert_same_records(folder, alone)
    got, want = (params_of(path, dataset) for path in (folder, alone.out_dir))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), got, want)


def assert_all_finished(ended):
    assert [worker.code for worker in ended] == [0] * len(ended), [worker.output[-2000:] for worker in ended]


def test_two_processes_train_like_one_device_and_write_one_set_of_records(two, folder, alone):
    del two
    unbroken = folder / "unbroken"
    assert_same_run(unbroken, alone)
    summary = records.read_summary(unbroken)
    assert summary is not None
    assert (summary["status"], summary["steps"]) == ("finished", 20)
    assert sorted(p.name for p in (unbroken / "checkpoints" / "part-0").iterdir()) == ["10", "15", "20"]


def test_when_a_worker_is_killed_the_others_stop_soon_and_name_it(two):
    assert two[1].code == -9
    assert two[0].code == LOST, two[0].output[-2000:]
    last = two[0].output.strip().splitlines()[-1]
    assert last.startswith("discover: worker 1 of 2 is lost: ")
    assert "--resume" in last
    # A third of the timeout without a sign of life, and a few seconds for the others to hear of it.
    assert two[0].seconds - two[1].seconds < 20


@pytest.mark.slow
def test_four_processes_resume_what_two_began(two, folder, alone):
    del two
    shutil.copytree(folder / "killed", folder / "killed-for-four")
    assert_all_finished(launch(4, job(CONFIG, folder / "killed-for-four", resume=True)))
    assert_same_run(folder / "killed-for-four", alone)


@pytest.mark.slow
def test_two_processes_of_slurm_resume_to_the_bits_of_an_unbroken_run(slurm, folder):
    assert_all_finished(slurm)
    killed, unbroken = folder / "killed-copy", folder / "unbroken"
    assert records.read_json(killed / records.ENVIRONMENT)["resumed"]
    assert (killed / records.METRICS).read_bytes() == (unbroken / records.METRICS).read_bytes()
    jax.tree.map(np.testing.assert_array_equal, params_of(killed), params_of(unbroken))


def opened(out, folder):
    """What each of two processes opened of a folder."""
    listed = (json.loads(Path(f"{out}.opened.{index}.json").read_text()) for index in range(2))
    return [
        {Path(path).relative_to(folder).as_posix() for path in paths if path.startswith(f"{folder}/")}
        for paths in listed
    ]


@pytest.mark.slow
def test_each_process_opens_the_files_of_its_own_groups_only(slurm, folder):
    assert_all_finished(slurm)
    first, second = opened(folder / "pictures-run", folder / "pictures")
    train = [{name for name in names if name.startswith("train/")} for names in (first, second)]
    assert train[0] == {f"train/{name}/{k}.png" for name in "ab" for k in range(PICTURES)}
    assert train[1] == {f"train/{name}/{k}.png" for name in "cd" for k in range(PICTURES)}
    tests = sorted(f"test/{name}/{k}.png" for name in "abcd" for k in range(2))
    assert (first - train[0], second - train[1]) == (set(tests[:4]), set(tests[4:]))  # to evaluate on: half each
    assert_same_records(folder / "pictures-run", run(make_pictures(folder / "pictures"), None))


@pytest.mark.slow
def test_workers_with_their_own_data_train_like_one_that_has_all_of_it(slurm, folder):
    assert_all_finished(slurm)
    for index, names in enumerate(opened(folder / "own-run", folder / "own")):
        assert names <= {f"{index}.npz"}
    whole = load("npz", folder / "own" / "all.npz")
    assert_same_run(folder / "own-run", run(OWN, folder / "own-alone", dataset=whole), whole)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "who", "says"),
    [
        ("hang:1:10", 1, "worker 1 of 3 is lost: it has made no progress for"),
        ("freeze:1:10", 1, "worker 1 of 3 is lost: no sign of life for"),
        ("freeze:0:10", 0, "worker 0 of 3 is lost: its coordination service has not answered for"),
        ("kill:0:10", 0, "worker 0 is lost: the coordination service that it runs is gone"),
        ("leave:2:10", 2, "worker 2 of 3 is lost: it stopped: its disk is full"),
        ("leave:0:10", 0, "worker 0 of 3 is lost: it stopped: its disk is full"),
    ],
)
def test_other_ways_to_lose_a_worker_are_named_too(fault, who, says, tmp_path):
    config = CONFIG.override(["batches.groups=3"])
    ended = launch(3, job(config, tmp_path / "run", fault=fault), timeout=15)
    for index in {0, 1, 2} - {who}:
        assert ended[index].code == LOST, ended[index].output[-2000:]
        lines = [line for line in ended[index].output.strip().splitlines() if not line.startswith("[Gloo]")]
        assert len(lines) == 1, lines  # and no stack trace of the runtime's
        assert says in lines[0]
    if fault.startswith("leave"):  # it does not wait for those who stop because of it
        assert (ended[who].code, ended[who].output.strip().splitlines()[-1]) == (2, "error: its disk is full")
    assert_all_finished(launch(3, job(config, tmp_path / "run", resume=True)))


@pytest.mark.slow
def test_a_signal_to_one_worker_stops_all_after_the_same_step_and_they_resume(tmp_path):
    longer = CONFIG.override(["training.steps=40"])  # a stop is announced three dispatches ahead
    ended = launch(2, job(longer, tmp_path / "run", fault="term:1:10"))
    assert [worker.code for worker in ended] == [143, 143], [worker.output[-2000:] for worker in ended]
    assert len({worker.output.strip().splitlines()[-1] for worker in ended}) == 1
    assert_all_finished(launch(2, job(longer, tmp_path / "run", resume=True)))
    assert_same_run(tmp_path / "run", run(longer, tmp_path / "alone"))


@pytest.mark.slow
def test_a_worker_may_read_its_data_for_longer_than_the_timeout(tmp_path):
    slow = job(CONFIG, tmp_path / "run", fault="slow:1:25", in_memory=True)  # checkpoints, too, would make all wait
    assert_all_finished(launch(2, slow, timeout=12))


@pytest.mark.slow
def test_whoever_finds_no_others_says_so_in_one_line(tmp_path):
    ended = launch(1, job(CONFIG, tmp_path / "run"), timeout=9, of=2)[0]
    assert ended.code == 2
    (line,) = ended.output.splitlines()
    assert line.startswith("discover: the other processes at localhost:")
    assert "could not be reached within 9 seconds" in line
