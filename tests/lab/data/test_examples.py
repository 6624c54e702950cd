"""The examples in the docstrings of the data package do what they say."""

import doctest
import importlib
import pkgutil

import pytest

import discover.lab.data

MODULES = [f"discover.lab.data.{module.name}" for module in pkgutil.iter_modules(discover.lab.data.__path__)]


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_every_public_name_is_there_and_documented():
    for name in discover.lab.data.__all__:
        assert getattr(discover.lab.data, name).__doc__, name
    assert list(discover.lab.data.__all__) == sorted(discover.lab.data.__all__)


def test_some_examples_are_run():
    tried = sum(doctest.testmod(importlib.import_module(name)).attempted for name in MODULES)
    assert tried >= 15
