"""The configuration: typed, checked, changed by key=value, compared, and kept as JSON."""

import json
import subprocess
import sys
from collections import Counter

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from discover.lab.experiments.config.config import Config, ConfigError
from discover.lab.experiments.config.keys import key_types
from discover.lab.experiments.reproduce.units import unit_name


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("optimizer.learning_rate=1e-3", "optimizer.learning_rate", 0.001),
        ("training.seeds=3,4", "training.seeds", (3, 4)),
        ("training.seeds=[7]", "training.seeds", (7,)),
        ("data.flip=true", "data.flip", True),
        ("data.path=none", "data.path", None),
        ("data.path=some/where=else", "data.path", "some/where=else"),
        ("model.dropout=0", "model.dropout", 0.0),
        ("model.depth=3", "model.depth", 3),
        ("optimizer.beta=1e-1", "optimizer.beta", 0.1),
        ("optimizer.buffer_dtype=int8", "optimizer.buffer_dtype", "int8"),
        ("optimizer.estimate_probs=true", "optimizer.estimate_probs", True),
        ("clusters.by=kmeans", "clusters.by", "kmeans"),
    ],
)
def test_a_key_and_a_value_set_one_field(text, key, value):
    config = Config().override([text])
    assert config.flat()[key] == value
    assert type(config.flat()[key]) is type(value)
    assert {name for name, _ in config.flat().items() ^ Config().flat().items()} <= {key}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("optimizer.lerning_rate=1", "did you mean 'optimizer.learning_rate'"),
        ("label_noise=0.2", "did you mean 'data.label_noise'"),
        ("lr=0.2", "did you mean 'optimizer.learning_rate'"),
        ("nonsense=1", "unknown key 'nonsense'"),
        ("optimizer.btea=1", "did you mean 'optimizer.beta'"),
        ("model.wdith=1", "did you mean 'model.width'"),
        ("model.width=1.5", "model.width must be a whole number or none, got '1.5'"),
        ("optimizer.beta=much", "optimizer.beta must be a number or none, got 'much'"),
        ("training.steps=1.5", "must be a whole number or none, got '1.5'"),
        ("optimizer.learning_rate=fast", "must be a number, got 'fast'"),
        ("data.flip=maybe", "must be true or false"),
        ("training.seeds=1,x", "whole numbers separated by commas"),
        ("batches.composition=shufled", "did you mean 'shuffled'"),
        ("training.steps", "expected key=value"),
        ("=3", "expected key=value"),
    ],
)
def test_bad_assignments_are_refused_with_one_line(text, message):
    with pytest.raises(ValueError, match=message.replace("(", r"\(")) as error:
        Config().override([text])
    assert "\n" not in str(error.value)
    assert getattr(error.value, "exit_code", None) == 2


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["optimizer.name=momentm"], "did you mean 'momentum'"),
        (["optimizer.name=sgd", "optimizer.beta=0.9"], "'sgd' has no beta"),
        (["optimizer.name=discover_qhm"], "needs optimizer.nu"),
        (["optimizer.name=paper_discover"], "needs optimizer.alpha"),
        (["optimizer.beta=1.5"], r"optimizer.beta must be in \[0, 1\], got 1.5"),
        (["optimizer.l2=-1"], "optimizer.l2 must be finite and at least 0"),
        (["optimizer.rate=often"], "optimizer.rate must be one of 'proportional', 'per_visit'"),
        (["optimizer.buffer_dtype=float17"], "optimizer.buffer_dtype must be float32, bfloat16, .* int8 or None"),
        (["optimizer.name=muon", "optimizer.matrix_dtype=float17"], "optimizer.matrix_dtype must be a dtype such as"),
        (["optimizer.name=nowhere:mine"], "optimizer 'nowhere:mine': there is no module 'nowhere'"),
        (["optimizer.name=math:mine"], "module 'math' has no 'mine'"),
        (["model.name=mpl"], "unknown model 'mpl': did you mean 'mlp'"),
        (["model.name=logistic", "model.width=3"], "model 'logistic' has no width"),
        (["clusters.by=clases"], "did you mean 'classes'"),
        (["data.source=digit"], "did you mean 'digits'"),
        (["optimizer.learning_rate=-1"], "at least 0"),
        (["optimizer.learning_rate=nan"], "must be finite"),
        (["optimizer.name=igt", "optimizer.tail_fraction=0.5"], "tail_fraction must be None or at least 1"),
        (["training.seeds="], "at least one seed"),
        (["training.seeds=1,1"], "must differ"),
        (["training.steps=0"], "training.steps must be at least 1"),
        (["training.epochs=0"], "training.epochs must be above 0"),
        (["training.epochs=inf"], "training.epochs must be above 0 and finite, got inf"),
        (["training.epochs=nan"], "training.epochs must be above 0 and finite, got nan"),
        (["batches.groups=1000000000"], "a batch has at most 16777216 examples, got "),
        (["model.depth=1000000"], "model.depth must be at most 2000, got 1000000"),
        (["training.steps=100000000000"], "at most 100000000 steps, got 100000000000"),
        (["training.steps=none"], "give one of training.steps and training.epochs"),
        (["data.validation=1"], r"data.validation must be in \[0, 1\)"),
        (["data.label_noise=1.5"], "data.label_noise"),
        (["data.padding=2", "data.crop_size=4"], "two ways to crop"),
        (["data.mix=mixup", "clusters.by=augmentations"], "decides the mixing itself"),
        (["clusters.by=column"], "needs clusters.column"),
        (["clusters.by=file"], "needs clusters.path"),
        (["clusters.by=augmentations", "batches.composition=shuffled"], "has no shuffled batches"),
        (["batches.groups=0"], "batches.groups must be at least 1"),
        (["batches.composition=given"], "batches.given"),
        (["batches.composition=given", "batches.given=0,1"], "each of the 8 groups"),
    ],
)
def test_values_that_cannot_be_are_refused_with_one_line(texts, message):
    with pytest.raises(ValueError, match=message) as error:
        Config().override(texts).check()
    assert "\n" not in str(error.value)
    assert getattr(error.value, "exit_code", None) == 2


def test_the_length_given_last_counts():
    config = Config().override(["training.epochs=3"])
    assert (config.training.steps, config.training.epochs) == (None, 3.0)
    config = config.override(["training.steps=20"])
    assert (config.training.steps, config.training.epochs) == (20, None)


def test_checking_a_configuration_starts_no_backend():
    code = (
        "from discover.lab.experiments.config.config import Config; Config().check(); "
        "from jax._src import xla_bridge; import sys; sys.exit(xla_bridge.backends_are_initialized())"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_file_of_an_older_version_names_every_hyperparameter_and_is_read():
    old = {
        "name": "digits",
        "model": {"name": "mlp", "depth": 2, "width": 64, "dropout": None, "dtype": "float32"},
        "optimizer": {
            "name": "momentum", "learning_rate": 0.3, "beta": 0.9, "nu": None, "alpha": None, "beta1": None,
            "weight_decay": 0.0, "l2": 0.0, "decay": "all", "clip_norm": 0.0, "rate": "proportional",
            "buffer_dtype": None, "estimate_probs": False,
        },
    }  # fmt: skip
    config = Config.from_dict(old).check()
    assert config.optimizer.arguments == {"beta": 0.9}
    assert config.model.arguments == {"depth": 2, "width": 64}
    assert config == Config.from_dict(config.to_dict())
    assert unit_name(config) == "momentum-7f96505ea363"  # so that what was trained then is found again


def test_no_damping_is_a_value_of_its_own():
    assert Config().override(["optimizer.damping=0"]).optimizer.arguments["damping"] == 0


def test_unset_is_the_same_as_never_set():
    config = Config().override(["optimizer.beta=0.9", "optimizer.l2=0.1", "optimizer.rate=per_visit"])
    back = config.override(["optimizer.beta=none", "optimizer.l2=0", "optimizer.rate=proportional"])
    assert back == Config()


@settings(max_examples=60)
@given(
    st.floats(0, 10),
    st.one_of(st.none(), st.floats(0, 0.99)),
    st.lists(st.integers(0, 1000), min_size=1, max_size=5, unique=True),
    st.text(max_size=20),
)
def test_json_brings_back_the_same_configuration(rate, beta, seeds, name):
    config = Config().with_values(
        {"optimizer.learning_rate": rate, "optimizer.beta": beta, "training.seeds": tuple(seeds), "name": name}
    )
    again = Config.from_dict(json.loads(config.to_json()))
    assert again == config
    assert again.flat() == config.flat()


def test_every_key_is_documented():
    for key in key_types():
        section, _, field = key.rpartition(".")
        if section:
            text = type(getattr(Config(), section)).__doc__
            documented = [line.strip().partition(":")[0] for line in text.splitlines() if ":" in line]
            assert field in documented, f"{key} is not in the docstring"


def state_with(*texts):
    """That of an optimizer for a small network whose layers are called `head` and `layers/0`."""
    from discover.lab.experiments.run.build import optimizer_factory

    params = {"head": {"kernel": jnp.ones((4, 2))}, "layers": {"0": {"kernel": jnp.ones((3, 4)), "bias": jnp.ones(4)}}}
    hyper = {"learning_rate": 0.1, "warmup_steps": 0.0, "total_steps": 10.0}
    return optimizer_factory(Config().override(texts).check(), [0.2] * 5)(hyper).init(params)


def test_some_layers_have_buffers_and_a_layer_that_is_not_there_is_told():
    shapes = [leaf.shape for leaf in jax.tree.leaves(state_with("optimizer.buffered=head"))]
    assert (5, 4, 2) in shapes
    assert (5, 3, 4) not in shapes
    with pytest.raises(ConfigError, match=r"buffered: there is no layer 'layer/0'; the layers are head, layers/0"):
        state_with("optimizer.buffered=head,layer/0")
    with pytest.raises(ConfigError, match=r"momentum.* takes no buffered: leave optimizer.buffered unset"):
        Config().override(["optimizer.name=momentum", "optimizer.buffered=head"]).check()


@pytest.mark.parametrize("name", ["muon", "discover_muon"])
def test_some_layers_are_left_to_adam(name):
    def shapes(*texts):
        return Counter(leaf.shape for leaf in jax.tree.leaves(state_with(f"optimizer.name={name}", *texts)))

    # Adam remembers two things of a parameter: what is more than without is what Muon does not look at.
    assert shapes("optimizer.adam_layers=head") - shapes() == {(4, 2): 2}
    assert shapes("optimizer.adam_layers=head,layers/0") - shapes() == {(4, 2): 2, (3, 4): 2}
    with pytest.raises(ConfigError, match=r"adam_layers: there is no layer 'tail'; the layers are head, layers/0"):
        shapes("optimizer.adam_layers=tail")
    with pytest.raises(ConfigError, match=r"optimizer 'discover' takes no labels: leave optimizer.adam_layers unset"):
        Config().override(["optimizer.adam_layers=head"]).check()
