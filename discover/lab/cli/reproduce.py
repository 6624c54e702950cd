"""`discover reproduce`: rerun one of the documented results and redraw its figure."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from discover.lab.cli import options
from discover.lab.cli.console import say, show_names
from discover.lab.cli.errors import CommandError, naming, stoppable


def reproduce(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RESULT]...",
            help="results-a … results-k, theory, variance, advice, gains, or all; results-h/text is one panel.",
        ),
    ] = None,
    show_list: Annotated[bool, typer.Option("--list", help="Say what there is, and what each one trains.")] = False,
    scale: Annotated[
        str, typer.Option(metavar="NAME", help="small (one GPU), cpu (small networks), or digits (a rehearsal).")
    ] = "small",
    minutes: options.MinutesOption = None,
    jobs: Annotated[
        int, typer.Option(metavar="N", min=1, help="Train in N processes at once: two to eight on one GPU.")
    ] = 1,
    seeds: options.SeedsOption = None,
    data: Annotated[
        str | None,
        typer.Option(metavar="PATH", help="CIFAR-10, or a folder with the archives of several data sets."),
    ] = None,
    settings: options.SetOption = None,
    redraw: Annotated[bool, typer.Option("--redraw", help="Only draw again, from the records that are there.")] = False,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Output folder; default: runs/reproduce-SCALE.")
    ] = None,
    json_file: options.JsonOption = None,
) -> None:
    """Rerun documented results from their presets, and redraw their figures.

    Run the same command again to continue: what is trained is never trained twice, also between results.
    """
    from discover.lab.experiments.reproduce.evidence import EVIDENCE
    from discover.lab.experiments.reproduce.results import RESULTS, SCALES
    from discover.registry import choose

    choose("scale", scale, SCALES)
    if show_list:
        rows = listing(scale)
        if json_file != "-":
            show_names(map(_line, rows), "Trainings that several results share are done once.")
        options.write_result(json_file, rows)
        return
    if not names:
        raise CommandError(f"say which result: {', '.join((*RESULTS, *EVIDENCE))} or all (see --list)")
    wanted = [row["name"] for row in listing(scale) if row["panels"] is not None] if "all" in names else names
    for name in wanted:
        choose("result", name.partition("/")[0], (*RESULTS, *EVIDENCE))
        if name in EVIDENCE:
            EVIDENCE[name].load()  # told now where it is not there
    directory = out or Path("runs") / f"reproduce-{scale}"
    run = partial(_run, wanted, scale, directory, seeds=seeds, data=data, settings=settings, redraw=redraw)
    quiet = json_file == "-"
    shared = [name for name in wanted if name not in EVIDENCE]  # which has no rows to share
    if jobs > 1 and shared and not redraw:
        from discover.lab.experiments.reproduce.jobs import more_processes

        given = {"--scale": scale, "--minutes": minutes, "--seeds": seeds, "--data": data, "--out": directory}
        command = ["reproduce", *shared, *(f"{key}={value}" for key, value in given.items() if value is not None)]
        command += [word for text in settings or () for word in ("--set", text)]
        with more_processes(jobs - 1, command, directory / "logs", say):
            run(minutes=minutes, quiet=True)
        minutes = 0.0  # what the others have trained is only to be read
    options.write_result(json_file, run(minutes=minutes, quiet=quiet))


def listing(scale: str) -> list[dict[str, Any]]:
    """Every result with its panels: how many rows, and how many trainings where none is there yet.

    The panels are None where a result cannot be trained here; the question then says why.
    """
    from discover.lab.experiments.config.config import ConfigError
    from discover.lab.experiments.reproduce.evidence import EVIDENCE
    from discover.lab.experiments.reproduce.results import RESULTS, get_result

    def panels(name: str) -> list[dict[str, Any]]:
        if name in EVIDENCE:
            EVIDENCE[name].load()
            return []
        return [
            {"name": panel.name, "title": panel.title, "rows": len(panel.rows), "trainings": panel.num_trainings}
            for panel in get_result(name, scale).panels
        ]

    rows: list[dict[str, Any]] = []
    for name, question in {**RESULTS, **{name: evidence.question for name, evidence in EVIDENCE.items()}}.items():
        try:
            rows.append({"name": name, "question": question, "panels": panels(name)})
        except ConfigError as error:
            rows.append({"name": name, "question": f"{question} ({error})", "panels": None})
    return rows


def _line(row: dict[str, Any]) -> tuple[str, str]:
    panels = "; ".join(f"{p['name']}: {p['rows']} rows, {p['trainings']} trainings" for p in row["panels"] or ())
    return row["name"], row["question"] + (f" [dim]({panels})[/dim]" if panels else "")


def _run(
    wanted: list[str],
    scale: str,
    directory: Path,
    *,
    minutes: float | None,
    seeds: int | None,
    data: str | None,
    settings: list[str] | None,
    redraw: bool,
    quiet: bool,
) -> list[dict[str, Any]]:
    from discover.lab.experiments.reproduce.evidence import EVIDENCE
    from discover.lab.experiments.reproduce.results import get_result

    overrides = list(settings or ())
    numbers = None if seeds is None else list(range(seeds))
    results = {
        name: get_result(name, scale, data=data, overrides=overrides, seeds=numbers)
        for name in wanted
        if name not in EVIDENCE
    }
    shown = [text for text in overrides if not text.startswith("data.path=")]
    programs: dict[str, Any] = {}
    found: list[dict[str, Any]] = []
    began = time.monotonic()
    for name in wanted:
        if redraw:
            with naming(directory):
                figures = _redraw(name, directory)
            for folder in sorted({str(path.parent) for path in figures if path.suffix != ".html"}):
                say(f"figures: {folder}")
            found.append({"result": name, "figures": [str(path) for path in figures]})
            continue
        if name in EVIDENCE:
            with stoppable(directory):
                EVIDENCE[name].load().run(directory / name, data=data, quick=scale == "digits", say=say)
            figures = [str(path) for path in _redraw(name, directory)]
            say(f"figures: {directory / name}")
            found.append({"result": name, "status": "finished", "figures": figures})
            continue
        from discover.lab.experiments.reproduce.train import reproduce as run_result

        left = None if minutes is None else minutes - (time.monotonic() - began) / 60
        with stoppable(directory):
            result = run_result(results[name], directory, minutes=left, say=say, programs=programs, overrides=shown)
        result["figures"] = [str(path) for path in _redraw(name, directory)]
        found.append(result)
        if not quiet:
            _show(result)
        if result["status"] != "finished":
            rest = sum(panel["rows_in_all"] - len(panel["rows"]) for panel in result["panels"].values())
            say(f"the time is up with {rest} rows of {name} to go: run the same command again to continue")
            break
    return found


def _redraw(name: str, directory: Path) -> list[Path]:
    from discover.lab.experiments.reproduce.evidence import EVIDENCE
    from discover.lab.report.results import write_drift, write_panel

    if name in EVIDENCE:
        return EVIDENCE[name].load().draw(directory / name) or _no_record(name, directory)
    result, _, only = name.partition("/")
    panels = sorted(path.parent for path in (directory / result).glob(f"{only or '*'}/comparison.json"))
    if not panels:
        _no_record(name, directory)
    drift = directory / result / "drift"
    extra = write_drift(drift) if (drift / "drift.json").is_file() and not only else []
    return [*(path for panel in panels for path in write_panel(panel)), *extra]


def _no_record(name: str, directory: Path) -> NoReturn:
    raise CommandError(f"there is no record of {name} in {directory}: run `discover reproduce {name}` first")


def _show(result: dict[str, Any]) -> None:
    from discover.lab.cli.console import show_table, stdout
    from discover.lab.report import comparison_table
    from discover.lab.report.style import series_name

    console = stdout()
    for record in result["panels"].values():
        if record["rows"] and record["figure"] == "drift":
            for row in record["rows"]:
                last = row["lines"][-1]
                name = series_name(row["label"])
                console.print(f"{name}: |mean - sum of buffers| / |sum| = {last['drift']:.1e} at step {last['step']}")
        elif record["rows"]:
            title = f"{record['preset']} ({record['facts']['data']})"
            show_table(comparison_table(record["rows"], compact=True), title=title)
            console.print(f"[dim]{record['note']}[/dim]", soft_wrap=not console.is_terminal)
    figures = sorted({str(Path(path).parent) for path in result["figures"] if not path.endswith(".html")})
    for folder in figures:
        console.print(f"figures: {folder}", markup=False)
