"""A run from configuration to records: what it leaves, and that it is a function of its configuration."""

import jax
import numpy as np
import pytest

from discover.lab import records
from discover.lab.experiments.config.config import Config
from discover.lab.experiments.run.run import load_params, run
from discover.lab.training.errors import RunError
from discover.lab.training.progress import Progress, Quiet
from tests.lab.experiments.running import CONFIG, DATA, Watcher, assert_same_run, go


def test_a_run_leaves_its_config_environment_metrics_summary_and_checkpoints(finished_run):
    result, folder = finished_run
    assert Config.from_dict(records.read_json(folder / records.CONFIG)) == CONFIG
    environment = records.read_json(folder / records.ENVIRONMENT)
    assert environment["command"] == records.environment()["command"]
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
    assert summary["final"]["test"]["accuracy"] == [m["accuracy"] for m in lines if m["kind"] == "eval"][-2:]
    assert summary["steps_per_second"] > 0
    assert summary["compile_seconds"] >= 0
    assert [member.final["test"]["accuracy"] for member in result.members] == summary["final"]["test"]["accuracy"]
    assert result.members[1].metrics == [m for m in lines if m["seed"] == 1]


def test_the_same_run_again_gives_the_same_bytes(finished_run, tmp_path):
    go(tmp_path / "again")
    assert_same_run(tmp_path / "again", finished_run[1])


def test_without_a_folder_the_numbers_are_the_same_and_nothing_is_written(finished_run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = go(None)
    assert [m.metrics for m in result.members] == [m.metrics for m in finished_run[0].members]
    assert list(tmp_path.iterdir()) == []


def test_a_finished_run_is_recognised_and_not_trained_again(finished_run):
    watcher = Watcher()
    again = go(finished_run[1], resume=True, progress=watcher)
    assert watcher.events == []
    assert again.summary == records.read_summary(finished_run[1])
    assert [m.metrics for m in again.members] == [m.metrics for m in finished_run[0].members]


def test_the_progress_protocol_is_what_the_loop_calls():
    assert isinstance(Quiet(), Progress)
    watcher = Watcher()
    go(None, progress=watcher)
    assert watcher.events[0] == ("start", 0)
    assert [event for event in watcher.events if event[0] == "advance"] == [("advance", s) for s in (5, 10, 15, 20)]
    assert watcher.events[-1] == ("finish", "finished")


def test_epochs_are_counted_in_examples():
    result = go(None, "training.epochs=0.2")
    assert result.steps == round(0.2 * len(DATA.train) / 16)


def test_without_a_validation_split_the_test_split_is_evaluated_throughout():
    result = run(CONFIG.override(["data.validation=0"]), None)
    evaluations = [(m["split"], m["step"]) for m in result.members[0].metrics if m["kind"] == "eval"]
    assert evaluations == [("test", 10), ("test", 20)]


def test_the_best_checkpoint_is_the_one_with_the_highest_validation_accuracy(finished_run):
    config, best = load_params(finished_run[1], which="best")
    assert config == CONFIG
    _, last = load_params(finished_run[1])
    assert jax.tree.structure(best) == jax.tree.structure(last)
    by_step = {}
    for line in records.read_metrics(finished_run[1]):
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


@pytest.mark.parametrize("free", [500_000, 5_000_000])
def test_a_state_that_takes_more_than_half_of_what_is_free_is_announced_with_what_would_take_less(monkeypatch, free):
    many = ("clusters.by=random", "clusters.number=50", "training.steps=5")  # 2 members × 650 × 51 values and more
    monkeypatch.setattr("discover.lab.training.devices.free_memory", lambda: free)
    watcher = Watcher()
    go(None, *many, progress=watcher)
    if free > 1_000_000:
        assert watcher.messages == []
    else:
        (line,) = watcher.messages
        assert line.startswith("the state (50 clusters, 2 members of 650 parameters) takes 0.00027 GB on each device")
        assert "0.0005 GB that are free: less with fewer clusters, " in line
        assert line.endswith("training.together=1, a smaller model or more devices")


def test_a_state_that_takes_more_than_all_that_is_free_is_not_made(monkeypatch, tmp_path):
    monkeypatch.setattr("discover.lab.training.devices.free_memory", lambda: 1000)
    with pytest.raises(RunError, match=r"^the state \(.*\) takes .* of 1e-06 GB that are free: less with "):
        go(tmp_path / "run")


def test_loss_and_accuracy_are_told_by_cluster_and_add_up_to_the_whole():
    import numpy as np

    from discover.lab.data import Dataset, Split

    rng = np.random.default_rng(0)
    labels, where = rng.integers(0, 3, 70), np.array(["north", "south", "east"])[rng.choice(3, 70, p=[0.7, 0.2, 0.1])]
    split = Split(rng.normal(size=(70, 4)) + labels[:, None], labels, {"hospital": where})
    data = Dataset("scans", split, split, 3)
    values = {"clusters.by": "column", "clusters.column": "hospital", "training.eval_batch": 16, "data.validation": 0.0}
    values |= {"training.steps": 5, "training.seeds": (0, 1), "batches.groups": 1, "batches.group_size": 8}
    result = run(Config().with_values(values), None, dataset=data)
    for member in result.members:
        test = member.final["test"]
        sizes = {name: np.sum(where == name) for name in test["clusters"]}
        assert set(sizes) == {"north", "south", "east"}
        for quantity in ("loss", "accuracy"):
            whole = sum(test["clusters"][name][quantity] * size for name, size in sizes.items()) / 70
            assert whole == pytest.approx(test[quantity], rel=1e-5)
    by = Config().with_values({**values, "clusters.by": "random", "clusters.number": 2})
    assert "clusters" not in run(by, None, dataset=data).members[0].final["test"]
