"""Metrics as TensorBoard event files, through tensorboardX (an extra)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from discover.lab.training.errors import RunError


@contextlib.contextmanager
def event_writer(directory: Path) -> Iterator[Callable[[list[dict[str, Any]]], None]]:
    """Yields a function that takes metric lines; a seed (or member) is a run of its own in TensorBoard."""
    try:
        from tensorboardX import SummaryWriter
    except ImportError:
        raise RunError("TensorBoard needs an extra: pip install 'discover-optim[tensorboard]'") from None
    writers: dict[str, Any] = {}

    def write(lines: list[dict[str, Any]]) -> None:
        for line in lines:
            name = f"member-{line['member']}" if "member" in line else f"seed-{line['seed']}"
            if name not in writers:
                writers[name] = SummaryWriter(str(directory / name))
            part = "/".join(str(line[key]) for key in ("split", "cluster") if key in line) or line["kind"]
            for quantity in ("loss", "accuracy", "learning_rate"):
                if line.get(quantity) is not None:
                    writers[name].add_scalar(f"{part}/{quantity}", line[quantity], line["step"])

    try:
        yield write
    finally:
        for writer in writers.values():
            writer.close()
