"""More files that were made to do harm: pickles, in the place of one of CIFAR-10's."""

import pickle
import struct

from tests.lab.data import files
from tests.lab.hostile.crafted import crafted


def batch(folder, **changes):
    """CIFAR-10 in its Python form, with something else in one of its files."""
    contents, _ = files.cifar("cifar-10-python")
    one = pickle.loads(contents["data_batch_1"])
    contents["data_batch_1"] = pickle.dumps({**one, **{key.encode(): value for key, value in changes.items()}}, 2)
    files.write_files(folder, contents)
    return "cifar10", folder


def pickled(folder, raw):
    contents, _ = files.cifar("cifar-10-python")
    files.write_files(folder, {**contents, "data_batch_1": raw})
    return "cifar10", folder


@crafted("no CIFAR batch")
def a_memory_that_takes_gigabytes(folder):
    return pickled(folder, b"\x80\x02]r" + struct.pack("<I", 0x7FFFFFFF) + b".")


@crafted("no CIFAR batch")
def a_memory_in_decimal_that_takes_gigabytes(folder):
    return pickled(folder, b"]p2147483647\n.")


@crafted("not a pickle of plain data")
def keys_that_all_collide(folder):
    return pickled(folder, pickle.dumps({k * (2**61 - 1): 0 for k in range(1, 400)}, 2))


@crafted("keys that are no names")
def a_key_whose_hash_takes_forever(folder):
    """A pair of a pair of a pair …: what Python hashes, and compares, in a time that doubles with each."""
    return pickled(folder, b"\x80\x02}K\x01" + b"q\0h\0\x86" * 45 + b"K\x01s.")


@crafted("another encoding")
def an_encoding_that_takes_forever_to_compare(folder):
    return pickled(folder, b"\x80\x02c_codecs\nencode\nX\x01\0\0\0aK\x01" + b"q\0h\0\x86" * 45 + b"\x86R.")


@crafted("the same texts too often")
def a_text_that_is_encoded_a_thousand_times(folder):
    text = b"X" + struct.pack("<I", 4_000_000) + b"a" * 4_000_000 + b"q\1"
    ask = b"h\2h\1X\6\0\0\0latin1\x86R"
    return pickled(folder, b"\x80\x02](" + text + b"c_codecs\nencode\nq\2" + ask * 900 + b"e.")


@crafted("keys that are no names")
def a_key_of_megabytes_in_a_thousand_places(folder):
    text = b"B" + struct.pack("<I", 4_000_000) + b"a" * 4_000_000 + b"q\1"
    return pickled(folder, b"\x80\x02](}" + text + b"Ns" + b"}h\1Ns" * 900 + b"e.")


@crafted("no CIFAR batch")
def ragged_labels(folder):
    return batch(folder, labels=[1, [2, 3], 4, 5])


@crafted("no CIFAR batch")
def a_pickled_label_that_wraps_to_class_0(folder):
    return batch(folder, labels=[2**32, 1, 2, 3])


@crafted("not a pickle of plain data")
def lists_in_lists_in_lists(folder):
    return pickled(folder, b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b".")
