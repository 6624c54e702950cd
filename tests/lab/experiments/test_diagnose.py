"""The diagnosis of digits: quick, right about classes and random clusters, and written in words and JSON."""

import json
from dataclasses import replace
from unittest.mock import Mock

import numpy as np
import pytest
from typer.testing import CliRunner

from discover.lab.data import Clustering, Dataset, Split
from discover.lab.diagnostics.advisor import Advice, recommend
from discover.lab.experiments.config.config import Config
from discover.lab.experiments.diagnose.advice import what_to_do
from discover.lab.experiments.diagnose.find_clusters import find_clusters
from discover.lab.experiments.diagnose.gradient_sample import GradientSample, judgeable
from discover.lab.experiments.diagnose.ranking import DiagnosisOptions, diagnose
from discover.lab.experiments.run.build import build_data

OPTIONS = DiagnosisOptions(sample=300, warmup_steps=30, numbers=(10,))
GIVEN_ONLY = replace(OPTIONS, warmup_steps=5, numbers=(99,))  # 300 examples are too few for 99 clusters: no k-means


def config(**values):
    settings = {"model.name": "mlp", "model.depth": 1, "model.width": 16, "batches.groups": 1}
    return Config(name="test").with_values({**settings, "batches.group_size": 16, **values})


@pytest.fixture(scope="module")
def command(tmp_path_factory):
    """The command itself, on a small network: where it wrote, and what it printed."""
    from discover.lab.cli import build_app

    out = tmp_path_factory.mktemp("diagnose")
    sizes = ["--groups", "1", "--group-size", "16", "--sample", "300", "--warmup", "30"]
    values = ["--set", "model.depth=1", "--set", "model.width=16"]
    files = ["--out", str(out), "--json", str(out / "copy.json")]
    result = CliRunner().invoke(build_app(), ["diagnose", "digits", *sizes, *values, *files])
    assert result.exit_code == 0, result.output
    return out, result.output


@pytest.fixture(scope="module")
def found(command):
    return json.loads((command[0] / "diagnosis.json").read_text())


def test_command_writes_table_figure_and_json(command, found):
    out, printed = command
    assert "classes" in printed
    assert all(line in " ".join(printed.split()) for line in found["summary"])
    assert json.loads((out / "copy.json").read_text()) == found
    assert (out / "diagnosis.png").stat().st_size > 1000


def test_classes_are_ranked_above_random_and_pixels(found):
    names = [row["name"] for row in found["clusterings"]]
    assert names.index("classes") < names.index("k-means on pixels, 10") < names.index("random, 10")


def test_random_clusters_have_nothing_between_and_classes_nearly_everything(found):
    rows = {row["name"]: row for row in found["clusterings"]}
    assert rows["random, 10"]["batch_share"] < 0.2
    assert rows["random, 10"]["verdict"] == "leave"
    assert rows["classes"]["batch_share"] > 0.8
    assert rows["classes"]["verdict"] == "use"
    assert rows["classes"]["shuffled_share"] < rows["classes"]["batch_share"]


def test_formula_agrees_with_batches_really_drawn(found):
    stage = next(row for row in found["clusterings"] if row["name"] == "classes")["stages"]["warm-up"]
    interval = found["measured"]["total"]
    assert interval["value"] == pytest.approx(stage["batch_noise"], abs=1.3 * (interval["high"] - interval["low"]))


def test_balanced_batches_are_judged_as_they_are_composed_and_it_is_said():
    balanced = diagnose(config(**{"batches.composition": "balanced", "batches.groups": 10}), GIVEN_ONLY)
    stage = next(row for row in balanced.rows if row.name == "classes").stages["warm-up"]
    between = stage["batch_share"] * stage["batch_noise"]
    assert between == pytest.approx(balanced.facts["measured"]["between_cluster"]["value"], rel=0.15)
    assert between < 0.3 * stage["between_cluster"]["value"] / 10  # independent draws: nearly each class once is less
    assert "Batches are balanced" in balanced.facts["summary"][-1]
    one = [diagnose(config(**{"batches.composition": how}), GIVEN_ONLY) for how in ("balanced", "random")]
    turns, drawn = (next(row for row in found.rows if row.name == "classes") for found in one)
    assert turns.batch_share == pytest.approx(drawn.batch_share, abs=0.05)  # a batch is of one class either way
    assert 1 < turns.gain < 0.9 * drawn.gain  # but momentum holds all of them in turn


def test_the_advice_is_turns_then_muon_then_discover_before_muon(found):
    turns, muon, before = found["next"]
    assert "composition=balanced" in turns
    assert "--optimizer muon" in muon
    assert "--optimizer discover_muon --set optimizer.damping=0.1 (beta=0.95, nu=0.95)" in before


def test_the_advice_follows_the_batches():
    row = Advice("classes", 100, 0.9, 0.9, 0.5, 1.9, recommend(100, 2), 0, {}, "use", "")
    assert ["composition=balanced" in line for line in what_to_do(row, 2, "random")] == [True, False, False, False]
    assert "seen every 50 steps only" in what_to_do(row, 2, "random")[-1]
    assert len(what_to_do(row, 20, "balanced")) == 2
    assert [("Muon alone" in what_to_do(row, groups, "random")[2]) for groups in (1, 2, 4)] == [False, False, True]
    assert ["discover_muon" in line for line in what_to_do(row, 1, "random", next_byte=True)] == [False, False, False]
    assert "Muon alone 1.53" in what_to_do(row, 1, "random", next_byte=True)[-1]
    assert len(what_to_do(replace(row, verdict="leave"), 2, "random")) == 1
    assert what_to_do(row, 2, "shuffled") == []


@pytest.mark.slow
def test_given_batches_are_drawn_beside_the_estimate_too():
    every = {"batches.composition": "given", "batches.groups": 10, "batches.given": tuple(range(10))}
    given = diagnose(config(**every), GIVEN_ONLY)
    row = next(row for row in given.rows if row.name == "classes")
    assert row.batch_share < 0.01  # every class in every batch: nothing is left between
    assert given.facts["measured"]["between_cluster"]["value"] < 1e-9
    assert not any("composition=balanced" in line for line in given.facts["next"])


def test_the_summary_begins_with_the_given_clustering(found):
    assert found["summary"][0].startswith("classes: with 1 group per batch")


@pytest.mark.slow
def test_label_noise_distinguishes_observed_and_true_classes():
    noisy = diagnose(config(**{"data.label_noise": 0.6}), GIVEN_ONLY)
    rows = {row.name: row for row in noisy.rows}
    assert rows["observed classes"].variance_share > rows["true classes"].variance_share
    assert noisy.facts["measured"]["clustering"] == "observed classes"
    assert noisy.facts["measured"]["between_share"]["value"] > 0.5


@pytest.mark.slow
def test_a_given_column_and_augmentations_are_judged():
    rng = np.random.default_rng(0)
    labels = np.arange(240) % 4
    images = rng.integers(0, 255, (240, 16, 16, 1)).astype(np.uint8)
    images[np.arange(240), labels * 3] = 255
    split = Split(images, labels, {"site": labels % 2, "superclass": labels // 2})
    data = Dataset("made", split, split, 4, ("a", "b", "c", "d"))
    options = replace(GIVEN_ONLY, sample=200, column="site")
    rows = {row.name: row for row in diagnose(config(), options, dataset=data).rows}
    assert rows["column site"].num_clusters == 2
    assert rows["superclasses"].num_clusters == 2
    assert rows["augmentations"].num_clusters == 3
    with pytest.raises(ValueError, match="no column 'side': did you mean 'site'\\? the columns are site, superclass"):
        diagnose(config(), replace(options, column="side"), dataset=data)


@pytest.mark.parametrize("ids", [[0, 0, 1, 2, 2], [0, 0, 1, 2, 3, 3], [0, 0, 0, 0]])
def test_clusters_too_small_to_judge_are_put_together(ids):
    ids = np.array(ids)
    probs = np.full(5, 0.2)
    merged, shares = judgeable(ids, probs)
    assert shares.sum() == pytest.approx(1.0)
    assert np.all(np.bincount(merged, minlength=len(shares)) >= 2)


@pytest.mark.parametrize("by", ["last-layer", pytest.param("projected", marks=pytest.mark.slow)])
def test_gradients_of_the_loss_which_contain_the_label_find_the_classes(by, tmp_path):
    clustering = find_clusters(config(), 10, by=by, options=OPTIONS)
    labels = build_data(config()).train.labels
    table = np.zeros((clustering.num_clusters, 10))
    np.add.at(table, (clustering.assignments, labels), 1)
    assert table.max(axis=1).sum() / len(labels) > 0.9  # purity
    assert Clustering.load(clustering.save(tmp_path / "found.npz")).num_clusters == clustering.num_clusters


def test_unknown_embedding_is_refused():
    with pytest.raises(ValueError, match="choose from last-layer, projected"):
        find_clusters(config(), 10, by="pixels")


def test_what_takes_longer_is_said_to_take_longer(monkeypatch):
    """By a clock that ticks once a look: a second for a few gradients, for a start of k-means, for a variance."""
    from itertools import count

    from discover.lab.experiments.diagnose import how_long

    monkeypatch.setattr(how_long.time, "perf_counter", count().__next__)
    work = Mock(
        spec=GradientSample,
        config=config(),
        dataset=Mock(train=Mock(text=False, images=np.zeros((1, 9)))),
        size=2000,
        start=None,
    )

    def needed(numbers=(), *, images=False, **options):
        work.can_be_augmented, work.options = images, replace(GIVEN_ONLY, **options)
        work.chosen = np.arange(work.options.sample)
        return how_long.seconds_needed(work, numbers)

    least = needed()
    for longer in ({"images": True}, {"sample": 600}, {"warmup_steps": 500}):
        assert needed(**longer) > least
    assert least < needed((5,), stream=300) < needed((5,), stream=1000) < needed((5, 10), stream=1000)


def languages(folder):
    """Texts of two kinds, each of its own letters."""
    rng = np.random.default_rng(0)
    for name, letters in {"ewe": b"abc ", "zulu": b"xyz "}.items():
        (folder / f"{name}.txt").write_bytes(bytes(rng.choice(list(letters), 6000).tolist()))
    return folder


def test_of_text_without_a_label_the_given_column_is_judged(tmp_path):
    settings = {"data.source": "text", "data.path": str(languages(tmp_path)), "clusters.by": "column"}
    settings |= {"clusters.column": "language", "model.name": "transformer", "model.width": 8, "model.depth": 1}
    settings |= {"batches.group_size": 4, "model.heads": 1}
    result = diagnose(config(**settings), replace(GIVEN_ONLY, sample=40, warmup_steps=1))
    assert [row.name for row in result.rows] == ["column language", "random, 8"]
    assert result.rows[0].stages["start"]["batch_share"] > 0.8
    assert result.facts["summary"][0].startswith("column language: with 1 group per batch")


def test_a_network_that_the_memory_cannot_hold_is_not_made(monkeypatch):
    monkeypatch.setattr("discover.lab.experiments.diagnose.gradient_sample.free_memory", lambda: 1000)
    with pytest.raises(
        ValueError, match=r"^the network \(.* parameters, 10 classes\) takes .* of 1e-06 GB that are free"
    ):
        GradientSample(Config(), build_data(Config()), DiagnosisOptions())
