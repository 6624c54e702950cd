"""`discover train`: one optimizer on one preset."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from discover.lab.cli import options
from discover.lab.cli.errors import CommandError, naming, stoppable

_PANEL = "Several devices and hosts"


def train(
    preset: options.WhatArgument = None,
    config_file: options.ConfigOption = None,
    optimizer: options.OptimizerOption = None,
    learning_rate: Annotated[float | None, typer.Option(metavar="X", help="Instead of the preset's.")] = None,
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
        Path | None, typer.Option(metavar="DIR", help="Output folder; default: runs/PRESET-OPTIMIZER.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run that is in the output folder.")] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the run that is in the output folder.")
    ] = False,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Also write TensorBoard event files.")] = False,
    json_file: options.JsonOption = None,
    devices: Annotated[
        str | None,
        typer.Option(metavar="N", help="How many devices to train on, or `all`; default: one.", rich_help_panel=_PANEL),
    ] = None,
    coordinator: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Train with several processes; the address is that of the first. `auto`: let JAX find out everything "
            "(Slurm, TPU pods, Open MPI).",
            rich_help_panel=_PANEL,
        ),
    ] = None,
    num_processes: Annotated[
        int | None, typer.Option(metavar="N", help="How many processes there are.", rich_help_panel=_PANEL)
    ] = None,
    process_id: Annotated[
        int | None, typer.Option(metavar="I", help="Which of them this is, from 0.", rich_help_panel=_PANEL)
    ] = None,
    worker_timeout: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            help="How long a process may keep the others waiting before they stop (a third of it without a sign of "
            "life).",
            rich_help_panel=_PANEL,
        ),
    ] = 60.0,
) -> None:
    """Train one optimizer, over all seeds of the preset, and leave records, checkpoints, figures and a page."""
    from discover.lab.cli.console import Watcher, live_bars, show_written

    if resume and overwrite:
        raise CommandError("--resume and --overwrite exclude each other")
    own = (layout, label, clusters, image_size, on_bad_image)
    overrides = options.as_overrides(settings, data, seeds, track_variance, own)
    chosen, loaded, _ = options.chosen_setting(preset, config_file, overrides)
    name = optimizer or chosen.config.optimizer.name
    # A preset may drop members that diverge, for grids; who trains one setting wants to know at once.
    config = chosen.config_for(name).with_values({"training.on_nonfinite": "stop"})
    config = config.override(overrides)
    if learning_rate is not None:
        config = config.with_values({"optimizer.learning_rate": learning_rate})
    config = config.check()
    directory = out or options.run_folder(chosen.name, name)
    with live_bars() as bars:
        watcher = Watcher(bars, f"{chosen.name} {name}")
        from discover.lab.experiments.run.build import build_data
        from discover.lab.experiments.run.run import run
        from discover.lab.experiments.run.team import Team

        team = Team.gather(devices, coordinator, num_processes, process_id, timeout=worker_timeout)
        hint = "with --resume instead of --overwrite" if overwrite else "with --resume"
        with stoppable(directory, hint, show_step=True):
            result = run(
                config,
                directory,
                resume=resume,
                overwrite=overwrite,
                progress=watcher,
                tensorboard=tensorboard,
                team=team,
                dataset=None if loaded is None else build_data(config, loaded=loaded),
            )
    if team is not None and not team.first:
        return  # the first process shows the results of all
    from discover.lab.report import load_report, write_report

    with naming(directory):
        report = load_report(directory)
        written = write_report(report)
    if json_file != "-":
        show_written(report, written)
    options.write_result(json_file, result.summary)
