"""`discover compare`: optimizers on the same clustered batches, each at its best learning rate."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from discover.lab.cli import options
from discover.lab.cli.errors import naming, stoppable


def compare(
    preset: options.WhatArgument = None,
    config_file: options.ConfigOption = None,
    optimizers: options.OptimizersOption = None,
    learning_rates: Annotated[
        str | None, typer.Option(metavar="X,Y", help="The grid that all of them share; default: the preset's.")
    ] = None,
    target: Annotated[
        float | None, typer.Option(metavar="SHARE", help="Accuracy (0 to 1) for the column 'steps to'.")
    ] = None,
    control: Annotated[bool, typer.Option(help="Also train momentum on shuffled batches.")] = True,
    seeds: options.SeedsOption = None,
    data: options.DataOption = None,
    layout: options.LayoutOption = None,
    label: options.LabelOption = None,
    clusters: options.ClustersOption = None,
    image_size: options.ImageSizeOption = None,
    on_bad_image: options.OnBadImageOption = None,
    track_variance: options.TrackVarianceOption = None,
    settings: options.SetOption = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Output folder; default: runs/compare-PRESET.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a comparison that is there.")] = False,
    json_file: options.JsonOption = None,
) -> None:
    """Train optimizers on the same batches over several seeds, and print who wins.

    Each optimizer's learning rate is chosen from one grid on a validation split; the table shows the test split.
    Run the same command again to continue a comparison that was stopped.
    """
    from discover.lab.experiments.compare.comparison import make_comparison

    own = (layout, label, clusters, image_size, on_bad_image)
    overrides = options.as_overrides(settings, data, seeds, track_variance, own)
    chosen, loaded, _ = options.chosen_setting(preset, config_file, overrides, default="digits")
    comparison = make_comparison(
        chosen,
        optimizers=options.split_list(optimizers),
        learning_rates=options.split_numbers("--learning-rates", learning_rates),
        target_accuracy=target,
        control=control,
        overrides=overrides,
    )
    directory = out or options.run_folder("compare", chosen.name)
    record = _train(comparison, directory, overwrite, loaded)
    with naming(directory):
        _show(record, directory, quiet=json_file == "-")
    options.write_result(json_file, record)


def _train(comparison: Any, directory: Path, overwrite: bool, loaded: Any) -> dict[str, Any]:
    from discover.lab.cli.console import Watcher, live_bars, say
    from discover.lab.report.style import series_name

    width = max(len(series_name(entry.label)) for entry in comparison.entries)
    with live_bars() as bars:
        if bars is not None:
            rates, seeds = len(comparison.learning_rates), len(comparison.seeds)
            grid = f"{rates} learning rate{'s' * (rates > 1)} × {seeds} seed{'s' * (seeds > 1)}"
            bars.console.print(
                f"[bold]{comparison.preset}[/bold]  {comparison.summary}\n[dim]{grid} for each optimizer[/dim]"
            )

        watchers: list[Watcher] = []

        def watch(entry: Any, number: int, total: int) -> Watcher:
            if watchers:  # an entry that was read back from an earlier call tells its watcher nothing
                watchers[-1].finish(status="finished")
            name = f"{number + 1}/{total} {series_name(entry.label):<{width}}"
            watchers.append(Watcher(bars, name, after=watchers[-1] if watchers else None))
            return watchers[-1]

        timing: list[Watcher] = []

        def tell(text: str) -> None:
            watchers[-1].finish(status="finished")
            if bars is None:
                say(text)
            timing.append(Watcher(bars, text, status="[dim]taking turns[/dim]"))

        from discover.lab.experiments.compare.train import compare as train

        with stoppable(directory):
            record = train(comparison, directory, progress=watch, message=tell, overwrite=overwrite, loaded=loaded)
        if timing:
            timing.pop().close("[green]done[/green]")
        return record


def _show(record: dict[str, Any], directory: Path, quiet: bool) -> None:
    from discover.lab.cli.console import show_clusters, show_files, show_table, stdout
    from discover.lab.report import comparison_table, load_report, write_report

    written = write_report(load_report(directory))
    if quiet:
        return
    show_table(comparison_table(record["rows"], record["target_accuracy"], compact=True))
    show_clusters(record["rows"])
    console = stdout()
    console.print(f"[dim]{record['note']}[/dim]", soft_wrap=not console.is_terminal)
    for line in remarks(record):
        console.print(line)
    show_files(written)


def remarks(record: dict[str, Any]) -> list[str]:
    """What the table says in words: what was won back, and each variant against its own baseline."""
    from discover.lab.report.against import against_baselines, won_back
    from discover.lab.report.style import series_name
    from discover.lab.report.tables import headline_rows

    lines = []
    edge = [series_name(row["label"]) for row in record["rows"] if row.get("at_grid_edge")]
    if edge:
        lines.append(f"[yellow]Best at the edge of the grid (--learning-rates widens it):[/yellow] {', '.join(edge)}.")
    best, plain, control = headline_rows(record["rows"])
    share = won_back(best, plain, control) if best and plain else None
    if best and plain and share and share > 0:
        who, whom = series_name(best["label"]), series_name(plain["label"])
        lines.append(f"{who} wins back {100 * share:.0f}% of what clustered batches cost {whom}.")
    return [*lines, *against_baselines(record["rows"])]
