"""Members of one run: arguments of one program, independent of each other, whatever becomes of one of them."""

import json
import shutil

import jax
import numpy as np
import pytest

from discover.lab import records
from discover.lab.experiments.config.config import ConfigError
from discover.lab.experiments.run.build import program_key, traced_names
from discover.lab.experiments.run.run import Member, load_params
from discover.lab.training.errors import NonFiniteLoss, RunError
from tests.lab.experiments.running import CONFIG, Watcher, go, interrupted


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
    json.loads((tmp_path / "run" / records.SUMMARY).read_text(), parse_constant=pytest.fail)  # no NaN
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
    grid = [Member(seed, {"learning_rate": rate}) for rate in (0.05, 0.2) for seed in (0, 1)]
    together = go(None, members=grid)
    for rate, pair in ((0.05, together.members[:2]), (0.2, together.members[2:])):
        apart = go(None, f"optimizer.learning_rate={rate}")
        for one, other in zip(pair, apart.members):
            stripped = [{k: v for k, v in line.items() if k != "member"} for line in one.metrics]
            assert stripped == other.metrics


def test_members_trained_one_after_the_other_equal_members_trained_together(finished_run, tmp_path):
    config = ("training.together=1",)
    interrupted(tmp_path / "run", *config)
    watcher = Watcher()
    go(tmp_path / "run", *config, resume=True, progress=watcher)
    assert [event for event in watcher.events if event[0] == "start"] == [("start", 15), ("start", 0)]
    by_seed = [m for m in records.read_metrics(finished_run[1]) if m["seed"] == 0]
    by_seed += [m for m in records.read_metrics(finished_run[1]) if m["seed"] == 1]
    assert records.read_metrics(tmp_path / "run") == by_seed
    for a, b in zip(
        jax.tree.leaves(load_params(tmp_path / "run")[1]), jax.tree.leaves(load_params(finished_run[1])[1])
    ):
        assert np.array_equal(a, b)


def test_parameters_of_parts_of_different_sizes_are_those_of_members_trained_on_their_own(finished_run, tmp_path):
    go(tmp_path / "parts", "training.seeds=0,1,2", "training.together=2")
    go(tmp_path / "third", "training.seeds=2")
    alone = [load_params(folder)[1] for folder in (finished_run[1], tmp_path / "third")]
    expected = jax.tree.map(lambda *leaves: np.concatenate(leaves), *alone)
    jax.tree.map(np.testing.assert_array_equal, load_params(tmp_path / "parts")[1], expected)
    shutil.rmtree(tmp_path / "parts/checkpoints/part-1")
    with pytest.raises(RunError, match="checkpoints of 1 of its 2 parts: resume it first"):
        load_params(tmp_path / "parts")


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


def test_every_hyperparameter_of_discover_before_adam_is_an_argument_of_one_program():
    settings = [
        "optimizer.name=discover_adam",
        "optimizer.learning_rate=0.01",
        "training.steps=5",
        "training.seeds=0",
        "training.log_every=1",
    ]
    config = CONFIG.override(settings)
    own = {"beta": 0.8, "nu": 0.7, "beta1": 0.5, "beta2": 0.9, "eps": 1e-4}
    other = {"beta": 0.95, "nu": 0.95, "beta1": 0.0, "beta2": 0.999, "eps": 1e-8}
    changed = [{**own, name: value} for name, value in other.items()]
    together = go(None, *settings, members=[Member(0, values) for values in [own, *changed]])
    losses = [[line["loss"] for line in m.metrics if line["kind"] == "train"] for m in together.members]
    assert all(losses[0] != loss for loss in losses[1:])  # each of the five has an effect

    def key(values):
        set_to = config.override([f"optimizer.{name}={value}" for name, value in values.items()])
        return program_key(set_to, traced_names(set_to, [Member(0)]), (0.5, 0.5))

    assert len({key(values) for values in [own, other, *changed]}) == 1
