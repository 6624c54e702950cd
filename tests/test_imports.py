"""Imports point one way: the arrows between the parts of the package, read from the source of every module."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "discover"
ALLOWED = {
    "cli": {"experiments", "report", "records"},
    "experiments": {"training", "diagnostics", "optim", "data", "models", "records", "theory"},
    "training": {"optim", "data", "models", "records"},
    "diagnostics": {"optim", "data"},
    "report": {"records"},
    "optim": set(),
    "data": set(),
    "models": set(),
    "records": set(),
    "theory": set(),
}
"""part -> the parts that it may import; `discover` itself (the version, the lazy names) is open to all."""
EXTRAS = {"grain", "optuna", "altair", "vl_convert", "tensorboardX"}
CORE = {"jax", "optax", "flax", "orbax", "numpy", "sklearn", "PIL", "typer", "rich", "matplotlib"}
COMES_ALONG = {"absl", "click", "jaxlib", "joblib", "scipy"}  # with optax, typer, jax and scikit-learn


def modules():
    return sorted(path for path in PACKAGE.rglob("*.py"))


def part_of(path):
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def imported(path):
    """(name, line, whether at the top level of the module) for each import in a file, `if TYPE_CHECKING:` left out."""
    tree = ast.parse(path.read_text())
    functions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
    inside = {node for outer in ast.walk(tree) if isinstance(outer, functions) for node in ast.walk(outer)}
    for_types = {
        node
        for test in ast.walk(tree)
        if isinstance(test, ast.If) and "TYPE_CHECKING" in ast.unparse(test.test)
        for node in ast.walk(test)
    }
    for node in ast.walk(tree):
        if node in for_types:
            continue
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno, node not in inside) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: a relative import hides which part is meant"
            if node.module == "discover":
                yield from ((f"discover.{alias.name}", node.lineno, node not in inside) for alias in node.names)
            elif node.module:
                yield node.module, node.lineno, node not in inside


def edges():
    """(importing part, imported part, where) for all imports between the parts of the package."""
    for path in modules():
        part = part_of(path)
        for name, line, _ in imported(path):
            pieces = name.split(".")
            if pieces[0] == "discover" and len(pieces) > 1 and pieces[1] in ALLOWED and pieces[1] != part:
                yield part, pieces[1], f"{path.relative_to(PACKAGE.parent)}:{line}"


def test_every_part_is_known():
    found = {part_of(path) for path in modules()} - {"__init__", "__main__"}
    assert found == set(ALLOWED)


def test_imports_follow_the_arrows():
    wrong = [
        f"{where}: {part} imports {other}"
        for part, other, where in edges()
        if part not in ("__init__", "__main__") and other not in ALLOWED[part]
    ]
    assert wrong == []


def test_the_reader_sees_the_edges_that_are_there():
    seen = {(part, other) for part, other, _ in edges()}
    assert {("cli", "experiments"), ("experiments", "training"), ("training", "optim"), ("report", "records")} <= seen


def test_optim_needs_nothing_but_jax_and_optax():
    for path in (PACKAGE / "optim").glob("*.py"):
        for name, line, _ in imported(path):
            top = name.split(".")[0]
            assert top in {"jax", "optax", "numpy", "discover"} or top in sys.stdlib_module_names, (
                f"{path}:{line}: {name}"
            )


def test_records_and_the_theory_of_bounds_need_no_jax():
    for path in (PACKAGE / "records.py", PACKAGE / "theory" / "bounds.py"):
        assert not any(name.split(".")[0] in {"jax", "flax", "optax"} for name, _, _ in imported(path)), path


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_only_declared_packages_are_imported_and_extras_only_where_they_are_used(path):
    for name, line, at_the_top in imported(path):
        top = name.split(".")[0]
        if top in EXTRAS:
            assert not at_the_top, f"{path}:{line}: {name} is an extra: import it inside the function that needs it"
        else:
            assert top in CORE | COMES_ALONG | {"discover"} or top in sys.stdlib_module_names, f"{path}:{line}: {name}"


def test_importing_discover_or_its_command_line_does_not_load_jax():
    code = "import sys, discover, discover.lab.cli; discover.lab.cli.build_app(); print('jax' in sys.modules)"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=PACKAGE.parent, check=True
    )
    assert result.stdout.strip() == "False"
