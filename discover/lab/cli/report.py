"""`discover report`: figures and a page from records."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from discover.lab.cli import options
from discover.lab.cli.errors import CommandError, naming


def report(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A comparison, a run, or a folder of runs.")],
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Write elsewhere than into DIR.")] = None,
    static: Annotated[bool, typer.Option("--static", help="Static figures in the page, no scripts.")] = False,
    json_file: options.JsonOption = None,
) -> None:
    """Draw the figures and write report.html from what runs recorded; nothing is trained."""
    from discover.lab.cli.console import show_written
    from discover.lab.report import load_report, write_report

    with naming(directory):
        found = load_report(directory)
    try:
        with naming(directory):
            written = write_report(found, out, interactive=False if static else None)
    except OSError as error:
        raise CommandError(f"cannot write to {out or directory}: {error.strerror or error}") from None
    if json_file != "-":
        show_written(found, written, title=found.title)
    options.write_result(json_file, {"title": found.title, "page": str(written.page), "rows": found.rows})
