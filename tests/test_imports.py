"""The shape of the tree: imports point one way, folders and files stay small, and nothing is passed in secret."""

import ast
import functools
import subprocess
import sys
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "discover"
LIBRARY = {"jax", "optax", "numpy"}
LABORATORY = LIBRARY | {
    "absl", "click", "filelock", "flax", "jaxlib", "jinja2", "joblib", "markupsafe", "matplotlib", "orbax", "PIL",
    "rich", "scipy", "sklearn", "typer",
}  # fmt: skip
EXTRAS = {"optuna", "altair", "vl_convert", "tensorboardX", "pyarrow"}
ALLOWED = {
    "cli": {"experiments", "report", "records", "text"},
    "experiments": {"training", "diagnostics", "data", "models", "records", "text"},
    "training": {"data", "models", "records"},
    "diagnostics": {"data"},
    "report": {"records"},
    "data": {"text"},
    "models": set(),
    "records": set(),
    "text": set(),
}
"""A part of the laboratory -> the parts that it may import. All of them may import the library."""
MOST_FILES, MOST_LINES = 14, 370


def modules():
    return sorted(PACKAGE.rglob("*.py"))


def place(path):
    return str(path.relative_to(PACKAGE.parent))


def part_of(path):
    """The part of the laboratory that a file is in; None: it is in the library, or in no part."""
    pieces = path.relative_to(PACKAGE).with_suffix("").parts
    return pieces[1] if pieces[0] == "lab" and pieces[1] != "__init__" else None


def in_library(path):
    return path.relative_to(PACKAGE).parts[0] not in ("lab", "__main__.py", "torch")


def in_torch(path):
    return path.relative_to(PACKAGE).parts[0] == "torch"


@functools.cache
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
    found = []
    for node in ast.walk(tree):
        if node in for_types:
            continue
        if isinstance(node, ast.Import):
            found += [(alias.name, node.lineno, node not in inside) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{place(path)}:{node.lineno}: a relative import hides which part is meant"
            named = [alias.name for alias in node.names] if node.module in ("discover", "discover.lab") else [""]
            found += [(f"{node.module}.{name}".rstrip("."), node.lineno, node not in inside) for name in named]
    return found


def edges():
    """(importing part, imported part, where) for all imports between the parts of the laboratory."""
    for path in modules():
        for name, line, _ in imported(path):
            pieces = name.split(".")
            if pieces[:2] == ["discover", "lab"] and len(pieces) > 2 and pieces[2] != part_of(path):
                yield part_of(path), pieces[2], f"{place(path)}:{line}"


def test_every_part_of_the_laboratory_is_known():
    assert {part_of(path) for path in modules()} - {None} == set(ALLOWED)


def test_imports_follow_the_arrows():
    wrong = [
        f"{where}: {part or 'the library'} imports {other}"
        for part, other, where in edges()
        if other not in ALLOWED.get(part, {"cli"} if where.startswith("discover/__main__.py") else set())
    ]
    assert wrong == []


def test_the_reader_sees_the_edges_that_are_there():
    seen = {(part, other) for part, other, _ in edges()}
    assert {("cli", "experiments"), ("experiments", "training"), ("experiments", "data"), ("report", "records")} <= seen


def test_the_library_knows_nothing_of_its_laboratory_and_nothing_beyond_jax_optax_and_numpy():
    wrong = [
        f"{place(path)}:{line}: {name}"
        for path in modules()
        if in_library(path)
        for name, line, _ in imported(path)
        if name.startswith("discover.lab") or name.split(".")[0] not in LIBRARY | {"discover"} | sys.stdlib_module_names
    ]
    assert wrong == []


def test_the_laboratory_imports_what_its_extra_brings_and_the_others_only_where_they_are_used():
    wrong = [
        f"{place(path)}:{line}: {name}"
        for path in modules()
        if not in_library(path) and not in_torch(path)
        for name, line, at_the_top in imported(path)
        if (top := name.split(".")[0]) not in LABORATORY | {"discover"} | sys.stdlib_module_names
        and (top not in EXTRAS or at_the_top)
    ]
    assert wrong == []


def test_the_optimizers_for_pytorch_need_torch_alone():
    wrong = [
        f"{place(path)}:{line}: {name}"
        for path in modules()
        if in_torch(path)
        for name, line, _ in imported(path)
        if name.split(".")[0] not in {"torch"} | sys.stdlib_module_names
        and not name.startswith(("discover.torch", "discover.clusters", "discover.sample"))
    ]
    assert wrong == []


def test_measuring_never_draws_and_drawing_never_trains():
    drawing, training = {"matplotlib", "altair", "vl_convert"}, {"jax", "flax", "optax", "orbax"}
    forbidden = {"diagnostics": drawing, "training": drawing, "data": drawing, "report": training}
    wrong = [
        f"{place(path)}:{line}: {name}"
        for path in modules()
        for name, line, _ in imported(path)
        if name.split(".")[0] in forbidden.get(part_of(path), ())
    ]
    assert wrong == []


def test_records_and_the_tables_of_names_need_no_jax():
    for path in (PACKAGE / "lab" / "records.py", PACKAGE / "registry.py"):
        assert not any(name.split(".")[0] in {"jax", "flax", "optax"} for name, _, _ in imported(path)), path


def loaded(code):
    """Whether a program loads jax and torch."""
    code = f"import sys; {code}; print(*('jax' in sys.modules, 'torch' in sys.modules))"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=PACKAGE.parent, check=True
    )
    return tuple(word == "True" for word in result.stdout.split())


def test_importing_discover_or_its_command_line_or_listing_presets_loads_no_jax():
    code = "import discover, discover.lab.cli, discover.lab.experiments.presets.presets; discover.lab.cli.build_app()"
    assert loaded(code) == (False, False)


def test_the_optimizers_for_jax_load_no_torch():
    assert loaded("import discover; [getattr(discover, name) for name in dir(discover)]") == (True, False)


def test_a_folder_is_small_enough_to_be_read_at_a_glance():
    folders = {path.parent for path in (*modules(), *(PACKAGE.parent / "tests").rglob("*.py"))}
    sizes = {
        place(folder): sum(path.is_file() for path in folder.iterdir() if path.name != "py.typed") for folder in folders
    }
    assert {folder: size for folder, size in sizes.items() if size > MOST_FILES} == {}


def test_a_file_is_short_enough_to_be_read_at_once():
    lengths = {place(path): len(path.read_text().splitlines()) for path in modules()}
    assert {path: length for path, length in lengths.items() if length > MOST_LINES} == {}


def hidden_channels(path):
    """What passes something on that is in no signature, and what decides by the spelling of a name."""
    for node in ast.walk(ast.parse(path.read_text())):
        name = getattr(node, "attr", None) or getattr(node, "id", None) or getattr(node, "name", None)
        if name in ("ContextVar", "contextvars", "_getframe", "currentframe"):
            yield f"{place(path)}:{node.lineno}: {name}"
        if isinstance(node, ast.Compare) and isinstance(node.left, ast.Constant) and node.left.value == "discover":
            yield f"{place(path)}:{node.lineno}: {ast.unparse(node)}"


def test_nothing_is_passed_in_secret_and_no_name_is_searched_for_a_word():
    assert [found for path in modules() for found in hidden_channels(path)] == []
