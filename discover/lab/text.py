"""Text that came from elsewhere, as it may be shown: names of files, members, keys, and messages about them."""

from __future__ import annotations

import unicodedata

_RAW = {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}
"""Unicode's control and format characters, halves of pairs (names that are not UTF-8), private ones, line ends."""


def printable(text: str) -> str:
    r"""The same text with every character escaped that a terminal would obey, or could not show.

    >>> print(printable("cat\x1b[2J\udcff"))
    cat\x1b[2J\udcff
    """
    if text.isprintable():
        return text
    return "".join(_escaped(one) if unicodedata.category(one) in _RAW else one for one in text)


def _escaped(one: str) -> str:
    return one.encode("unicode_escape").decode("ascii")
