"""The `discover` command, also as `python -m discover`. Without the extra `lab` it says what to install."""

import importlib.util
import sys

LAB = ("filelock", "flax", "jinja2", "matplotlib", "orbax", "PIL", "rich", "scipy", "sklearn", "typer")
"""What the extra `lab` brings, by the name that is imported."""


def main() -> None:
    """Runs the command line, or says in one line on stderr what is missing for it (exit code 2)."""
    missing = next((name for name in LAB if importlib.util.find_spec(name) is None), None)
    if missing:
        install = "pip install 'discover-optim[lab]'"
        print(f"discover: the command needs its extra, and {missing} is not installed: {install}", file=sys.stderr)
        raise SystemExit(2)
    from discover.lab.cli import main as run

    run()


if __name__ == "__main__":
    main()
