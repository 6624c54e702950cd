"""What `discover reproduce` can rerun beside the paper's results: the figures of the theory and diagnosis pages."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

OTHERS = {
    "theory": "The simulations behind the theory page: Theorem 1, its bound, and where the printed rule breaks it.",
    "variance": "The between-cluster variance along training: SGD, Momentum and Discover, clean and with label noise.",
    "advice": "Is the gain that diagnose expects the one that training shows? On digits, and on CIFAR-10 with --data.",
}
_TITLES = {"clean": "clean labels", "noise": "label noise 0.8"}


def run_other(
    name: str, directory: Path, *, quick: bool, data: str | None, say: Callable[[str], None]
) -> dict[str, Any]:
    """Reruns one of :data:`OTHERS` into ``directory/name`` and draws its figures; ``quick`` is a rehearsal."""
    out = directory / name
    if name == "theory":
        from discover.lab.experiments.reproduce.theory import reproduce_theory

        reproduce_theory(out, quick=quick, say=say)
    elif name == "variance":
        from discover.lab.experiments.reproduce.variance import reproduce_variance

        reproduce_variance(out, quick=quick, say=say)
    else:
        from discover.lab.experiments.reproduce.advice import reproduce_advice

        reproduce_advice(out, data, quick=quick, say=say)
    figures = redraw_other(name, directory)
    say(f"figures: {out}")
    return {"result": name, "status": "finished", "figures": [str(path) for path in figures]}


def redraw_other(name: str, directory: Path) -> list[Path]:
    """Draws the figures of one of :data:`OTHERS` from the records in ``directory/name``."""
    import json

    from discover.lab.cli.errors import CommandError
    from discover.lab.report import load_run

    out = directory / name
    missing = CommandError(f"there is no record of {name} in {directory}: run `discover reproduce {name}` first")
    if name == "theory":
        from discover.lab.report.theory import write_theory_figures

        if not (out / "theory.json").is_file():
            raise missing
        return write_theory_figures(out / "theory.json", out)
    if name == "variance":
        from discover.lab.report.variance import write_variance_figure

        runs = {
            title: {run.name: load_run(run, run.name) for run in _in_order((out / setting).glob("*/metrics.jsonl"))}
            for setting, title in _TITLES.items()
        }
        if not all(runs.values()):
            raise missing
        return write_variance_figure(runs, out)
    from discover.lab.report.validation import write_validation_figure

    paths = (out / f"validation-{name}.json" for name in ("digits", "cifar10"))
    found = [json.loads(path.read_text()) for path in paths if path.is_file()]
    records = {record["data"]: record for record in found if len(record["rows"]) > 1}
    if not records:
        raise missing
    return write_validation_figure(records, out)


def _in_order(metrics: Any) -> list[Path]:
    """The run directories of these files, plain optimizers first."""
    order = ("sgd", "momentum", "discover")
    return sorted((path.parent for path in metrics), key=lambda run: order.index(run.name))
