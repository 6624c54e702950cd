"""The code of the pages runs, their numbers are those of the records, public names are documented, the site builds."""

import importlib
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

import discover
from discover.lab.experiments.diagnose.advice import MEASURED, ON_TEXT

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
WITH_CODE = [page for page in PAGES if BLOCK.search(page.read_text())]


@pytest.mark.parametrize("page", WITH_CODE, ids=lambda page: page.name)
def test_the_code_blocks_of_a_page_run_from_top_to_bottom(page, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)  # what a block writes stays out of the repository
    text = page.read_text()
    if "import torch" in text:
        pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'discover-optim[torch]'")
    names = {"__name__": "__main__"}
    for block in BLOCK.finditer(text):
        # Padded, so that a traceback points at the line of the page.
        code = "\n" * text[: block.start(1)].count("\n") + block[1]
        exec(compile(code, str(page), "exec"), names)


def test_the_pages_that_teach_have_code():
    names = {page.name for page in WITH_CODE}
    assert {"README.md", "quickstart.md", "models.md", "data.md", "igt.md", "checkpointing.md", "family.md"} <= names


def load_hook(name):
    """A part of what the build of the site runs."""
    folder = str(ROOT / "docs" / "hooks")
    sys.path.insert(0, folder)
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(folder)


fill_in = load_hook("fill_in")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_numbers_of_a_page_are_those_of_the_records(page):
    text = page.read_text()
    assert fill_in.loose_notes(text) == []
    assert text == fill_in.fill(text), "run: python docs/hooks/fill_in.py"


@pytest.mark.parametrize("page", [page for page in PAGES if page.parent.name != "notes"], ids=lambda page: page.name)
def test_every_measured_mean_of_a_page_is_filled_in_from_a_record(page):
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)  # not what a command prints
    text = fill_in.NUMBER.sub("", fill_in.TABLE.sub("", text))
    assert re.findall(r".*\d ?%? ± \d.*", text) == []


@pytest.mark.parametrize(
    ("order", "record", "where"),
    [("random", "results-h-groups", "1 group"), ("turns", "results-h-turns-printed", "1 group in turn")],
)
def test_what_diagnose_says_was_measured_is_what_the_records_say(order, record, where):
    def percent(*labels, record=record):
        return round(100 * max(records.row(record, label)["test_accuracy"]["mean"] for label in labels))

    records = load_hook("records")
    with_momentum = "results-h-one-group-printed" if order == "random" else record
    assert {name: value for (name, at), value in MEASURED.items() if at == order} == {
        "momentum": percent(f"momentum-{where}", record=with_momentum),
        "muon": percent(f"muon-{where}", f"muon-fresh {where}"),
        "damped": percent(f"discover_muon-damped {where}"),
    }


def test_the_advice_on_text_is_that_of_its_record():
    find = load_hook("records").row
    losses = {name: find("results-h-text", name)["test_loss"]["mean"] for name in ON_TEXT}
    assert {name: round(loss, 2) for name, loss in losses.items()} == ON_TEXT


def test_every_figure_is_on_a_page():
    text = "".join(page.read_text() for page in PAGES)
    drawn = {path.name for path in (ROOT / "docs" / "figures").iterdir() if path.suffix in (".png", ".svg")}
    assert {name for name in drawn if f"figures/{name}" not in text} == set()


def test_a_number_that_differs_from_its_record_is_replaced():
    note = "<!-- accuracy(results-a-clean, discover) -->"
    text = f"Discover reaches **12.3 ± 4.5**{note} %, once **99**{note}."
    assert fill_in.fill(text).replace(note, "") == "Discover reaches **64.0 ± 0.4** %, once **64.0 ± 0.4**."


def test_a_table_is_made_from_its_record_and_the_site_shows_no_notes():
    text = "<!-- rows(results-e-buffers) -->\n\n| old |\n| --- |\n\n<!-- end -->\n\nMore.\n"
    filled = fill_in.fill(text)
    assert "| Discover, bfloat16 buffers | 0.3 | 64.5 ± 0.3 |" in filled
    assert fill_in.fill(filled) == filled
    shown = fill_in.on_page_markdown(text)
    assert "<!--" not in shown
    assert "64.5 ± 0.3" in shown


def test_a_tournament_has_a_column_for_each_record_and_its_best_in_bold():
    table = load_hook("tables").contenders("results-a-clean", "results-e-buffers").splitlines()
    assert table[0] == "| optimizer | Classes as clusters, clean labels | Discover: float32 buffers and bfloat16 ones |"
    assert table[2].startswith("| Momentum, shuffled batches | **71.8 ± 0.4** |  |")
    assert "| Discover | 64.0 ± 0.4 | 64.0 ± 0.4 |" in table
    assert table[-1] == "| Discover, bfloat16 buffers |  | **64.5 ± 0.3** |"


@pytest.mark.parametrize(
    ("note", "message"),
    [
        ("1<!-- accuracy(results-z, discover) -->", "there is no docs/results/results-z.json"),
        ("1<!-- accuracy(results-a-clean, discovery) -->", "0 rows are 'discovery'; near is 'discover'"),
        ("1<!-- acuracy(results-a-clean, discover) -->", "acuracy"),
    ],
)
def test_a_note_that_names_nothing_stops_the_build(note, message):
    with pytest.raises(LookupError, match=re.escape(message)):
        fill_in.fill(note)


def test_a_note_behind_no_number_is_found():
    assert fill_in.loose_notes("about <!-- rate(results-a-clean, discover) -->") != []


@pytest.fixture(scope="module")
def hook():
    pytest.importorskip("griffe")
    pytest.importorskip("mkdocs")
    return load_hook("public_names")


def test_every_public_name_has_a_docstring(hook):
    assert hook.undocumented() == []


def test_the_build_stops_at_a_public_name_without_a_docstring(hook, tmp_path, monkeypatch):
    (tmp_path / "docs" / "api").mkdir(parents=True)
    (tmp_path / "docs" / "api" / "all.md").write_text("::: discover.open\n\n::: discover.closed\n")
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


def reference(page):
    return re.findall(r"^::: (\S+)$", page.read_text(), re.MULTILINE)


def test_the_reference_pages_name_what_exists():
    for page in (ROOT / "docs" / "api").rglob("*.md"):
        assert reference(page), page
        if page.name == "torch.md" and importlib.util.find_spec("torch") is None:
            continue
        for path in reference(page):
            parent, _, name = path.rpartition(".")
            found = hasattr(importlib.import_module(parent), name) or importlib.util.find_spec(path) is not None
            assert found, f"{page.name}: {path}"


def test_the_reference_of_the_library_lists_every_name_of_it():
    listed = reference(ROOT / "docs" / "api" / "discover.md")
    assert {f"discover.{name}" for name in discover.__all__} <= set(listed)


def test_the_layout_page_names_paths_that_exist():
    page = (ROOT / "docs" / "layout.md").read_text()
    parents, named = {}, [path for path in re.findall(r"`([\w/]+\.py|discover/[\w/]+/)`", page) if "/" in path]
    for line in re.findall(r"^( *[\w/]+/) +\w.*$", page, re.MULTILINE):
        depth = (len(line) - len(line.lstrip())) // 2
        parents[depth] = parents.get(depth - 1, "") + line.strip()
        named.append(parents[depth])
    assert len(named) > 15
    for path in named:
        assert (ROOT / path).exists() or (ROOT / "discover" / path).exists(), path


def test_links_from_the_readme_lead_somewhere():
    links = re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", (ROOT / "README.md").read_text())
    assert links
    for link in links:
        assert link.startswith("https://") or (ROOT / link).exists(), link


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return folder


@pytest.mark.slow
def test_the_site_builds_without_a_warning(site):
    family = (site / "family.html").read_text()
    assert "<math" in family
    assert "arithmatex" not in family  # no formula is left as TeX
    assert "<!--" not in (site / "results.html").read_text().split("</head>")[1]
    library = (site / "api" / "discover.html").read_text()
    for name in discover.__all__:
        assert f'id="discover.{name}"' in library, name


@pytest.mark.slow
@pytest.mark.parametrize("page", ["index.html", "notes/digits.html"])
def test_the_search_of_the_site_works_from_the_files_alone(site, browser, page):
    tab, asked = browser.new_page(viewport={"width": 1200, "height": 900}), []
    tab.on("request", lambda request: asked.append(request.url))
    tab.goto((site / page).as_uri())
    found = tab.locator(".md-search-result__item h1")
    expected = {"csv": "Bring your own", "folder of pictures": "Bring your own", "damping": "Discover and Muon"}
    for words, first in expected.items():
        tab.fill("input.md-search__input", "")
        tab.type("input.md-search__input", words)
        found.filter(has_text=first).first.wait_for()
        assert "discover." not in found.first.inner_text()  # pages come before the reference
    tab.locator(".md-search-result__item").filter(has_text="Discover and Muon").get_by_role("link").first.click()
    tab.wait_for_url("**/muon.html*")
    assert [url for url in asked if not url.startswith("file:")] == []
