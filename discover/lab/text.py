"""Text that came from elsewhere, as it may be shown: names of files, members, keys, and messages about them."""

from __future__ import annotations

import unicodedata


def printable(text: str) -> str:
    r"""The same text with every character escaped that a terminal would obey, or could not show.

    >>> print(printable("cat\x1b[2J\udcff"))
    cat\x1b[2J\udcff
    """
    if text.isprintable():
        return text
    shown = (one if one.isprintable() or unicodedata.category(one) == "Zs" else _escaped(one) for one in text)
    return "".join(shown)


def _escaped(one: str) -> str:
    return one.encode("unicode_escape").decode("ascii")
