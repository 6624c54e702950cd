"""`discover diagnose`: will a clustering help, which one, and where to start."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from discover.lab.cli.options import (
    ConfigOption,
    DataOption,
    JsonOption,
    SetOption,
    check_writable,
    chosen_preset,
    run_folder,
    with_seeds,
    write_result,
)

if TYPE_CHECKING:
    from discover.lab.experiments.diagnose.ranking import Diagnosis


def register(app: typer.Typer) -> None:
    app.command("diagnose", epilog="Example:  discover diagnose digits --groups 2 --group-size 32")(diagnose)


def diagnose(
    what: Annotated[
        str | None,
        typer.Argument(metavar="[PRESET|DATA]", help="A preset, a data set's name, an image folder or an .npz file."),
    ] = None,
    config_file: ConfigOption = None,
    groups: Annotated[
        int | None, typer.Option("--groups", metavar="G", help="Cluster-pure groups per batch, as you will draw them.")
    ] = None,
    group_size: Annotated[int | None, typer.Option("--group-size", metavar="B", help="Examples per group.")] = None,
    column: Annotated[
        str | None, typer.Option("--column", metavar="NAME", help="Also judge this column of the data set.")
    ] = None,
    sample: Annotated[int, typer.Option("--sample", metavar="N", help="Examples whose gradients are taken.")] = 1000,
    warmup: Annotated[int, typer.Option("--warmup", metavar="STEPS", help="Training before the second look.")] = 100,
    save_clusters: Annotated[
        Path | None,
        typer.Option(
            "--save-clusters",
            metavar="FILE",
            help="Also cluster all training examples by their gradients, for --set clusters.by=file.",
        ),
    ] = None,
    data: DataOption = None,
    settings: SetOption = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Output folder; default: runs/diagnose-NAME.")
    ] = None,
    json_file: JsonOption = None,
) -> None:
    """Rank clusterings by the gradient noise that Discover could remove, with advice on beta, nu and memory."""
    from discover.lab.cli.errors import CommandError

    check_writable(json_file)
    check_writable(None if save_clusters is None else str(save_clusters))
    for option, value, least in (("--sample", sample, 20), ("--warmup", warmup, 0)):
        if value < least:
            raise CommandError(f"{option} must be at least {least}, got {value}")
    overrides = with_seeds(settings, None, data)
    overrides += [f"batches.groups={groups}"] if groups is not None else []
    overrides += [f"batches.group_size={group_size}"] if group_size is not None else []
    from discover.lab.experiments.presets.what import configuration_of

    if what is None or config_file is not None:
        chosen = chosen_preset(what, config_file)
        config, name = chosen.config, chosen.name
    else:
        config, name = configuration_of(what)
    config = config.override(overrides).check()
    from discover.lab.experiments.folder import Folder

    with Folder(out or run_folder("diagnose", name)).claim() as folder:
        result = _measure(config, name, column, sample, warmup)
        figures = _write(result, folder.path)
    if json_file != "-":
        _show(result, figures)
    if save_clusters is not None:
        from discover.lab.experiments.diagnose.find_clusters import find_clusters
        from discover.lab.experiments.diagnose.ranking import DiagnosisOptions

        number = max(row.num_clusters for row in result.rows if "classes" in row.name)
        found = find_clusters(config, number, options=DiagnosisOptions(warmup_steps=warmup))
        path = found.save(save_clusters)
        if json_file != "-":
            use = f"--set clusters.by=file --set clusters.path={path}"
            typer.echo(f"{found.num_clusters} clusters of gradients: {path} (train with {use})")
    write_result(json_file, result.to_json())


def _measure(config: Any, name: str, column: str | None, sample: int, warmup: int) -> Diagnosis:
    from discover.lab.cli.console import live_bars
    from discover.lab.cli.errors import CommandError

    with live_bars() as bars:
        task = None if bars is None else bars.add_task(f"diagnose {name}", total=None, status="[dim]loading[/dim]")

        def say(line: str) -> None:
            if bars is not None and task is not None:
                bars.update(task, status=line)

        from discover.lab.experiments.diagnose.ranking import DiagnosisOptions, diagnose

        try:
            options = DiagnosisOptions(sample=sample, warmup_steps=warmup, column=column)
            return diagnose(config, options, say=say)
        except ValueError as error:
            raise CommandError(str(error)) from None


def _write(result: Diagnosis, directory: Path) -> list[Path]:
    from discover.lab.records import write_json
    from discover.lab.report.diagnosis import write_diagnosis_figure

    path = directory / "diagnosis.json"
    write_json(path, result.to_json())
    return [path, *write_diagnosis_figure(path, directory)]


def _show(result: Diagnosis, files: list[Path]) -> None:
    from rich import box
    from rich.table import Table

    from discover.lab.cli.console import stdout

    facts = result.facts
    console = stdout()
    title = f"{facts['data']}: batches of {facts['groups']} × {facts['group_size']}, {facts['model']}"
    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", title_style="bold", header_style="dim")
    headers = ("clusters", "N", "noise between, pure groups", "shuffled", "expected gain", "beta", "nu", "memory")
    for number, header in enumerate(headers):
        table.add_column(header, justify="left" if number == 0 else "right", no_wrap=number == 0)
    for number, row in enumerate(result.rows):
        last = row.stages[facts["stages"][-1]]
        first = row.stages[facts["stages"][0]]
        table.add_row(
            row.name,
            str(row.num_clusters),
            f"{first['batch_share']:.0%} → {last['batch_share']:.0%}",
            f"{first['shuffled_share']:.0%} → {last['shuffled_share']:.0%}",
            f"{row.gain:.1f}",
            f"{row.setting.beta:g}",
            f"{row.setting.nu:g}",
            _bytes(row.memory_bytes),
            style="bold" if number == 0 else "dim" if row.verdict == "leave" else None,
        )
    if not console.is_terminal:
        console.width = 160
    console.print(table)
    for line in facts["summary"]:
        console.print(f"- {line}", markup=False, soft_wrap=True)
    if facts["next"]:
        console.print("\nWhat to do, in this order:", style="bold")
    for number, line in enumerate(facts["next"], 1):
        console.print(f"{number}. {line.strip()}", markup=False, soft_wrap=True)
    console.print("\nfiles: " + ", ".join(str(path) for path in files), markup=False, soft_wrap=True)


def _bytes(count: int) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count} B"
