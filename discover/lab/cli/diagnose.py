"""`discover diagnose`: will a clustering help, which one, and where to start."""

from __future__ import annotations

import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from discover.lab.cli import options

if TYPE_CHECKING:
    from discover.lab.data import Dataset
    from discover.lab.experiments.config.config import Config
    from discover.lab.experiments.diagnose.ranking import Diagnosis

MOST_LAYERS = 12
"""That are shown; the file has all."""


def diagnose(
    what: options.WhatArgument = None,
    config_file: options.ConfigOption = None,
    groups: Annotated[
        int | None, typer.Option(metavar="G", help="Cluster-pure groups per batch, as you will draw them.")
    ] = None,
    group_size: Annotated[int | None, typer.Option(metavar="B", help="Examples per group.")] = None,
    column: Annotated[str | None, typer.Option(metavar="NAME", help="Also judge this column of the data set.")] = None,
    sample: Annotated[
        int,
        typer.Option(
            metavar="N",
            help="Examples whose gradients are taken; ten times as many for k-means.",
            callback=options.at_least(20),
        ),
    ] = 1000,
    warmup: Annotated[
        int,
        typer.Option(metavar="STEPS", help="Training before the second look.", callback=options.at_least(0)),
    ] = 100,
    save_clusters: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Also cluster all training examples by their gradients, for --set clusters.by=file.",
            callback=options.check_writable,
        ),
    ] = None,
    data: options.DataOption = None,
    layout: options.LayoutOption = None,
    label: options.LabelOption = None,
    clusters: options.ClustersOption = None,
    image_size: options.ImageSizeOption = None,
    on_bad_image: options.OnBadImageOption = None,
    settings: options.SetOption = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Output folder; default: runs/diagnose-NAME.")] = None,
    json_file: options.JsonOption = None,
) -> None:
    """Rank clusterings by the gradient noise that Discover could remove, with advice on beta, nu and memory."""
    overrides = options.as_overrides(settings, data, own=(layout, label, clusters, image_size, on_bad_image))
    overrides += [f"batches.groups={groups}"] if groups is not None else []
    overrides += [f"batches.group_size={group_size}"] if group_size is not None else []
    chosen, loaded, _ = options.chosen_setting(what, config_file, overrides)
    config, name = chosen.config.override(overrides).check(), chosen.name
    from discover.lab.experiments.folder import Folder

    with Folder(out or options.run_folder("diagnose", name)).claim() as folder:
        result, dataset = _measure(config, name, loaded, column, sample, warmup)
        from discover.lab.records import write_json
        from discover.lab.report.diagnosis import write_diagnosis_figure

        path = folder.path / "diagnosis.json"
        write_json(path, result.to_json())
        figures = [path, *write_diagnosis_figure(path, folder.path)]
    if json_file != "-":
        place = shlex.quote(what) if config_file is None and what else f"--config {shlex.quote(str(config_file))}"
        _show(result, figures, " ".join(filter(None, (place, options.typed(overrides)))))
    if save_clusters is not None:
        from discover.lab.experiments.diagnose.find_clusters import find_clusters
        from discover.lab.experiments.diagnose.ranking import DiagnosisOptions

        number = max(row.num_clusters for row in result.rows if row.name.startswith("random"))
        found = find_clusters(config, number, options=DiagnosisOptions(warmup_steps=warmup), dataset=dataset)
        path = found.save(save_clusters)
        if json_file != "-":
            use = f"--set clusters.by=file --set clusters.path={path}"
            typer.echo(f"{found.num_clusters} clusters of gradients: {path} (train with {use})")
    options.write_result(json_file, result.to_json())


def _measure(
    config: Config, name: str, loaded: Dataset | None, column: str | None, sample: int, warmup: int
) -> tuple[Diagnosis, Dataset]:
    """The diagnosis, and the data that it was made of."""
    from discover.lab.cli.console import BETWEEN_LINES, live_bars, spoken
    from discover.lab.cli.console import say as say_line

    told = [time.monotonic()]
    with live_bars() as bars:
        task = None if bars is None else bars.add_task(f"diagnose {name}", total=None, status="[dim]loading[/dim]")

        def say(line: str) -> None:
            if bars is not None and task is not None:
                bars.update(task, status=line)
            elif time.monotonic() - told[-1] >= BETWEEN_LINES:
                told.append(time.monotonic())
                say_line(f"diagnose {name}: {line}")

        def estimate(seconds: float) -> None:
            if bars is not None:
                bars.console.print(f"[dim]diagnose {name}: about {spoken(seconds)}[/dim]")
            else:
                say_line(f"diagnose {name}: about {spoken(seconds)}")

        from discover.lab.experiments.diagnose.ranking import DiagnosisOptions, diagnose
        from discover.lab.experiments.run.build import build_data

        dataset = build_data(config, lazy=True, loaded=loaded)
        settings = DiagnosisOptions(sample=sample, warmup_steps=warmup, column=column, stream=10 * sample)
        return diagnose(config, settings, dataset=dataset, say=say, estimate=estimate), dataset


def _show(result: Diagnosis, files: list[Path], setting: str) -> None:
    from discover.lab.cli.console import show_grid, stdout

    facts, cells = result.facts, []
    for row in result.rows:
        first, last = row.stages[facts["stages"][0]], row.stages[facts["stages"][-1]]
        shares = (f"{first[key]:.0%} → {last[key]:.0%}" for key in ("batch_share", "shuffled_share"))
        best = (f"{row.setting.beta:g}", f"{row.setting.nu:g}")
        cells.append((row.name, str(row.num_clusters), *shares, f"{row.gain:.1f}", *best, _bytes(row.memory_bytes)))
    headers = ("clusters", "N", "noise between, pure groups", "shuffled", "expected gain", "beta", "nu", "memory")
    title = f"{facts['data']}: batches of {facts['groups']} × {facts['group_size']}, {facts['model']}"
    styles = ["bold", *("dim" if row.verdict == "leave" else None for row in result.rows[1:])]
    show_grid(headers, cells, title, styles)
    console = stdout()
    _show_layers(facts["layers"])
    for line in facts["summary"]:
        console.print(f"- {line}", markup=False, soft_wrap=True)
    if facts["next"]:
        console.print("\nWhat to do, in this order:", style="bold")
    for number, line in enumerate(facts["next"], 1):
        console.print(f"{number}. {line.strip()}", markup=False, soft_wrap=True)
    if facts["next"]:
        console.print("\nTo see who wins on these batches:", style="bold")
        line = f"discover compare {setting} --optimizers momentum,muon,discover,discover_muon"
        console.print(line, markup=False, soft_wrap=True)
    console.print("\nfiles: " + ", ".join(str(path) for path in files), markup=False, soft_wrap=True)


def _show_layers(layers: dict[str, Any] | None) -> None:
    """Where the noise between clusters lies, the layers first that have most of it for their size."""
    from discover.lab.cli.console import show_grid, stdout

    if layers is None or not layers["rows"][-1]["held"]:
        return
    rows = layers["rows"]
    cells = [
        (row["name"], f"{row['parameters']:,}", *(f"{row[key]:.1%}" for key in ("between_share", "held", "buffers")))
        for row in rows[:MOST_LAYERS]
    ]
    headers = ("layer", "parameters", "of its noise between", "of all between, so far", "of the buffers, so far")
    show_grid(headers, cells, f"layer by layer, {layers['clusters']}: where buffers hold most for their size")
    count, most = next((k, row) for k, row in enumerate(rows, 1) if row["held"] >= 0.9)
    line = (
        f"{count} of {len(rows)} layers, {most['buffers']:.1%} of the buffers, hold 90 % of the noise between clusters"
    )
    left = len(rows) - len(cells)
    stdout().print(f"[dim]{line}{f'; {left} more layers are in the file' if left > 0 else ''}[/dim]")


def _bytes(count: int) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count} B"
