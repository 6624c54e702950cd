"""Checkpoints come back bit by bit, or not at all."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from discover.lab.training.checkpoint import Checkpoints, DamagedCheckpoint
from discover.lab.training.errors import RunError
from discover.lab.training.fingerprint import fingerprint, fingerprint_of_file, fingerprint_on_host


def example(scale=1.0):
    return {
        "a": jnp.arange(12.0).reshape(3, 4) * scale,
        "b": (jnp.full((5,), 0.1, jnp.bfloat16), jnp.int32(7), jnp.array([True, False])),
        "c": jnp.array([jnp.nan, jnp.inf, -0.0, 1e-42]),
    }


def assert_same_bits(a, b):
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b)):
        assert x.dtype == y.dtype
        assert np.asarray(x).tobytes() == np.asarray(y).tobytes()


@pytest.fixture
def messages():
    return []


@pytest.fixture
def store(tmp_path, messages):
    checkpoints = Checkpoints(tmp_path / "part-0", keep=2, message=messages.append)
    yield checkpoints
    checkpoints.close()


def damage(store, step):
    """Flips bits in the largest file that holds arrays."""
    files = [f for f in (store.directory / str(step) / "state").rglob("*") if f.is_file() and f.parent.name == "d"]
    for file in files:
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 0xFF
        file.write_bytes(content)


def test_a_checkpoint_returns_the_same_bits_and_the_note(store):
    store.save(3, example(), {"length": 12, "pending": [0.1, 1e-45]})
    store.wait()
    state, note = store.restore(3, example())
    assert_same_bits(state, example())
    assert note == {"length": 12, "pending": [0.1, 1e-45]}


def test_the_state_may_be_donated_as_soon_as_save_returns(store):
    overwrite = jax.jit(lambda x: x * 0 - 1, donate_argnums=0)
    state = {"x": jnp.arange(200_000.0)}
    expected = np.arange(200_000.0, dtype=np.float32)
    for step in range(1, 4):
        store.save(step, state, {})
        overwrite(state["x"])
        state = {"x": jnp.asarray(expected)}
    store.wait()
    for step in store.steps():
        assert np.array_equal(store.restore(step, state)[0]["x"], expected)


def test_the_last_few_and_the_best_are_kept_also_after_reopening(store):
    for step, score in ((10, 0.1), (20, 0.9), (30, 0.3), (40, None), (50, float("nan"))):
        store.save(step, example(step), {}, score=score)
    store.wait()
    assert store.steps() == [20, 40, 50]
    assert store.best_step() == 20
    again = Checkpoints(store.directory, keep=2)
    again.save(60, example(), {})
    again.wait()
    assert again.steps() == [20, 50, 60]
    assert again.best_step() == 20
    again.close()


def test_a_damaged_newest_checkpoint_falls_back_to_the_one_before_and_says_so(store, messages):
    for step in (10, 20):
        store.save(step, example(step), {"n": step})
    store.wait()
    damage(store, 20)
    with pytest.raises(DamagedCheckpoint):
        store.restore(20, example())
    found = store.restore_newest(example())
    assert found is not None
    step, state, note = found
    assert (step, note) == (10, {"n": 10})
    assert_same_bits(state, example(10))
    assert len(messages) == 1
    assert "checkpoint 20" in messages[0]
    assert "going back to step 10" in messages[0]
    assert "\n" not in messages[0]
    store.save(20, example(2), {})  # the place of the damaged one is free again
    store.wait()
    assert_same_bits(store.restore(20, example())[0], example(2))


def test_nothing_older_is_deleted_before_its_successor_was_read_back(tmp_path, monkeypatch):
    messages = []
    store = Checkpoints(tmp_path / "part-0", keep=1, message=messages.append)
    store.save(10, example(10), {}, score=0.5)
    store.wait()
    read = fingerprint_of_file

    def damaged_on_its_way(path, lengths):
        if path.parent.name == "20":
            damage(store, 20)
        return read(path, lengths)

    monkeypatch.setattr("discover.lab.training.checkpoint.fingerprint_of_file", damaged_on_its_way)
    store.save(20, example(20), {}, score=0.6)
    store.wait()
    assert len(messages) == 1
    assert messages[0].startswith("checkpoint 20 cannot be read back")
    assert (store.directory / "10").is_dir()
    store.save(30, example(30), {}, score=0.7)
    store.wait()
    assert store.steps() == [30]
    store.close()


@settings(max_examples=20)
@given(
    st.sampled_from([np.float32, np.int32, np.uint8, np.bool_, jnp.bfloat16, np.float16]),
    st.integers(0, 7),
    st.integers(0, 2**32 - 1),
)
def test_the_fingerprint_of_what_is_on_disk_is_that_of_what_is_on_the_device(dtype, length, seed):
    array = np.random.default_rng(seed).integers(0, 2, (7, 3)).astype(dtype)
    assert [fingerprint_on_host(array)] == fingerprint([jnp.asarray(array)])
    assert [fingerprint_on_host(array, (0, length))] == fingerprint([jnp.asarray(array)], ((0, length),))


def test_without_a_whole_checkpoint_resuming_is_refused_and_nothing_is_deleted(store):
    store.save(10, example(), {})
    store.wait()
    damage(store, 10)
    with pytest.raises(RunError, match=r"no checkpoint in .*part-0 can be used: checkpoint 10 .*nothing was deleted"):
        store.restore_newest(example())
    assert (store.directory / "10").is_dir()


@pytest.mark.parametrize(
    "problem", [MemoryError(), RuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 8 bytes.")]
)
def test_memory_that_does_not_suffice_is_one_line_and_costs_no_checkpoint(store, monkeypatch, problem):
    for step in (10, 20):
        store.save(step, example(step), {})
    store.wait()

    def fail(*_):
        raise problem

    with monkeypatch.context() as patch:
        patch.setattr("discover.lab.training.checkpoint.fingerprint", fail)
        with pytest.raises(RunError, match="out of memory while reading checkpoint 20") as error:
            store.restore_newest(example())
    assert "\n" not in str(error.value)
    found = store.restore_newest(example())
    assert found is not None
    assert found[0] == 20


def test_a_checkpoint_that_could_not_be_read_once_is_still_there_the_next_time(store, monkeypatch):
    for step in (10, 20):
        store.save(step, example(step), {})
    store.wait()
    read = store._manager.restore

    def fail_at_20(step, **options):
        if step == 20:
            raise OSError(5, "Input/output error")
        return read(step, **options)

    monkeypatch.setattr(store._manager, "restore", fail_at_20)
    found = store.restore_newest(example())
    assert found is not None
    assert found[0] == 10
    assert store.steps() == [10]
    again = Checkpoints(store.directory, keep=2)
    found = again.restore_newest(example())
    again.close()
    assert found is not None
    assert found[0] == 20
    store.save(15, example(15), {})  # between the two, as when it is stopped there
    store.save(20, example(2), {})
    store.wait()
    assert store.steps() == [15, 20]
    monkeypatch.undo()
    assert_same_bits(store.restore(20, example())[0], example(2))


def test_a_checkpoint_whose_records_are_gone_is_passed_over(store, messages):
    for step in (10, 20):
        store.save(step, example(), {"length": step})
    store.wait()
    found = store.restore_newest(example(), lambda note: "too short" if note["length"] > 15 else None)
    assert found is not None
    assert found[0] == 10
    assert "too short" in messages[0]


def test_another_structure_is_refused(store):
    store.save(10, example(), {})
    store.wait()
    with pytest.raises(DamagedCheckpoint):
        store.restore(10, {"other": jnp.zeros(3)})


@settings(max_examples=40)
@given(
    hnp.arrays(np.float32, (6,), elements=st.floats(width=32, allow_nan=True)),
    st.integers(0, 5),
    st.integers(1, 2**32 - 1),
)
def test_the_fingerprint_notices_any_changed_word(values, place, flip):
    changed = values.copy()
    changed.view(np.uint32)[place] ^= np.uint32(flip)
    assert fingerprint([jnp.asarray(values)]) != fingerprint([jnp.asarray(changed)])
    assert fingerprint([jnp.asarray(values)]) == fingerprint([jnp.asarray(values.copy())])
