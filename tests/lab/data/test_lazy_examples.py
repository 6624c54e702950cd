"""Examples that are read when they are asked for: the same ones, and no others."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st

from discover.lab.data import BadImageError, BatchPlan, Clustering, DataError, LazyExamples, cluster, load
from discover.lab.data.sources.npz import map_npz
from tests.lab.data import files

ARRAY = np.random.default_rng(0).normal(size=(7, 2, 3))


@drawn(data=st.data())
def test_they_are_indexed_like_an_array(data):
    numbers = np.array(data.draw(st.lists(st.integers(0, 6), min_size=1, max_size=9)))
    places = st.integers(0, len(numbers) - 1)
    rows, array = LazyExamples.of_array(ARRAY).take(numbers), ARRAY[numbers]
    assert (rows.shape, rows.ndim, rows.dtype, len(rows)) == (array.shape, array.ndim, array.dtype, len(array))
    np.testing.assert_array_equal(rows, array)
    some = np.array(data.draw(st.lists(places, min_size=2, max_size=8)))
    some = some[: len(some) // 2 * 2].reshape(2, -1)
    np.testing.assert_array_equal(rows[some], array[some])
    np.testing.assert_array_equal(rows.take(some[0]), array[some[0]])
    held = np.unique(some)
    np.testing.assert_array_equal(rows.hold(held)[some], array[some])
    for other in np.setdiff1d(np.arange(len(numbers)), held):
        with pytest.raises(DataError, match=f"example {other} is not among those that this host holds"):
            rows.hold(held)[np.array([other])]


@pytest.fixture
def folder(tmp_path):
    files.write_files(tmp_path / "pets", files.class_folders())
    return tmp_path / "pets"


def assert_same(lazy, whole):
    assert (lazy.name, lazy.class_names) == (whole.name, whole.class_names)
    for part in ("train", "test", "validation"):
        mine, theirs = getattr(lazy, part), getattr(whole, part)
        if theirs is None:
            assert mine is None
            continue
        assert isinstance(mine.images, LazyExamples)
        np.testing.assert_array_equal(mine.images, theirs.images)
        np.testing.assert_array_equal(mine.labels, theirs.labels)


@pytest.mark.parametrize("size", [None, 4])
@pytest.mark.parametrize("part", ["", "train"])  # the part train alone: a share of it is held out to test
def test_a_folder_that_is_only_listed_has_the_examples_of_one_that_is_read(folder, part, size):
    options = {"cache": False, "workers": 1, "image_size": size}
    lazy, whole = (load("folder", folder / part, lazy=lazy, **options) for lazy in (True, False))
    assert_same(lazy, whole)
    assert_same(lazy.split_validation(0.4), whole.split_validation(0.4))


def test_an_image_of_another_size_is_named_when_it_is_read(folder):
    files.write_files(folder, {"train/bee/wide.png": files.picture((9, 9, 9), (20, 10))})
    train = load("folder", folder, lazy=True, cache=False).train
    with pytest.raises(DataError, match=r"6×5 \(.*0000.png\) and 20×10 \(.*wide.png\): give image_size"):
        train.images[np.arange(len(train))]


def test_images_that_nobody_asks_for_are_not_opened(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("DISCOVER_CACHE", str(tmp_path / "kept"))
    whole = load("folder", folder, cache=False)
    for name in ("train/bee", "train/cow"):
        for file in (folder / name).iterdir():
            file.write_bytes(b"no image")
    train = load("folder", folder, lazy=True, image_size=4).train
    ants = np.flatnonzero(train.labels == 0)
    held = train.hold(ants)
    np.testing.assert_array_equal(held.labels, whole.train.labels)
    assert held.images[ants].shape == (3, 4, 4, 3)
    assert len(list((tmp_path / "kept").iterdir())) == 1
    np.testing.assert_array_equal(train.hold(ants).images[ants], held.images[ants])  # as it was kept
    with pytest.raises(BadImageError, match=r"bee.* cannot be read"):
        train.images[np.array([0, 3])]


def test_a_lazy_folder_cannot_leave_out_what_it_does_not_open(folder):
    with pytest.raises(DataError, match="must open all images; with lazy=True give 'error'"):
        load("folder", folder, lazy=True, on_bad_image="skip")


@pytest.mark.parametrize("images", [np.arange(60, dtype=np.uint8).reshape(5, 2, 6), np.arange(10.0).reshape(5, 2)])
def test_the_images_of_an_uncompressed_file_of_arrays_are_mapped(images, tmp_path):
    arrays = {"x_train": images, "y_train": np.arange(5), "x_test": images[:2], "y_test": np.arange(2)}
    np.savez(tmp_path / "plain.npz", **arrays)
    np.savez_compressed(tmp_path / "dense.npz", **arrays)
    assert isinstance(map_npz(tmp_path / "plain.npz", "x_train"), np.memmap)
    assert map_npz(tmp_path / "dense.npz", "x_train") is None
    assert_same(load("npz", tmp_path / "plain.npz", lazy=True), load("npz", tmp_path / "plain.npz"))
    dense = load("npz", tmp_path / "dense.npz", lazy=True).train
    np.testing.assert_array_equal(dense.images, load("npz", tmp_path / "plain.npz").train.images)
    np.testing.assert_array_equal(dense.hold(np.array([1, 3])).images[[3, 1]], dense.images[[3, 1]])


@settings(max_examples=30)
@drawn(
    st.sampled_from(["random", "balanced", "shuffled", "given"]),
    st.integers(1, 40),
    st.sampled_from([1, 2, 4]),
    st.integers(0, 5),
)
def test_a_plan_knows_which_examples_a_host_draws(composition, steps, hosts, seed):
    labels = np.random.default_rng(seed).permutation(np.repeat(np.arange(4), 30))
    given = [0, 3, 1, 2] if composition == "given" else None
    plan = BatchPlan(labels, Clustering.classes(labels), groups=4, group_size=3, composition=composition, given=given)
    for host in range(hosts):
        part = plan.for_host(host, hosts)
        np.testing.assert_array_equal(part.examples(steps), np.unique(part.batches(0, steps).indices))


def test_workers_draw_the_same_examples_from_their_own_data_as_from_everybody_s():
    train = load("digits").train
    options: dict[str, Any] = {
        "groups": 2,
        "group_size": 5,
        "composition": "given",
        "given": np.arange(10).reshape(5, 2),
        "seed": 3,
    }
    everybody = BatchPlan(train.labels, Clustering.classes(train.labels), **options)
    for worker in range(2):  # of whom the first has the even digits, the second the odd ones
        rows = np.flatnonzero(train.labels % 2 == worker)
        clusters = cluster(train.subset(rows), "classes").among([str(label) for label in range(10)])
        own = BatchPlan(train.labels[rows], clusters, **options)
        assert own.probs == everybody.probs
        mine, theirs = own.for_host(worker, 2).batches(7, 20), everybody.for_host(worker, 2).batches(7, 20)
        np.testing.assert_array_equal(rows[mine.indices], theirs.indices)
        np.testing.assert_array_equal(mine.cluster_ids, theirs.cluster_ids)
        with pytest.raises(DataError, match=f"is given cluster {1 - worker} .*, of which it has no examples"):
            own.for_host(1 - worker, 2)
        with pytest.raises(DataError, match="need composition 'given', got 'random'"):
            BatchPlan(train.labels[rows], clusters, groups=2, group_size=5)


@pytest.mark.parametrize("names", [["0"], ["0", "1", "1"], ["1", "2"]])
def test_the_names_of_all_workers_clusters_hold_each_worker_s(names):
    with pytest.raises(DataError, match="must differ and hold"):
        Clustering.classes([0, 1]).among(names)


def test_clusters_that_hold_every_example_belong_to_no_worker():
    with pytest.raises(DataError, match="clusters of augmentations cannot be shared out"):
        Clustering.augmentations(3).among(["flip"])
