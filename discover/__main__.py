"""`python -m discover` is the `discover` command."""

from discover.lab.cli import main

if __name__ == "__main__":
    main()
