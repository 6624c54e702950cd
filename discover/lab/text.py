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


def shortened(line: str, most: int = 1000) -> str:
    """The same line without its middle, where it is long: a list of all columns, say, of which there are too many.

    >>> shortened("the columns are a, b, c, d", 20)
    'the col … a, b, c, d'
    """
    tail = (most - 3) // 2 + 2
    return line if len(line) <= most else f"{line[: most - 3 - tail]} … {line[-tail:]}"


def _escaped(one: str) -> str:
    return one.encode("unicode_escape").decode("ascii")
