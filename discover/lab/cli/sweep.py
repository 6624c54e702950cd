"""`discover sweep`: search an optimizer's hyperparameters on the validation split."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from discover.lab.cli import options
from discover.lab.cli.errors import CommandError, naming, stoppable

if TYPE_CHECKING:
    from discover.lab.experiments.sweep.search import Search


def sweep(
    preset: options.WhatArgument = None,
    config_file: options.ConfigOption = None,
    optimizer: options.OptimizerOption = None,
    search: Annotated[
        str, typer.Option(metavar="KIND", help="grid (every combination), or tpe (optuna; extra `sweep`).")
    ] = "grid",
    space: Annotated[
        str, typer.Option(metavar="WHOSE", help="paper, ours, or auto: the paper's where it has one.")
    ] = "auto",
    axis: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=X,Y", help="Search this hyperparameter instead of the space; repeatable."),
    ] = None,
    trials: Annotated[
        int | None, typer.Option(metavar="N", help="How many; default: the whole grid, 40 for tpe.")
    ] = None,
    search_seed: Annotated[int, typer.Option(metavar="S", help="Seed of the search.")] = 0,
    prune: Annotated[bool, typer.Option(help="Let tpe give hopeless trials up early.")] = True,
    storage: Annotated[
        str | None, typer.Option(metavar="URL", help="An optuna storage; default: a file in --out.")
    ] = None,
    minutes: options.MinutesOption = None,
    seeds: options.SeedsOption = None,
    data: options.DataOption = None,
    layout: options.LayoutOption = None,
    label: options.LabelOption = None,
    clusters: options.ClustersOption = None,
    image_size: options.ImageSizeOption = None,
    on_bad_image: options.OnBadImageOption = None,
    settings: options.SetOption = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Output folder; default: runs/sweep-PRESET-NAME.")
    ] = None,
    json_file: options.JsonOption = None,
) -> None:
    """Find the hyperparameters with the highest mean validation accuracy, and look at the test split once.

    Run the same command again to continue a sweep that was stopped or killed, or beside another to share the work.
    """
    from discover.lab.cli.console import say
    from discover.lab.experiments.sweep.search import make_search

    if storage is not None and search != "tpe":
        raise CommandError(f"--storage goes with --search tpe, got --search {search}")
    overrides = options.as_overrides(settings, data, seeds, own=(layout, label, clusters, image_size, on_bad_image))
    chosen, loaded, _ = options.chosen_setting(preset, config_file, overrides)
    settled = make_search(
        chosen,
        optimizer or chosen.config.optimizer.name,
        method=search,
        space=space,
        axes=axis or (),
        trials=trials,
        seed=search_seed,
        prune=prune,
        overrides=overrides,
    )
    directory = out or options.run_folder("sweep", chosen.name, settled.optimizer)
    names = ", ".join(f"{name} ({len(axis.values)})" for name, axis in settled.space.items())
    say(f"{settled.trials} trials of {settled.optimizer} on {settled.preset}: {names}; space: {settled.space_kind}")
    from discover.lab.experiments.sweep.train import sweep as train

    with stoppable(directory):
        record = train(
            settled, directory, storage=storage, minutes=minutes, say=lambda trial: say(describe(trial)), loaded=loaded
        )
    setting = shlex.quote(preset or "") if config_file is None else f"--config {shlex.quote(str(config_file))}"
    with naming(directory):
        _show(record, settled, directory, setting, overrides, quiet=json_file == "-")
    options.write_result(json_file, record)


def describe(trial: dict[str, Any]) -> str:
    """One line about a trial that has ended.

    >>> describe({"number": 3, "params": {"beta": 0.9}, "state": "diverged", "validation_accuracy": None})
    'trial 3: beta=0.9: diverged'
    """
    values = " ".join(f"{name}={value:g}" for name, value in trial["params"].items())
    if trial["state"] == "complete":
        score = trial["validation_accuracy"]
        ended = f"{100 * score['mean']:.1f} ± {100 * score['std']:.1f} %"
    elif trial["state"] == "pruned":
        ended = f"given up at step {trial['last']['step']} ({100 * trial['last']['value']:.1f} %)"
    else:
        ended = trial["state"]
    return f"trial {trial['number']}: {values}: {ended}"


def _show(
    record: dict[str, Any], search: Search, directory: Path, setting: str, overrides: Sequence[str], quiet: bool
) -> None:
    from discover.lab.cli.console import show_table, stdout
    from discover.lab.report.sweep import sweep_table, write_sweep_figure

    figures = write_sweep_figure(directory)
    if quiet:
        return
    console = stdout()
    show_table(sweep_table(record))
    if record["status"] != "finished":
        rest = search.trials - len(record["trials"])
        console.print(f"the time is up with {rest} trials to go: run the same command again to continue")
        return
    best = record["best"]
    if best is None:
        console.print("no trial came to its end: all diverged")
        return
    test, count = best["test_accuracy"], len(record["seeds"])
    reached = f"{100 * test['mean']:.1f} ± {100 * test['std']:.1f} %" if test["mean"] is not None else "diverged"
    console.print(f"winner: trial {best['number']}; test accuracy, looked at once: {reached} (n = {count})")
    same = options.typed(overrides)  # as what was swept
    line = " ".join(
        filter(None, ("discover train", setting, f"--optimizer {search.optimizer}", same, best["set_line"]))
    )
    console.print(line, markup=False, soft_wrap=True)
    if figures:
        console.print(f"figure: {figures[0]}", markup=False)
