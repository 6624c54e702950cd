"""Data sets in the official formats, small, written by the tests themselves."""

import io
import pickle
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from discover.lab.data import ArchiveError

FINE = [f"fine{i}" for i in range(100)]
COARSE = [f"coarse{i}" for i in range(20)]
CLASSES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]


def records(count, seed, classes):
    """Pixels [n, 3072] in CIFAR's planar order, labels, superclasses."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, count)
    return rng.integers(0, 256, (count, 3072), dtype=np.uint8), labels, labels // 5 % 20


def cifar(form):
    """The files of one official form: {name: contents}, and what the training split holds."""
    files, train = {}, []
    fine = "100" in form
    if fine:
        parts = {"train": records(12, 1, 100), "test": records(6, 2, 100)}
        train = [parts["train"]]
    else:
        parts = {f"data_batch_{i}": records(4, i, 10) for i in range(1, 6)} | {"test_batch": records(3, 9, 10)}
        train = [parts[f"data_batch_{i}"] for i in range(1, 6)]
    for name, (pixels, labels, coarse) in parts.items():
        if "python" in form:
            # As Python 2 wrote them: byte-string keys, protocol 2.
            content = {b"data": pixels, b"batch_label": name.encode(), b"filenames": [b"a.png"] * len(labels)}
            content |= (
                {b"fine_labels": labels.tolist(), b"coarse_labels": coarse.tolist()}
                if fine
                else {b"labels": labels.tolist()}
            )
            files[name] = pickle.dumps(content, protocol=2)
        else:
            columns = [coarse, labels] if fine else [labels]
            files[f"{name}.bin"] = np.concatenate([np.stack(columns, 1).astype(np.uint8), pixels], 1).tobytes()
    if "python" in form:
        names = {b"fine_label_names": FINE, b"coarse_label_names": COARSE} if fine else {b"label_names": CLASSES}
        meta = {key: [name.encode() for name in value] for key, value in names.items()}
        files["meta" if fine else "batches.meta"] = pickle.dumps(meta, protocol=2)
    elif fine:
        files["fine_label_names.txt"] = ("\n".join(FINE) + "\n").encode()
        files["coarse_label_names.txt"] = ("\n".join(COARSE) + "\n").encode()
    else:
        files["batches.meta.txt"] = ("\n".join(CLASSES) + "\n\n").encode()
    return files, tuple(np.concatenate(values) for values in zip(*train))


FOLDERS = {
    "cifar-10-binary": "cifar-10-batches-bin",
    "cifar-10-python": "cifar-10-batches-py",
    "cifar-100-binary": "cifar-100-binary",
    "cifar-100-python": "cifar-100-python",
}


def write_files(folder, files):
    for name, contents in files.items():
        path = Path(folder) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(contents)


def write_tar(path, files, mode=None):
    """A tar of {name: contents}; a TarInfo in place of contents is added as it is."""
    mode = mode or {".gz": "w:gz", ".xz": "w:xz", ".bz2": "w:bz2"}.get(Path(path).suffix, "w")
    with tarfile.open(path, mode) as archive:
        for name, contents in files.items():
            if isinstance(contents, tarfile.TarInfo):
                archive.addfile(contents)
            else:
                info = tarfile.TarInfo(name)
                info.size = len(contents)
                archive.addfile(info, io.BytesIO(contents))
    return path


def picture(color, size=(6, 5), form="PNG", mode="RGB"):
    """An image file of one color."""
    file = io.BytesIO()
    Image.new(mode, size, color).save(file, form)
    return file.getvalue()


def class_folders(per_class=3, size=(6, 5)):
    """{name: contents} of a small data set of class folders, and the gray value of each training file."""
    files = {}
    for part, start in (("train", 0), ("test", 100)):
        for c, name in enumerate(("ant", "bee", "cow")):
            for k in range(per_class):
                value = start + 10 * c + k
                files[f"{part}/{name}/{k:04d}.png"] = picture((value, value, value), size)
    return files


def refusal(call):
    """The message with which a call is refused, which must be one line."""
    with pytest.raises(ArchiveError) as caught:
        call()
    message = str(caught.value)
    assert "\n" not in message
    return message
