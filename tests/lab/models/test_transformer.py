"""The transformer: it looks back and never ahead, ignores what follows a text, and learns."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st

from discover.lab.data import Dataset, Split
from discover.lab.experiments.config.config import Config, ConfigError
from discover.lab.experiments.run.build import build_network_for
from discover.lab.experiments.run.run import run
from discover.lab.models import build_network
from discover.lab.models.transformer import Transformer

LENGTH = 12


@pytest.fixture(scope="module")
def guess():
    network = build_network("transformer", (LENGTH,), 256, next_byte=True, width=16, heads=2)
    return jax.jit(lambda x: network.apply(network.init(jax.random.key(0)), x))


@settings(max_examples=20)
@given(st.integers(0, LENGTH - 1), st.integers(0, 255))
def test_a_byte_is_guessed_from_those_before_it_alone(guess, place, value):
    text = jnp.arange(LENGTH, dtype=jnp.uint8)[None]
    before, after = guess(text), guess(text.at[0, place].set(value))
    assert before.shape == (1, LENGTH, 256)
    np.testing.assert_array_equal(before[0, : place + 1], after[0, : place + 1])
    if value != place and place + 1 < LENGTH:
        assert np.any(before[0, place + 1 :] != after[0, place + 1 :])


def test_a_class_depends_on_the_text_and_not_on_what_it_is_filled_up_with():
    long, short = (build_network("transformer", (length,), 3, width=16, heads=2) for length in (LENGTH, 5))
    params = long.init(jax.random.key(0))
    text = jnp.array([[7, 8, 9]], jnp.uint8)
    params_short = jax.tree.map(lambda x: x, params)
    params_short["places"]["embedding"] = params["places"]["embedding"][:5]
    one = long.apply(params, jnp.pad(text, ((0, 0), (0, LENGTH - 3))))
    other = short.apply(params_short, jnp.pad(text, ((0, 0), (0, 2))))
    np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_a_byte_is_read_as_its_row_of_the_table_without_a_scatter(dtype):
    network = Transformer((LENGTH,), 256, next_byte=True, width=16, heads=2, dtype=dtype, rngs=nnx.Rngs(0))
    text = jax.random.randint(jax.random.key(1), (3, LENGTH), 0, 256)
    np.testing.assert_array_equal(network._read(text), network.bytes(text))

    def total(network):
        return jnp.sum(network._read(text).astype(jnp.float32) ** 2)

    assert "scatter" not in str(jax.make_jaxpr(nnx.grad(total))(network))


def texts(count=60):
    """Two languages, each of which repeats three letters."""
    rows = np.array([list((b"abc" if k % 2 else b"xyz") * 4) for k in range(count)], np.uint8)
    return Split(rows, np.zeros(count, int), {"language": np.arange(count) % 2}, text=True)


CONFIG = Config().with_values(
    {
        "model.name": "transformer", "model.width": 16, "model.heads": 2, "optimizer.name": "discover_adam",
        "optimizer.learning_rate": 0.01, "clusters.by": "column", "clusters.column": "language", "batches.groups": 2,
        "batches.group_size": 8, "training.steps": 60, "training.seeds": (0,), "data.validation": 0.0,
    }
)  # fmt: skip


def test_the_next_byte_is_learned_and_counted_byte_by_byte():
    data = Dataset("verses", texts(), texts(20), 256, next_byte=True)
    final = run(CONFIG, None, dataset=data).members[0].final
    assert final is not None
    assert 9 / 12 < final["test"]["accuracy"] <= 1  # the first byte of a text cannot be known
    assert final["test"]["loss"] < 1.0


@pytest.mark.parametrize(("name", "text"), [("mlp", True), ("transformer", False)])
def test_a_model_for_other_examples_is_refused(name, text):
    split = texts() if text else Split(np.zeros((4, 3)), np.zeros(4, int))
    with pytest.raises(ConfigError, match=r"cannot read d, which is .*text: set model.name="):
        build_network_for(Config().with_values({"model.name": name}), Dataset("d", split, split, 2))


@pytest.mark.parametrize(
    ("options", "message"), [({"heads": 3}, "multiple of model.heads"), ({"depth": 0}, "model.depth")]
)
def test_sizes_that_cannot_be_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        build_network("transformer", (4,), 2, width=16, **options)
    with pytest.raises(ValueError, match="reads text"):
        build_network("transformer", (4, 4, 3), 2)
