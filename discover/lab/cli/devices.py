"""Options for training on several devices and hosts."""

from __future__ import annotations

from typing import Annotated, Any

import typer

_PANEL = "Several devices and hosts"

DevicesOption = Annotated[
    str | None,
    typer.Option(
        "--devices", metavar="N", help="How many devices to train on, or `all`; default: one.", rich_help_panel=_PANEL
    ),
]
CoordinatorOption = Annotated[
    str | None,
    typer.Option(
        "--coordinator",
        metavar="HOST:PORT",
        help="Train with several processes; the address is that of the first. `auto`: let JAX find out everything "
        "(Slurm, TPU pods, Open MPI).",
        rich_help_panel=_PANEL,
    ),
]
NumProcessesOption = Annotated[
    int | None,
    typer.Option("--num-processes", metavar="N", help="How many processes there are.", rich_help_panel=_PANEL),
]
ProcessIdOption = Annotated[
    int | None,
    typer.Option("--process-id", metavar="I", help="Which of them this is, from 0.", rich_help_panel=_PANEL),
]
WorkerTimeoutOption = Annotated[
    float,
    typer.Option(
        "--worker-timeout",
        metavar="SECONDS",
        help="How long a process may keep the others waiting before they stop (a third of it without a sign of life).",
        rich_help_panel=_PANEL,
    ),
]


def gather_team(
    devices: str | None, coordinator: str | None, num_processes: int | None, process_id: int | None, timeout: float
) -> Any:
    """The devices and processes that the options name; None for an ordinary run on one device."""
    if (devices, coordinator, num_processes, process_id) == (None, None, None, None):
        return None
    from discover.lab.experiments.run.team import Team

    return Team.gather(devices, coordinator, num_processes, process_id, timeout=timeout)
