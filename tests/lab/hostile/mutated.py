"""Files that were damaged at random: whole files of every format, and what can happen to their bytes."""

import importlib
import lzma
import pickle

import numpy as np
import pytest

from discover.lab.data import Clustering
from tests.lab.data import files


def write_whole(kind, folder):
    """Writes a file of a kind that can be read; returns the source, what to load, and the file to damage."""
    if kind in ("npz", "compressed npz"):
        rng = np.random.default_rng(0)
        save = np.savez if kind == "npz" else np.savez_compressed
        images = rng.integers(0, 255, (20, 3, 3, 1), np.uint8)
        save(folder / "x.npz", images=images, labels=np.arange(20) % 2, column=["a"] * 20)
        return "npz", folder / "x.npz", folder / "x.npz"
    if kind in ("tar", "tar.gz", "tar.xz", "tar.bz2"):
        path = files.write_tar(folder / f"x.{kind}", files.class_folders())
        return "folder", path, path
    if kind == "picture":
        files.write_files(folder, files.class_folders())
        return "folder", folder, folder / "train/ant/0001.png"
    if kind in ("csv", "parquet"):
        table = {"size": [0.5, 1.5, 2.5, 3.5] * 5, "site": ["a", "b"] * 10, "label": ["x", "y"] * 10}
        path = folder / f"x.{kind}"
        if kind == "csv":
            lines = [",".join(table), *(",".join(map(str, row)) for row in zip(*table.values()))]
            path.write_text("\n".join(lines))
        else:
            pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
            importlib.import_module("pyarrow.parquet").write_table(pyarrow.table(table), path)
        return "table", path, path
    if kind == "text":
        path = folder / "x.txt"
        path.write_text("In the beginning was the word. " * 100)
        return "text", path, path
    if kind == "clustering":
        path = Clustering.from_assignments([0, 1, 1], names=["a", "b"]).save(folder / "x.npz")
        return "clustering", path, path
    contents, _ = files.cifar(kind)
    files.write_files(folder, contents)
    return ("cifar100" if "100" in kind else "cifar10"), folder, folder / sorted(contents)[-1]


ARCHIVES = ("npz", "compressed npz", "tar", "tar.gz", "tar.xz", "tar.bz2")
KINDS = (*ARCHIVES, "picture", "csv", "parquet", "text", "clustering", *files.FOLDERS)


def mutate(raw, rng):
    """The bytes, with something done to them that chance chooses."""
    raw, place = bytearray(raw), int(rng.integers(len(raw)))
    length = int(rng.integers(1, 200))
    match int(rng.integers(8)):
        case 0:
            return bytes(raw[:place])
        case 1:
            return rng.bytes(int(rng.integers(1, 5000)))
        case 2:
            return bytes(raw[:place]) + rng.bytes(length) + bytes(raw[place + length :])
        case 3:
            fill = bytes([rng.choice([0, 0xFF, 0x7F, 0x80])]) * length
            return bytes(raw[:place]) + fill + bytes(raw[place + length :])
        case 4:
            return bytes(raw[:place]) + bytes(raw[place // 2 :])
        case 5:
            for where in rng.integers(len(raw), size=int(rng.integers(1, 20))):
                raw[where] ^= 1 << int(rng.integers(8))
            return bytes(raw)
        case 6:  # a number, somewhere, becomes as large as it can be
            return bytes(raw[:place]) + b"\xff\xff\xff\x7f" + bytes(raw[place + 4 :])
        case _:
            other = (pickle.dumps({b"data": [1] * 50}, 2), lzma.compress(bytes(100)), b"PK\x05\x06" + bytes(18), b"")
            return other[int(rng.integers(len(other)))]
