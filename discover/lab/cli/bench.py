"""`discover bench`: what a step costs with each optimizer."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Annotated, Any

import typer

from discover.lab.cli import options
from discover.lab.cli.errors import CommandError


def bench(
    preset: options.PresetArgument = None,
    config_file: options.ConfigOption = None,
    optimizers: Annotated[
        str | None,
        typer.Option(
            metavar="A,B",
            help="Which optimizers, with values of their own after a plus: discover_muon+damping=0.1. "
            "Default: the preset's.",
        ),
    ] = None,
    groups: Annotated[str | None, typer.Option(metavar="1,2,4,8", help="Groups per batch.")] = None,
    clusters: Annotated[str | None, typer.Option(metavar="10,100", help="Numbers of random clusters.")] = None,
    repeats: Annotated[int, typer.Option(metavar="N", help="Interleaved repeats.", callback=options.at_least(1))] = 7,
    seconds: Annotated[float, typer.Option(metavar="S", help="Length of momentum's repeat.")] = 1.0,
    loop: Annotated[
        bool, typer.Option("--loop/--no-loop", help="Time a hand-written optax loop as well, as a check of momentum.")
    ] = True,
    update: Annotated[bool, typer.Option("--update/--no-update", help="Time the update alone as well.")] = True,
    overrides: options.SetOption = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Write bench.json and a figure.")] = None,
    json_file: options.JsonOption = None,
) -> None:
    """Time every optimizer's step against momentum's, and the update against its memory-traffic floor."""
    if not 0 < seconds < 3600:
        raise CommandError(f"--seconds must be more than 0 and less than 3600, got {seconds:g}")
    from discover.lab.cli.console import stderr
    from discover.lab.experiments.bench.table import bench as measure
    from discover.lab.experiments.folder import Folder
    from discover.lab.records import write_json

    chosen = options.chosen_preset(preset, config_file, default="digits")
    names = options.split_list(optimizers) or list(chosen.compare)
    console = stderr()
    with contextlib.ExitStack() as held:
        folder = None if out is None else held.enter_context(Folder(out).claim())
        status = held.enter_context(console.status("starting"))
        result = measure(
            lambda name: chosen.config_for(name).override(overrides or []),
            names,
            groups=_whole("--groups", groups),
            clusters=_whole("--clusters", clusters),
            repeats=repeats,
            seconds=seconds,
            loop=loop,
            update=update,
            say=lambda text: status.update(text) if console.is_terminal else console.print(text, style="dim"),
        )
        status.stop()
        if json_file != "-":
            _show(result)
        options.write_result(json_file, result)
        if folder is not None:
            from discover.lab.report.bench import write_bench_figure

            write_json(folder.path / "bench.json", result)
            for path in write_bench_figure(result, folder.path):
                console.print(f"figure: {path}", markup=False)


def _whole(option: str, text: str | None) -> list[int] | None:
    numbers = options.split_numbers(option, text)
    if numbers is None:
        return None
    if not numbers or any(number < 1 or number != int(number) for number in numbers):
        raise CommandError(f"{option} must be whole numbers of at least 1 separated by commas, got {text!r}")
    return [int(number) for number in numbers]


def _show(result: dict[str, Any]) -> None:
    from discover.lab.cli.console import show_grid, stdout

    title = f"{result['preset']}: {result['model']}, {result['parameters']:,} parameters, batch {result['batch']}"
    columns = ("steps/s", "of momentum", "of its baseline", "state MB", "peak MB", "TFLOP/s", "compile s")
    headers = ("optimizer", "G", "N", *columns)
    rows = [
        (
            f"{row['optimizer']} {row['variant']}".strip(),
            str(row["groups"]),
            str(row["clusters"]),
            f"{row['steps_per_second']:.4g}",
            f"{row['ratio']:.3f} ({row['ratio_lowest']:.3f}-{row['ratio_highest']:.3f})",
            "" if row["baseline"] is None else f"{row['baseline_ratio']:.3f} ({row['baseline']})",
            f"{row['state_bytes'] / 1e6:,.1f}",
            "" if row["peak_bytes"] is None else f"{row['peak_bytes'] / 1e6:,.1f}",
            f"{row['operations_per_second'] / 1e12:.3g}",
            f"{row['compile_seconds']:.1f}",
        )
        for row in result["rows"]
    ]
    show_grid(headers, rows, title)
    note = f"medians of {result['repeats']} interleaved repeats of {result['steps_per_repeat']} steps (lowest-highest)"
    if result["updates"]:
        rows = [
            (
                row["optimizer"],
                str(row["groups"]),
                str(row["clusters"]),
                f"{row['milliseconds']:.3f}",
                f"{row['floor_milliseconds']:.3f}",
                f"{row['times_floor']:.2f}",
                f"{row['bytes_per_second'] / 1e9:,.1f}",
            )
            for row in result["updates"]
        ]
        show_grid(("optimizer", "G", "N", "ms", "floor ms", "times floor", "GB/s"), rows, "the update alone")
        note += f"; a copy here moves {result['bytes_per_second'] / 1e9:,.0f} GB/s"
    stdout().print(f"[dim]{note}[/dim]")
