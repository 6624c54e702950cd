"""What people see: progress on stderr while a terminal is there, results on stdout."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from discover.lab.text import printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as Bars
    from rich.progress import ProgressColumn, Task

    from discover.lab.report import Report, Table, WrittenReport

WIDE = 120
"""Characters from which on a line has room for everything that is known about a run."""


BETWEEN_LINES = 30.0
"""Seconds between two lines of progress where there is no terminal to draw in."""


def spoken(seconds: float) -> str:
    """A time as one says it.

    >>> spoken(0.8), spoken(50), spoken(400)
    ('1 second', '50 seconds', '7 minutes')
    """
    if seconds >= 100:
        return f"{seconds / 60:.0f} minutes"
    return f"{seconds:.0f} second{'' if round(seconds) == 1 else 's'}"


def stdout() -> Console:
    return _console()(highlight=False, soft_wrap=not sys.stdout.isatty())


def stderr() -> Console:
    return _console()(stderr=True, highlight=False)


def _console() -> type[Console]:
    from rich.console import Console
    from rich.text import Text

    class Clean(Console):
        """Shows control characters that are in names and messages, and never sends them to the terminal."""

        def render_str(self, text: str, **options: Any) -> Text:
            return super().render_str("\n".join(map(printable, text.split("\n"))), **options)

    return Clean


def say(line: str) -> None:
    """One line of progress."""
    sys.stderr.write(f"{printable(line)}\n")
    sys.stderr.flush()


def show_grid(
    headers: Sequence[str], rows: Sequence[Sequence[str]], title: str | None = None, styles: Sequence[str | None] = ()
) -> None:
    """Prints rows of cells; what stands out or steps back has a style."""
    from rich import box
    from rich.table import Table as Grid

    console = stdout()
    grid = Grid(
        title=title, box=box.SIMPLE_HEAD, title_justify="left", title_style="bold", header_style="dim", pad_edge=False
    )
    for number, header in enumerate(headers):
        grid.add_column(header, justify="left" if number == 0 or header == "batches" else "right", no_wrap=number == 0)
    for cells, style in zip(rows, styles or [None] * len(rows)):
        grid.add_row(*cells, style=style)
    if not console.is_terminal:
        console.width = 160  # a pipe has no width: do not fold what goes into a file
    console.print(grid)


def show_table(table: Table, title: str | None = None) -> None:
    """Prints a comparison's table; the best row stands out, the controls step back."""
    styles = ["dim" if label.endswith("-shuffled") else None for label in table.labels]
    if table.best is not None:
        styles[table.best] = "bold"
    show_grid(table.headers, table.rows, title, styles)


def show_written(report: Report, written: WrittenReport, title: str | None = None) -> None:
    """Prints a report's table, and where its figures and its page are."""
    from discover.lab.report import comparison_table

    show_table(comparison_table(report.rows, report.comparison.get("target_accuracy"), compact=True), title)
    show_clusters(report.rows)
    show_files(written)


def show_clusters(rows: list[dict[str, Any]]) -> None:
    """Prints how each cluster fares, where that was measured."""
    from discover.lab.report import cluster_table

    table = cluster_table(rows, most=6)
    if table is not None:
        show_table(table, "Test accuracy by cluster")


def show_files(written: WrittenReport) -> None:
    console = stdout()
    console.print(f"figures: {written.figures[0].parent}", markup=False)
    console.print(f"open {written.page} in a browser", markup=False, style="bold")


def show_names(lines: Iterable[tuple[str, str]], note: str) -> None:
    """Prints names, each with what it is."""
    from rich.table import Table as Grid

    grid = Grid(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    grid.add_column(style="bold cyan", no_wrap=True)
    grid.add_column()
    for name, line in lines:
        grid.add_row(name, line)
    stdout().print(grid, f"\n[dim]{note}[/dim]")


@contextmanager
def live_bars() -> Iterator[Bars | None]:
    """Progress bars on stderr, or None where it is not a terminal: nothing is drawn into files."""
    console = stderr()
    if not console.is_terminal:
        yield None
        return
    from rich.progress import Progress

    columns = progress_columns(console.width)
    with Progress(*columns, console=console, refresh_per_second=8) as bars:
        yield bars


def progress_columns(width: int) -> tuple[ProgressColumn, ...]:
    """The columns of a bar: where they do not all fit, the name and the status are cut, never the numbers."""
    from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TextColumn, TimeRemainingColumn
    from rich.table import Column
    from rich.text import Text

    class Cut(TextColumn):
        """One line of text that gives way: its column may shrink, and then it ends in an ellipsis."""

        def render(self, task: Task) -> Text:
            text = super().render(task)
            text.no_wrap, text.overflow = True, "ellipsis"
            return text

    return (
        SpinnerColumn(style="cyan", table_column=Column(no_wrap=True)),
        Cut("{task.description}", style="bold", table_column=Column(no_wrap=False)),
        BarColumn(
            bar_width=24 if width >= WIDE else 8,
            complete_style="cyan",
            finished_style="green",
            table_column=Column(no_wrap=True),
        ),
        MofNCompleteColumn(table_column=Column(no_wrap=True)),
        Cut("{task.fields[status]}", table_column=Column(no_wrap=False)),
        TimeRemainingColumn(compact=True, elapsed_when_finished=True, table_column=Column(no_wrap=True)),
    )


class Watcher:
    """Shows one run: loss, accuracy, steps per second, time left; a ``training.progress.Progress``, without jax."""

    def __init__(
        self,
        bars: Bars | None,
        name: str,
        status: str = "[dim]compiling[/dim]",
        after: Watcher | None = None,
    ):
        self._bars, self._name = bars, printable(name)
        self._task: Any = None
        # Many short runs, one after the other, are not silent together.
        self._told, self._total = time.monotonic() if after is None else after._told, 0
        self._validation: float | None = None
        if bars is not None:
            self._task = bars.add_task(self._name, total=None, status=status, completed=0)

    def start(self, *, step: int, total_steps: int, members: int) -> None:
        self._total = total_steps
        if self._bars is not None:
            note = f"[dim]compiling ({members} networks at once)[/dim]" if members > 1 else "[dim]compiling[/dim]"
            self._bars.update(self._task, total=total_steps, completed=step, status=note)
        elif self._due():
            say(f"{self._name.strip()}: compiling")

    def advance(self, *, step: int, loss: float, accuracy: float, steps_per_second: float) -> None:
        if self._bars is not None:
            shown = f"loss {loss:6.3f}  acc {100 * accuracy:5.1f}%"
            if self._bars.console.width < WIDE:
                shown = f"loss {loss:.3f} acc {100 * accuracy:.0f}%"
            else:
                if self._validation is not None:
                    shown += f"  val {100 * self._validation:5.1f}%"
                shown += f"  {steps_per_second:,.0f} steps/s"
            self._bars.update(self._task, completed=step, status=shown)
        elif self._due():
            left = (self._total - step) / steps_per_second if steps_per_second else 0
            done = f"step {step} of {self._total}, loss {loss:.3f}, accuracy {100 * accuracy:.1f} %"
            say(f"{self._name.strip()}: {done}, {spoken(left)} to go")

    def _due(self) -> bool:
        """Whether it is time for another line, which is then counted as said."""
        now = time.monotonic()
        due = now - self._told >= BETWEEN_LINES
        self._told = now if due else self._told
        return due

    def evaluated(self, *, step: int, split: str, loss: float, accuracy: float) -> None:
        if split == "validation":
            self._validation = accuracy

    def message(self, text: str) -> None:
        if self._bars is not None:
            from rich.markup import escape

            self._bars.console.print(f"[yellow]{escape(self._name)}:[/yellow] {escape(text)}")
        else:
            say(f"discover: {self._name}: {text}")

    def finish(self, *, status: str) -> None:
        if self._bars is not None and status == "finished":
            self.close("[green]done[/green]")

    def close(self, status: str) -> None:
        """Marks the bar as ended, with ``status`` in place of the numbers."""
        if self._bars is not None:
            task = next(task for task in self._bars.tasks if task.id == self._task)
            total = task.total or 1
            self._bars.update(self._task, total=total, completed=total, status=status)
