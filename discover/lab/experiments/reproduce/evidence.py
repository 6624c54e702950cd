"""What the pages on theory and diagnosis rest on: programs in `benchmarks`, rerun in a checkout of the repository."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from discover.lab.experiments.config.config import ConfigError


@dataclass(frozen=True)
class Evidence:
    """One of these programs.

    Attributes:
        module: in `benchmarks`. Its ``run(out, data=…, quick=…, say=…)`` leaves records in the folder ``out``, and its
            ``draw(out)`` makes figures of them and returns the files, none where there is no record.
        question: what it answers.
    """

    module: str
    question: str

    def run(self, out: Path, *, data: str | None, quick: bool, say: Callable[[str], None]) -> None:
        """Leaves its records in ``out``; ``quick`` is a rehearsal."""
        importlib.import_module(f"benchmarks.{self.module}").run(out, data=data, quick=quick, say=say)

    def draw(self, out: Path) -> list[Path]:
        """The figures of the records in ``out``."""
        return importlib.import_module(f"benchmarks.{self.module}").draw(out)


EVIDENCE: Mapping[str, Evidence] = {
    "theory": Evidence(
        "theory.evidence",
        "The simulations behind the theory page: Theorem 1, its bound, and where the printed rule breaks it.",
    ),
    "variance": Evidence(
        "diagnosis.variance",
        "The between-cluster variance along training: SGD, Momentum and Discover, clean and with label noise.",
    ),
    "advice": Evidence(
        "diagnosis.advice",
        "Is the gain that diagnose expects the one that training shows? On digits, and on CIFAR-10 with --data.",
    ),
    "gains": Evidence(
        "diagnosis.gains",
        "The same for every setting of the results that are trained in the folder, each over its own baseline.",
    ),
}
"""By name, beside the results."""


def check_checkout(name: str) -> None:
    """Raises ConfigError where `benchmarks` is not there."""
    if find_spec("benchmarks") is None:
        raise ConfigError(f"{name} needs a checkout of the repository: run `python -m discover reproduce` in it")
