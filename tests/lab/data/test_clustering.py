"""Clusterings of every kind: their members, probabilities, names and files."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from discover.lab.data import ArchiveError, Clustering, DataError, Dataset, LabelNoise, Split, cluster, load


@pytest.fixture(scope="module")
def digits():
    return load("digits")


def equal(left, right):
    return (
        (left.kind, left.names, left.probs, left.num_examples, left.noise)
        == (right.kind, right.names, right.probs, right.num_examples, right.noise)
        and (left.assignments is None) == (right.assignments is None)
        and (left.assignments is None or np.array_equal(left.assignments, right.assignments))
    )


@given(st.lists(st.integers(0, 6), min_size=1, max_size=60))
def test_probabilities_are_the_share_of_examples_and_members_partition_them(values):
    clustering = Clustering.from_column(values)
    assert np.isclose(sum(clustering.probs), 1)
    assert np.allclose(np.array(clustering.probs) * len(values), clustering.sizes)
    members = np.concatenate([clustering.members(n) for n in range(clustering.num_clusters)])
    assert sorted(members.tolist()) == list(range(len(values)))
    for n, name in enumerate(clustering.names):
        assert all(str(values[i]) == name for i in clustering.members(n))


def test_classes_are_the_labels(digits):
    clustering = cluster(digits, "classes")
    assert np.array_equal(clustering.assignments, digits.train.labels)
    assert clustering.names == digits.class_names


def test_a_class_without_examples_is_no_cluster():
    clustering = Clustering.classes([0, 2, 2], ["a", "b", "c"])
    assert clustering.names == ("a", "c")
    assert clustering.assignments.tolist() == [0, 1, 1]


def test_noise_makes_classes_mean_observed_labels_unless_told_otherwise(digits):
    noise = LabelNoise(0.4, 10)
    observed = cluster(digits, "classes", noise=noise)
    assert observed.noise == noise
    assert observed.kind == "observed-labels"
    expected = noise.class_probs(np.bincount(digits.train.labels) / len(digits.train))
    assert np.allclose(observed.probs, expected)
    true = cluster(digits, "classes", noise=noise, labels="true")
    assert (true.noise, true.kind) == (None, "classes")
    assert cluster(digits, "classes", noise=LabelNoise(0.0, 10)).kind == "classes"


def test_a_class_that_can_never_be_observed_is_named():
    with pytest.raises(DataError, match=r"class 0 \('0'\) can never be observed"):
        Clustering.observed_labels([0, 0], LabelNoise(1.0, 2))


def test_every_augmentation_holds_every_example(digits):
    clustering = cluster(digits, "augmentations")
    assert clustering.names == ("flip", "mixup", "cutmix")
    assert clustering.probs == (1 / 3, 1 / 3, 1 / 3)
    assert clustering.overlapping
    assert clustering.sizes.tolist() == [1438] * 3
    assert np.array_equal(clustering.members(2), np.arange(1438))


@given(n=st.integers(1, 300), num_clusters=st.integers(1, 20), seed=st.integers(0, 10**9))
def test_random_clusters_are_even_and_differ_by_seed(n, num_clusters, seed):
    if num_clusters > n:
        with pytest.raises(DataError, match="must be at most the number of examples"):
            Clustering.random(n, num_clusters, seed)
        return
    clustering = Clustering.random(n, num_clusters, seed)
    assert clustering.num_clusters == num_clusters
    assert np.ptp(clustering.sizes) <= 1
    assert np.array_equal(clustering.assignments, Clustering.random(n, num_clusters, seed).assignments)
    if n >= 100 and num_clusters >= 3:
        assert not np.array_equal(clustering.assignments, Clustering.random(n, num_clusters, seed + 1).assignments)


def test_kmeans_finds_separated_blobs():
    rng = np.random.default_rng(0)
    truth = np.repeat(np.arange(4), 25)
    points = rng.normal(size=(100, 5)) * 0.1 + np.eye(5)[truth] * 10
    found = Clustering.kmeans(points, 4, seed=1)
    assert len(np.unique(np.stack([truth, found.assignments]), axis=1).T) == 4
    assert np.array_equal(found.assignments, Clustering.kmeans(points, 4, seed=1).assignments)


def test_kmeans_finds_separated_blobs_among_many_examples():
    truth = np.arange(20_001) % 3
    points = np.random.default_rng(0).normal(size=(len(truth), 2)) * 0.1 + np.eye(3)[truth][:, :2] * 10
    found = Clustering.kmeans(points, 3)
    assert len(np.unique(np.stack([truth, found.assignments]), axis=1).T) == 3


def test_kmeans_takes_pixels_or_an_embedding(digits):
    by_pixels = cluster(digits, "kmeans", num_clusters=5)
    assert by_pixels.num_clusters == 5
    embedding = np.eye(10, dtype=np.float32)[digits.train.labels]
    split = Split(digits.train.images, digits.train.labels, {"embedding": embedding})
    by_embedding = cluster(split, "kmeans", num_clusters=10, column="embedding")
    assert len(np.unique(np.stack([by_embedding.assignments, digits.train.labels]), axis=1).T) == 10


def test_kmeans_refuses_what_it_cannot_use():
    with pytest.raises(DataError, match="finite"):
        Clustering.kmeans(np.array([[1.0, np.nan], [0.0, 1.0]]), 2)
    with pytest.raises(DataError, match="n ≥ 3 clusters"):
        Clustering.kmeans(np.zeros((2, 2)), 3)


@pytest.mark.parametrize("values", [["b", "a", "b"], [b"b", b"a", b"b"], [7, -3, 7], [True, False, True]])
def test_columns_of_strings_and_integers_are_clusters(values):
    clustering = Clustering.from_column(values)
    assert clustering.assignments.tolist() == [1, 0, 1]


def test_a_column_is_chosen_by_name():
    split = Split(np.zeros((4, 2)), np.zeros(4, int), {"site": np.array(["x", "y", "x", "x"]), "weight": np.ones(4)})
    assert cluster(split, "column", column="site").names == ("x", "y")
    with pytest.raises(DataError, match="no column 'sites': did you mean 'site'\\? the columns are site, weight"):
        cluster(split, "column", column="sites")
    with pytest.raises(DataError, match="needs column=…, one of site, weight"):
        cluster(split, "column")
    with pytest.raises(DataError, match="one integer or string per example, got float64"):
        cluster(split, "column", column="weight")
    with pytest.raises(DataError, match="no column 'superclass'"):
        cluster(split, "superclasses")


CLUSTERINGS = [
    Clustering.from_assignments([0, 1, 1], names=["ä", "b c"], probs=[0.5, 0.5]),
    Clustering.observed_labels([0, 1, 1, 2], LabelNoise(0.3, 3, 7)),
    Clustering.augmentations(17),
    Clustering.random(40, 7),
    Clustering.single(5),
]


@pytest.mark.parametrize("clustering", CLUSTERINGS, ids=lambda c: c.kind)
def test_a_clustering_survives_its_file(clustering, tmp_path):
    path = clustering.save(tmp_path / "sub" / "clusters")
    assert path.suffix == ".npz"
    assert equal(Clustering.load(path), clustering)


def test_a_clustering_file_is_chosen_by_path(tmp_path, digits):
    path = Clustering.random(len(digits.train), 4).save(tmp_path / "x.npz")
    assert cluster(digits, "file", path=path).num_clusters == 4
    with pytest.raises(DataError, match="is for 1438 examples, but the training split has 359"):
        cluster(digits.test, "file", path=path)
    with pytest.raises(DataError, match="needs path"):
        cluster(digits, "file")


def test_a_file_that_is_no_clustering_is_refused(tmp_path):
    with pytest.raises(DataError, match="no clustering file at"):
        Clustering.load(tmp_path / "absent.npz")
    (tmp_path / "text.npz").write_bytes(b"hello")
    np.savez(tmp_path / "other.npz", x=np.zeros(3))
    np.savez(tmp_path / "objects.npz", head=np.array([{}], dtype=object))
    whole = Clustering.random(4000, 7).save(tmp_path / "whole.npz").read_bytes()
    (tmp_path / "cut.npz").write_bytes(whole[: len(whole) // 2])
    np.savez(tmp_path / "format.npz", head=np.array('{"format": "else"}'), probs=np.ones(1), assignments=np.zeros(1))
    for name in ("text", "other", "objects", "cut", "format"):
        with pytest.raises(ArchiveError, match=name) as caught:
            Clustering.load(tmp_path / f"{name}.npz")
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Clustering.from_assignments([0, 2]), r"cluster 1 \('1'\) has no examples"),
        (lambda: Clustering.from_assignments([0, -1]), "must not be negative, got -1"),
        (lambda: Clustering.from_assignments([0, 3], names=["a", "b"]), "must lie in 0…1, got 0…3"),
        (lambda: Clustering.from_assignments([0.5]), "must be a list of integers"),
        (lambda: Clustering.from_assignments([]), "must be a list of integers"),
        (lambda: Clustering.from_assignments([0, 1], probs=[0.5, 0.6]), "sum to 1, got a sum of 1.1"),
        (lambda: Clustering.from_assignments([0, 1], probs=[1.0, 0.0]), "2 positive numbers"),
        (lambda: Clustering.random(10, 0), "num_clusters must be an integer of at least 1, got 0"),
        (lambda: Clustering.classes([0, 5], ["a", "b"]), "labels must be below 2"),
        (lambda: Clustering.observed_labels([0, 5], LabelNoise(0.5, 2)), "labels must be below 2"),
        (lambda: Clustering.single(3).members(1), "cluster must lie in 0…0, got 1"),
        (lambda: cluster(Split(np.zeros((1, 1)), np.zeros(1, int)), "clases"), "did you mean 'classes'"),
    ],
)
def test_bad_values_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_dataset_and_split_give_the_same_clusters(digits):
    assert isinstance(digits, Dataset)
    assert equal(cluster(digits, "random", num_clusters=3), cluster(digits.train, "random", num_clusters=3))
    assert cluster(digits, "none").num_clusters == 1
