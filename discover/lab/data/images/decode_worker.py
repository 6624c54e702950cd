"""Decode images; on its own it is a worker process that does so for another process.

This file imports nothing of the package, so that a worker starts in a fraction of a second. A worker reads requests
from its standard input and writes answers to its standard output, each a JSON line followed by as many bytes as the
line says. It is run as a program of its own rather than through `multiprocessing`: forking a process that runs JAX can
deadlock, and spawning would run the user's main script again.
"""

from __future__ import annotations

import functools
import io
import json
import sys
from typing import IO

import numpy as np
from PIL import Image, ImageOps

FORMATS = ("AVIF", "BMP", "GIF", "JPEG", "JPEG2000", "PNG", "PPM", "TGA", "TIFF", "WEBP")
"""Pictures made of pixels. Pillow would also run programs (EPS) and read its many rarer formats, by content alone."""
MAX_PIXELS = 89_478_485  # where Pillow itself starts to warn: a small file can claim to be a huge image


class Unreadable(Exception):
    """An image cannot be read; the message says why."""


@functools.cache
def readable() -> tuple[str, ...]:
    """Those of :data:`FORMATS` that this Pillow can read."""
    Image.init()
    return tuple(name for name in FORMATS if name in Image.OPEN)


def decode(contents: bytes, size: int | None, channels: int) -> np.ndarray:
    """An image file's pixels, uint8 [H, W, C].

    Args:
        contents: the file.
        size: cut the largest central square and resize it to this side; None to keep the image's own size.
        channels: 3 for color, 1 for gray.

    Raises:
        Unreadable: in one line.
    """
    try:
        with Image.open(io.BytesIO(contents), formats=readable()) as image:
            if image.width * image.height > MAX_PIXELS:
                raise Unreadable(f"it claims {image.width}×{image.height} pixels, more than {MAX_PIXELS}")
            if size is not None:
                image.draft(None, (size, size))  # JPEG: decode at the nearest power-of-two fraction, never below
            picture = ImageOps.exif_transpose(image).convert("RGB" if channels == 3 else "L")
            if size is not None:
                picture = ImageOps.fit(picture, (size, size), Image.Resampling.BILINEAR)
            pixels = np.asarray(picture, dtype=np.uint8)
            return pixels if channels == 3 else pixels[..., None]
    except Unreadable:
        raise
    except Exception as error:  # Pillow's decoders raise many kinds of error on damaged files
        reason = (str(error).splitlines() or [""])[0] or type(error).__name__
        known = ", ".join(readable())
        reason = f"it is none of {known}" if "cannot identify image file" in reason else reason
        raise Unreadable(reason[:160]) from error


def send(file: IO[bytes], head: dict, *payload: bytes) -> None:
    """Write one message."""
    file.write(json.dumps(head | {"bytes": [len(part) for part in payload]}).encode() + b"\n")
    for part in payload:
        file.write(part)
    file.flush()


def receive(file: IO[bytes]) -> tuple[dict, list[bytes]] | None:
    """Read one message; None at the end."""
    line = file.readline()
    if not line:
        return None
    head = json.loads(line)
    return head, [file.read(length) for length in head["bytes"]]


def main() -> None:
    """Answer requests until there are no more."""
    requests, answers = sys.stdin.buffer, sys.stdout.buffer
    while (message := receive(requests)) is not None:
        head, files = message
        shapes: list[list[int] | str] = []
        pixels: list[bytes] = []
        for contents in files:
            try:
                image = decode(contents, head["size"], head["channels"])
                shapes.append(list(image.shape))
                pixels.append(image.tobytes())
            except Unreadable as error:
                shapes.append(str(error))
                pixels.append(b"")
        send(answers, {"shapes": shapes}, *pixels)


if __name__ == "__main__":
    main()
