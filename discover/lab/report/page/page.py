"""What ``report.html`` says: one file that holds the table, the curves, the configuration and the environment.

It works offline: scripts, styles and figures are inside the file, and its content security policy forbids any
request. Where the extra ``page`` (altair, vl-convert) is not installed the curves are static figures instead.
The markup is `page.html`; here is what it is filled with.
"""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader
from markupsafe import Markup

from discover.lab.records import finite, write_text
from discover.lab.report.against import against_baselines, won_back
from discover.lab.report.figures import draw, figures_of
from discover.lab.report.load import Report, hardware
from discover.lab.report.page import charts
from discover.lab.report.plotting import styled
from discover.lab.report.style import series_name, series_styles
from discover.lab.report.tables import cluster_table, comparison_table, headline_rows
from discover.lab.report.variance import draw_tracked_variance

PAGE_HINT = "pip install 'discover-optim[page]'"
MARKERS = {
    "o": "M10.6 6a3.4 3.4 0 1 0 6.8 0a3.4 3.4 0 1 0 -6.8 0Z",
    "s": "M11 3H17V9H11Z",
    "^": "M14 2.2 17.8 9H10.2Z",
    "v": "M14 9.8 17.8 3H10.2Z",
    "D": "M14 1.8 18.2 6 14 10.2 9.8 6Z",
    "X": "M11 3 17 9M17 3 11 9",
}
"""The outline of each of matplotlib's markers around (14, 6); one that is not here is drawn as a cross."""


def write_page(report: Report, path: str | Path, interactive: bool | None = None) -> Path:
    """Write the page of ``report`` to ``path``, at once: a reader never sees half a page. Returns the path.

    Args:
        report: what :func:`discover.lab.report.load_report` read.
        path: the file to write.
        interactive: True for interactive curves, False for static figures, None for whichever is possible.

    Raises:
        ModuleNotFoundError: interactive curves were asked for and the extra is not installed.
    """
    path = Path(path)
    write_text(path, render_page(report, interactive))
    return path


def render_page(report: Report, interactive: bool | None = None) -> str:
    """The page of ``report`` as HTML; see :func:`write_page`."""
    if interactive is None:
        interactive = charts.available()
    elif interactive and not charts.available():
        raise ModuleNotFoundError(f"interactive curves need altair and vl-convert: {PAGE_HINT}")
    comparison, styles = report.comparison, series_styles([run.label for run in report.runs])
    environment = dict(report.environment)
    command = environment.pop("command", None)
    folder = FileSystemLoader(Path(__file__).parent)
    templates = Environment(loader=folder, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    templates.filters["zip"] = zip
    templates.policies["json.dumps_kwargs"] = {"allow_nan": False}
    return templates.get_template("page.html").render(
        title=report.title,
        lead=comparison.get("description") or "",
        facts=list(_facts(report)),
        headline=_headline(report),
        rows=report.rows,
        table=comparison_table(report.rows, comparison.get("target_accuracy")),
        clusters=cluster_table(report.rows),
        against=against_baselines(report.rows),
        note=comparison.get("note"),
        styles=styles,
        markers=MARKERS,
        series_name=series_name,
        interactive=finite(_interactive(report)) if interactive else None,
        library=Markup(charts.javascript()) if interactive else None,
        figures=[]
        if interactive
        else [(name.replace("-", " "), _image(draw(report, name))) for name in figures_of(report)],
        hint=PAGE_HINT,
        variance=_variance(report),
        grid=_grid(report),
        command=" ".join(command) if isinstance(command, list) else command,
        config=list(flatten(report.config)),
        differences=_differences(report) if comparison else None,
        environment=list(flatten(environment)),
    )


def _facts(report: Report) -> Iterator[tuple[str, str]]:
    comparison, environment = report.comparison, report.environment
    model = dict(flatten(report.config)).get("model.name")
    for key, value in (comparison.get("facts") or ({"model": model} if model else {})).items():
        yield str(key), str(value)
    seeds = comparison.get("seeds") or (report.runs[0].summary.get("seeds") if report.runs else None)
    if seeds:
        yield "seeds", str(len(seeds))
    steps = max((int(run.summary.get("steps") or 0) for run in report.runs), default=0)
    if steps:
        yield "steps", f"{steps:,}"
    device = hardware(environment)
    if device:
        yield "on", device
    if comparison.get("created"):
        yield "date", str(comparison["created"])[:10]


def _headline(report: Report) -> dict[str, Any] | None:
    """Up to four cards: the best optimizer with clusters, the plain one, the control, and how much was won back."""
    best, plain, control = headline_rows(report.rows)
    if best is None or plain is None:
        return None
    won = won_back(best, plain, control)
    noted = ((best, "test accuracy"), (plain, "on the same batches"), (control, "the control"))
    return {
        "rows": [(row, note) for row, note in noted if row is not None],
        "won": won if won is not None and won > 0 else None,
        "cost_whom": series_name(plain["label"]),
    }


def _interactive(report: Report) -> dict[str, Any]:
    """What the page's script draws."""
    styles = series_styles([run.label for run in report.runs])
    return {
        "series": [{"name": style.name} for style in styles.values()],
        "specs": charts.chart_specs(report),
        "data": charts.chart_data(report),
    }


def _image(figure: Any, **options: Any) -> str:
    """A figure as an address that holds the picture itself."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=180, **options)
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"


def _variance(report: Report) -> str | None:
    """The between-cluster variance along the runs that tracked it; nothing where none did."""
    from matplotlib.pyplot import close

    with styled():
        figure = draw_tracked_variance(report)
        if figure is None:
            return None
        image = _image(figure, bbox_inches="tight")
        close(figure)
    return image


def _grid(report: Report) -> dict[str, Any] | None:
    """The learning rates that were tried: (optimizer, chosen rate, spreads of the validation accuracy by rate)."""
    rows = [row for row in report.comparison.get("rows") or [] if row.get("grid")]
    if not rows:
        return None
    rates = sorted({point["learning_rate"] for row in rows for point in row["grid"]})
    body = []
    for row in rows:
        spreads = {point["learning_rate"]: point.get("validation_accuracy") or {} for point in row["grid"]}
        ended = {rate: one for rate, one in spreads.items() if math.isfinite(one.get("mean") or math.nan)}
        body.append((series_name(row["label"]), row.get("learning_rate"), [ended.get(rate) for rate in rates]))
    return {"rates": rates, "rows": body}


def flatten(values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """The leaves of a nested record as dotted keys and texts.

    >>> list(flatten({"model": {"name": "mlp", "widths": [64, 64]}}))
    [('model.name', 'mlp'), ('model.widths', '64, 64')]
    """
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict) and value:
            yield from flatten(value, name + ".")
        elif isinstance(value, list | tuple):
            yield name, ", ".join(str(v) for v in value) or "none"
        else:
            yield name, "none" if value is None else str(value)


def _differences(report: Report) -> dict[str, Any]:
    """What the runs do not have in common: a column for each setting that differs."""
    flat = {run.label: dict(flatten(run.config)) for run in report.runs}
    keys = dict.fromkeys(key for values in flat.values() for key in values)
    different = [key for key in keys if len({values.get(key) for values in flat.values()}) > 1]
    rows = [(series_name(label), [values.get(key, "none") for key in different]) for label, values in flat.items()]
    return {"settings": different, "rows": rows}
