"""No file takes more than 2 GB or 30 seconds, and each is accepted, or refused in one line that a terminal may show."""

import os
import shutil

import numpy as np
import pytest

from tests.lab.hostile import crafted_pickles, crafted_pictures, crafted_tables  # noqa: F401 (add their files to the tables)
from tests.lab.hostile.crafted import CRAFTED, LARGE
from tests.lab.hostile.mutated import KINDS, mutate, write_whole
from tests.lab.hostile.read_all import MEGABYTES, check, outcomes


def read_crafted(table, folder):
    """What came of each crafted file, read one after the other by one process, and the megabytes that it took."""
    cases = {}
    for name, (write, _) in table.items():
        (folder / name).mkdir()
        cases[name] = write(folder / name)
    found, megabytes = outcomes(cases.values(), folder)
    shutil.rmtree(folder)
    return dict(zip(cases, found)), megabytes


@pytest.fixture(scope="module")
def read(tmp_path_factory):
    return read_crafted(CRAFTED, tmp_path_factory.mktemp("crafted"))


def assert_as_expected(result, name, words):
    check(result, name)
    assert ("accepted" in result) if words is None else words in result["refused"], (name, result)


@pytest.mark.parametrize("name", CRAFTED)
def test_a_file_that_was_made_to_do_harm_does_none(read, name):
    assert_as_expected(read[0][name], name, CRAFTED[name][1])


def test_no_crafted_file_takes_more_memory_than_is_promised(read):
    assert read[1] < MEGABYTES


@pytest.mark.slow
@pytest.mark.parametrize("name", LARGE)
def test_a_large_file_that_was_made_to_do_harm_does_none(tmp_path_factory, name):
    found, megabytes = read_crafted({name: LARGE[name]}, tmp_path_factory.mktemp("large"))
    assert_as_expected(found[name], name, LARGE[name][1])
    assert megabytes < MEGABYTES


def damage_many(folder, seed, count):
    """Writes `count` damaged files of every kind; returns what to load."""
    rng, cases = np.random.default_rng(seed), []
    for kind in KINDS:
        for number in range(count):
            place = folder / f"{kind}-{number}".replace(" ", "-")
            place.mkdir()
            source, path, damaged = write_whole(kind, place)
            damaged.write_bytes(mutate(damaged.read_bytes(), rng))
            cases.append((source, path))
    return cases


def assert_harmless(folder, seed, count):
    cases = damage_many(folder, seed, count)
    found, megabytes = outcomes(cases, folder)
    for (source, path), result in zip(cases, found):
        check(result, f"seed {seed}: {source} {path.name}")
    assert megabytes < MEGABYTES


def test_files_that_are_damaged_at_random_do_no_harm(tmp_path):
    assert_harmless(tmp_path, seed=0, count=8)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, int.from_bytes(os.urandom(4), "little")], ids=["fixed", "fresh"])
def test_many_files_that_are_damaged_at_random_do_no_harm(tmp_path, seed):
    assert_harmless(tmp_path, seed, count=100)
