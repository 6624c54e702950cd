"""Archives that mean harm, are cut off or are simply wrong: refused, in one line."""

import os
import struct
import tarfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from discover.lab.data import ArchiveError
from discover.lab.data.sources.archives import check_member_name, read_tar
from tests.lab.data import files
from tests.lab.data.files import refusal


def special(name, kind, target=""):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


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


def test_all_files_together_have_a_limit(tmp_path):
    path = files.write_tar(tmp_path / "x.tar.gz", {f"{k}": bytes(1000) for k in range(5)})
    assert len(list(read_tar(path, 5 * 1512))) == 5
    assert "more than the limit of 7559 bytes" in refusal(lambda: list(read_tar(path, 5 * 1512 - 1)))


def test_a_claimed_size_is_refused_before_it_is_read(tmp_path):
    info = tarfile.TarInfo("huge.bin")
    info.size = 1 << 50
    path = tmp_path / "x.tar"
    path.write_bytes(info.tobuf(tarfile.GNU_FORMAT) + bytes(1024))
    assert f"'huge.bin' of {1 << 50} bytes, more than the limit" in refusal(lambda: list(read_tar(path)))


@pytest.mark.parametrize("ending", [".tar", ".tar.gz", ".tar.xz"])
@settings(max_examples=20)
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


def test_a_tar_bomb_stops_at_the_limit(tmp_path, monkeypatch):
    path = files.write_tar(tmp_path / "bomb.tar.xz", {"zeros.bin": bytes(5_000_000)})
    assert path.stat().st_size < 5000
    monkeypatch.setenv("DISCOVER_MAX_BYTES", "1e6")
    assert "more than the limit" in refusal(lambda: list(read_tar(path)))


def test_headers_with_strange_sizes_are_refused(tmp_path):
    info = tarfile.TarInfo("x")
    raw = bytearray(info.tobuf())
    raw[124:136] = struct.pack(">BxxxQ", 0xFF, 2**64 - 5)  # a negative size in base 256
    checksum = sum(raw[:148]) + sum(b" " * 8) + sum(raw[156:512])
    raw[148:156] = f"{checksum:06o}\0 ".encode()
    path = tmp_path / "x.tar"
    path.write_bytes(bytes(raw) + bytes(1024))
    refusal(lambda: list(read_tar(path)))
