"""Streaming from class folders through grain: the plan's groups, any resume point, damaged images."""

import builtins
import sys
import warnings

import numpy as np
import pytest
from PIL import Image

from discover.lab.data import (
    BadImageError,
    BatchPlan,
    Clustering,
    DataError,
    LabelNoise,
    list_images,
    load,
    stream_batches,
)
from tests.lab.data import files

pytest.importorskip("grain")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("stream") / "pets"
    files.write_files(root, files.class_folders(7, (8, 8)))
    return root


def make_plan(images, **changes):
    options = {"groups": 4, "group_size": 3, "seed": 2} | changes
    return BatchPlan(images.labels, Clustering.classes(images.labels), **options)


def stream(images, plan, **options):
    return stream_batches(images, plan, **({"image_size": 8, "threads": 2} | options))


def same(left, right):
    return all(np.array_equal(a, b) for a, b in zip(left, right))


def test_streamed_groups_are_those_of_a_run_in_memory(folder):
    images = list_images(folder)["train"]
    plan = make_plan(images, noise=LabelNoise(0.5, 3))
    memory = load("folder", folder, cache=False, workers=1).train
    streamed = list(stream(images, plan, stop=20))
    assert len(streamed) == 20
    for step, batch in enumerate(streamed):
        expected = plan.batch(step)
        assert same((batch.indices, batch.labels, batch.cluster_ids, batch.group_sizes), expected)
        assert np.array_equal(batch.images, memory.images[expected.indices])


@pytest.mark.parametrize("resume", [0, 1, 7, 19])
def test_any_step_can_be_started_from(folder, resume):
    images = list_images(folder)["train"]
    plan = make_plan(images)
    through = list(stream(images, plan, stop=22))
    resumed = list(stream(images, plan, start=resume, stop=22))
    assert all(same(a, b) for a, b in zip(through[resume:], resumed, strict=True))


def test_the_iterator_state_resumes_where_it_was_taken(folder):
    images = list_images(folder)["train"]
    iterator = iter(stream(images, make_plan(images), start=5))
    for _ in range(4):
        next(iterator)
    state = iterator.get_state()
    expected = [next(iterator) for _ in range(3)]
    fresh = iter(stream(images, make_plan(images), start=5))
    fresh.set_state(state)
    assert all(same(next(fresh), batch) for batch in expected)


def test_processes_give_what_threads_give(folder):
    images = list_images(folder)["train"]
    plan = make_plan(images)
    threads = list(stream(images, plan, stop=5))
    processes = list(stream(images, plan, stop=5, workers=1))
    assert all(same(a, b) for a, b in zip(threads, processes, strict=True))


def test_hosts_stream_their_parts(folder):
    images = list_images(folder)["train"]
    plan = make_plan(images)
    whole = next(iter(stream(images, plan, start=3)))
    parts = [next(iter(stream(images, plan.for_host(k, 2), start=3))) for k in range(2)]
    assert same([np.concatenate(values) for values in zip(*parts)], whole)


@pytest.fixture
def damaged(tmp_path):
    root = tmp_path / "pets"
    files.write_files(root, files.class_folders(7, (8, 8)))
    (root / "train/bee/0003.png").write_bytes(b"broken")
    return root


def test_an_unreadable_image_is_an_error_that_names_it(damaged):
    images = list_images(damaged)["train"]
    with pytest.raises(BadImageError, match=r"bee.0003\.png cannot be read"):
        list(stream(images, make_plan(images), stop=20))


def test_skipping_puts_a_readable_image_of_the_group_in_its_place(damaged):
    images = list_images(damaged)["train"]
    plan = make_plan(images)
    bad = next(k for k, path in enumerate(images.paths) if "bee" in path and "0003" in path)
    with pytest.warns(UserWarning, match=r"skipped .*0003\.png"):
        batches = list(stream(images, plan, stop=20, on_bad_image="skip", threads=1))
    replaced = 0
    for step, batch in enumerate(batches):
        expected = plan.batch(step)
        assert bad not in batch.indices
        assert np.array_equal(images.labels[batch.indices], batch.labels)
        assert np.all(batch.labels == expected.cluster_ids[:, None])
        replaced += np.sum(batch.indices != expected.indices)
        assert np.array_equal(batch.indices != expected.indices, expected.indices == bad)
    assert replaced


@pytest.mark.parametrize("workers", [0, 1])
def test_skipped_images_are_counted_at_the_end(damaged, workers):
    (damaged / "train/cow/0002.png").unlink()
    (damaged / "train/cow/0002.png").symlink_to(damaged / "nothing.png")
    images = list_images(damaged)["train"]
    with pytest.warns(UserWarning, match=r"skipped .*000[23]\.png") as caught:
        batches = list(stream(images, make_plan(images), stop=20, on_bad_image="skip", workers=workers))
    totals = [str(warning.message) for warning in caught if "skipped 2 of 21 images" in str(warning.message)]
    assert len(totals) == 1
    assert "0003.png" in totals[0]
    assert "0002.png" in totals[0]
    bad = {images.paths[k] for batch in batches for k in batch.skipped[batch.skipped >= 0]}
    assert bad == {path for path in images.paths if "bee/0003" in path or "cow/0002" in path}


def test_skipping_resumes_from_a_state_and_counts_when_closed(damaged):
    images = list_images(damaged)["train"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about each file; what is tested is the count at the end
        iterator = iter(stream(images, make_plan(images), on_bad_image="skip"))
        next(iterator)
        state = iterator.get_state()
        expected = [next(iterator) for _ in range(20)]
        fresh = iter(stream(images, make_plan(images), on_bad_image="skip"))
        fresh.set_state(state)
        assert all(same(next(fresh), batch) for batch in expected)
        fresh.close()
    with pytest.warns(UserWarning, match="skipped 1 of 21 images"):
        iterator.close()


def test_a_stream_with_nothing_to_skip_says_nothing(folder):
    images = list_images(folder)["train"]
    batches = list(stream(images, make_plan(images), stop=3, on_bad_image="skip"))  # a warning would be an error
    assert all(np.all(batch.skipped == -1) for batch in batches)


def test_images_are_resized(tmp_path):
    for c in "ab":
        (tmp_path / c).mkdir()
        for k in range(4):
            Image.new("RGB", (10 + k, 20), (k, k, k)).save(tmp_path / c / f"{k}.png")
    images = list_images(tmp_path)["train"]
    batch = next(iter(stream(images, make_plan(images), image_size=6, channels=1)))
    assert batch.images.shape == (4, 3, 6, 6, 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"start": -1}, "start must be an integer of at least 0, got -1"),
        ({"start": 3, "stop": 3}, "stop must be an integer of at least 4, got 3"),
        ({"threads": 0}, "threads must be an integer of at least 1, got 0"),
        ({"workers": -1}, "workers must be an integer of at least 0, got -1"),
        ({"image_size": 0}, "image_size must be an integer of at least 1, got 0"),
        ({"channels": 4}, "channels must be 1 or 3, got 4"),
        ({"on_bad_image": "ignore"}, "choose from error, skip"),
    ],
)
def test_bad_values_are_named(folder, options, message):
    images = list_images(folder)["train"]
    with pytest.raises(DataError, match=message):
        stream(images, make_plan(images), **options)


def test_a_plan_for_other_labels_is_refused(folder):
    images = list_images(folder)["train"]
    labels = np.zeros(4, dtype=int)
    with pytest.raises(DataError, match="made with the labels of the 21 files"):
        stream(images, BatchPlan(labels, Clustering.single(4), groups=1, group_size=1))


def test_without_grain_one_line_says_what_to_install(folder, monkeypatch):
    images = list_images(folder)["train"]
    real = builtins.__import__

    def refuse(name, *arguments, **keywords):
        if name.split(".")[0] == "grain":
            raise ImportError(name)
        return real(name, *arguments, **keywords)

    monkeypatch.delitem(sys.modules, "grain", raising=False)
    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(DataError, match=r"pip install 'discover-optim\[streaming\]'"):
        stream(images, make_plan(images))
