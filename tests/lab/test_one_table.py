"""Adding an optimizer is one entry in its table: no other code decides anything by an optimizer's name."""

from __future__ import annotations

import ast
from pathlib import Path

import discover.lab
from discover.registry import OPTIMIZERS

LAB = Path(discover.lab.__file__).parent
METHODS = ("startswith", "endswith", "removeprefix", "removesuffix")


def names_decided_by(tree: ast.AST) -> list[tuple[int, str]]:
    """Lines where a name of the table, or a beginning that several have, is compared with, matched or looked for."""
    words = {*OPTIMIZERS, "paper_", "discover_"}
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            parts = [node.left, *node.comparators]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in METHODS:
            parts = list(node.args)
        elif isinstance(node, ast.MatchValue):
            parts = [node.value]
        else:
            continue
        listed = [one for part in parts for one in getattr(part, "elts", [part])]
        literals = [one.value for one in listed if isinstance(one, ast.Constant) and isinstance(one.value, str)]
        found += [(node.lineno, text) for text in literals if text in words]
    return found


def test_no_optimizer_is_told_by_its_name():
    found = {
        f"{path.relative_to(LAB)}:{line}": name
        for path in LAB.rglob("*.py")
        for line, name in names_decided_by(ast.parse(path.read_text()))
    }
    assert not found


def test_such_code_would_be_found():
    for code in ('name == "adam"', '"discover" in name', 'name.startswith("paper_")', 'name in ("sgd", other)'):
        assert names_decided_by(ast.parse(code)), code
