"""`discover train`: one optimizer on one preset."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from discover.lab.cli.devices import (
    CoordinatorOption,
    DevicesOption,
    NumProcessesOption,
    ProcessIdOption,
    WorkerTimeoutOption,
    gather_team,
)
from discover.lab.cli.errors import CommandError, stoppable
from discover.lab.cli.options import (
    ConfigOption,
    DataOption,
    JsonOption,
    OptimizerOption,
    PresetArgument,
    SeedsOption,
    SetOption,
    TrackVarianceOption,
    check_writable,
    chosen_preset,
    run_folder,
    with_seeds,
    write_result,
)


def register(app: typer.Typer) -> None:
    app.command("train", epilog="Example:  discover train digits --optimizer discover --set training.steps=500")(train)


def train(
    preset: PresetArgument = None,
    config_file: ConfigOption = None,
    optimizer: OptimizerOption = None,
    learning_rate: Annotated[
        float | None, typer.Option("--learning-rate", metavar="X", help="Instead of the preset's.")
    ] = None,
    seeds: SeedsOption = None,
    data: DataOption = None,
    track_variance: TrackVarianceOption = None,
    settings: SetOption = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Output folder; default: runs/PRESET-OPTIMIZER.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run that is in the output folder.")] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the run that is in the output folder.")
    ] = False,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Also write TensorBoard event files.")] = False,
    json_file: JsonOption = None,
    devices: DevicesOption = None,
    coordinator: CoordinatorOption = None,
    num_processes: NumProcessesOption = None,
    process_id: ProcessIdOption = None,
    worker_timeout: WorkerTimeoutOption = 60.0,
) -> None:
    """Train one optimizer, over all seeds of the preset, and leave records, checkpoints, figures and a page."""

    check_writable(json_file)
    if resume and overwrite:
        raise CommandError("--resume and --overwrite exclude each other")
    # A preset may drop members that diverge, for grids; who trains one setting wants to know at once.
    chosen = chosen_preset(preset, config_file)
    name = optimizer or chosen.config.optimizer.name
    config = chosen.config_for(name).with_values({"training.on_nonfinite": "stop"})
    config = config.override(with_seeds(settings, seeds, data, track_variance))
    if learning_rate is not None:
        config = config.with_values({"optimizer.learning_rate": learning_rate})
    config = config.check()
    directory = out or run_folder(chosen.name, name)
    team = gather_team(devices, coordinator, num_processes, process_id, worker_timeout)
    hint = "with --resume instead of --overwrite" if overwrite else "with --resume"
    summary = _train(config, directory, (resume, overwrite), tensorboard, f"{chosen.name} {name}", hint, team)
    if team is not None and not team.first:
        return  # the first process shows the results of all
    _show(directory, quiet=json_file == "-")
    write_result(json_file, summary)


def _train(
    config: Any, directory: Path, existing: tuple[bool, bool], tensorboard: bool, name: str, hint: str, team: Any
) -> dict[str, Any]:
    from discover.lab.cli.console import Watcher, live_bars

    with live_bars() as bars:
        watcher = Watcher(bars, name)
        from discover.lab.experiments.run.run import run

        resume, overwrite = existing
        options: dict[str, Any] = {"progress": watcher, "tensorboard": tensorboard, "team": team}
        with stoppable(directory, hint, show_step=True):
            return run(config, directory, resume=resume, overwrite=overwrite, **options).summary


def _show(directory: Path, quiet: bool) -> None:
    from discover.lab.cli.console import show_table, stdout
    from discover.lab.report import comparison_table, load_report, write_report

    report = load_report(directory)
    written = write_report(report)
    if quiet:
        return
    show_table(comparison_table(report.rows, compact=True))
    console = stdout()
    console.print(f"figures: {written.figures[0].parent}", markup=False)
    console.print(f"open {written.page} in a browser", markup=False, style="bold")
