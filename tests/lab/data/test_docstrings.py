"""The examples in the docstrings of the data package do what they say."""

import doctest
import importlib
import pkgutil

import discover.lab.data

MODULES = [module.name for module in pkgutil.walk_packages(discover.lab.data.__path__, "discover.lab.data.")]


def test_docstring_examples_do_what_they_say():
    results = {name: doctest.testmod(importlib.import_module(name)) for name in MODULES}
    assert [name for name, result in results.items() if result.failed] == []
    assert sum(result.attempted for result in results.values()) >= 20


def test_every_public_name_is_there_and_documented():
    for name in discover.lab.data.__all__:
        assert getattr(discover.lab.data, name).__doc__, name
