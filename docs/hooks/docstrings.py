"""Lets the reference show an `Example:` of a docstring as code: the parser knows the section as `Examples:` only."""

import re
from typing import Any

import griffe

HEADING = re.compile(r"^(\s*)Example:[ \t]*$", re.MULTILINE)


class Examples(griffe.Extension):
    """Renames the heading before docstrings are parsed."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = HEADING.sub(r"\1Examples:", obj.docstring.value)
