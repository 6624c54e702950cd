"""CIFAR as class folders of pictures, where a preset expects CIFAR."""

import io
import tarfile

import numpy as np
import pytest
from PIL import Image

from discover.lab.data import DataError, load
from tests.lab.data.files import CLASSES


def picture(seed, suffix, size=32):
    buffer = io.BytesIO()
    pixels = np.random.default_rng(seed).integers(0, 256, (size, size, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(buffer, {"jpg": "JPEG", "png": "PNG"}[suffix])
    return buffer.getvalue()


def pictures(suffix="jpg", classes=CLASSES, size=32):
    return {
        f"{part}/{name}/{i:04}.{suffix}": picture(100 * len(part) + 10 * k + i, suffix, size)
        for part, count in (("train", 3), ("test", 1))
        for k, name in enumerate(classes)
        for i in range(count)
    }


def write_tar(path, files):
    with tarfile.open(path, "w:xz") as archive:
        for name, contents in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(contents)
            archive.addfile(member, io.BytesIO(contents))
    return path


def write_folder(path, files):
    for name, contents in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(contents)
    return path


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("DISCOVER_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize("suffix", ["jpg", "png"])
@pytest.mark.parametrize("write", [write_tar, write_folder])
def test_the_cifar10_source_reads_class_folders_and_says_so_in_its_name(tmp_path, write, suffix):
    where = tmp_path / ("data.tar.xz" if write is write_tar else "data")
    found = load("cifar10", write(where, pictures(suffix)))
    assert found.name == {"jpg": "CIFAR-10 (JPEG)", "png": "CIFAR-10 (PNG)"}[suffix]
    assert found.class_names == tuple(CLASSES)
    assert found.train.images.shape == (30, 32, 32, 3)
    assert np.bincount(found.test.labels).tolist() == [1] * 10


def test_other_numbers_of_classes_and_sizes_are_refused(tmp_path):
    with pytest.raises(DataError, match="has 3 class folders where cifar10 has 10 classes"):
        load("cifar10", write_folder(tmp_path / "few", pictures(classes=CLASSES[:3])))
    with pytest.raises(DataError, match=r"shape \(16, 16, 3\) where cifar10 has \(32, 32, 3\)"):
        load("cifar10", write_tar(tmp_path / "tiny.tar.xz", pictures(size=16)))
