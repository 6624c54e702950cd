"""Every Python block of the README and of the docs runs; every public name is documented; the site builds."""

import importlib.util
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


@pytest.fixture(scope="module")
def hook():
    """What the build of the site runs first."""
    pytest.importorskip("griffe")
    pytest.importorskip("mkdocs")
    spec = importlib.util.spec_from_file_location("public_names", ROOT / "docs" / "hooks" / "public_names.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_public_name_has_a_docstring(hook):
    assert hook.undocumented() == []


def test_the_build_stops_at_a_public_name_without_a_docstring(hook, tmp_path, monkeypatch):
    (tmp_path / "docs" / "api").mkdir(parents=True)
    (tmp_path / "docs" / "api" / "all.md").write_text("::: discover.open\n")
    (tmp_path / "discover").mkdir()
    (tmp_path / "discover" / "__init__.py").write_text('"""A package."""\n')
    listed = '__all__ = ["SAID", "UNSAID", "Kind"]\nSAID = 1\n"""One."""\nUNSAID = HIDDEN = 2\n'
    kind = 'class Kind:\n    """A kind."""\n    def told(self):\n        """It is."""\n    def untold(self): ...\n'
    (tmp_path / "discover" / "closed.py").write_text(listed + kind)
    (tmp_path / "discover" / "open.py").write_text("from discover.closed import UNSAID\n\ndef found(): ...\n")
    monkeypatch.setattr(hook, "ROOT", tmp_path)
    assert hook.undocumented() == ["discover.closed.Kind.untold", "discover.closed.UNSAID", "discover.open.found"]
    with pytest.raises(hook.PluginError, match=r"without a docstring: discover\.closed\.Kind\.untold, "):
        hook.on_pre_build(config=None)


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
        assert f'id="discover.{name}"' in optim, name
