"""Four real processes on this machine: the trajectory of one device, faults, and resuming on as many or fewer."""

import shutil

import jax
import numpy as np
import pytest

from discover import records
from discover.experiments.config import Config
from discover.experiments.run import load_params, run
from tests.distributed.launch import launch

LOST = 75
CONFIG = Config().override(
    [
        "model.name=logistic",
        "batches.groups=4",
        "batches.group_size=8",
        "training.seeds=0",
        "training.steps=40",
        "training.steps_per_dispatch=5",
        "training.eval_every=20",
        "training.checkpoint_every=10",
        "optimizer.learning_rate=0.3",
    ]
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("processes")


@pytest.fixture(scope="module")
def alone(folder):
    """The same run on one device."""
    return run(CONFIG, folder / "alone")


@pytest.fixture(scope="module")
def unbroken(folder):
    ended = launch(4, CONFIG, folder / "unbroken")
    assert [worker.code for worker in ended] == [0] * 4, [worker.output[-2000:] for worker in ended]
    return folder / "unbroken"


@pytest.fixture(scope="module")
def killed(folder):
    """The folder of a run whose worker 2 died after step 25, and how the others ended."""
    ended = launch(4, CONFIG, folder / "killed", fault="kill:2:25", timeout=30)
    shutil.copytree(folder / "killed", folder / "killed-copy")
    return folder / "killed", folder / "killed-copy", ended


def losses(folder):
    return [(line["kind"], line["step"], line["loss"]) for line in records.read_metrics(folder)]


def assert_same_run(folder, alone):
    """The records and the parameters of the run on one device, to rounding."""
    expected = [(line["kind"], line["step"], line["loss"]) for line in alone.members[0].metrics]
    assert [line[:2] for line in losses(folder)] == [line[:2] for line in expected]
    np.testing.assert_allclose([x[2] for x in losses(folder)], [x[2] for x in expected], rtol=1e-5)
    got, want = load_params(folder)[1], load_params(alone.out_dir)[1]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), got, want)


def test_four_processes_train_like_one_device_and_write_one_set_of_records(unbroken, alone):
    assert_same_run(unbroken, alone)
    summary = records.read_summary(unbroken)
    assert summary is not None
    assert (summary["status"], summary["steps"]) == ("finished", 40)
    assert sorted(p.name for p in (unbroken / "checkpoints" / "part-0").iterdir()) == ["20", "30", "40"]


def test_when_a_worker_is_killed_the_others_stop_soon_and_name_it(killed):
    _, _, ended = killed
    assert ended[2].code == -9
    for index in (0, 1, 3):
        assert ended[index].code == LOST, ended[index].output[-2000:]
        last = ended[index].output.strip().splitlines()[-1]
        assert last.startswith("discover: worker 2 of 4 is lost: ")
        assert "--resume" in last
        # A third of the timeout without a sign of life, and a few seconds for the others to hear of it.
        assert ended[index].seconds - ended[2].seconds < 25


def test_four_processes_resume_to_the_bits_of_an_unbroken_run(killed, unbroken):
    folder, _, _ = killed
    ended = launch(4, CONFIG, folder, resume=True)
    assert [worker.code for worker in ended] == [0] * 4, [worker.output[-2000:] for worker in ended]
    assert records.read_json(folder / records.ENVIRONMENT)["resumed"]
    assert (folder / records.METRICS).read_bytes() == (unbroken / records.METRICS).read_bytes()
    jax.tree.map(np.testing.assert_array_equal, load_params(folder)[1], load_params(unbroken)[1])


def test_two_processes_resume_what_four_began(killed, alone):
    _, folder, _ = killed
    ended = launch(2, CONFIG, folder, resume=True)
    assert [worker.code for worker in ended] == [0] * 2, [worker.output[-2000:] for worker in ended]
    assert records.read_json(folder / records.ENVIRONMENT)["resumed"]
    assert_same_run(folder, alone)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "who", "says"),
    [
        ("hang:1:25", 1, "worker 1 of 3 is lost: it has made no progress for"),
        ("kill:0:25", 0, "worker 0 is lost: the coordination service that it runs is gone"),
        ("leave:2:25", 2, "worker 2 of 3 is lost: it stopped: its disk is full"),
    ],
)
def test_other_ways_to_lose_a_worker_are_named_too(fault, who, says, tmp_path):
    config = CONFIG.override(["batches.groups=3"])
    ended = launch(3, config, tmp_path / "run", fault=fault, timeout=15)
    for index in {0, 1, 2} - {who}:
        assert ended[index].code == LOST, ended[index].output[-2000:]
        assert says in ended[index].output.strip().splitlines()[-1]
    resumed = launch(3, config, tmp_path / "run", resume=True)
    assert [worker.code for worker in resumed] == [0] * 3


@pytest.mark.slow
def test_a_signal_to_one_worker_stops_all_after_the_same_step_and_they_resume(tmp_path, alone):
    ended = launch(2, CONFIG, tmp_path / "run", fault="term:1:10")
    assert [worker.code for worker in ended] == [143, 143], [worker.output[-2000:] for worker in ended]
    assert len({worker.output.strip().splitlines()[-1] for worker in ended}) == 1
    resumed = launch(2, CONFIG, tmp_path / "run", resume=True)
    assert [worker.code for worker in resumed] == [0, 0]
    assert_same_run(tmp_path / "run", alone)
