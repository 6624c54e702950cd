"""Reading archives that nobody vouches for.

A tar is never unpacked: its files are read into memory one after the other, and only ordinary files with plain relative
names below the limits get that far. A pickle is never executed: the only things that it can build are lists, dicts,
tuples, strings, numbers and arrays of numbers.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import pickle
import tarfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from discover.lab.data.errors import ArchiveError

TAR_SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.xz", ".txz", ".tar.bz2")
_DAMAGE = (tarfile.TarError, EOFError, lzma.LZMAError, zlib.error, OSError, ValueError, OverflowError)


@dataclass(frozen=True)
class Limits:
    """How much an archive may unpack to.

    Attributes:
        file_bytes: the most bytes of one file.
        total_bytes: the most bytes of all files together.
        files: the most files.
    """

    file_bytes: int = 1 << 30
    total_bytes: int = 512 << 30
    files: int = 50_000_000


def is_tar(path: str | os.PathLike[str]) -> bool:
    """Whether a name is that of a tar file, by its ending."""
    return Path(path).name.lower().endswith(TAR_SUFFIXES)


def check_member_name(name: str, archive: str | os.PathLike[str]) -> str:
    """A member's name as a plain relative path ("a/b.jpg"), or an error if it points outside of the archive."""
    path = PurePosixPath(name)
    windows = "\\" in name or (len(name) > 1 and name[1] == ":")
    if path.is_absolute() or ".." in path.parts or windows or "\0" in name:
        raise ArchiveError(f"{archive} holds {name!r}, a path that points outside of the archive")
    return str(path)


def _unpacked(path: str | os.PathLike[str]) -> IO[bytes]:
    """The file, through the decompressor that its first bytes ask for."""
    with open(path, "rb") as file:
        magic = file.read(6)
    for start, opener in ((b"\x1f\x8b", gzip.open), (b"\xfd7zXZ\0", lzma.open), (b"BZh", bz2.open)):
        if magic.startswith(start):
            return opener(path, "rb")  # pyright: ignore[reportReturnType]
    return open(path, "rb")


def read_tar(path: str | os.PathLike[str], limits: Limits | None = None) -> Iterator[tuple[str, bytes]]:
    """The files of a tar (plain or compressed), one after the other: (name, contents).

    Raises:
        ArchiveError: in one line, if the archive is damaged or cut off, holds a link, a device or a path that points
            outside, or exceeds the limits.
    """
    limits = limits or Limits()
    total = count = 0
    try:
        with _unpacked(path) as stream, tarfile.open(fileobj=stream, mode="r|") as archive:
            for member in archive:
                if member.isdir():
                    check_member_name(member.name, path)
                    continue
                if not member.isreg() or member.issparse():
                    what = "link" if member.issym() or member.islnk() else "special file"
                    raise ArchiveError(f"{path} holds {member.name!r}, a {what}; only ordinary files are read")
                name = check_member_name(member.name, path)
                count, total = count + 1, total + member.size
                if member.size > limits.file_bytes:
                    what = f"{name!r} of {member.size} bytes"
                    raise ArchiveError(f"{path} holds {what}, more than the limit of {limits.file_bytes}")
                if total > limits.total_bytes or count > limits.files:
                    most = f"{limits.total_bytes} bytes or {limits.files} files"
                    raise ArchiveError(f"{path} unpacks to more than the limit of {most}")
                file = archive.extractfile(member)
                contents = file.read() if file is not None else b""
                if len(contents) != member.size:
                    raise ArchiveError(f"{path} is cut off or damaged: {name!r} is incomplete")
                yield name, contents
            # tarfile takes a missing end for an end, and leaves the checksum that follows it unread.
            end = archive.offset + tarfile.BLOCKSIZE
            while stream.read(1 << 20):
                pass
            if stream.tell() < end:
                raise ArchiveError(f"{path} is cut off or damaged: its end is missing")
    except ArchiveError:
        raise
    except FileNotFoundError as error:
        raise ArchiveError(f"there is no file {path}") from error
    except _DAMAGE as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ArchiveError(f"{path} is cut off or damaged: {reason}") from error
    if count == 0:
        raise ArchiveError(f"{path} holds no files")


# -- pickles ----------------------------------------------------------------------------------------------------------


_NUMBERS = ("b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f4", "f8")
_ORDERS = ("<", ">", "|", "=")


class _Type:
    """Stands in for numpy.dtype: it remembers what it was told, and is looked at only by `_Array`."""

    def __init__(self, code: Any, *_: Any):
        self.code, self.order = code, "|"

    def __setstate__(self, state: Any) -> None:
        self.order = state[1]

    def resolve(self) -> np.dtype:
        code = self.code.decode() if isinstance(self.code, bytes) else self.code
        order = self.order.decode() if isinstance(self.order, bytes) else self.order
        if code not in _NUMBERS or order not in _ORDERS:
            raise pickle.UnpicklingError(f"an array of {code!r:.20}, which is not a number")
        return np.dtype(("=" if order == "|" else order) + code)


class _Array:
    """Stands in for numpy.ndarray: its state is checked, and becomes an array of numbers."""

    def __init__(self, *_: Any):
        self.array = np.zeros(0)

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, fortran, raw = state
        if not isinstance(dtype, _Type) or not isinstance(raw, (bytes, str)):
            raise pickle.UnpicklingError("an array whose contents are not numbers")
        # Python 3 reads the byte strings of Python 2 as bytes, but one written by Python 3 in an old protocol is a str.
        data = raw.encode("latin1") if isinstance(raw, str) else raw
        self.array = np.frombuffer(data, dtype.resolve()).reshape(shape, order="F" if fortran else "C")


def _encode(text: str, encoding: str = "latin1") -> bytes:
    """What protocol 2 calls for every bytes object; only in its one ordinary form."""
    if not isinstance(text, str) or encoding != "latin1":
        raise pickle.UnpicklingError(f"an encoding {encoding!r:.20}")
    return text.encode("latin1")


def _frombuffer(raw: Any, dtype: Any, shape: Any, order: Any) -> _Array:
    """What protocol 5 calls for an array."""
    if not isinstance(raw, (bytes, bytearray)):  # bytes(10**10) would be ten billion zeros
        raise pickle.UnpicklingError("an array whose contents are not numbers")
    array = _Array()
    array.__setstate__((1, shape, dtype, order == "F", bytes(raw)))
    return array


class _Function:
    """A function that a pickle can call, and do nothing else with: a plain one would let it set its attributes."""

    __slots__ = ("_call",)

    def __init__(self, call: Callable[..., Any]):
        self._call = call

    def __call__(self, *arguments: Any) -> Any:
        return self._call(*arguments)

    def __setstate__(self, state: Any) -> None:
        raise pickle.UnpicklingError("it sets the state of a function")


_ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Type,
    ("_codecs", "encode"): _Function(_encode),
} | {
    (f"numpy.{core}.{module}", name): stand_in
    for core in ("core", "_core")
    for module, name, stand_in in (
        ("multiarray", "_reconstruct", _Array),
        ("numeric", "_frombuffer", _Function(_frombuffer)),
    )
}


class _Unpickler(pickle.Unpickler):
    """Builds nothing but arrays of numbers, lists, dicts, tuples, strings and numbers."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}".replace("\n", " ")[:120])
        return _ALLOWED[module, name]

    def persistent_load(self, pid: Any) -> Any:
        raise pickle.UnpicklingError("it refers to something outside of itself")


def safe_unpickle(contents: bytes, name: str | os.PathLike[str]) -> Any:
    """What a pickle holds, if it holds only data.

    Dictionary keys that are bytes (Python 2's strings) come out as str, at every level.

    Args:
        contents: the pickle.
        name: of the file, for the error.

    Raises:
        ArchiveError: in one line, if it asks for anything else, or is damaged.
    """
    try:
        # Every value takes a byte at least, unless a pickle refers to the same lists over and over to become huge.
        return _plain(_Unpickler(io.BytesIO(contents), encoding="bytes").load(), iter(range(len(contents))))
    except Exception as error:  # a hostile pickle can raise anything
        reason = (str(error).splitlines() or [type(error).__name__])[0][:160]
        raise ArchiveError(f"{name} is not a pickle of plain data: {reason or type(error).__name__}") from error


def _plain(value: Any, budget: Iterator[int], depth: int = 0) -> Any:
    """Stand-ins resolved to arrays, keys to strings; anything but plain data, at any depth, is refused."""
    if depth > 8:
        raise pickle.UnpicklingError("it is nested too deeply")
    if next(budget, None) is None:
        raise pickle.UnpicklingError("it refers to the same values too often")
    if isinstance(value, _Array):
        return value.array
    if isinstance(value, dict):
        return {_text(_plain_key(key)): _plain(item, budget, depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_plain(item, budget, depth + 1) for item in value)
    if value is None or isinstance(value, (bool, int, float, str, bytes)):
        return value
    raise pickle.UnpicklingError(f"it holds a {_kind(value)}")


def _plain_key(key: Any) -> Any:
    if key is None or isinstance(key, (bool, int, float, str, bytes)):
        return key
    raise pickle.UnpicklingError(f"it has a {_kind(key)} for a key")


def _kind(value: Any) -> str:
    kind = value if isinstance(value, type) else type(value)
    return {_Type: "type of numbers", _Array: "kind of array", _Function: "function"}.get(kind, kind.__name__)


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def text_lines(contents: bytes | list[Any]) -> tuple[str, ...]:
    """The non-empty lines of a text file, or the entries of an unpickled list of names, as strings."""
    lines = contents.decode("utf-8", "replace").splitlines() if isinstance(contents, bytes) else map(_text, contents)
    return tuple(line.strip() for line in lines if line.strip())


def byte_records(contents: bytes, record: int, name: str) -> NDArray[np.uint8]:
    """A file of fixed-size records as uint8 [n, record].

    Raises:
        ArchiveError: if the size is no whole number of records.
    """
    if len(contents) == 0 or len(contents) % record:
        size = f"{len(contents)} bytes is no whole number of {record}-byte records"
        raise ArchiveError(f"{name} is cut off or damaged: {size}")
    return np.frombuffer(contents, dtype=np.uint8).reshape(-1, record)
