"""`python -m discover` is the `discover` command."""

from discover.cli import main

if __name__ == "__main__":
    main()
