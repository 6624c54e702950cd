"""Files that were made to do harm: each is a function that writes one, and what `load` is then called with.

They are kinds, not examples: what is claimed and not there, what is there and was not expected, what never ends, what
grows when it is read, what is nested too deep, and names that a terminal would obey.
"""

import bz2
import gzip
import io
import json
import lzma
import struct
import tarfile
import zipfile

import numpy as np

from tests.lab.data import files

CRAFTED, LARGE = {}, {}
"""name -> (function of a folder that returns (source, path), words of the refusal or None where it is accepted).

Those of the second table take seconds each to be written or read.
"""


def crafted(refused_with, table=CRAFTED):
    def add(function):
        table[function.__name__] = (function, refused_with)
        return function

    return add


def pictures(folder):
    files.write_files(folder, files.class_folders())
    return "folder", folder


def npz(folder, **arrays):
    arrays = {"images": np.zeros((4, 3, 3, 1), np.uint8), "labels": np.array([0, 1, 0, 1]), **arrays}
    np.savez(folder / "x.npz", **arrays)
    return "npz", folder / "x.npz"


# -- labels -----------------------------------------------------------------------------------------------------------


@crafted("class numbers below")
def a_label_that_would_name_billions_of_classes(folder):
    return npz(folder, labels=np.array([0, 1, 0, 2**62]))


@crafted("class numbers below")
def a_label_that_wraps_to_class_0(folder):
    return npz(folder, labels=np.array([0, 1, 0, 2**32]))


@crafted("class numbers below")
def an_unsigned_label_of_64_bits(folder):
    return npz(folder, labels=np.array([0, 1, 0, 2**64 - 1], np.uint64))


@crafted(None)
def a_million_distinct_labels(folder):
    count = 1 << 20
    return npz(folder, images=np.zeros((count, 1), np.float32), labels=np.arange(count))


@crafted(None, LARGE)
def three_examples_of_each_of_many_labels(folder):
    count = 3 << 17
    return npz(folder, images=np.zeros((count, 1), np.float32), labels=np.arange(count) // 3)


@crafted("one integer or string per example")
def labels_of_mixed_signs_and_sizes(folder):
    arrays = {"train_images": np.zeros((2, 2)), "test_images": np.zeros((2, 2))}
    np.savez(folder / "x.npz", **arrays, train_labels=np.array([0, 2**63], np.uint64), test_labels=np.array([-1, 0]))
    return "npz", folder / "x.npz"


# -- zip --------------------------------------------------------------------------------------------------------------


@crafted("at least one feature")
def examples_without_features(folder):
    return npz(folder, images=np.zeros((4, 0), np.float32))


@crafted("is no array")
def a_member_that_is_no_array(folder):
    source, path = npz(folder)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("column.npy", b"no array")
    return source, path


def with_byte(raw, magic, place, byte):
    """The bytes with another one in every header that begins with `magic`."""
    head, *parts = raw.split(magic)
    return magic.join([head, *(part[: place - 4] + byte + part[place - 3 :] for part in parts)])


@crafted("no readable .npz")
def an_encrypted_member(folder):
    source, path = npz(folder)
    raw = path.read_bytes()
    # The flag of encryption, in the headers before the members and in the directory at the end.
    path.write_bytes(with_byte(with_byte(raw, b"PK\3\4", 6, b"\1"), b"PK\1\2", 8, b"\1"))
    return source, path


@crafted("no readable .npz")
def an_unknown_compression(folder):
    source, path = npz(folder)
    raw = path.read_bytes()
    path.write_bytes(with_byte(with_byte(raw, b"PK\3\4", 8, b"c"), b"PK\1\2", 10, b"c"))
    return source, path


@crafted("no readable .npz")
def a_claim_of_terabytes_in_an_array(folder):
    header = b"{'descr': '|u1', 'fortran_order': False, 'shape': (1099511627776, 8, 8, 3), }"
    header += b" " * (118 - len(header)) + b"\n"
    array = b"\x93NUMPY\1\0" + struct.pack("<H", len(header)) + header
    with zipfile.ZipFile(folder / "x.npz", "w") as archive:
        archive.writestr("images.npy", array)
        archive.writestr("labels.npy", array)
    return "npz", folder / "x.npz"


@crafted("more than the limit")
def a_file_that_is_all_holes(folder):
    source, path = npz(folder)
    array = io.BytesIO()
    np.lib.format.write_array_header_1_0(array, {"descr": "|u1", "fortran_order": False, "shape": (4, 1 << 38)})
    size = 1 << 40
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("labels.npy", b"")
        info = zipfile.ZipInfo("images.npy")
        archive.writestr(info, array.getvalue())
        info.file_size = info.compress_size = size  # written into the directory at the end
    return source, path


# -- tar --------------------------------------------------------------------------------------------------------------


def tar(folder, raw):
    (folder / "x.tar").write_bytes(raw)
    return "folder", folder / "x.tar"


@crafted("cut off or damaged")
def headers_that_announce_headers_without_end(folder):
    info = tarfile.TarInfo("././@LongLink")
    info.type, info.size = tarfile.GNUTYPE_LONGNAME, 2
    return tar(folder, (info.tobuf(tarfile.GNU_FORMAT) + b"x\0".ljust(512, b"\0")) * 3000)


@crafted("no readable images")
def members_whose_names_are_not_utf_8(folder):
    info = tarfile.TarInfo("train/a/\udcff\udcfe.txt")
    return tar(folder, info.tobuf(tarfile.GNU_FORMAT, errors="surrogateescape") + bytes(1024))


@crafted(None)
def a_member_without_a_name(folder):
    _, path = pictures(folder)
    with tarfile.open(folder / "x.tar", "w") as archive:
        archive.addfile(tarfile.TarInfo(""))
        archive.add(path, "all")
    return "folder", folder / "x.tar"


@crafted("points outside of the archive")
def a_member_that_would_clear_the_screen(folder):
    return tar(folder, tarfile.TarInfo("../\x1b[2J\x1b]0;owned\x07").tobuf() + bytes(1024))


def header(folder, contents):
    """A tar in which something is said about a member before it comes."""
    info = tarfile.TarInfo("x")
    info.type, info.size = tarfile.XHDTYPE, len(contents)
    whole = info.tobuf() + contents + bytes(-len(contents) % 512)
    return tar(folder, whole + tarfile.TarInfo("train/a/0.txt").tobuf() + bytes(1024))


@crafted("a header of")
def digits_that_python_searches_in_quadratic_time(folder):
    return header(folder, b"9" * 200_000 + b" a=b\n")


@crafted("more than the limit")
def many_headers_of_digits(folder):
    info = tarfile.TarInfo("x")
    info.type, info.size = tarfile.XHDTYPE, 16 << 10
    return tar(folder, (info.tobuf() + b"9" * info.size) * 50)


def bomb(folder, name, start, compressed):
    """A compressed tar that begins in some way and goes on with zeros, far beyond what its size warrants."""
    with compressed(folder / name, "wb") as file:
        file.write(start)
        for _ in range(400):
            file.write(bytes(1 << 20))
    return "folder", folder / name


@crafted("more than the limit", LARGE)
def a_bomb_in_a_file(folder):
    info = tarfile.TarInfo("train/ant/0.png")
    info.size = 1 << 30
    return bomb(folder, "x.tar.gz", info.tobuf(), gzip.open)


@crafted("a header of", LARGE)
def a_bomb_in_a_header(folder):
    info = tarfile.TarInfo("x")
    info.type, info.size = tarfile.XHDTYPE, 1 << 30
    return bomb(folder, "x.tar.bz2", info.tobuf(), bz2.open)


@crafted("more than the limit", LARGE)
def a_bomb_after_the_last_file(folder):
    info = tarfile.TarInfo("train/ant/0.txt")
    return bomb(folder, "x.tar.xz", info.tobuf() + bytes(1024), lzma.open)


@crafted("more than the limit", LARGE)
def a_bomb_in_a_zip(folder):
    with zipfile.ZipFile(folder / "x.npz", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        with archive.open("images.npy", "w") as file:
            np.lib.format.write_array_header_1_0(
                file, {"descr": "|u1", "fortran_order": False, "shape": (600, 1024, 1024, 1)}
            )
            for _ in range(600):
                file.write(bytes(1 << 20))
        with archive.open("labels.npy", "w") as file:
            np.save(file, np.zeros(600, int))
    return "npz", folder / "x.npz"


# -- clusterings ------------------------------------------------------------------------------------------------------


def clustering(folder, head, **arrays):
    arrays = {"probs": np.array([1.0]), "assignments": np.zeros(1, int), **arrays}
    np.savez(folder / "x.npz", head=np.array(head), **arrays)
    return "clustering", folder / "x.npz"


@crafted("no readable clustering file")
def a_clustering_that_is_nested_too_deep(folder):
    return clustering(folder, "[" * 100_000 + "]" * 100_000)


@crafted("cluster ids must lie in")
def a_cluster_number_of_64_bits(folder):
    head = {"format": "discover-clustering-1", "kind": "given", "names": ["a"], "noise": None, "n": 1}
    return clustering(folder, json.dumps(head), assignments=np.array([2**64 - 1], np.uint64))


@crafted("no readable clustering file")
def a_clustering_of_something_else(folder):
    head = {"format": "discover-clustering-1", "kind": [], "names": 3, "noise": {"x": 1}, "n": 1e400}
    return clustering(folder, json.dumps(head))
