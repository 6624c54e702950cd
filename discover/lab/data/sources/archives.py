"""Reading archives that nobody vouches for.

A tar is never unpacked: its files are read into memory one after the other, and only ordinary files with plain relative
names below the limits get that far.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import tarfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

from discover.lab.data.errors import ArchiveError, one_line

TAR_SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.xz", ".txz", ".tar.bz2")
_DAMAGE = (tarfile.TarError, EOFError, lzma.LZMAError, zlib.error, OSError, ValueError, OverflowError)


@dataclass(frozen=True)
class Limits:
    """How much an archive may unpack to."""

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
        raise ArchiveError(f"{path} is cut off or damaged: {one_line(error)}") from error
    if count == 0:
        raise ArchiveError(f"{path} holds no files")
