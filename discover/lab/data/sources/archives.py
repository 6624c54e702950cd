"""Reading archives that nobody vouches for.

A tar is never unpacked: its files are read into memory one after the other, and only ordinary files with plain relative
names below the limits get that far.
"""

from __future__ import annotations

import bz2
import contextlib
import gzip
import lzma
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO, Any

from discover.lab.data.errors import ArchiveError, one_line
from discover.lab.data.limits import honest_size, most_bytes, most_to_read, raised_by

LONGEST_NAME = 4096
"""Bytes: no system has files of longer names, and arrays of names are as wide as the longest."""
A_MEMBER = 4096
"""Bytes that a member counts for, besides its contents: its header packs to nothing, and takes time."""
LONGEST_HEADER = 16 << 10
"""Bytes of what is said about a member before it; some hundred are usual."""
_SAYS_MORE = (tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)
_SAYS_MORE += (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE)
TAR_SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.xz", ".txz", ".tar.bz2")


class _Bounded:
    """A stream that ends with an error where it goes on for too long: also within headers, and after the last file."""

    def __init__(self, stream: IO[bytes], path: str | os.PathLike[str], most: int):
        self._stream, self._path, self._most = stream, path, most
        self.read_so_far = self._counted = 0

    def read(self, size: int = -1) -> bytes:
        found = self._stream.read(size)
        self.read_so_far += len(found)
        self.count(len(found))
        return found

    def count(self, size: int) -> None:
        """Raise if that many bytes more are too many."""
        self._counted += size
        if self._counted > self._most:
            most = f"{self._most} bytes, which its size on the disk warrants ({raised_by()})"
            raise ArchiveError(f"{self._path} unpacks to more than the limit of {most}")

    def count_header(self, size: int) -> None:
        """Raise if what is said about a member is too much: Python searches it in a time that grows with its square."""
        if size > LONGEST_HEADER:
            raise ArchiveError(f"{self._path} holds a header of {size} bytes, more than {LONGEST_HEADER}")
        self.count(size**2)


def _members_of(stream: _Bounded) -> type[tarfile.TarInfo]:
    class Member(tarfile.TarInfo):
        def _proc_member(self, archive: Any) -> Any:  # the method that is there to be overridden
            if self.type in _SAYS_MORE:
                stream.count_header(self.size)
            return super()._proc_member(archive)  # pyright: ignore[reportAttributeAccessIssue]

    return Member


def _opened(stream: _Bounded) -> tarfile.TarFile:
    return tarfile.open(fileobj=stream, mode="r|", tarinfo=_members_of(stream))  # pyright: ignore


def is_tar(path: str | os.PathLike[str]) -> bool:
    """Whether a name is that of a tar file, by its ending."""
    return Path(path).name.lower().endswith(TAR_SUFFIXES)


def check_member_name(name: str, archive: str | os.PathLike[str]) -> str:
    """A member's name as a plain relative path ("a/b.jpg"), or an error if it points outside of the archive."""
    if len(name) > LONGEST_NAME:
        raise ArchiveError(f"{archive} holds a name of {len(name)} letters ({name[:40]}…), more than {LONGEST_NAME}")
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


def read_tar(path: str | os.PathLike[str], most_in_all: int | None = None) -> Iterator[tuple[str, bytes]]:
    """The files of a tar (plain or compressed), one after the other: (name, contents).

    Args:
        path: the tar.
        most_in_all: the bytes that all of its files may take, with their headers, for who holds all in memory.

    Raises:
        ArchiveError: in one line, if the archive is damaged or cut off, holds a link, a device or a path that points
            outside, or exceeds the limits.
    """
    total = count = 0
    try:
        honest = honest_size(path)
        most_in_file = most_bytes(honest)
        with contextlib.ExitStack() as stack:
            stream = _Bounded(stack.enter_context(_unpacked(path)), path, most_to_read(honest))
            archive = stack.enter_context(_opened(stream))
            for member in archive:
                stream.count(A_MEMBER)
                if member.isdir():
                    check_member_name(member.name, path)
                    continue
                if not member.isreg() or member.issparse():
                    what = "link" if member.issym() or member.islnk() else "special file"
                    raise ArchiveError(f"{path} holds {member.name!r}, a {what}; only ordinary files are read")
                name = check_member_name(member.name, path)
                count, total = count + 1, total + tarfile.BLOCKSIZE + member.size
                if member.size > most_in_file:
                    what = f"{name!r} of {member.size} bytes"
                    limit = f"the limit of {most_in_file} ({raised_by()})"
                    raise ArchiveError(f"{path} holds {what}, more than {limit}")
                if most_in_all is not None and total > most_in_all:
                    raise ArchiveError(f"{path} unpacks to more than the limit of {most_in_all} bytes ({raised_by()})")
                file = archive.extractfile(member)
                contents = file.read() if file is not None else b""
                if len(contents) != member.size:
                    raise ArchiveError(f"{path} is cut off or damaged: {name!r} is incomplete")
                yield name, contents
            # tarfile takes a missing end for an end, and leaves the checksum that follows it unread.
            end = archive.offset + tarfile.BLOCKSIZE
            while stream.read(1 << 20):
                pass
            if stream.read_so_far < end:
                raise ArchiveError(f"{path} is cut off or damaged: its end is missing")
    except ArchiveError:
        raise
    except FileNotFoundError as error:
        raise ArchiveError(f"there is no file {path}") from error
    except Exception as error:  # damage shows as many kinds of error, a chain of headers as a recursion
        raise ArchiveError(f"{path} is cut off or damaged: {one_line(error)}") from error
    if count == 0:
        raise ArchiveError(f"{path} holds no files")
