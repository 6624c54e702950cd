"""Pickles of plain data are read, and nothing that a pickle says is done."""

import os
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from discover.lab.data import ArchiveError
from discover.lab.data.sources.pickles import read_pickle
from tests.lab.data.files import refusal


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4])
def test_plain_data_come_through_every_protocol(protocol):
    content = {
        "data": np.arange(12, dtype=np.uint8).reshape(3, 4),
        "fortran": np.asfortranarray(np.arange(6, dtype=np.uint8).reshape(2, 3)),
        b"labels": [1, 2, 3],
        "more": [{"x": np.zeros((0, 2), np.uint8) if protocol > 2 else None}, 2.5],
        "name": "é",
        "raw": b"abc",
    }
    result = read_pickle(pickle.dumps(content, protocol), "x")
    assert set(result) == {"data", "fortran", "labels", "more", "name", "raw"}
    assert result["data"].tolist() == content["data"].tolist()
    assert result["data"].dtype == np.uint8
    assert result["fortran"].tolist() == content["fortran"].tolist()
    assert (result["labels"], result["name"], result["raw"], result["more"][1]) == ([1, 2, 3], "é", b"abc", 2.5)


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
        message = refusal(lambda raw=hostile: read_pickle(raw, "data_batch_1"))
        assert message.startswith("data_batch_1 is not a pickle of plain data: it asks for")
        assert not mark.exists()


NESTED = [0] * 100
for _ in range(6):
    NESTED = [NESTED] * 100  # the same list a hundred times: few bytes, 10¹⁴ numbers
ENDLESS = []
ENDLESS.append(ENDLESS)
TYPE = b"cnumpy\ndtype\n"


@pytest.mark.parametrize(
    ("hostile", "reason"),
    [
        (b"cos\nsystem\n(S'true'\ntR.", "asks for os.system"),
        (b"(S'true'\nios\nsystem\n.", "asks for os.system"),  # the old way to make an instance
        (b"cnumpy\nload\n(S'x'\ntR.", "asks for numpy.load"),
        (b"cnumpy.core.multiarray\nscalar\n(tR.", "asks for"),
        (b"cnumpy\nndarray\n(I1000000000000\ntR(dS'array'\nI1\nsb.", ""),  # state that is no array's
        (b"cnumpy\nndarray\n(I1000000000000\ntR.", ""),  # an array of a mere size
        (b"cnumpy._core.numeric\n_frombuffer\n(I9000000000\n" + TYPE + b"(S'u1'\ntR(I1\ntS'C'\ntR.", "asks for"),
        (b"c_codecs\nencode\n(S'x'\nS'zlib'\ntR.", "encoding"),
        # BUILD with (None, {name: value}) sets attributes of what it is given: here, of what stands in for an encoder.
        (b"c_codecs\nencode\n(N(dS'answer'\n(S'zlib'\ntstb.", ""),
        (b"cnumpy\ndtype\n)\x81.", ""),  # an instance that was never set up
        (b"Pnowhere\n.", "outside of itself"),
        (b"\x80\x02\x82\x01.", ""),  # an extension code
        (b"cdiscover.lab.data.sources.pickles\n_Array\n)R.", "asks for"),
        (b"c__builtin__\ngetattr\n.", "asks for"),
        (pickle.dumps(NESTED), "too often"),
        (pickle.dumps(ENDLESS), ""),
        (pickle.dumps(np.array([b"a", 1], dtype=object), 2), "else than bytes"),
        (pickle.dumps(np.array(["a", "b"]), 2), "else than bytes"),
        (pickle.dumps(np.arange(3), 2), "else than bytes"),
        (pickle.dumps(np.zeros(10, np.uint8), 2).replace(b"K\n", b"K\x7f"), ""),  # a shape that does not fit
    ],
)
def test_anything_else_is_refused(hostile, reason):
    assert reason in refusal(lambda: read_pickle(hostile, "x"))
    assert read_pickle(pickle.dumps({"a": b"still reads"}, 2), "x") == {"a": b"still reads"}


@pytest.mark.parametrize("holder", ["{}", "[{}]", "[[{}]]", "{{'a': [{}]}}"])
@pytest.mark.parametrize("content", [(1,), {1}, frozenset({1}), bytearray(b"x"), np.dtype("u1"), np.ndarray])
def test_anything_but_plain_data_is_refused_at_every_depth(holder, content):
    nested = eval(holder.format("content"), {"content": content})
    message = refusal(lambda: read_pickle(pickle.dumps(nested, 4), "x"))
    assert "it holds" in message or "it asks for builtins" in message


def read_or_refuse(raw):
    """What the bytes hold as plain data, or the refusal."""
    try:
        return read_pickle(raw, "x"), ""
    except ArchiveError as error:
        return None, str(error)


@given(st.binary(max_size=200))
@settings(max_examples=100)
def test_any_bytes_are_read_as_data_or_refused_in_one_line(raw):
    assert "\n" not in read_or_refuse(raw)[1]


@given(cut=st.integers(0, 300), place=st.integers(0, 300), value=st.integers(0, 255))
@settings(max_examples=100)
def test_damaged_pickles_never_do_anything_else(cut, place, value):
    raw = bytearray(pickle.dumps({b"data": np.arange(60, dtype=np.uint8), b"labels": [1, 2]}, 2))
    raw[place % len(raw)] = value
    result, refused = read_or_refuse(bytes(raw[: len(raw) - cut % 40]))
    assert "\n" not in refused
    assert result is None or isinstance(result, (dict, list, int, float, str, bytes, np.ndarray))
