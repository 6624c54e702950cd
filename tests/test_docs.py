"""Every Python block of the README and of the docs runs; every public name is documented; the site builds."""

import ast
import importlib
import importlib.util
import inspect
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import discover

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
WITH_CODE = [page for page in PAGES if BLOCK.search(page.read_text())]


@pytest.mark.parametrize("page", WITH_CODE, ids=lambda page: page.name)
def test_the_code_blocks_of_a_page_run_from_top_to_bottom(page, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)  # what a block writes stays out of the repository
    text = page.read_text()
    names = {"__name__": "__main__"}
    for block in BLOCK.finditer(text):
        # Padded, so that a traceback points at the line of the page.
        code = "\n" * text[: block.start(1)].count("\n") + block[1]
        exec(compile(code, str(page), "exec"), names)


def test_the_pages_that_teach_have_code():
    names = {page.name for page in WITH_CODE}
    assert {"README.md", "quickstart.md", "models.md", "data.md", "igt.md", "checkpointing.md", "family.md"} <= names


def public_names():
    """(module, name) for every name in the `__all__` of a module of the package."""
    for info in pkgutil.walk_packages(discover.__path__, "discover."):
        if info.name.endswith("__main__"):
            continue
        path = ROOT / (info.name.replace(".", "/") + ("/__init__.py" if info.ispkg else ".py"))
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.Assign) and any(
                isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets
            ):
                yield from ((info.name, name) for name in ast.literal_eval(node.value))


def documented(module, name):
    value = getattr(importlib.import_module(module), name)
    if inspect.isclass(value):
        # A docstring of its own; that of a NamedTuple or dataclass without one is made up by Python.
        text = value.__dict__.get("__doc__")
        return bool(text) and not text.startswith(f"{name}(")
    return bool(value.__doc__) or not inspect.isroutine(value)  # constants have no docstrings


def test_every_public_name_has_a_docstring():
    names = sorted(set(public_names()) | {("discover", name) for name in discover.__all__})
    assert len(names) > 100
    missing = [f"{module}.{name}" for module, name in names if not documented(module, name)]
    assert missing == []


def test_the_reference_pages_name_modules_that_exist():
    for page in (ROOT / "docs" / "api").glob("*.md"):
        modules = re.findall(r"^::: (\S+)$", page.read_text(), re.MULTILINE)
        assert modules, page
        for module in modules:
            assert importlib.util.find_spec(module) is not None, f"{page.name}: {module}"


def test_links_from_the_readme_lead_somewhere():
    links = re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", (ROOT / "README.md").read_text())
    assert links
    for link in links:
        assert link.startswith("https://") or (ROOT / link).exists(), link


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    family = (tmp_path / "family" / "index.html").read_text()
    assert "<math" in family
    assert "arithmatex" not in family  # no formula is left as TeX
    optim = (tmp_path / "api" / "optim" / "index.html").read_text()
    for name in discover.__all__:
        assert f'id="discover.optim.{name}"' in optim, name
