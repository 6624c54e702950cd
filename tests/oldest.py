"""Prints the oldest versions that the package says it works with, to be installed for `make test-oldest`.

python tests/oldest.py        # jax==0.10.2 optax==0.2.8 … and those of the extras
"""

import tomllib
from pathlib import Path

EXTRAS = ("lab", "sweep", "page", "tensorboard")


def oldest() -> list[str]:
    """`name==version` for each dependency and each extra's, at its lower bound."""
    project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())["project"]
    extras = [requirement for extra in EXTRAS for requirement in project["optional-dependencies"][extra]]
    return [one.replace(">=", "==") for one in [*project["dependencies"], *extras] if ">=" in one]


if __name__ == "__main__":
    print(*oldest())
