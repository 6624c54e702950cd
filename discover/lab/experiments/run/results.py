"""What a run returns, made from the records that it leaves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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
    members: Sequence[Member], lines: list[dict[str, Any]], diverged_at: dict[int, int], steps: int
) -> list[dict[str, Any]]:
    """Each member with its last evaluation, from the lines of the metrics."""
    described, finals = describe(members), {}
    for index, line in _by_member(described, lines):
        if line["step"] == steps and line["kind"] in ("eval", "cluster"):
            found = {"loss": line["loss"], "accuracy": line["accuracy"]}
            own = finals.setdefault(index, {})
            if line["kind"] == "eval":
                own[line["split"]] = found
            else:
                own[line["split"]].setdefault("clusters", {})[line["cluster"]] = found
    return [
        {**member, "final": finals.get(index), "diverged_at": diverged_at.get(index)}
        for index, member in enumerate(described)
    ]


def result_of(summary: dict[str, Any], lines: list[dict[str, Any]], out_dir: Path | None) -> RunResult:
    """The result of a run from its summary and its metrics, whether it was just trained or read from disk."""
    own: list[list[dict[str, Any]]] = [[] for _ in summary["members"]]
    for index, line in _by_member(summary["members"], lines):
        own[index].append(line)
    return RunResult(
        status=summary["status"],
        steps=summary["steps"],
        out_dir=out_dir,
        steps_per_second=summary["steps_per_second"],
        compile_seconds=summary["compile_seconds"],
        members=[MemberResult(**member, metrics=metrics) for member, metrics in zip(summary["members"], own)],
        summary=summary,
    )


def _by_member(
    members: Sequence[Mapping[str, Any]], lines: list[dict[str, Any]]
) -> Iterator[tuple[int, dict[str, Any]]]:
    """The lines with the numbers of the members that they are of; where these do not say so, seeds tell them apart."""
    by_seed = {member["seed"]: index for index, member in enumerate(members)}
    for line in lines:
        yield line["member"] if "member" in line else by_seed[line["seed"]], line
