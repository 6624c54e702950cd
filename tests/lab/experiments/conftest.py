"""What several files of these tests have in common."""

import pytest

from tests.lab.experiments import running


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory):
    """The shared run, unbroken: its result and its folder."""
    folder = tmp_path_factory.mktemp("runs") / "finished"
    return running.go(folder), folder
