"""More files that were made to do harm: pictures, and folders of them."""

import os
import struct

import numpy as np
from PIL import Image

from tests.lab.hostile.crafted import LARGE, crafted, pictures


@crafted("is a pipe")
def a_pipe_among_the_pictures(folder):
    pictures(folder)
    os.mkfifo(folder / "train/ant/9999.png")
    return "folder", folder


@crafted("is a device")
def a_link_to_an_endless_device(folder):
    pictures(folder)
    (folder / "train/ant/9999.png").symlink_to("/dev/zero")
    return "folder", folder


@crafted("more than the limit")
def a_picture_that_is_all_holes(folder):
    pictures(folder)
    (folder / "train/ant/9999.png").touch()
    os.truncate(folder / "train/ant/9999.png", 1 << 40)
    return "folder", folder


@crafted("one of more than 100 links to")
def folders_of_links_of_which_each_doubles_what_there_is(folder):
    pictures(folder)
    for level in range(40):
        (folder / f"links/{level}").mkdir(parents=True)
        for name in "ab":
            (folder / f"links/{level}/{name}").symlink_to(f"../{level - 1}" if level else "../../train/ant")
    (folder / "train/ant/more").symlink_to("../../links/39")
    return "folder", folder / "train"


@crafted("take more than")
def one_picture_with_a_thousand_names(folder):
    (folder / "train/ant").mkdir(parents=True)
    pixels = np.random.default_rng(0).integers(0, 255, (1000, 1000, 3), np.uint8)
    Image.fromarray(pixels).save(folder / "train/ant/0.png")
    for number in range(1, 1000):
        os.link(folder / "train/ant/0.png", folder / f"train/ant/{number}.png")
    return "folder", folder


def scans(count, side):
    """A gray JPEG that goes over all of its pixels `count` times, and says nothing about them."""
    start = b"\xff\xd8\xff\xdb\0\x43\0" + b"\1" * 64
    start += b"\xff\xc2" + struct.pack(">HBHHB", 11, 8, side, side, 1) + b"\1\x11\0"
    for kind in (b"\0", b"\x10"):
        start += b"\xff\xc4\0\x14" + kind + b"\1" + bytes(15) + b"\0"
    first, more = (b"\xff\xda\0\x08\1\1\0" + part for part in (b"\0\0\0", b"\1\x3f\0"))
    return start + first + more * (count - 1) + b"\xff\xd9"


@crafted("more than 100 a byte")
def a_picture_that_is_gone_over_thousands_of_times(folder):
    (folder / "train/ant").mkdir(parents=True)
    (folder / "train/ant/0.jpg").write_bytes(scans(20_000, 9000))
    return "folder", folder


@crafted("take more than", LARGE)
def huge_pictures_of_one_color(folder):
    (folder / "train/ant").mkdir(parents=True)
    Image.new("1", (9400, 9400)).save(folder / "train/ant/00.png")
    for k in range(1, 20):
        os.link(folder / "train/ant/00.png", folder / f"train/ant/{k:02d}.png")
    return "folder", folder


@crafted("differ in size")
def one_small_picture_and_then_huge_ones(folder):
    huge_pictures_of_one_color(folder)
    (folder / "train/ant/00.png").unlink()
    Image.new("1", (5, 5)).save(folder / "train/ant/00.png")
    return "folder", folder


@crafted(None)
def pictures_whose_names_are_not_utf_8(folder):
    pictures(folder)
    os.rename(folder / "train/ant/0000.png", os.fsencode(folder / "train/ant") + b"/\xff\xfe.png")
    os.rename(folder / "train/bee", os.fsencode(folder / "train") + b"/\xff")
    os.rename(folder / "test/bee", os.fsencode(folder / "test") + b"/\xff")
    return "folder", folder


@crafted(None)
def a_class_that_would_clear_the_screen(folder):
    pictures(folder)
    for part in ("train", "test"):
        (folder / part / "bee").rename(folder / part / "\x1b[2J\x9b\u202eb")
    return "folder", folder
