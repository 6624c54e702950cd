"""Tracking the variance of a run adds lines and changes nothing else; the lines say what the theory says."""

import numpy as np
import pytest

from discover.experiments.config import Config, ConfigError
from discover.experiments.run import run


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
def lines():
    return {name: run(config(name), None) for name in ("discover", "momentum", "sgd")}


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
    for line in (*last["momentum"], *last["sgd"]):
        assert line["between_drawn"] == line["between_drawn_plain"]
    for line in last["sgd"]:
        assert line["between_paper"] == line["between_paper_sgd"]
    for line in last["momentum"]:
        assert line["between_paper"] < line["between_paper_sgd"]


def test_tracking_does_not_change_the_training(lines):
    untracked = run(config("discover", **{"training.track_variance": 0}), None)
    for with_probe, without in zip(lines["discover"].members, untracked.members):
        assert [line for line in with_probe.metrics if line["kind"] != "variance"] == without.metrics


def test_the_records_hold_the_same_lines(tmp_path, lines):
    run(config("discover", **{"training.steps": 60, "training.checkpoint_every": 20}), tmp_path / "a")
    whole = [line for m in lines["discover"].members for line in m.metrics if line["kind"] == "variance"]
    recorded = run(config("discover", **{"training.checkpoint_every": 20}), tmp_path / "a", resume=True)
    assert variance(recorded) == whole


def test_runs_with_label_noise_can_be_tracked():
    noisy = run(config("discover", **{"data.label_noise": 0.4, "training.steps": 20}), None)
    assert len(variance(noisy)) == 2


# With a learning rate of nearly 0 both runs measure the same parameters on the same examples.
STILL = {"training.steps": 20, "optimizer.learning_rate": 1e-12}


@pytest.mark.parametrize("optimizer", ["momentum", "discover"])
def test_shuffled_batches_contain_the_variance_between_the_configured_clusters_over_the_batch_size(optimizer):
    pure = run(config("momentum", **STILL), None)
    shuffled = run(config(optimizer, **{"batches.composition": "shuffled", **STILL}), None)
    for found, other in zip(variance(shuffled), variance(pure), strict=True):
        between = 2 * other["between_drawn_plain"]  # V_bet: 2 groups
        assert between > 0.1
        assert found["between_drawn_plain"] == pytest.approx(between / 16, rel=1e-3)  # 2 groups of 8
        assert found["between_drawn"] == found["between_drawn_plain"]


def test_balanced_and_given_batches_contain_what_their_composition_leaves():
    programs = {}
    pure = variance(run(config("momentum", **STILL), None, programs=programs))
    balanced = variance(
        run(config("momentum", **{"batches.composition": "balanced", **STILL}), None, programs=programs)
    )
    # Ten clusters, each batch two different ones: w - p has the second moment of draws without replacement, 8/9 of
    # that of independent ones for equal probabilities (which digits nearly have).
    for found, other in zip(balanced, pure, strict=True):
        assert found["between_drawn_plain"] == pytest.approx(8 / 9 * other["between_drawn_plain"], rel=0.05)
        assert found["between_drawn"] == found["between_drawn_plain"]
    given = {"batches.composition": "given", "batches.groups": 10, **STILL}
    every = variance(run(config("momentum", **{"batches.given": tuple(range(10)), **given}), None, programs=programs))
    in_turn = tuple(n for n in range(10) for _ in range(10))  # a whole batch of one class, then of the next
    one = variance(run(config("momentum", **{"batches.given": in_turn, **given}), None, programs=programs))
    for each, single, other in zip(every, one, pure, strict=True):
        between = 2 * other["between_drawn_plain"]
        assert abs(each["between_drawn_plain"]) < 1e-3 * between  # every class in every batch
        assert single["between_drawn_plain"] == pytest.approx(between, rel=0.05)  # nothing averages out


def test_buffers_take_the_variance_out_of_balanced_batches_too():
    found = variance(run(config("discover", **{"batches.composition": "balanced"}), None))
    for line in (line for line in found if line["step"] == 60):
        assert line["between_drawn"] < 0.5 * line["between_drawn_plain"]


def test_negative_interval_is_refused():
    with pytest.raises(ConfigError, match="track_variance"):
        config("discover", **{"training.track_variance": -1}).check()
