"""The interactive curves as Vega-Lite specifications, built with altair. Needs the extra ``page``.

The charts take their series from a parameter ``shown`` that the page sets when the reader picks optimizers,
and share their data by name, so that the linear and the logarithmic version of a chart do not store it twice.
"""

from __future__ import annotations

import math
from typing import Any

from discover.lab.records import mean_std
from discover.lab.report.figures import smooth
from discover.lab.report.load import Curve, Report
from discover.lab.report.style import Style, series_styles

_SHAPES = {
    "o": "circle",
    "s": "square",
    "^": "triangle-up",
    "v": "triangle-down",
    "D": "diamond",
    "X": "cross",
    "P": "stroke",
}


def available() -> bool:
    """Whether altair and vl-convert, which draw and bundle the interactive charts, are installed."""
    from importlib.util import find_spec

    return find_spec("altair") is not None and find_spec("vl_convert") is not None


def javascript() -> str:
    """Vega, Vega-Lite and vega-embed as one script, for a page that needs no network."""
    import altair
    import vl_convert

    version = ".".join(altair.SCHEMA_VERSION.split(".")[:2])
    # "</script" in a string of the bundle would end the page's script element early.
    bundle: Any = vl_convert.javascript_bundle  # its stub asks for a snippet, which is optional
    return bundle(vl_version=version).replace("</script", "<\\/script")


def chart_data(report: Report) -> dict[str, list[dict[str, Any]]]:
    """The points of every chart, by the name under which the specifications ask for them."""
    styles = series_styles([run.label for run in report.runs])
    data: dict[str, list[dict[str, Any]]] = {"loss": [], "accuracy": [], "final": []}
    for run in report.runs:
        name = styles[run.label].name
        data["loss"] += _points(name, smooth(run.curve("loss", kind="train")), ".3f")
        _, curve = run.eval_curve("accuracy")
        percent = Curve(curve.steps, tuple(100 * v for v in curve.mean), tuple(100 * v for v in curve.std))
        data["accuracy"] += _points(name, percent, ".1f", unit=" %")
        _, values = run.final("accuracy")
        mean, std = mean_std(values)
        if math.isfinite(mean):
            data["final"].append(
                {
                    "name": name,
                    "mean": 100 * mean,
                    "low": 100 * (mean - std),
                    "high": 100 * (mean + std),
                    "edge": 100 * max(mean + std, *values),
                    "text": f"{100 * mean:.1f}",
                    "values": [100 * v for v in values],
                    "spread": f"{100 * mean:.1f} ± {100 * std:.1f} % over {len(values)} seeds",
                }
            )
    return data


def chart_specs(report: Report) -> dict[str, dict[str, Any]]:
    """Vega-Lite specifications by name: ``loss``, ``loss-log``, ``accuracy``, ``accuracy-log`` and ``final``.

    ``accuracy-log`` shows the error rate (100 minus the accuracy) on a logarithmic axis.
    """
    styles = list(series_styles([run.label for run in report.runs]).values())
    split = "Test" if all(run.eval_curve()[0] == "test" for run in report.runs) else "Validation"
    return {
        "loss": _curve_chart("loss", "training loss", styles, log=False),
        "loss-log": _curve_chart("loss", "training loss", styles, log=True),
        "accuracy": _curve_chart("accuracy", f"{split.lower()} accuracy (%)", styles, log=False),
        "accuracy-log": _curve_chart("accuracy", f"{split.lower()} error (%)", styles, log=True, flip_from=100.0),
        "final": _bar_chart(styles),
    }


def _points(name: str, curve: Curve, fmt: str, unit: str = "") -> list[dict[str, Any]]:
    return [
        {"name": name, "step": step, "mean": mean, "std": std, "text": f"{mean:{fmt}} ± {std:{fmt}}{unit}"}
        for step, mean, std in zip(curve.steps, curve.mean, curve.std)
        if math.isfinite(mean)
    ]


def _curve_chart(
    data: str, title: str, styles: list[Style], *, log: bool, flip_from: float | None = None
) -> dict[str, Any]:
    import altair as alt

    names = [style.name for style in styles]
    color = alt.Color("name:N", scale=alt.Scale(domain=names, range=[s.color for s in styles]), legend=None)
    dash = alt.StrokeDash(
        "name:N", scale=alt.Scale(domain=names, range=[list(s.dash) or [1, 0] for s in styles]), legend=None
    )
    shapes = [_SHAPES.get(s.marker, "circle") for s in styles]
    shape = alt.Shape("name:N", scale=alt.Scale(domain=names, range=shapes), legend=None)
    # A logarithmic axis cannot show a band that reaches zero: its lower edge stops at a quarter of the mean.
    value = "datum.mean" if flip_from is None else f"max({flip_from} - datum.mean, 0.05)"
    low = f"max(datum.value - datum.std, {'datum.value / 4' if log else '-1e9'})"
    x = alt.X("step:Q", title="step", axis=alt.Axis(grid=False, tickCount=6, format="~s"))
    y = alt.Y(
        "value:Q",
        title=None,
        scale=alt.Scale(type="log") if log else alt.Scale(zero=False),
        axis=alt.Axis(tickCount=6),
    )
    shown = alt.param(name="shown", value=names)
    hover = alt.selection_point(
        name="hover", fields=["step"], nearest=True, on="pointermove", clear="pointerout", empty=False
    )
    base = (
        alt.Chart(alt.NamedData(name=data))
        .transform_filter("indexof(shown, datum.name) >= 0")
        .transform_calculate(value=value)
        .transform_calculate(low=low, high="datum.value + datum.std")
    )
    band = base.mark_area(opacity=0.13, interpolate="monotone").encode(
        x=x, y=alt.Y("low:Q", title=None), y2="high:Q", color=color
    )
    line = base.mark_line(strokeWidth=2.2, strokeCap="butt", interpolate="monotone").encode(
        x=x, y=y, color=color, strokeDash=dash
    )
    dots = (
        base.mark_point(filled=True, size=62, opacity=1, stroke="white", strokeWidth=1.2)
        .encode(x=x, y=y, color=color, shape=shape)
        .transform_filter(hover)
    )
    rule = (
        base.transform_pivot("name", value="text", op="max", groupby=["step"])
        .mark_rule(color="#6b7280", strokeWidth=1, tooltip={"content": "data"})
        .encode(x=x, opacity=alt.condition(hover, alt.value(0.55), alt.value(0)))
        .add_params(hover)
    )
    chart = alt.layer(band, line, rule, dots).add_params(shown)
    return _finished(chart.properties(width="container", height=320, title=title))


def _bar_chart(styles: list[Style]) -> dict[str, Any]:
    import altair as alt

    names = [style.name for style in styles]
    shown = alt.param(name="shown", value=names)
    base = alt.Chart(alt.NamedData(name="final")).transform_filter("indexof(shown, datum.name) >= 0")
    y = alt.Y("name:N", sort=names, title=None, axis=alt.Axis(labelLimit=220, ticks=False, domain=False))
    x = alt.X("mean:Q", title=None, scale=alt.Scale(domain=[0, 100]), axis=alt.Axis(tickCount=6))
    color = alt.Color("name:N", scale=alt.Scale(domain=names, range=[s.color for s in styles]), legend=None)
    tip = [alt.Tooltip("name:N", title="optimizer"), alt.Tooltip("spread:N", title="accuracy")]
    bars = base.mark_bar(opacity=0.32, cornerRadiusEnd=3, height={"band": 0.66}).encode(
        x=x, y=y, color=color, tooltip=tip
    )
    whisker = base.mark_rule(strokeWidth=1.6, color="#22252b").encode(x=alt.X("low:Q"), x2="high:Q", y=y)
    seeds = (
        base.transform_flatten(["values"], ["value"])
        .mark_point(filled=True, size=34, opacity=0.9)
        .encode(x=alt.X("value:Q"), y=y, color=color, tooltip=tip)
    )
    text = base.mark_text(align="left", dx=9, fontWeight="bold", color="#22252b").encode(
        x=alt.X("edge:Q"), y=y, text="text:N"
    )
    chart = alt.layer(bars, whisker, seeds, text).add_params(shown)
    title = "last-step accuracy (%), a dot a seed"
    return _finished(chart.properties(width="container", height=34 * len(names), title=title))


def _finished(chart: Any) -> dict[str, Any]:
    font = "Inter, system-ui, -apple-system, 'Segoe UI', 'Liberation Sans', sans-serif"
    grid, ink = "#e5e7eb", "#374151"
    return (
        chart.properties(autosize={"type": "fit-x", "contains": "padding"})
        .configure(font=font, background="transparent", padding=4)
        .configure_view(stroke=None)
        .configure_axis(
            gridColor=grid, domainColor="#c3c8d0", tickColor="#c3c8d0", labelColor=ink, titleColor=ink,
            labelFontSize=12, titleFontSize=12, titleFontWeight="normal",
        )
        .configure_title(anchor="start", fontSize=14, fontWeight=600, color="#111827", offset=12)
        .to_dict()
    )  # fmt: skip
