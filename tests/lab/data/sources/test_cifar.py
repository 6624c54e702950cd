"""CIFAR-10 and CIFAR-100 in both official forms and as pictures; and what is said when they are not right."""

import pickle

import numpy as np
import pytest

from discover.lab.data import ArchiveError, DataError, DatasetNotFoundError, cluster, load
from discover.lab.data.sources.cifar import _FORMS, _check_counts
from tests.lab.data import files

FORMS = tuple(files.FOLDERS)


def source(form):
    return "cifar100" if "100" in form else "cifar10"


@pytest.fixture(params=["folder", "parent", "archive", "archive-parent"])
def place(request, tmp_path):
    """Writes a form in one of the four ways, and returns what to give as the path."""

    def write(form, contents):
        folder = files.FOLDERS[form]
        if request.param.startswith("archive"):
            path = tmp_path / f"{form}.tar.gz"
            files.write_tar(path, {f"{folder}/{name}": data for name, data in contents.items()})
            return path if request.param == "archive" else tmp_path
        files.write_files(tmp_path / folder, contents)
        return tmp_path / folder if request.param == "folder" else tmp_path

    return write


@pytest.mark.parametrize("form", FORMS)
def test_every_official_form_is_read(form, place):
    contents, (pixels, labels, coarse) = files.cifar(form)
    dataset = load(source(form), place(form, contents))
    assert dataset.name == source(form)
    assert dataset.train.images.shape == (len(labels), 32, 32, 3)
    # Planar reds, greens, blues: pixel (row, column) of channel c is at c·1024 + row·32 + column.
    assert dataset.train.images[2, 5, 7].tolist() == [pixels[2, c * 1024 + 5 * 32 + 7] for c in range(3)]
    assert np.array_equal(dataset.train.labels, labels)
    if "100" in form:
        assert dataset.num_classes == 100
        assert dataset.train.columns["superclass"].tolist() == [files.COARSE[c] for c in coarse]
        clustering = cluster(dataset, "superclasses")
        assert clustering.names == tuple(sorted({files.COARSE[c] for c in coarse}))
    else:
        assert dataset.class_names == tuple(files.CLASSES)
        assert len(dataset.test) == 3


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_an_absent_data_set_says_what_was_looked_for_and_where_it_can_be_had(name, tmp_path, monkeypatch):
    with pytest.raises(DatasetNotFoundError) as caught:
        load(name, tmp_path / "nothing")
    message = str(caught.value)
    assert "\n" not in message
    assert str(tmp_path / "nothing") in message
    assert f"{name.replace('cifar', 'cifar-')}-python.tar.gz" in message
    assert f"{name.replace('cifar', 'cifar-')}-binary.tar.gz" in message
    assert "https://www.cs.toronto.edu/~kriz/cifar.html" in message
    monkeypatch.setenv("DISCOVER_DATA", str(tmp_path / "elsewhere"))
    with pytest.raises(DatasetNotFoundError, match="elsewhere"):
        load(name)


@pytest.mark.parametrize("form", FORMS)
def test_a_missing_file_is_named(form, tmp_path):
    contents, _ = files.cifar(form)
    missing = sorted(contents)[0]
    del contents[missing]
    files.write_files(tmp_path, contents)
    with pytest.raises(DatasetNotFoundError, match=f"lacks {missing}"):
        load(source(form), tmp_path)
    path = files.write_tar(tmp_path / "x.tar.gz", contents)
    with pytest.raises(ArchiveError, match=f"lacks {missing}"):
        load(source(form), path)


@pytest.mark.parametrize("form", FORMS)
def test_a_cut_off_file_is_named(form, tmp_path):
    contents, _ = files.cifar(form)
    victim = next(name for name in contents if name.startswith(("data_batch_3", "train")))
    contents[victim] = contents[victim][:-100]
    files.write_files(tmp_path, contents)
    with pytest.raises(ArchiveError, match=victim) as caught:
        load(source(form), tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("form", ["cifar-10-binary", "cifar-10-python"])
def test_a_training_file_shorter_than_the_others_is_named(form, tmp_path):
    contents, _ = files.cifar(form)
    victim = next(name for name in contents if name.startswith("data_batch_3"))
    if "python" in form:
        content = pickle.loads(contents[victim], encoding="bytes")
        contents[victim] = pickle.dumps(content | {b"data": content[b"data"][:3], b"labels": content[b"labels"][:3]}, 2)
    else:
        contents[victim] = contents[victim][:-3073]  # between two images
    files.write_files(tmp_path, contents)
    with pytest.raises(ArchiveError, match=f"{victim} is cut off or damaged: it has 3 images where .* must be 4"):
        load("cifar10", tmp_path)


@pytest.mark.parametrize(
    ("name", "form", "counts", "cut"),
    [
        ("cifar10", 0, [10_000] * 5 + [9_999], "test_batch.bin"),
        ("cifar10", 0, [9_999] * 5 + [10_000], "data_batch_1.bin"),
        ("cifar10", 1, [10_000] * 4 + [1, 10_000], "data_batch_5"),
        ("cifar100", 0, [50_000, 4], "test.bin"),
        ("cifar100", 0, [49_999, 10_000], "train.bin"),
        ("cifar10", 0, [10_000] * 6, None),
        ("cifar100", 1, [50_000, 10_000], None),
        ("cifar100", 1, [12, 6], None),
        ("cifar10", 1, [4] * 5 + [3], None),
    ],
)
def test_the_official_files_must_have_the_official_numbers_of_images(name, form, counts, cut):
    chosen = _FORMS[name][form]
    counted = dict(zip((*chosen.train, chosen.test), counts, strict=True))
    if cut is None:
        _check_counts(chosen, counted, "here")
        return
    with pytest.raises(ArchiveError, match=f"here/{cut} is cut off or damaged"):
        _check_counts(chosen, counted, "here")


class Harm:
    def __reduce__(self):
        return print, ("harm was done",)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({b"data": Harm(), b"labels": [0]}, "it asks for"),
        ([1, 2], "it lacks one of data, labels"),
        ({b"data": np.zeros((2, 3072), np.uint8)}, "it lacks one of data, labels"),
        ({b"data": np.zeros((2, 3000), np.uint8), b"labels": [0, 1]}, "its data are not"),
        ({b"data": np.zeros((2, 3072), np.int32), b"labels": [0, 1]}, "something else than bytes"),
        ({b"data": np.zeros((2, 3072), np.uint8), b"labels": [0]}, "its labels are not 2 classes"),
        ({b"data": np.zeros((2, 3072), np.uint8), b"labels": [0, -1]}, "its labels are not 2 classes"),
        ({b"data": np.zeros((2, 3072), np.uint8), b"labels": [0, 10]}, "label 10, but names only 10 classes"),
    ],
)
def test_a_python_batch_that_is_none_is_refused(content, message, tmp_path, capsys):
    contents, _ = files.cifar("cifar-10-python")
    contents["data_batch_2"] = pickle.dumps(content, 2)
    files.write_files(tmp_path, contents)
    with pytest.raises(ArchiveError, match=message):
        load("cifar10", tmp_path)
    assert "harm" not in capsys.readouterr().out


def test_names_that_are_none_are_refused(tmp_path):
    contents, _ = files.cifar("cifar-100-python")
    contents["meta"] = pickle.dumps({b"fine_label_names": [b"a"]}, 2)
    files.write_files(tmp_path, contents)
    with pytest.raises(ArchiveError, match="no coarse_label_names"):
        load("cifar100", tmp_path)


def test_an_archive_of_something_else_is_named(tmp_path):
    path = files.write_tar(tmp_path / "x.tar.gz", {"readme.txt": b"hello"})
    with pytest.raises(ArchiveError, match=r"it is not cifar10"):
        load("cifar10", path)


# -- pictures ---------------------------------------------------------------------------------------------------------


def write_pictures(path, form="JPEG", classes=files.CLASSES, size=32):
    """Class folders of pictures, in a tar if the path is one's."""
    contents = {
        f"{part}/{name}/{i:04}.{form.lower()}": files.picture((20 * k, i, 0), (size, size), form)
        for part, count in (("train", 3), ("test", 1))
        for k, name in enumerate(classes)
        for i in range(count)
    }
    files.write_tar(path, contents) if path.suffix else files.write_files(path, contents)
    return path


@pytest.mark.parametrize("form", ["JPEG", "PNG"])
@pytest.mark.parametrize("place", ["pictures", "pictures.tar.xz"])
def test_class_folders_of_pictures_are_read_and_said_in_the_name(tmp_path, monkeypatch, place, form):
    monkeypatch.setenv("DISCOVER_CACHE", str(tmp_path / "cache"))
    found = load("cifar10", write_pictures(tmp_path / place, form))
    assert found.name == f"CIFAR-10 ({form})"
    assert found.class_names == tuple(files.CLASSES)
    assert found.train.images.shape == (30, 32, 32, 3)
    assert np.bincount(found.test.labels).tolist() == [1] * 10


def test_pictures_of_other_classes_and_sizes_are_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("DISCOVER_CACHE", str(tmp_path / "cache"))
    with pytest.raises(DataError, match="has 3 class folders where cifar10 has 10 classes"):
        load("cifar10", write_pictures(tmp_path / "few", classes=files.CLASSES[:3]))
    with pytest.raises(DataError, match=r"shape \(16, 16, 3\) where cifar10 has \(32, 32, 3\)"):
        load("cifar10", write_pictures(tmp_path / "tiny.tar.xz", size=16))
