"""More files that were made to do harm: tables and texts, and what is small only as long as nobody reads it."""

import gzip
import importlib
import io
import os
import tarfile
import zipfile

import numpy as np
import pytest

from tests.lab.hostile.crafted import LARGE, crafted, npz


def table(folder, first, others):
    (folder / "x.csv").write_text("\n".join(["size,name,label", first, *others]))
    return "table", folder / "x.csv"


@crafted(None)
def a_long_cell_in_a_column_of_short_ones(folder):
    """Ten gigabytes, where each cell takes as much as the longest."""
    return table(folder, f"1.5,{'y' * 130_000},1", [f"{n}.5,x,{n % 2}" for n in range(20_000)])


@crafted("a label of 130000 letters")
def a_long_label_among_short_ones(folder):
    return table(folder, f"1.5,a,{'y' * 130_000}", [f"{n}.5,a,{n % 2}" for n in range(20_000)])


@crafted("and would be taken for another one")
def a_name_that_differs_by_a_nul(folder):
    return table(folder, "1.5,a\0,1", [f"{n}.5,a,{n % 2}" for n in range(20)])


@crafted("numbers are read up to")
def numbers_whose_squares_are_none(folder):
    return table(folder, "1e308,a,1", [f"{n}.5,a,{n % 2}" for n in range(20)])


@crafted("a label of 5000 letters")
def a_label_of_thousands_of_digits(folder):
    return table(folder, f"1.5,a,{'9' * 5000}", [f"{n}.5,a,{n % 2}" for n in range(20)])


def parquet(folder, **columns):
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    columns = {name: pyarrow.DictionaryArray.from_arrays(*map(pyarrow.array, both)) for name, both in columns.items()}
    importlib.import_module("pyarrow.parquet").write_table(pyarrow.table(columns), folder / "x.parquet")
    return "table", folder / "x.parquet"


@crafted(None)
def a_text_of_a_megabyte_that_many_rows_refer_to(folder):
    which = np.arange(20_000, dtype=np.int32)
    return parquet(folder, text=(0 * which, ["z" * 1_000_000]), label=(which % 2, [0, 1]))


@crafted("holds a binary")
def bytes_of_a_megabyte_that_many_rows_refer_to(folder):
    which = np.arange(20_000, dtype=np.int32)
    return parquet(folder, raw=(0 * which, [b"z" * 1_000_000]), label=(which % 2, [0, 1]))


@crafted("more than the limit")
def rows_that_take_no_bytes(folder):
    which = np.zeros(20_000_000, np.int8)
    return parquet(folder, size=(which, [1.5]), label=(which, [1]))


def footer_of_columns(count):
    """The end of a parquet file without rows, in Thrift's compact form: a root, and columns of a name each."""

    def number(value):
        parts = bytearray()
        while value > 127:
            parts.append(value & 127 | 128)
            value >>= 7
        return bytes([*parts, value])

    root = b"\x48\4root\x15" + number(2 * count) + b"\0"
    names = (str(n).encode() for n in range(count))
    columns = (b"\x15\2\x25\0\x18" + number(len(name)) + name + b"\0" for name in names)
    return b"\x15\2\x19\xfc" + number(count + 1) + root + b"".join(columns) + b"\x16\0\x19\x0c\0"


@crafted("more than the limit")
def columns_by_the_hundred_thousand(folder):
    end = footer_of_columns(400_000)
    (folder / "x.parquet").write_bytes(b"PAR1" + end + len(end).to_bytes(4, "little") + b"PAR1")
    return "table", folder / "x.parquet"


@crafted("more than the limit")
def texts_that_are_all_holes_with_long_names(folder):
    for name in "abc":
        path = folder / f"{name * 250}.txt"
        path.touch()
        os.truncate(path, 200 << 20)
    return "text", folder


@crafted("more than the limit")
def a_text_with_a_thousand_names(folder):
    (folder / "0.txt").write_bytes(b"abcdefghij" * 300_000)
    for number in range(1, 1000):
        os.link(folder / "0.txt", folder / f"{number}.txt")
    return "text", folder


@crafted("is a pipe")
def a_pipe_among_the_texts(folder):
    (folder / "a.txt").write_text("In the beginning was the word. " * 20)
    os.mkfifo(folder / "b.txt")
    return "text", folder


@crafted("holds a header of")
def a_member_whose_name_takes_a_megabyte(folder):
    with tarfile.open(folder / "x.tar.gz", "w:gz", format=tarfile.PAX_FORMAT) as archive:
        info = tarfile.TarInfo("n" * 1_000_000 + ".txt")
        info.size = 100_000
        archive.addfile(info, io.BytesIO(b"a" * info.size))
    return "text", folder / "x.tar.gz"


@crafted("more than the limit")
def headers_of_empty_files_by_the_hundred_thousand(folder):
    header = tarfile.TarInfo("train/a/0.txt").tobuf()
    with gzip.open(folder / "x.tar.gz", "wb", 1) as file:
        for _ in range(300):
            file.write(header * 1000)
    return "folder", folder / "x.tar.gz"


@crafted("empty texts in")
def texts_of_no_letters_by_the_billion(folder):
    source, path = npz(folder)
    with zipfile.ZipFile(path, "w") as archive:
        for name, (kind, shape) in {"images": ("|u1", (4, 2)), "labels": ("<U0", (1 << 40,))}.items():
            array = io.BytesIO()
            np.lib.format.write_array_header_1_0(array, {"descr": kind, "fortran_order": False, "shape": shape})
            archive.writestr(f"{name}.npy", array.getvalue() + bytes(8))
    return source, path


@crafted("more than the limit", LARGE)
def small_numbers_that_become_large_ones(folder):
    count = 2_500_000
    labels = np.arange(count, dtype=np.uint8) % 2
    np.savez_compressed(folder / "x.npz", images=np.zeros((count, 100), np.int8), labels=labels)
    return "npz", folder / "x.npz"
