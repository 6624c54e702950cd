"""The `discover` command: one file for each of its commands, small functions that call into the library.

To add a command, write ``discover/lab/cli/NAME.py`` with a function ``register(app)`` and add its name to
:data:`COMMANDS`. Import heavy things inside the function that needs them: `discover --help` must not load jax.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Sequence

import typer

from discover.lab.cli.errors import quiet_late_writers, run_command, unwind_on_sigterm

COMMANDS = ("compare", "train", "sweep", "reproduce", "diagnose", "bench", "report", "presets")
"""In the order of the help text. One that has no file yet is left out."""


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

    for name in COMMANDS:
        module = f"discover.lab.cli.{name}"
        if importlib.util.find_spec(module) is not None:
            importlib.import_module(module).register(app)
    return app


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line and exits: 0 done, 2 bad input (one line on stderr), 130 stopped."""
    if arguments is None:  # we are the program, not a guest in somebody's process
        quiet_late_writers()
        unwind_on_sigterm()
    raise SystemExit(run_command(typer.main.get_command(build_app()), arguments))
