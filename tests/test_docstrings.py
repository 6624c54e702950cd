"""The examples in docstrings do what they say."""

import doctest
import importlib
import pkgutil

import pytest

import discover

MODULES = [module.name for module in pkgutil.walk_packages(discover.__path__, "discover.")]


@pytest.mark.parametrize("package", ["discover.lab.data", pytest.param("discover", marks=pytest.mark.slow)])
def test_docstring_examples_do_what_they_say(package):
    names = [name for name in MODULES if name.startswith(package) and "torch" not in name and "__main__" not in name]
    results = {name: doctest.testmod(importlib.import_module(name)) for name in names}
    assert [name for name, result in results.items() if result.failed] == []
    assert sum(result.attempted for result in results.values()) >= 20
