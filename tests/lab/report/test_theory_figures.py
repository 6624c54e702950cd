"""The theory's figures are drawn from their record, the same bytes each time."""

from pathlib import Path

from discover.lab.report.theory import write_theory_figures

RECORD = next((Path(__file__).parents[3] / "docs").rglob("theory.json"))


def test_figures_are_drawn_from_the_record_and_are_reproducible(tmp_path):
    first = write_theory_figures(RECORD, tmp_path / "a")
    second = write_theory_figures(RECORD, tmp_path / "b")
    assert [path.stem for path in first[::2]] == ["theory-bound", "theory-steady-state", "theory-groups"]
    assert all(a.read_bytes() == b.read_bytes() for a, b in zip(first, second))
