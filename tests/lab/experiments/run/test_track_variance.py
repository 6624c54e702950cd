"""Tracking the variance of a run adds lines and changes nothing else; the lines say what the theory says."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import discover
from discover.lab.experiments.config.config import Config
from discover.lab.experiments.run.build import build_data, build_network_for, build_plan
from discover.lab.experiments.run.run import run
from discover.lab.experiments.run.track_variance import VarianceProbe
from discover.lab.training.programs import Members
from discover.lab.training.step import TrainState

pytestmark = pytest.mark.slow  # tests/lab/diagnostics/test_tracking.py has what is measured, in short


def config(optimizer, **values):
    settings = {
        "data.source": "digits",
        "batches.groups": 2,
        "batches.group_size": 8,
        "model.name": "mlp",
        "model.depth": 1,
        "model.width": 16,
        "optimizer.name": optimizer,
        "optimizer.learning_rate": 0.1,
        "training.steps": 60,
        "training.seeds": (0, 1),
        "training.steps_per_dispatch": 20,
        "training.eval_every": 0,
        "training.track_variance": 20,
        **values,
    }
    return Config(name="test").with_values(settings)


@pytest.fixture(scope="module")
def programs():
    """What is compiled once for all runs here."""
    return {}


@pytest.fixture(scope="module")
def lines(programs):
    return {name: run(config(name), None, programs=programs) for name in ("discover", "momentum")}


def variance(result):
    return [line for member in result.members for line in member.metrics if line["kind"] == "variance"]


def test_every_member_has_a_line_every_so_many_steps(lines):
    for result in lines.values():
        found = variance(result)
        assert [(line["seed"], line["step"]) for line in found] == [(s, t) for s in (0, 1) for t in (20, 40, 60)]
        assert all(np.isfinite(value) for line in found for key, value in line.items() if key != "kind")


def test_discover_removes_the_variance_between_clusters_and_the_others_do_not(lines):
    last = {name: [line for line in variance(r) if line["step"] == 60] for name, r in lines.items()}
    for line in last["discover"]:
        assert line["between_drawn"] < 0.5 * line["between_drawn_plain"]
    for line in last["momentum"]:
        assert line["between_drawn"] == line["between_drawn_plain"]
        assert line["between_paper"] < line["between_paper_sgd"]


def test_tracking_does_not_change_the_training(lines, programs):
    untracked = run(config("discover", **{"training.track_variance": 0}), None, programs=programs)
    for with_probe, without in zip(lines["discover"].members, untracked.members):
        assert [line for line in with_probe.metrics if line["kind"] != "variance"] == without.metrics


def test_the_records_hold_the_same_lines(tmp_path, lines, programs):
    saved = config("discover", **{"training.checkpoint_every": 20})
    run(saved, tmp_path / "a", programs=programs)
    recorded = run(saved, tmp_path / "a", resume=True, programs=programs)
    assert variance(recorded) == variance(lines["discover"])


@cache
def digits():
    """The data set, the network and one set of parameters, at which every composition is measured."""
    dataset = build_data(config("momentum"))
    network = build_network_for(config("momentum"), dataset)
    return dataset, network, jax.jit(network.init)(jax.random.key(0)), jnp.asarray(dataset.train.images)


@cache
def probed(optimizer="momentum", **values):
    """One measurement at the initial parameters, without training: always of the same examples."""
    settings = config(optimizer, **{key.replace("__", "."): value for key, value in values.items()})
    dataset, network, params, images = digits()
    plan = build_plan(settings, dataset, 0)
    tx = discover.momentum(0.1) if optimizer == "momentum" else discover.discover(0.1, discover.Clusters(plan.probs))
    state = jax.tree.map(lambda a: jnp.asarray(a)[None], TrainState(params, tx.init(params)))
    members = Members({}, jnp.zeros(1, jnp.int32), jnp.zeros(1, jnp.int32))
    probe = VarianceProbe(settings, dataset, network, {0: plan}).bind([0], members, images)
    return {name: float(value[0]) for name, value in probe(20, state).items()}


def between():
    """V_bet, from independent groups, of which there are 2."""
    return 2 * probed()["between_drawn_plain"]


@pytest.mark.parametrize("optimizer", ["momentum", "discover"])
def test_shuffled_batches_contain_the_variance_between_the_configured_clusters_over_the_batch_size(optimizer):
    found = probed(optimizer, batches__composition="shuffled")
    assert between() > 0.1
    assert found["between_drawn_plain"] == pytest.approx(between() / 16, rel=1e-3)  # 2 groups of 8
    assert found["between_drawn"] == found["between_drawn_plain"]


def test_balanced_batches_contain_what_their_composition_leaves():
    # Ten clusters, each batch two different ones: w - p has the second moment of draws without replacement, 8/9 of
    # that of independent ones for equal probabilities (which digits nearly have).
    found = probed(batches__composition="balanced")
    assert found["between_drawn_plain"] == pytest.approx(8 / 9 * between() / 2, rel=0.05)
    assert found["between_drawn"] == found["between_drawn_plain"]


def test_given_batches_contain_what_their_composition_leaves():
    every = probed(batches__composition="given", batches__groups=10, batches__given=tuple(range(10)))
    assert abs(every["between_drawn_plain"]) < 1e-3 * between()  # every class in every batch
    in_turn = tuple(n for n in range(10) for _ in range(10))  # a whole batch of one class, then of the next
    one = probed(batches__composition="given", batches__groups=10, batches__given=in_turn)
    assert one["between_drawn_plain"] == pytest.approx(between(), rel=0.05)  # nothing averages out
