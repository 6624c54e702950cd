"""Splits, data sets, the validation split, and plain arrays from files."""

import zipfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from discover.lab.data import ArchiveError, DataError, Dataset, DatasetNotFoundError, Split, load, stratified_split
from discover.lab.data.sources.npz import read_npz


@given(
    labels=st.lists(st.integers(0, 5), min_size=2, max_size=300),
    fraction=st.floats(0.02, 0.98),
    seed=st.integers(0, 2**40),
)
def test_a_stratified_split_is_disjoint_complete_even_and_repeatable(labels, fraction, seed):
    labels = np.array(labels)
    total = round(fraction * len(labels))
    if not 0 < total < len(labels):
        with pytest.raises(DataError, match="leaves one side empty"):
            stratified_split(labels, fraction, seed)
        return
    first, second = stratified_split(labels, fraction, seed)
    assert len(second) == total
    assert sorted([*first, *second]) == list(range(len(labels)))
    share = total / len(labels)
    for c in np.unique(labels):
        assert abs(np.sum(labels[second] == c) - share * np.sum(labels == c)) < 1
    again = stratified_split(labels, fraction, seed)
    assert np.array_equal(again[1], second)


def test_digits_are_real_and_always_the_same():
    digits = load("digits")
    assert (len(digits.train), len(digits.test), digits.num_classes) == (1438, 359, 10)
    assert digits.example_shape == (8, 8, 1)
    assert digits.train.images.max() == 255
    assert np.array_equal(load("digits").test.images, digits.test.images)
    # Every original value 0…16 has its own gray.
    assert len(np.unique(np.concatenate([digits.train.images, digits.test.images]))) == 17


def test_the_validation_split_comes_out_of_the_training_split():
    digits = load("digits")
    divided = digits.split_validation(0.2, seed=3)
    assert divided.validation is not None
    assert len(divided.train) + len(divided.validation) == len(digits.train)
    together = np.concatenate([divided.train.images, divided.validation.images]).reshape(len(digits.train), -1)
    whole = digits.train.images.reshape(len(digits.train), -1)
    assert sorted(map(bytes, together)) == sorted(map(bytes, whole))
    assert np.array_equal(divided.test.images, digits.test.images)
    assert not np.array_equal(digits.split_validation(0.2, seed=4).validation.images, divided.validation.images)
    with pytest.raises(DataError, match="already has a validation split"):
        divided.split_validation()


def test_columns_follow_their_examples():
    split = Split(np.arange(10.0)[:, None], np.arange(10), {"name": np.array(list("abcdefghij"))})
    part = split.subset([7, 2])
    assert part.columns["name"].tolist() == ["h", "c"]
    assert part.labels.tolist() == [7, 2]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Split(np.zeros((2, 3, 3)), np.zeros(2, int)), r"images must have shape \[n, H, W, C\]"),
        (lambda: Split(np.zeros((2, 3, 3, 1)), np.zeros(2, int)), "must be uint8, got float64"),
        (lambda: Split(np.zeros((2, 3)), np.zeros(3, int)), r"labels must have shape \[2\]"),
        (lambda: Split(np.zeros((2, 3)), np.zeros(2)), "labels must be integers, got float64"),
        (lambda: Split(np.zeros((2, 3)), np.array([0, -1])), "must not be negative, got -1"),
        (lambda: Split(np.zeros((2, 3)), np.zeros(2, int), {"x": np.zeros(3)}), "column 'x' must have 2 rows"),
    ],
)
def test_a_split_that_cannot_be_is_named(make, message):
    with pytest.raises(DataError, match=message):
        make()


def test_a_dataset_that_cannot_be_is_named():
    split = Split(np.zeros((2, 3)), np.array([0, 4]))
    with pytest.raises(DataError, match="train labels must be below num_classes = 3, got 4"):
        Dataset("x", split, split, 3)
    with pytest.raises(DataError, match="class_names must have 5 entries"):
        Dataset("x", split, split, 5, ("a",))
    with pytest.raises(DataError, match="one shape"):
        Dataset("x", split, Split(np.zeros((2, 4)), np.array([0, 1])), 5)
    with pytest.raises(DataError, match="is empty"):
        Dataset("x", split.subset(np.zeros(0, int)), split, 5)


# -- .npz -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "keys", [("train_images", "train_labels", "test_images", "test_labels"), ("x_train", "y_train", "x_test", "y_test")]
)
def test_arrays_with_a_test_split(tmp_path, keys):
    images = np.random.default_rng(0).integers(0, 256, (6, 4, 4), dtype=np.uint8)
    arrays = dict(zip(keys, (images, np.arange(6) % 3, images[:2], np.array([[1], [2]]))))
    np.savez(tmp_path / "mine.npz", **arrays, train_site=np.array(list("xyxyxy")))
    dataset = load("npz", tmp_path / "mine.npz")
    assert dataset.name == "mine"
    assert dataset.train.images.shape == (6, 4, 4, 1)
    assert dataset.test.labels.tolist() == [1, 2]
    assert dataset.num_classes == 3
    assert dataset.train.columns["site"].tolist() == list("xyxyxy")


def test_arrays_in_one_piece_with_string_labels(tmp_path):
    labels = np.array(["dog", "cat"] * 10)
    np.savez(tmp_path / "x.npz", images=np.arange(40).reshape(20, 2), labels=labels, site=np.arange(20))
    dataset = load("npz", tmp_path / "x.npz", test_fraction=0.25)
    assert dataset.class_names == ("cat", "dog")
    assert (len(dataset.train), len(dataset.test)) == (15, 5)
    assert dataset.train.images.dtype == np.float32
    for split in (dataset.train, dataset.test):
        assert np.array_equal(split.columns["site"] % 2 == 0, split.labels == 1)


def write(path, **arrays):
    np.savez(path, **arrays)
    return path


@pytest.mark.parametrize(
    ("arrays", "error", "message"),
    [
        ({"a": np.zeros(2)}, DataError, "must hold images and labels, .* it has a"),
        ({"images": np.zeros((2, 2)), "labels": np.zeros(2)}, DataError, "one integer or string per example"),
        ({"images": np.zeros(4), "labels": np.zeros(4, int)}, DataError, "must be uint8"),
        ({"images": np.zeros((4, 2)), "labels": np.array([0, -1, 0, 1])}, DataError, "must not be negative"),
        ({"images": np.zeros((4, 2)), "labels": np.zeros(3, int)}, DataError, "one for each example"),
        ({"x_train": np.zeros((4, 2)), "y_train": np.zeros(4, int)}, DataError, "has 'x_train' but not 'x_test'"),
        ({"images": np.array([{}], dtype=object)}, ArchiveError, "holds Python objects, which are not read"),
    ],
)
def test_arrays_that_are_no_data_set_are_named(tmp_path, arrays, error, message):
    with pytest.raises(error, match=message):
        load("npz", write(tmp_path / "x.npz", **arrays))


def test_a_column_of_another_length_is_named(tmp_path):
    arrays = {"x_train": np.zeros((4, 2)), "y_train": np.arange(4), "x_test": np.zeros((4, 2)), "y_test": np.arange(4)}
    with pytest.raises(DataError, match="column 'site' must have 4 rows"):
        load("npz", write(tmp_path / "x.npz", **arrays, train_site=np.zeros(3)))


def test_damaged_files_are_named(tmp_path):
    path = write(tmp_path / "x.npz", images=np.random.default_rng(0).random((50, 20)), labels=np.arange(50))
    raw = path.read_bytes()
    for damaged in (raw[: len(raw) // 2], b"no zip at all", raw[:2000] + bytes(100) + raw[2100:]):
        path.write_bytes(damaged)
        with pytest.raises(ArchiveError, match=r"x\.npz is no readable \.npz file") as caught:
            load("npz", path)
        assert "\n" not in str(caught.value)
    with pytest.raises(DatasetNotFoundError, match="there is no file"):
        load("npz", tmp_path / "absent.npz")


def test_a_zip_bomb_is_refused_before_it_is_unpacked(tmp_path):
    with zipfile.ZipFile(tmp_path / "x.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("images.npy", bytes(3_000_000))
    assert (tmp_path / "x.npz").stat().st_size < 5000
    with pytest.raises(ArchiveError, match="takes 3,000,000 bytes, more than the limit of 1,000,000 bytes"):
        read_npz(tmp_path / "x.npz", max_bytes=1_000_000)


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (("digit",), {}, "unknown data source 'digit': did you mean 'digits'. choose from digits, "),
        (("digits", "somewhere"), {}, "unknown option of source 'digits' 'path': choose from test_fraction, seed"),
        (("npz",), {}, "source 'npz' needs path"),
        (("folder",), {}, "source 'folder' needs path"),
        (("digits",), {"sed": 1}, "unknown option of source 'digits' 'sed': did you mean 'seed'"),
        (("cifar10", "x"), {"seed": 1}, "unknown option of source 'cifar10' 'seed': choose from path"),
        (("digits",), {"test_fraction": 1.5}, "strictly between 0 and 1, got 1.5"),
    ],
)
def test_unknown_sources_and_options_are_named(arguments, options, message):
    with pytest.raises(ValueError, match=message):
        load(*arguments, **options)
