"""The `discover` command: one file for each of its commands, small functions that call into the library.

To add a command, write ``discover/lab/cli/NAME.py`` with a function of that name and add it to :data:`COMMANDS`.
Import heavy things inside the function that needs them: `discover --help` must not load jax.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence

import typer

from discover.lab.cli.errors import quiet_late_writers, run_command, unwind_on_signals, warn_in_lines

COMMANDS = {
    "compare": "discover compare digits --optimizers momentum,discover --seeds 3",
    "train": "discover train digits --optimizer discover --set training.steps=500",
    "sweep": "discover sweep digits --optimizer discover --search tpe --trials 30",
    "reproduce": "discover reproduce results-d --data cifar10-jpeg.tar.xz --minutes 8",
    "diagnose": "discover diagnose digits --groups 2 --group-size 32",
    "bench": "discover bench digits --groups 1,2,4,8 --json bench.json",
    "report": "discover report runs/compare-digits",
    "presets": "discover presets digits",
}
"""In the order of the help text, each with its example."""


def build_app() -> typer.Typer:
    """The application with every command that there is."""
    app = typer.Typer(
        name="discover",
        help="One momentum per cluster: train with, compare and measure the Discover optimizers.",
        epilog="Start with:  discover compare",
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["-h", "--help"]},
        pretty_exceptions_enable=False,
    )

    @app.callback(invoke_without_command=True)
    def discover(
        version: bool = typer.Option(False, "--version", help="Print the version and exit.", is_eager=True),
    ) -> None:
        if version:
            from discover import __version__

            typer.echo(f"discover {__version__}")
            raise typer.Exit

    for name, example in COMMANDS.items():
        module = importlib.import_module(f"discover.lab.cli.{name}")
        app.command(name, epilog=f"Example:  {example}")(getattr(module, name))
    return app


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line and exits: 0 done, 2 bad input (one line on stderr), 130 stopped."""
    if arguments is None:  # we are the program, not a guest in somebody's process
        quiet_late_writers()
        warn_in_lines()
        unwind_on_signals()
    raise SystemExit(run_command(typer.main.get_command(build_app()), arguments))
