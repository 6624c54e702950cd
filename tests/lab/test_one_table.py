"""An optimizer, a clustering, a model or a source is one entry in its table: no other code decides by its name."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from pathlib import Path

import pytest

import discover.lab
from discover.lab.data import CLUSTERINGS, SOURCES
from discover.lab.models import MODELS
from discover.registry import OPTIMIZERS

LAB = Path(discover.lab.__file__).parent
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
METHODS = ("startswith", "endswith", "removeprefix", "removesuffix")

OTHER_MEANINGS = {
    "none": "no mixing, no scaling, nothing",
    "random": "a composition of batches",
    "column": "an argument of a clustering",
    "digits": "a scale of the results",
}
"""Names that are words for other things too: they count where what they are compared with is called as below."""
SUBJECTS = ("by", "clustering", "clusters", "kind", "source")

EXCEPTIONS = {("cli/diagnose.py", "classes"): "a row of a ranking, which has names of its own: `true classes`"}


def names_decided_by(tree: ast.AST, names: Iterable[str]) -> list[tuple[int, str]]:
    """Lines where one of the names is compared with, matched or looked for."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            parts = [node.left, *node.comparators]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in METHODS:
            parts = [node.func.value, *node.args]
        elif isinstance(node, ast.MatchValue):
            parts = [node.value]
        else:
            continue
        listed = [one for part in parts for one in getattr(part, "elts", [part])]
        literals = [one.value for one in listed if isinstance(one, ast.Constant) and isinstance(one.value, str)]
        subjects = {getattr(one, "attr", getattr(one, "id", None)) for one in listed}
        found += [
            (node.lineno, text)
            for text in literals
            if text in names and (text not in OTHER_MEANINGS or subjects & {*SUBJECTS})
        ]
    return found


@pytest.mark.parametrize(
    ("names", "folders"),
    [
        ({*OPTIMIZERS, "paper_", "discover_"}, (LAB, BENCHMARKS)),
        ({*CLUSTERINGS}, (LAB,)),
        ({*MODELS}, (LAB,)),
        ({*SOURCES}, (LAB,)),
    ],
    ids=("optimizers", "clusterings", "models", "sources"),
)
def test_nothing_is_told_by_its_name(names, folders):
    found = [
        (path.relative_to(folder).as_posix(), line, name)
        for folder in folders
        for path in folder.rglob("*.py")
        for line, name in names_decided_by(ast.parse(path.read_text()), names)
    ]
    assert not [one for one in found if (one[0], one[2]) not in EXCEPTIONS]


@pytest.mark.parametrize(
    "code",
    [
        'name == "adam"',
        '"discover" in name',
        'name.startswith("adam")',
        'name in ("adam", other)',
        'config.clusters.by == "random"',
        'by in ("none", other)',
    ],
)
def test_such_code_would_be_found(code):
    assert names_decided_by(ast.parse(code), {"adam", "discover", "random", "none"})


def test_the_same_word_for_another_thing_is_not():
    assert not names_decided_by(ast.parse('batches.composition == "random"'), {"random"})
