"""``report.html``: one file that holds the table, the curves, the configuration and the environment.

It works offline: scripts, styles and figures are inside the file, and its content security policy forbids any
request. Where the extra ``page`` (altair, vl-convert) is not installed the curves are static figures instead.
"""

from __future__ import annotations

import base64
import html
import io
import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from string import Template
from typing import Any

from discover.lab.report import charts
from discover.lab.report.figures import FIGURES, draw
from discover.lab.report.load import Report, hardware
from discover.lab.report.plotting import styled
from discover.lab.report.style import Style, is_clustered, series_name, series_styles
from discover.lab.report.tables import best_on_validation, comparison_table
from discover.lab.report.template import PAGE, SCRIPT, STYLE
from discover.lab.report.variance import draw_tracked_variance
from discover.registry import REFERENCE

MISSING_TEXT = "none"
PAGE_HINT = "pip install 'discover-optim[page]'"


def write_page(report: Report, path: str | Path, interactive: bool | None = None) -> Path:
    """Write the page of ``report`` to ``path``.

    Args:
        report: what :func:`discover.lab.report.load_report` read.
        path: the file to write; replaced at once, so a reader never sees half a page.
        interactive: True for interactive curves, False for static figures, None for whichever is possible.

    Returns:
        The path written.

    Raises:
        ModuleNotFoundError: interactive curves were asked for and the extra is not installed.
    """
    path = Path(path)
    text = render_page(report, interactive)
    partial = path.with_name(f".{path.name}.part")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)
    return path


def render_page(report: Report, interactive: bool | None = None) -> str:
    """The page of ``report`` as HTML; see :func:`write_page`."""
    if interactive is None:
        interactive = charts.available()
    elif interactive and not charts.available():
        raise ModuleNotFoundError(f"interactive curves need altair and vl-convert: {PAGE_HINT}")
    styles = series_styles([run.label for run in report.runs])
    curves, scripts = _interactive(report, styles) if interactive else (_static(report), "")
    return Template(PAGE).substitute(
        title=html.escape(report.title),
        style=STYLE,
        lead=html.escape(str(report.comparison.get("description") or "")),
        facts="".join(f"<li>{html.escape(k)} <b>{html.escape(v)}</b></li>" for k, v in _facts(report)),
        headline=_headline(report, styles),
        table=_table(report, styles),
        table_note=_table_note(report),
        curves=curves,
        variance=_variance(report),
        grid=_grid(report),
        details=_details(report),
        footer="Written from the records beside this file by <code>discover report</code>. Works offline.",
        scripts=scripts,
    )


def _interactive(report: Report, styles: dict[str, Style]) -> tuple[str, str]:
    buttons = "".join(
        f'<button type="button" data-series="{html.escape(s.name)}" aria-pressed="true">'
        f"{_swatch(s)}{html.escape(s.name)}</button>"
        for s in styles.values()
    )
    markup = (
        f'<div class="toolbar" role="group" aria-label="Choose optimizers">{buttons}'
        '<button type="button" class="plain" id="show-all">All</button><span class="gap"></span>'
        '<button type="button" class="plain" id="log-scale" aria-pressed="false">Log scale</button></div>'
        '<div class="charts"><div class="chart" id="chart-loss"></div>'
        '<div class="chart" id="chart-accuracy"></div>'
        '<div class="chart wide" id="chart-final"></div></div>'
        '<p class="note">Lines are means over the seeds, bands one standard deviation. Click an optimizer to '
        "hide or show it, shift-click to see it alone. The log scale shows the error rate.</p>"
    )
    payload = {
        "series": [{"name": style.name} for style in styles.values()],
        "specs": charts.chart_specs(report),
        "data": charts.chart_data(report),
    }
    # "<" as an escape: no text in a record can end the script element.
    data = json.dumps(_finite(payload), ensure_ascii=True, allow_nan=False).replace("<", "\\u003c")
    scripts = (
        f'<script type="application/json" id="report-data">{data}</script>\n'
        f"<script>{charts.javascript()}</script>\n<script>{SCRIPT}</script>"
    )
    return markup, scripts


def _static(report: Report) -> str:
    figures = []
    for name in FIGURES:
        figures.append(f'<figure class="chart">{_image(draw(report, name), name.replace("-", " "))}</figure>')
    hint = f"<code>{html.escape(PAGE_HINT)}</code>"
    note = f'<p class="note">For interactive curves: {hint}, then write the report again.</p>'
    return f'<div class="charts">{"".join(figures)}</div>{note}'


def _image(figure: Any, words: str, **options: Any) -> str:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=180, **options)
    data = base64.b64encode(buffer.getvalue()).decode()
    return f'<img alt="{html.escape(words)}" src="data:image/png;base64,{data}">'


def _variance(report: Report) -> str:
    """The between-cluster variance along the runs that tracked it; nothing where none did."""
    from matplotlib.pyplot import close

    with styled():
        figure = draw_tracked_variance(report)
        if figure is None:
            return ""
        image = _image(figure, "between-cluster variance along training", bbox_inches="tight")
        close(figure)
    return (
        '<section aria-labelledby="h-variance"><h2 id="h-variance">Variance between clusters</h2>'
        f"<figure>{image}</figure>"
        "<p class=\"note\">Above the paper's estimate, with each optimizer's own buffers; below what the batches as "
        "they are drawn contain. The paper's formulas for SGD and for the others differ by a factor of about 2/|B|, so "
        "only the lower panel compares them all.</p></section>"
    )


def _facts(report: Report) -> Iterator[tuple[str, str]]:
    comparison, environment = report.comparison, report.environment
    for key, value in (comparison.get("facts") or {}).items():
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


def _headline(report: Report, styles: dict[str, Style]) -> str:
    """Up to four cards: the best optimizer with clusters, its baseline, the control, and how much was won back."""
    best, plain, control = headline_rows(report.rows)
    if best is None or plain is None:
        return ""
    cards = []
    for row, note in ((best, "test accuracy"), (plain, "on the same batches"), (control, "the control")):
        if row is None:
            continue
        spread = row["test_accuracy"]
        std = "" if len(spread.get("values") or ()) < 2 else f" <small>± {100 * spread['std']:.1f} %</small>"
        cards.append(
            f'<div class="card" style="--c:{styles[row["label"]].color}"><div class="k">'
            f"{html.escape(series_name(row['label']))}</div>"
            f'<div class="v">{100 * spread["mean"]:.1f}{std}</div><div class="s">{note}</div></div>'
        )
    won = won_back(best, plain, control)
    if won is not None and won > 0:
        cards.append(
            '<div class="card"><div class="k">Won back</div>'
            f'<div class="v">{100 * won:.0f} <small>%</small></div>'
            f'<div class="s">of what clustered batches cost {html.escape(series_name(plain["label"]))}</div></div>'
        )
    return f'<div class="cards">{"".join(cards)}</div>'


def headline_rows(rows: Sequence[dict[str, Any]]) -> tuple[dict[str, Any] | None, ...]:
    """The best row with clusters on validation, the reference on the same batches, and the control; None: not there."""
    ended = [row for row in rows if (row.get("test_accuracy") or {}).get("mean") is not None]
    best = best_on_validation([row for row in ended if is_clustered(row) and not row.get("control")])
    by_label = {row["label"]: row for row in ended}
    return best, by_label.get(REFERENCE), by_label.get(f"{REFERENCE}-shuffled")


def won_back(ours: dict[str, Any], plain: dict[str, Any], control: dict[str, Any] | None) -> float | None:
    """The share of the plain optimizer's loss of accuracy on clustered batches that ``ours`` does not have.

    ``(ours − plain) / (control − plain)`` of the mean test accuracies; None: clustering cost nothing.
    """
    if control is None:
        return None
    means = [row["test_accuracy"]["mean"] for row in (ours, plain, control)]
    if not all(isinstance(m, int | float) and math.isfinite(m) for m in means) or means[2] - means[1] < 0.005:
        return None
    return (means[0] - means[1]) / (means[2] - means[1])


def _table(report: Report, styles: dict[str, Style]) -> str:
    table = comparison_table(report.rows, report.comparison.get("target_accuracy"))
    head = "".join(f"<th scope='col'>{html.escape(h)}</th>" for h in table.headers)
    body = []
    for index, (label, cells) in enumerate(zip(table.labels, table.rows)):
        kind = "best" if index == table.best else "control" if report.rows[index].get("control") else ""
        swatch = _swatch(styles[label]) if label in styles else ""
        first, *rest = (html.escape(cell) for cell in cells)
        body.append(f'<tr class="{kind}"><td>{swatch}{first}</td>' + "".join(f"<td>{c}</td>" for c in rest) + "</tr>")
    # The second column reads as text only where it says which batches a row was trained on.
    kind = "results" if "batches" in table.headers else ""
    rows = "".join(body)
    markup = f'<table class="{kind}"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>'
    return f'<div class="scroll">{markup}</div>'


def _table_note(report: Report) -> str:
    note = report.comparison.get("note")
    return f'<p class="note">{html.escape(str(note))}</p>' if note else ""


def _grid(report: Report) -> str:
    """The learning rates that were tried: mean validation accuracy, the chosen one framed."""
    rows = [row for row in report.comparison.get("rows") or [] if row.get("grid")]
    if not rows:
        return ""
    rates = sorted({point["learning_rate"] for row in rows for point in row["grid"]})
    head = "".join(f"<th scope='col'>{rate:g}</th>" for rate in rates)
    body = []
    for row in rows:
        points = {point["learning_rate"]: point for point in row["grid"]}
        cells = "".join(_grid_cell(points.get(rate), rate == row.get("learning_rate")) for rate in rates)
        body.append(f"<tr><td>{html.escape(series_name(row['label']))}</td>{cells}</tr>")
    return (
        '<section aria-labelledby="h-grid"><h2 id="h-grid">Learning rates tried</h2><div class="scroll">'
        f'<table class="heat"><thead><tr><th scope="col">optimizer</th>{head}</tr></thead>'
        f'<tbody>{"".join(body)}</tbody></table></div><p class="note">Mean last-step accuracy (%) on the '
        "validation split over the seeds, the same grid for every optimizer. The framed rate was chosen, on "
        "these numbers alone; the results above are its runs on the test split.</p></section>"
    )


def _grid_cell(point: dict[str, Any] | None, chosen: bool) -> str:
    spread = (point or {}).get("validation_accuracy") or {}
    mean = spread.get("mean")
    if mean is None or not math.isfinite(mean):
        return '<td class="cell">–</td>'
    shade = f"background: rgb(0 114 178 / {0.04 + 0.30 * mean**2:.2f})"
    kind = "cell chosen" if chosen else "cell"
    title = f"± {100 * (spread.get('std') or 0):.1f} %"
    return f'<td class="{kind}" style="{shade}" title="{title}">{100 * mean:.1f}</td>'


def _details(report: Report) -> str:
    environment = dict(report.environment)
    command = environment.pop("command", None)
    parts = []
    if command:
        text = " ".join(command) if isinstance(command, list) else str(command)
        parts.append(f"<h3>Command</h3><pre>{html.escape(text)}</pre>")
    parts.append(_pairs("Configuration", report.config, open_=not report.comparison))
    if report.comparison:
        parts.append(_differences(report))
    parts.append(_pairs("Environment", environment))
    return "".join(parts)


def _pairs(title: str, values: dict[str, Any], open_: bool = False) -> str:
    if not values:
        return ""
    items = "".join(f"<dt>{html.escape(k)}</dt><dd>{html.escape(v)}</dd>" for k, v in flatten(values))
    state = " open" if open_ else ""
    return f'<details{state}><summary>{html.escape(title)}</summary><dl class="pairs">{items}</dl></details>'


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
            yield name, ", ".join(str(v) for v in value) or MISSING_TEXT
        else:
            yield name, MISSING_TEXT if value is None else str(value)


def _differences(report: Report) -> str:
    """A table of what the runs do not have in common: a column for each setting that differs."""
    flat = {run.label: dict(flatten(run.config)) for run in report.runs}
    keys = list(dict.fromkeys(key for values in flat.values() for key in values))
    keys = [key for key in keys if len({values.get(key) for values in flat.values()}) > 1]
    if not keys:
        return ""
    head = "".join(f"<th scope='col'>{html.escape(key)}</th>" for key in keys)
    body = "".join(
        f"<tr><td>{html.escape(series_name(label))}</td>"
        + "".join(f"<td>{html.escape(values.get(key, MISSING_TEXT))}</td>" for key in keys)
        + "</tr>"
        for label, values in flat.items()
    )
    return (
        "<details><summary>What differs from run to run</summary><div class='scroll'><table><thead><tr>"
        f"<th scope='col'>run</th>{head}</tr></thead><tbody>{body}</tbody></table></div></details>"
    )


def _swatch(style: Style) -> str:
    """A small sample of the line and marker, drawn as the curves are."""
    dash = f' stroke-dasharray="{" ".join(f"{d:g}" for d in style.dash)}"' if style.dash else ""
    fill = style.color if style.filled else "#fff"
    shape = {
        "o": '<circle cx="14" cy="6" r="3.4"',
        "s": '<rect x="11" y="3" width="6" height="6"',
        "^": '<path d="M14 2.2 17.8 9H10.2Z"',
        "v": '<path d="M14 9.8 17.8 3H10.2Z"',
        "D": '<path d="M14 1.8 18.2 6 14 10.2 9.8 6Z"',
    }.get(style.marker, '<path d="M11 3 17 9M17 3 11 9"')
    return (
        f'<svg class="swatch" width="28" height="12" viewBox="0 0 28 12" aria-hidden="true">'
        f'<path d="M0 6H28" stroke="{style.color}" stroke-width="2.2"{dash}/>'
        f'{shape} fill="{fill}" stroke="{style.color}" stroke-width="1.4"/></svg>'
    )


def _finite(value: Any) -> Any:
    """JSON has no NaN: numbers that are not finite become null."""
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
