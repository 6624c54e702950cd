"""Numbers of the pages come from the records; this puts them there.

A number is followed by a note that says where it is from, and a table stands between two notes. Notes are comments:
nobody sees them in a rendered page, and the Markdown can be read as it is.

    Discover reaches 64.0 ± 0.4<!-- accuracy(results-a-clean, discover) --> %

    <!-- rows(results-a-clean) -->
    | optimizer | learning rate | …
    <!-- end -->

    python docs/hooks/fill_in.py         # writes what the records say into README.md and the pages

The site is filled in anew whenever it is built, and a test fails where a page differs from its records. What a note may
say is in `values.py` and `tables.py`.
"""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from records import NoRecord
from tables import TABLES
from values import NUMBERS

ROOT = Path(__file__).parent.parent.parent
CALL = r"<!-- (?P<call>\w+\([^()]*\)) -->"
NUMBER = re.compile(rf"\d[\d.,]*(?: ± [\d.]+)?(?:e-?\d+)?(?P<after>\**)(?P<note>{CALL})")
TABLE = re.compile(rf"(?P<note>{CALL}\n\n)(?:\|.*\n)+(?P<end>\n<!-- end -->)")
NOTE = re.compile(r"<!-- (?:\w+\([^()]*\)|end) -->")


def fill(text: str) -> str:
    """The text with what the records say in the place of what it says."""
    text = TABLE.sub(lambda found: found["note"] + _value(found["call"], TABLES) + "\n" + found["end"], text)
    return NUMBER.sub(lambda found: _value(found["call"], NUMBERS) + found["after"] + found["note"], text)


def loose_notes(text: str) -> list[str]:
    """Notes that stand behind no number and around no table, so that nothing would be filled in."""
    bound = {found.start("note") for pattern in (NUMBER, TABLE) for found in pattern.finditer(text)}
    bound |= {found.start("end") + 1 for found in TABLE.finditer(text)}
    return [found[0] for found in NOTE.finditer(text) if found.start() not in bound]


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Called by mkdocs for each page: filled in, and without the notes."""
    from mkdocs.exceptions import PluginError

    try:
        return NOTE.sub("", fill(markdown))
    except NoRecord as error:
        raise PluginError(str(error)) from None


def pages() -> Iterator[Path]:
    yield ROOT / "README.md"
    yield from sorted((ROOT / "docs").rglob("*.md"))


def _value(call: str, functions: dict[str, Callable[..., str]]) -> str:
    name, _, arguments = call.rstrip(")").partition("(")
    try:
        return functions[name](*arguments.split(", "))
    except (KeyError, TypeError, ValueError, NoRecord) as error:
        raise NoRecord(f"{call}: {error if isinstance(error, NoRecord) else repr(error)}") from None


def main() -> None:
    for page in pages():
        name, text = page.relative_to(ROOT), page.read_text()
        try:
            filled = fill(text)
        except NoRecord as error:
            raise SystemExit(f"{name}: {error}") from None
        if loose_notes(filled):
            raise SystemExit(f"{name}: {loose_notes(filled)[0]} stands behind no number and around no table")
        if filled != text:
            page.write_text(filled)
            print(f"filled in: {name}")


if __name__ == "__main__":
    main()
