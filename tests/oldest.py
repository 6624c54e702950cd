"""Prints the oldest versions that the package says it works with, to be installed for `make test-oldest`.

python tests/oldest.py        # jax==0.10 optax==0.2.5 … and those of the extras
"""

import tomllib
from pathlib import Path

EXTRAS = ("streaming", "sweep", "page", "tensorboard")


def oldest() -> list[str]:
    """`name==version` for each dependency and each extra's, at its lower bound."""
    project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())["project"]
    declared = [*project["dependencies"]]
    for extra in EXTRAS:
        declared += project["optional-dependencies"][extra]
    return [requirement.replace(">=", "==") for requirement in declared]


if __name__ == "__main__":
    print(*oldest())
