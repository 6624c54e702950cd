"""Training on simulated devices: the numbers of one device, and checkpoints that move between device counts."""

import signal

import jax
import numpy as np
import pytest

from discover.lab.data import Dataset, Split
from discover.lab.experiments.config.config import Config
from discover.lab.experiments.run.programs import clusters_per_device
from discover.lab.experiments.run.run import load_params, run
from discover.lab.experiments.run.team import SharedDirectory, Team
from discover.lab.training.checkpoint import as_wanted, to_read
from discover.lab.training.devices import Devices
from discover.lab.training.errors import RunError, RunStopped
from discover.lab.training.hosts.connection import connect
from discover.lab.training.progress import Quiet

CONFIG = Config().override(
    [
        "model.name=mlp",
        "model.width=9",
        "model.depth=1",
        "batches.groups=8",
        "batches.group_size=4",
        "training.seeds=0,1",
        "training.steps=8",
        "training.steps_per_dispatch=2",
        "training.eval_every=4",
        "training.checkpoint_every=2",
        "optimizer.learning_rate=0.3",
    ]
)
GIVEN = ["clusters.by=random", "clusters.number=4", "batches.composition=given", "batches.given=0,0,1,1,2,2,3,3"]


class StopAt(Quiet):
    """Asks the run to stop when it has come so far."""

    def __init__(self, step):
        self.step = step

    def advance(self, *, step, **_):
        if step >= self.step:
            signal.raise_signal(signal.SIGTERM)
            self.step = 10**9


@pytest.fixture(scope="module")
def programs():
    return {}


def assert_same_result(got, want, rtol=2e-5):
    for pair in zip(got.members, want.members):
        # Results by cluster are told on one device only.
        one, other = ([line for line in run.metrics if line["kind"] != "cluster"] for run in pair)
        assert [(x["kind"], x["step"]) for x in one] == [(x["kind"], x["step"]) for x in other]
        np.testing.assert_allclose([x["loss"] for x in one], [x["loss"] for x in other], rtol=rtol, atol=1e-6)
        np.testing.assert_allclose([x["accuracy"] for x in one], [x["accuracy"] for x in other], rtol=1e-6)


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param(["optimizer.name=discover_igt", "optimizer.clip_norm=0.5"], marks=pytest.mark.slow),
        ["optimizer.name=momentum", "optimizer.clip_norm=0.5", "optimizer.weight_decay=0.01"],
        pytest.param(GIVEN, marks=pytest.mark.slow),  # two groups of one cluster on each device: averaged there
    ],
)
def test_a_run_on_several_devices_is_the_run_on_one(settings, programs):
    config = CONFIG.override(settings)
    assert_same_result(run(config, None, team=Team(4), programs=programs), run(config, None, programs=programs))


def test_gradients_may_travel_averaged_by_cluster_and_in_half_precision(programs):
    config = CONFIG.override(GIVEN)
    assert [clusters_per_device(config, devices, 4) for devices in (1, 2, 4, 8)] == [4, 2, 1, 1]
    assert [clusters_per_device(CONFIG, devices, 3) for devices in (1, 2, 4, 8)] == [3, 3, 2, 1]
    halves = run(config.override(["optimizer.exchange_dtype=bfloat16"]), None, team=Team(4), programs=programs)
    whole = run(config, None, programs=programs)
    got, want = ([x["loss"] for x in result.members[0].metrics] for result in (halves, whole))
    np.testing.assert_allclose(got, want, rtol=0.01)
    assert got != want


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_a_run_moves_from_one_device_to_four_to_two_and_back(dtype, tmp_path, programs):
    config = CONFIG.override(["optimizer.name=discover", "training.steps=14", f"optimizer.buffer_dtype={dtype}"])
    unbroken = run(config, None, programs=programs)
    for step, devices in ((2, 1), (4, 4), (6, 2)):
        with pytest.raises(RunStopped):
            run(config, tmp_path / "run", resume=step > 2, team=Team(devices), progress=StopAt(step), programs=programs)
    finished = run(config, tmp_path / "run", resume=True, programs=programs)
    # A sum in another order may turn the rounding of a code.
    assert_same_result(finished, unbroken, rtol=2e-5 if dtype == "float32" else 1e-3)
    shapes = jax.tree.map(np.shape, load_params(tmp_path / "run")[1])
    assert shapes["head"]["kernel"] == (2, 9, 10)


@pytest.mark.parametrize("seeds", ["0,1", pytest.param("0", marks=pytest.mark.slow)])
def test_buffers_on_the_host_train_like_those_on_the_device_and_resume_to_the_bit(seeds, tmp_path, programs):
    config = CONFIG.override(["optimizer.name=discover", "optimizer.buffer_dtype=int8", f"training.seeds={seeds}"])
    beside = run(config, None, programs=programs)
    config = config.override(["optimizer.buffers=host", "training.member_mode=vmap"])  # which these cannot be
    with pytest.raises(RunStopped):
        run(config, tmp_path / "run", progress=StopAt(4), programs=programs)
    away = run(config, tmp_path / "run", resume=True, programs=programs)
    assert [member.metrics for member in away.members] == [member.metrics for member in beside.members]


def test_a_team_of_one_device_is_the_ordinary_run_to_the_bit(programs):
    one, ordinary = run(CONFIG, None, team=Team(1), programs=programs), run(CONFIG, None, programs=programs)
    assert [member.metrics for member in one.members] == [member.metrics for member in ordinary.members]


@pytest.mark.parametrize(
    ("stored", "wanted"),
    [
        ((2, 3, 5, 7), (2, 3, 36, 1)),  # whole, to slices of four devices
        ((2, 3, 36, 1), (2, 3, 5, 7)),  # and back
        ((2, 3, 36, 1), (2, 3, 40, 1)),  # slices of four devices, to eight
        ((2, 3, 40, 1), (2, 3, 36, 1)),
        ((2,), (2, 8)),  # a scalar parameter
        ((2, 8), (2,)),
        ((2, 7), (2, 8)),
        ((2, 3), (2, 3)),
    ],
)
def test_arrays_of_checkpoints_fit_any_number_of_devices(stored, wanted):
    lead = next((i for i, (a, b) in enumerate(zip(stored, wanted)) if a != b), min(len(stored), len(wanted)))
    rows, count = int(np.prod(stored[:lead])), min(int(np.prod(stored[lead:])), int(np.prod(wanted[lead:])))
    values = np.zeros((rows, int(np.prod(stored[lead:]))), np.float32)
    values[:, :count] = 1 + np.arange(rows * count).reshape(rows, count)
    target = jax.ShapeDtypeStruct(wanted, np.float32)
    asked = to_read(stored, target)
    # What the storage does on reading: it cuts, or adds zeros, at the end of each dimension.
    read = np.zeros(asked.shape, np.float32)
    common = tuple(slice(0, min(a, b)) for a, b in zip(stored, asked.shape))
    assert len(stored) == len(asked.shape)
    read[common] = values.reshape(stored)[common]
    got = np.asarray(as_wanted(jax.numpy.asarray(read), target))
    assert got.shape == wanted
    np.testing.assert_array_equal(got.reshape(rows, -1)[:, :count], values[:, :count])
    assert not got.reshape(rows, -1)[:, count:].any()


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (
            lambda: run(CONFIG.override(["batches.groups=6"]), None, team=Team(4)),
            "multiple of the 4 devices, got 6.*=8",
        ),
        (lambda: Devices(9), "from 1 to 8, got 9; .*device_count=9"),
        (lambda: Devices(0), "from 1 to 8, got 0$"),
        (lambda: Devices("many"), "`all` or a whole number, got 'many'"),
        (lambda: run(CONFIG.override(["training.track_variance=4"]), None, team=Team(2)), "one device only"),
        (lambda: connect("localhost:1234", 2, None), "missing: --process-id"),
        (lambda: connect("localhost", 2, 0), "HOST:PORT, .*got 'localhost'"),
        (lambda: connect(":1234", 2, 0), "HOST:PORT, .*got ':1234'"),
        (lambda: connect("localhost:99999", 2, 0), "a port from 1 to 65535, got 'localhost:99999'"),
        (lambda: connect("localhost:1234", 0, 0), "at least 1, got 0"),
        (lambda: connect("localhost:1234", 2, 2), "from 0 to 1, got 2"),
        (lambda: connect("localhost:1234", 2, 1, timeout=1), "at least 9 seconds, got 1"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(call, says):
    with pytest.raises(RunError, match=says):
        call()


def test_where_jax_finds_no_other_processes_by_itself_that_is_said(monkeypatch):
    def initialize(*_, **__):  # what JAX does in a process that has not used it yet
        raise ValueError("coordinator_address should be defined.")

    monkeypatch.setattr(jax.distributed, "initialize", initialize)
    with pytest.raises(RunError, match=r"JAX finds no Slurm.* give --coordinator HOST:PORT, .* \(coordinator_address"):
        Team.gather(None, "auto")


class FirstOfTwo:
    """The first of two processes; what the second one says is known before."""

    index, count, first = 0, 2, True

    def __init__(self, *answers):
        self.answers = list(answers)

    def beat(self):
        pass

    def gather(self, value):
        return [value, self.answers.pop(0)]


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (["optimizer.learning_rate=0.4"], "optimizer.learning_rate is 0.3 for worker 0 and 0.4 for worker 1"),
        (["training.seeds=1"], r"training.seeds is \(0, 1\) for worker 0 and \(1,\) for worker 1"),
        (
            ["batches.given=" + ",".join("0" * 99 + "1")],
            r"batches.given is \(\) for worker 0 and \(0, .{36}… \(.{8}\) for",
        ),
    ],
)
def test_workers_that_were_started_with_other_settings_are_refused(settings, says):
    said = AllHear()
    Team(2, said).compare(CONFIG.override(["data.path=/here"]), [])  # pyright: ignore[reportArgumentType]
    other = Team(2, FirstOfTwo(*said.told))  # pyright: ignore[reportArgumentType]
    other.compare(CONFIG.override(["data.path=/there"]), [])
    said = AllHear()
    Team(2, said).compare(CONFIG.override(settings), [])  # pyright: ignore[reportArgumentType]
    with pytest.raises(RunError, match=says):
        Team(2, FirstOfTwo(*said.told)).compare(CONFIG, [])  # pyright: ignore[reportArgumentType]


def test_a_folder_that_another_worker_does_not_see_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(SharedDirectory, "patience", 0.5)
    first = AllHear()
    with SharedDirectory(tmp_path / "shared", first) as folder:  # pyright: ignore[reportArgumentType]
        folder.take(CONFIG, [], resume=False)
        told, seen = first.told
        assert seen
        with SharedDirectory(tmp_path / "shared", SecondOfTwo(told, [True])) as same:  # pyright: ignore[reportArgumentType]
            assert same.take(CONFIG, [], resume=False) is False
        with (
            SharedDirectory(tmp_path / "elsewhere", SecondOfTwo(told, [True])) as other,  # pyright: ignore[reportArgumentType]
            pytest.raises(RunError, match=f"worker 1 does not see what worker 0 writes in {tmp_path / 'shared'}"),
        ):
            other.take(CONFIG, [], resume=False)


class AllHear:
    """A process whose words are kept, and which is alone to say anything."""

    index, count, first = 0, 2, True

    def __init__(self):
        self.told = []

    def beat(self):
        pass

    def gather(self, value):
        self.told.append(value)
        return [value]

    def agree(self, compute):
        return self.gather(compute())[0]


class SecondOfTwo:
    """The second of two processes; what the first one says is known before."""

    index, count, first = 1, 2, False

    def __init__(self, agreed, gathered):
        self.agreed, self.gathered = agreed, gathered

    def gather(self, value):
        return [*self.gathered, value]

    def agree(self, compute):
        return self.agreed


def own_data(names, shape=(4,)):
    split = Split(np.zeros((len(names), *shape)), np.arange(len(names), dtype=np.int32))
    return Dataset("mine", split, split, len(names), names)


@pytest.mark.parametrize(
    ("by", "others", "clusters", "given"),
    [
        ("classes", ["ant", "bee"], ("ant", "bee", "cow"), "2,0,2,1"),
        ("workers", ["worker 1"], ("worker 0", "worker 1"), "0,1"),
    ],
)
def test_classes_and_clusters_are_those_of_all_workers(by, others, clusters, given):
    config = CONFIG.override(["data.shared=false", f"clusters.by={by}", "batches.composition=given"])
    config = config.override(["batches.groups=2", f"batches.given={given}"]).check()
    team = Team(2, FirstOfTwo([4], ["ant", "bee"], others))  # pyright: ignore[reportArgumentType]
    team.check(config)
    dataset = team.load(config, own_data(("bee", "cow")))
    assert dataset.class_names == ("ant", "bee", "cow")
    assert dataset.train.labels.tolist() == dataset.test.labels.tolist() == [1, 2]
    plan = team.plans(config, dataset, [0])[0]
    assert plan.clustering.names == clusters
    assert plan.batch(0).indices.shape == (1, CONFIG.batches.group_size)
    assert set(plan.batch(0).labels.flat) == ({2} if by == "classes" else {1, 2})


def test_numbers_as_names_are_ordered_by_size_and_shapes_must_agree():
    config = CONFIG.override(["data.shared=false", *GIVEN, "clusters.by=classes"])
    digits = tuple(str(number) for number in range(12))
    team = Team(2, FirstOfTwo([4], list(digits)))  # pyright: ignore[reportArgumentType]
    team.check(config)
    assert team.load(config, own_data(digits[:3])).class_names == digits
    team = Team(2, FirstOfTwo([5]))  # pyright: ignore[reportArgumentType]
    team.check(config)
    with pytest.raises(RunError, match=r"examples must have one shape, got \[4\], \[5\]"):
        team.load(config, own_data(digits))


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (["batches.composition=random"], "data.shared=false needs batches.composition=given"),
        (["clusters.by=random"], "data.shared=false needs clusters.by one of classes, superclasses, column, workers"),
        (["training.epochs=1"], "data.shared=false needs training.steps"),
        (["data.label_noise=0.1"], "data.shared=false needs data.label_noise=0"),
    ],
)
def test_workers_with_their_own_data_need_to_be_told_what_nobody_sees(settings, says):
    config = CONFIG.override(["data.shared=false", "batches.groups=2"])
    given = [] if "batches.composition=random" in settings else ["batches.composition=given", "batches.given=0,1"]
    with pytest.raises(RunError, match=says):
        Team(2, FirstOfTwo()).check(config.override([*given, *settings]).check())  # pyright: ignore[reportArgumentType]
