"""The examples run as they are, and do what they claim."""

import re
import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
WAS = re.compile(r"^( *)# was: (.*)\n(.*)$", re.MULTILINE)


def run_main(name, monkeypatch, **constants):
    """The result of an example's `main`, with some of its constants changed to save time."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    names = runpy.run_path(str(EXAMPLES / f"{name}.py"))
    names["main"].__globals__.update(constants)
    return names["main"]()


def test_three_lines_turn_an_optax_loop_into_a_discover_loop():
    """The lines below each `# was:` are put back, and the script must be a running optax loop without Discover."""
    name = "optax_loop_nnx"
    source = (EXAMPLES / f"{name}.py").read_text()
    assert len(WAS.findall(source)) == 3
    before = WAS.sub(r"\1\2", source)
    changed = [line for line in before.splitlines() if line not in source.splitlines()]
    assert len(changed) == 3
    assert not any("discover" in line for line in changed)
    assert "discover.discover(" in source
    assert "discover.discover(" not in before
    plain, ours = {"__name__": name}, {"__name__": name}
    exec(compile(before, f"{name} as it was", "exec"), plain)
    exec(compile(source, name, "exec"), ours)
    assert ours["accuracy"] > max(0.9, plain["accuracy"])


def test_classes_as_clusters(monkeypatch):
    means = run_main("classes_as_clusters", monkeypatch, SEEDS=2)
    assert means["Discover"] > max(means["momentum"], means["Adam"]) + 0.1
    assert means["momentum, shuffled"] > means["Discover"]
    assert means["Discover, 40% wrong"] > means["momentum, 40% wrong"] + 0.05


@pytest.mark.slow
def test_clients_with_skewed_data(monkeypatch):
    means = run_main("skewed_clients", monkeypatch)
    assert means["Discover, p_n known"] > means["momentum"] + 0.03


UNIFORM_LOSS = 4.85  # log 128: what knowing nothing costs


@pytest.mark.slow
def test_text_domains_learn_with_every_optimizer(monkeypatch):
    means = run_main("text_domains", monkeypatch, STEPS=60, LAYERS=1)
    assert len(means) == 5
    assert all(loss < 0.85 * UNIFORM_LOSS for loss in means.values()), means


def test_every_example_is_run_by_a_test():
    tests = "".join(path.read_text() for path in Path(__file__).parent.rglob("test_*.py"))
    for path in EXAMPLES.glob("*.py"):
        assert f'"{path.stem}"' in tests or f'"{path.name}"' in tests, f"{path.name} is not run"
