"""What `discover reproduce` can rerun beside the paper's results: the figures of the theory and diagnosis pages."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from discover.lab.cli.errors import CommandError

OTHERS = {
    "theory": "The simulations behind the theory page: Theorem 1, its bound, and where the printed rule breaks it.",
    "variance": "The between-cluster variance along training: SGD, Momentum and Discover, clean and with label noise.",
    "advice": "Is the gain that diagnose expects the one that training shows? On digits, and on CIFAR-10 with --data.",
    "gains": "The same for every setting of the results that are trained in the folder, each over its own baseline.",
}


def run_other(
    name: str, directory: Path, *, quick: bool, data: str | None, say: Callable[[str], None]
) -> dict[str, Any]:
    """Reruns one of :data:`OTHERS` into ``directory/name`` and draws its figures; ``quick`` is a rehearsal."""
    from discover.lab.experiments.config.config import DataConfig
    from discover.lab.experiments.diagnose.against_results import gains
    from discover.lab.experiments.reproduce.advice import reproduce_advice
    from discover.lab.experiments.reproduce.find_data import find_data
    from discover.lab.experiments.reproduce.theory import reproduce_theory
    from discover.lab.experiments.reproduce.variance import reproduce_variance

    out = directory / name
    if name == "advice":
        cifar = None if data is None else find_data(DataConfig("cifar10"), data)
        reproduce_advice(out, cifar, quick=quick, say=say)
    elif name == "gains":
        if not gains(directory, data=data, scale="digits" if quick else "small", say=say)["rows"]:
            told = f"no result in {directory} has an optimizer with clusters beside its baseline"
            raise CommandError(f"{told}: run `discover reproduce results-d`, for instance, first")
    else:
        {"theory": reproduce_theory, "variance": reproduce_variance}[name](out, quick=quick, say=say)
    figures = redraw_other(name, directory)
    say(f"figures: {out}")
    return {"result": name, "status": "finished", "figures": [str(path) for path in figures]}


def redraw_other(name: str, directory: Path) -> list[Path]:
    """Draws the figures of one of :data:`OTHERS` from the records in ``directory/name``."""
    draw = {"theory": _draw_theory, "variance": _draw_variance, "advice": _draw_advice, "gains": _draw_gains}[name]
    figures = draw(directory / name)
    if not figures:
        raise CommandError(f"there is no record of {name} in {directory}: run `discover reproduce {name}` first")
    return figures


def _draw_theory(out: Path) -> list[Path]:
    from discover.lab.report.theory import write_theory_figures

    return write_theory_figures(out / "theory.json", out) if (out / "theory.json").is_file() else []


def _draw_variance(out: Path) -> list[Path]:
    from discover.lab.report import load_run
    from discover.lab.report.variance import write_variance_figure

    titles = {"clean": "clean labels", "noise": "label noise 0.8"}
    names = ("sgd", "momentum", "discover")
    runs = {
        title: {name: load_run(path, name) for name in names if (path := out / setting / name).is_dir()}
        for setting, title in titles.items()
    }
    return write_variance_figure(runs, out) if all(runs.values()) else []


def _draw_advice(out: Path) -> list[Path]:
    from discover.lab.records import read_json
    from discover.lab.report.validation import write_validation_figure

    found = [read_json(path) for name in ("digits", "cifar10") if (path := out / f"validation-{name}.json").is_file()]
    records = {record["data"]: record for record in found if len(record["rows"]) > 1}
    return write_validation_figure(records, out) if records else []


def _draw_gains(out: Path) -> list[Path]:
    from discover.lab.records import read_json
    from discover.lab.report.validation import write_gains_figure

    record = read_json(out / "gains.json") if (out / "gains.json").is_file() else {}
    return write_gains_figure(record, out) if record.get("rows") else []
