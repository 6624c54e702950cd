"""Figures, tables and a page from what runs recorded. Draws only; never trains.

Example::

    report = load_report("runs/demo")
    write_report(report)                  # figures/*.png, figures/*.svg and report.html beside the records
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from discover.lab.report.figures import write_figures
from discover.lab.report.load import RecordsError, Report, RunRecord, load_report, load_run
from discover.lab.report.page import write_page
from discover.lab.report.tables import Table, cluster_table, comparison_table
from discover.lab.report.variance import write_tracked_variance

__all__ = [
    "RecordsError",
    "Report",
    "RunRecord",
    "Table",
    "WrittenReport",
    "cluster_table",
    "comparison_table",
    "load_report",
    "load_run",
    "write_figures",
    "write_page",
    "write_report",
]


@dataclass(frozen=True)
class WrittenReport:
    """What :func:`write_report` left: the page, and the figures."""

    page: Path
    figures: tuple[Path, ...]


def write_report(report: Report, directory: str | Path | None = None, interactive: bool | None = None) -> WrittenReport:
    """Write the figures and the page of ``report``; where the runs tracked their variance, its figure too.

    Args:
        report: what :func:`load_report` read.
        directory: where to write; beside the records where it is not given.
        interactive: see :func:`write_page`.
    """
    directory = Path(directory) if directory is not None else report.directory
    figures = write_figures(report, directory / "figures") + write_tracked_variance(report, directory / "figures")
    return WrittenReport(page=write_page(report, directory / "report.html", interactive), figures=tuple(figures))
