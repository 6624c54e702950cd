"""Stops the build at a public name without a docstring: the reference would leave it out without a word."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import griffe
from mkdocs.exceptions import PluginError

ROOT = Path(__file__).parent.parent.parent
DIRECTIVE = re.compile(r"^::: (\S+)$", re.MULTILINE)


def on_pre_build(**_: Any) -> None:
    """Called by mkdocs before anything is built."""
    missing = undocumented()
    if missing:
        raise PluginError(f"public names without a docstring: {', '.join(missing)}")


def undocumented() -> list[str]:
    """The public names of the package that have no docstring.

    Public are the names that the reference lists. Of a module that it lists: the names in its `__all__`, or else what
    it defines itself under a name without an underscore. And the methods of public classes.
    """
    package = griffe.load("discover", search_paths=[str(ROOT)], try_relative_path=False)
    pages = "".join(page.read_text() for page in (ROOT / "docs" / "api").rglob("*.md"))
    listed = [_home(package[path.removeprefix("discover.")]) for path in DIRECTIVE.findall(pages)]
    names = {found.path: found for one in listed for found in (_public(one) if one.is_module else [one])}
    for found in list(names.values()):
        if found.is_class:
            names |= {m.path: m for m in found.members.values() if m.is_function and not m.name.startswith("_")}
    return sorted(path for path, found in names.items() if found.docstring is None)


def _public(module: Any) -> Iterator[Any]:
    """What the module gives to others, where it is defined."""
    if module.exports is None:
        yield from (m for m in module.members.values() if not (m.is_alias or m.is_module or m.name.startswith("_")))
        return
    for name in map(str, module.exports):
        found = _home(module[name])
        if not found.is_module:
            yield found


def _home(found: Any) -> Any:
    """An object where it is defined."""
    return found.final_target if found.is_alias else found
