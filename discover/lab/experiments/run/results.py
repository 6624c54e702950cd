"""What a run returns, made from the records that it leaves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from discover.lab.experiments.run.build import Member


@dataclass(frozen=True)
class MemberResult:
    """One member's end and its lines of the metrics."""

    seed: int
    hyperparameters: dict[str, float]
    final: dict[str, dict[str, Any]] | None  # by split: loss, accuracy, and by cluster where these are known
    diverged_at: int | None
    metrics: list[dict[str, Any]]


@dataclass(frozen=True)
class RunResult:
    """A finished run."""

    status: str
    steps: int
    out_dir: Path | None
    steps_per_second: float | None
    compile_seconds: float
    members: list[MemberResult]
    summary: dict[str, Any]


def describe(members: Sequence[Member]) -> list[dict[str, Any]]:
    """The members as summary.json and the check before a resumption have them."""
    return [{"seed": m.seed, "hyperparameters": dict(m.hyperparameters)} for m in members]


def member_summaries(
    members: Sequence[Member], lines: list[dict[str, Any]], diverged_at: dict[int, int], steps: int, explicit: bool
) -> list[dict[str, Any]]:
    """Each member with its last evaluation, from the lines of the metrics."""
    finals: dict[int, dict[str, dict[str, Any]]] = {}
    by_seed = {member.seed: index for index, member in enumerate(members)}
    for line in lines:
        if line["kind"] == "eval" and line["step"] == steps:
            index = line["member"] if explicit else by_seed[line["seed"]]
            finals.setdefault(index, {})[line["split"]] = {"loss": line["loss"], "accuracy": line["accuracy"]}
        if line["kind"] == "cluster" and line["step"] == steps:
            index = line["member"] if explicit else by_seed[line["seed"]]
            found = {"loss": line["loss"], "accuracy": line["accuracy"]}
            finals[index][line["split"]].setdefault("clusters", {})[line["cluster"]] = found
    return [
        {
            "seed": member.seed,
            "hyperparameters": dict(member.hyperparameters),
            "final": finals.get(index),
            "diverged_at": diverged_at.get(index),
        }
        for index, member in enumerate(members)
    ]


def result_of(summary: dict[str, Any], lines: list[dict[str, Any]], out_dir: Path | None, explicit: bool) -> RunResult:
    """The result of a run from its summary and its metrics, whether it was just trained or read from disk."""
    own: dict[int, list[dict[str, Any]]] = {index: [] for index in range(len(summary["members"]))}
    by_seed = {member["seed"]: index for index, member in enumerate(summary["members"])}
    for line in lines:
        own[line["member"] if explicit else by_seed[line["seed"]]].append(line)
    members = [MemberResult(**member, metrics=own[index]) for index, member in enumerate(summary["members"])]
    return RunResult(
        status=summary["status"],
        steps=summary["steps"],
        out_dir=out_dir,
        steps_per_second=summary["steps_per_second"],
        compile_seconds=summary["compile_seconds"],
        members=members,
        summary=summary,
    )
