"""What the pages on theory and diagnosis rest on: programs in `benchmarks`, rerun in a checkout of the repository."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from discover.lab.experiments.config.config import ConfigError


@dataclass(frozen=True)
class Evidence:
    """One of these programs."""

    name: str
    module: str  # in `benchmarks`
    question: str  # what it answers

    def load(self) -> Any:
        """The module: ``run(out, data=…, quick=…, say=…)`` leaves records in a folder, ``draw(out)`` draws them.

        ``quick`` is a rehearsal. ``draw`` returns the files, none where there is no record.
        """
        return in_checkout(self.name, self.module)


def in_checkout(name: str, module: str) -> Any:
    """A module of `benchmarks`, which ``name`` needs; raises ConfigError where there is none."""
    if find_spec("benchmarks") is None:
        raise ConfigError(f"{name} needs a checkout of the repository: run `python -m discover reproduce` in it")
    return importlib.import_module(f"benchmarks.{module}")


EVIDENCE: Mapping[str, Evidence] = {
    one.name: one
    for one in (
        Evidence(
            "theory",
            "theory.evidence",
            "The simulations behind the theory page: Theorem 1, its bound, and where the printed rule breaks it.",
        ),
        Evidence(
            "variance",
            "diagnosis.variance",
            "The between-cluster variance along training: SGD, Momentum and Discover, clean and with label noise.",
        ),
        Evidence(
            "advice",
            "diagnosis.advice",
            "Is the gain that diagnose expects the one that training shows? On digits, and on CIFAR-10 with --data.",
        ),
        Evidence(
            "gains",
            "diagnosis.gains",
            "The same for every setting of the results that are trained in the folder, each over its own baseline.",
        ),
    )
}
"""By name, beside the results."""
