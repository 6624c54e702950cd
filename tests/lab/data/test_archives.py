"""Archives and pickles that mean harm, are cut off or are simply wrong: refused, in one line."""

import os
import pickle
import struct
import tarfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from discover.lab.data import ArchiveError
from discover.lab.data.sources.archives import Limits, byte_records, check_member_name, read_tar, safe_unpickle
from tests.lab.data import files


def refusal(call):
    """The message with which a call is refused, which must be one line."""
    with pytest.raises(ArchiveError) as caught:
        call()
    message = str(caught.value)
    assert "\n" not in message
    return message


def special(name, kind, target=""):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


# -- tars -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", [".tar", ".tar.gz", ".tar.xz", ".tar.bz2"])
def test_an_ordinary_tar_gives_its_files(tmp_path, ending):
    contents = {"a/b.txt": b"one", "c.txt": b"", "./d/e.bin": bytes(range(256)) * 50}
    path = files.write_tar(tmp_path / f"x{ending}", contents)
    assert dict(read_tar(path)) == {"a/b.txt": b"one", "c.txt": b"", "d/e.bin": bytes(range(256)) * 50}


@pytest.mark.parametrize("name", ["/etc/passwd", "../x", "a/../../x", "a/..", "C:/x", "c:x", "a\\..\\x", "\\\\host\\x"])
def test_names_that_point_outside_are_refused(tmp_path, name):
    path = files.write_tar(tmp_path / "x.tar", {name: b"gotcha"})
    assert "points outside of the archive" in refusal(lambda: list(read_tar(path)))


def test_a_folder_that_points_outside_is_refused(tmp_path):
    path = files.write_tar(tmp_path / "x.tar", {"x": special("../up", tarfile.DIRTYPE), "a": b"1"})
    assert "points outside" in refusal(lambda: list(read_tar(path)))


@given(st.text(min_size=1, max_size=30))
def test_an_accepted_name_stays_below_the_folder_it_would_be_unpacked_to(name):
    try:
        accepted = check_member_name(name, "x.tar")
    except ArchiveError:
        return
    assert os.path.normpath(os.path.join("/target", accepted)).startswith("/target")


@pytest.mark.parametrize(
    ("kind", "word"),
    [
        (tarfile.SYMTYPE, "a link"),
        (tarfile.LNKTYPE, "a link"),
        (tarfile.CHRTYPE, "a special file"),
        (tarfile.BLKTYPE, "a special file"),
        (tarfile.FIFOTYPE, "a special file"),
    ],
)
def test_links_and_devices_are_refused(tmp_path, kind, word):
    path = files.write_tar(tmp_path / "x.tar", {"x": special("innocent.png", kind, "/etc/passwd")})
    message = refusal(lambda: list(read_tar(path)))
    assert word in message
    assert "innocent.png" in message


def test_limits_hold(tmp_path):
    path = files.write_tar(tmp_path / "x.tar.gz", {f"{k}": bytes(1000) for k in range(5)})
    assert len(list(read_tar(path, Limits(1000, 5000, 5)))) == 5
    assert "'0' of 1000 bytes, more than the limit of 999" in refusal(lambda: list(read_tar(path, Limits(999))))
    assert "more than the limit of 4999 bytes" in refusal(lambda: list(read_tar(path, Limits(1000, 4999))))
    assert "4 files" in refusal(lambda: list(read_tar(path, Limits(1000, 5000, 4))))


def test_a_claimed_size_is_refused_before_it_is_read(tmp_path):
    info = tarfile.TarInfo("huge.bin")
    info.size = 1 << 50
    path = tmp_path / "x.tar"
    path.write_bytes(info.tobuf(tarfile.GNU_FORMAT) + bytes(1024))
    assert "more than the limit" in refusal(lambda: list(read_tar(path)))


@pytest.mark.parametrize("ending", [".tar", ".tar.gz", ".tar.xz"])
@settings(max_examples=20, deadline=None)
@given(share=st.floats(0.02, 0.8))
def test_a_cut_off_tar_is_named(tmp_path_factory, ending, share):
    folder = tmp_path_factory.mktemp("cut")
    noise = np.random.default_rng(0).bytes(20_000)
    path = files.write_tar(folder / f"whole{ending}", {"a.bin": noise, "b.bin": noise[::-1]})
    raw = path.read_bytes()
    short = folder / f"short{ending}"
    short.write_bytes(raw[: int(share * len(raw))])
    message = refusal(lambda: list(read_tar(short)))
    assert str(short) in message
    assert "cut off or damaged" in message


def test_a_tar_cut_between_two_files_is_named(tmp_path):
    path = files.write_tar(tmp_path / "x.tar", {"a.bin": bytes(1000), "b.bin": bytes(1000)})
    path.write_bytes(path.read_bytes()[: 512 + 1024])  # the first file, whole, and nothing after it
    assert "its end is missing" in refusal(lambda: list(read_tar(path)))


def test_a_damaged_tar_is_named(tmp_path):
    path = files.write_tar(tmp_path / "x.tar.gz", {"a.bin": np.random.default_rng(0).bytes(20_000)})
    raw = bytearray(path.read_bytes())
    raw[10_000] ^= 0xFF
    path.write_bytes(raw)
    assert "cut off or damaged" in refusal(lambda: list(read_tar(path)))


@pytest.mark.parametrize("content", [b"", b"this is no tar", bytes(2048)])
def test_what_is_no_tar_is_refused(tmp_path, content):
    path = tmp_path / "x.tar"
    path.write_bytes(content)
    assert str(path) in refusal(lambda: list(read_tar(path)))


def test_an_absent_tar_is_named(tmp_path):
    assert "there is no file" in refusal(lambda: list(read_tar(tmp_path / "x.tar")))


# -- pickles ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
def test_plain_data_come_through_every_protocol(protocol):
    content = {
        "data": np.arange(12, dtype=np.uint8).reshape(3, 4),
        "more": [np.arange(3.0), {"x": np.array([[1, 2]], dtype=">i4")}],
        "fortran": np.asfortranarray(np.arange(6).reshape(2, 3)),
        "labels": [1, 2, 3],
        "name": "é",
        "nothing": None,
    }
    result = safe_unpickle(pickle.dumps(content, protocol), "x")
    assert set(result) == set(content)
    assert np.array_equal(result["data"], content["data"])
    assert result["data"].dtype == np.uint8
    assert np.array_equal(result["fortran"], content["fortran"])
    assert np.array_equal(result["more"][0], np.arange(3.0))
    assert result["more"][1]["x"].tolist() == [[1, 2]]
    assert result["labels"] == [1, 2, 3]


class Harm:
    """Leaves a mark when it is unpickled."""

    def __init__(self, call, *arguments):
        self.call, self.arguments = call, arguments

    def __reduce__(self):
        return self.call, self.arguments


@pytest.mark.parametrize("protocol", [0, 2, 5])
def test_code_in_a_pickle_does_not_run(tmp_path, protocol):
    mark = tmp_path / "mark"
    for call, *arguments in (
        (os.mkdir, str(mark)),
        (eval, f"__import__('os').mkdir({str(mark)!r})"),
        (open, mark, "w"),
    ):
        hostile = pickle.dumps({"data": Harm(call, *arguments)}, protocol)
        message = refusal(lambda raw=hostile: safe_unpickle(raw, "data_batch_1"))
        assert message.startswith("data_batch_1 is not a pickle of plain data: it asks for")
        assert not mark.exists()


@pytest.mark.parametrize(
    "hostile",
    [
        b"cos\nsystem\n(S'true'\ntR.",
        b"(S'true'\nios\nsystem\n.",  # the old way to make an instance
        b"cnumpy\nload\n(S'x'\ntR.",
        b"cnumpy.core.multiarray\nscalar\n(tR.",
        b"cnumpy\nndarray\n(I1000000000000\ntR(dS'array'\nI1\nsb.",  # state that is no array's
        b"c_codecs\nencode\n(S'x'\nS'zlib'\ntR.",
        b"Pnowhere\n.",  # something outside of the pickle
        b"\x80\x02\x82\x01.",  # an extension code
        b"cdiscover.data.archives\n_Array\n)R.",
        b"c__builtin__\ngetattr\n.",
    ],
)
def test_handmade_pickles_are_refused(hostile):
    refusal(lambda: safe_unpickle(hostile, "x"))


def test_arrays_of_objects_are_refused():
    objects = np.array([b"a", 1], dtype=object)
    assert "not numbers" in refusal(lambda: safe_unpickle(pickle.dumps(objects, 2), "x"))
    assert "not a number" in refusal(lambda: safe_unpickle(pickle.dumps(np.array(["a", "b"]), 2), "x"))


TYPE = b"cnumpy\ndtype\n"


@pytest.mark.parametrize("holder", ["{}", "[{}]", "({},)", "[({},)]", "{{'a': [{}]}}"])
@pytest.mark.parametrize("content", [{1}, frozenset({1}), bytearray(b"x"), np.dtype("u1"), np.ndarray])
def test_anything_but_plain_data_is_refused_at_every_depth(holder, content):
    nested = eval(holder.format("content"), {"content": content})
    message = refusal(lambda: safe_unpickle(pickle.dumps(nested, 5), "x"))
    assert "it holds a" in message or "it asks for builtins" in message


def test_arrays_in_tuples_come_through():
    (inner,) = safe_unpickle(pickle.dumps((np.arange(3),), 2), "x")
    assert isinstance(inner, np.ndarray)
    assert safe_unpickle(pickle.dumps([(1, (b"a", 2.5))], 2), "x") == [(1, (b"a", 2.5))]


@pytest.mark.parametrize("key", [(1, 2), frozenset({1}), np.dtype("u1"), np.ndarray])
def test_keys_are_strings_or_numbers(key):
    refusal(lambda: safe_unpickle(pickle.dumps({key: 1}, 5), "x"))


def test_a_pickle_cannot_change_the_functions_that_read_it():
    # BUILD with (None, {name: value}) sets attributes of what it is given: here, of the stand-in for an encoder.
    hostile = b"c_codecs\nencode\n(N(dS'__defaults__'\n(S'zlib'\ntstb."
    assert "state of a function" in refusal(lambda: safe_unpickle(hostile, "x"))
    assert safe_unpickle(pickle.dumps({"a": b"still reads"}, 2), "x") == {"a": b"still reads"}


def test_an_array_is_never_made_from_a_mere_size():
    huge = b"cnumpy._core.numeric\n_frombuffer\n(I9000000000\n" + TYPE + b"(S'u1'\ntR(I1\ntS'C'\ntR."
    assert "contents are not numbers" in refusal(lambda: safe_unpickle(huge, "x"))


def test_a_small_pickle_cannot_hold_a_huge_list():
    nested = [0] * 100
    for _ in range(6):
        nested = [nested] * 100  # the same list a hundred times: few bytes, 10¹⁴ numbers
    assert "too often" in refusal(lambda: safe_unpickle(pickle.dumps(nested), "x"))


def test_a_shape_that_does_not_fit_its_bytes_is_refused():
    raw = pickle.dumps(np.zeros(10, dtype=np.uint8), 2)
    assert raw.count(b"K\n") == 1  # the shape's ten
    refusal(lambda: safe_unpickle(raw.replace(b"K\n", b"K\x7f"), "x"))


def test_a_list_that_holds_itself_is_refused():
    endless = []
    endless.append(endless)
    assert "nested too deeply" in refusal(lambda: safe_unpickle(pickle.dumps(endless), "x"))


def read_or_refuse(raw):
    """What the bytes hold as plain data, or the refusal."""
    try:
        return safe_unpickle(raw, "x"), ""
    except ArchiveError as error:
        return None, str(error)


@given(st.binary(max_size=200))
@settings(max_examples=200, deadline=None)
def test_any_bytes_are_read_as_data_or_refused_in_one_line(raw):
    assert "\n" not in read_or_refuse(raw)[1]


@given(cut=st.integers(0, 300), place=st.integers(0, 300), value=st.integers(0, 255))
@settings(max_examples=150, deadline=None)
def test_damaged_pickles_never_do_anything_else(cut, place, value):
    raw = bytearray(pickle.dumps({b"data": np.arange(60, dtype=np.uint8), b"labels": [1, 2]}, 2))
    raw[place % len(raw)] = value
    result, refused = read_or_refuse(bytes(raw[: len(raw) - cut % 40]))
    assert "\n" not in refused
    assert result is None or isinstance(result, (dict, list, tuple, int, float, str, bytes, np.ndarray))


# -- records ----------------------------------------------------------------------------------------------------------


def test_records_must_be_whole():
    assert byte_records(bytes(20), 5, "x").shape == (4, 5)
    assert "21 bytes is no whole number of 5-byte records" in refusal(lambda: byte_records(bytes(21), 5, "x.bin"))
    refusal(lambda: byte_records(b"", 5, "x.bin"))


def test_a_tar_bomb_stops_at_the_limit(tmp_path):
    path = files.write_tar(tmp_path / "bomb.tar.xz", {"zeros.bin": bytes(5_000_000)})
    assert path.stat().st_size < 5000
    assert "more than the limit" in refusal(lambda: list(read_tar(path, Limits(file_bytes=1_000_000))))


def test_headers_with_strange_sizes_are_refused(tmp_path):
    info = tarfile.TarInfo("x")
    raw = bytearray(info.tobuf())
    raw[124:136] = struct.pack(">BxxxQ", 0xFF, 2**64 - 5)  # a negative size in base 256
    checksum = sum(raw[:148]) + sum(b" " * 8) + sum(raw[156:512])
    raw[148:156] = f"{checksum:06o}\0 ".encode()
    path = tmp_path / "x.tar"
    path.write_bytes(bytes(raw) + bytes(1024))
    refusal(lambda: list(read_tar(path)))
