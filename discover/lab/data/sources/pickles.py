"""CIFAR's pickles, read without being executed: they hold dicts, lists, strings, numbers and arrays of bytes.

Whatever else a pickle asks for is refused. What it asks NumPy for is only written down while it is read, by classes
that do nothing, and looked at afterwards.
"""

from __future__ import annotations

import io
import pickle
import pickletools
from collections.abc import Iterator
from typing import Any

import numpy as np

from discover.lab.data.errors import ArchiveError, one_line


class _Asked:
    """Something that a pickle asked for: only what it was told."""

    def __init__(self, *arguments: Any):
        self.arguments = arguments
        self.state: Any = ()

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def answer(self) -> Any:
        raise pickle.UnpicklingError(f"it holds {type(self).__name__.lstrip('_').lower()}s")


class _Dtype(_Asked):
    """numpy.dtype("u1")."""


class _Array(_Asked):
    """An array of bytes, whose state is (version, shape, type, whether in Fortran's order, contents)."""

    def answer(self) -> Any:
        _, shape, dtype, fortran, contents = self.state
        contents = contents.answer() if isinstance(contents, _Encoded) else contents
        if not isinstance(dtype, _Dtype) or dtype.arguments[0] not in ("u1", b"u1") or not isinstance(contents, bytes):
            raise pickle.UnpicklingError("it holds an array of something else than bytes")
        return np.frombuffer(contents, np.uint8).reshape(shape, order="F" if fortran else "C")


class _Encoded(_Asked):
    """How Python 3 writes bytes for Python 2: a text, and the encoding "latin1"."""

    def __init__(self, text: Any, encoding: Any):
        if not isinstance(text, str) or encoding not in ("latin1", b"latin1"):
            raise pickle.UnpicklingError(f"it asks for an encoding {encoding!r:.20}")
        super().__init__(text.encode("latin1"))  # now, and once, however often it is referred to

    def answer(self) -> Any:
        return self.arguments[0]


_ALLOWED = {
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Dtype,
    ("_codecs", "encode"): _Encoded,
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "_reconstruct"): _Array,
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}".replace("\n", " ")[:120])
        return _ALLOWED[module, name]

    def persistent_load(self, pid: Any) -> Any:
        raise pickle.UnpicklingError("it refers to something outside of itself")


def read_pickle(contents: bytes, name: str) -> Any:
    """What a pickle of protocol 0 to 4 holds, if it holds only data. Keys that are bytes come out as str.

    Raises:
        ArchiveError: in one line, if it asks for anything else, or is damaged.
    """
    try:
        _check_instructions(contents)
        # Every value takes a byte at least, unless a pickle refers to the same lists over and over to become huge.
        return _plain(_Unpickler(io.BytesIO(contents), encoding="bytes").load(), iter(range(len(contents))))
    except Exception as error:  # a hostile pickle can raise anything
        raise ArchiveError(f"{name} is not a pickle of plain data: {one_line(error)}") from error


def _check_instructions(contents: bytes) -> None:
    """Raise before a pickle is read that would cost more than its size: a table of memories as long as it says, or
    keys that were chosen to collide."""
    for instruction, argument, _ in pickletools.genops(contents):
        if isinstance(argument, int):
            if "PUT" in instruction.name and argument > len(contents):
                raise pickle.UnpicklingError(f"it wants to remember {argument} things")
            if abs(argument) >= 1 << 63:
                raise pickle.UnpicklingError("it holds a number of more than 64 bits")


def _plain(value: Any, budget: Iterator[int]) -> Any:
    """The same with everything that was asked for answered; anything but plain data, at any depth, is refused."""
    if next(budget, None) is None:
        raise pickle.UnpicklingError("it refers to the same values too often")
    if isinstance(value, _Asked):
        return value.answer()
    if isinstance(value, dict):
        return {as_text(_plain(key, budget)): _plain(item, budget) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item, budget) for item in value]
    if value is None or isinstance(value, (bool, int, float, str, bytes)):
        return value
    raise pickle.UnpicklingError(f"it holds a {value.__name__ if isinstance(value, type) else type(value).__name__}")


def as_text(value: Any) -> str:
    """A string, or the bytes that Python 2 wrote for one, as a string."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
