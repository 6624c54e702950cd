"""The configuration: typed, checked, changed by key=value, compared, and kept as JSON."""

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from discover.lab.experiments.config.config import OPTIMIZERS, Config, ConfigError, key_types


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
        ("clusters.by=kmeans", "clusters.by", "kmeans"),
    ],
)
def test_a_key_and_a_value_set_one_field(text, key, value):
    config = Config().override([text])
    assert config.flat()[key] == value
    assert type(config.flat()[key]) is type(value)
    assert set(config.diff(Config())) <= {key}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("optimizer.lerning_rate=1", "did you mean 'optimizer.learning_rate'"),
        ("label_noise=0.2", "did you mean 'data.label_noise'"),
        ("lr=0.2", "did you mean 'optimizer.learning_rate'"),
        ("nonsense=1", "unknown key 'nonsense'"),
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
    with pytest.raises(ConfigError, match=message.replace("(", r"\(")) as error:
        Config().override([text])
    assert "\n" not in str(error.value)
    assert error.value.exit_code == 2


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["optimizer.name=momentm"], "did you mean 'momentum'"),
        (["optimizer.name=sgd", "optimizer.beta=0.9"], "'sgd' has no beta"),
        (["optimizer.name=discover_qhm"], "needs optimizer.nu"),
        (["optimizer.name=paper_discover"], "needs optimizer.alpha"),
        (["optimizer.beta=1.0"], r"optimizer.beta must be in \[0, 1\)"),
        (["optimizer.learning_rate=-1"], "at least 0"),
        (["optimizer.learning_rate=nan"], "must be finite"),
        (["optimizer.name=igt", "optimizer.tail_fraction=0.5"], "tail_fraction must be at least 1"),
        (["training.seeds="], "at least one seed"),
        (["training.seeds=1,1"], "must differ"),
        (["training.steps=0"], "training.steps must be at least 1"),
        (["training.epochs=0"], "training.epochs must be above 0"),
        (["training.epochs=inf"], "training.epochs must be above 0 and finite, got inf"),
        (["training.epochs=nan"], "training.epochs must be above 0 and finite, got nan"),
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
    with pytest.raises(ConfigError, match=message) as error:
        Config().override(texts).check()
    assert "\n" not in str(error.value)


def test_the_length_given_last_counts():
    config = Config().override(["training.epochs=3"])
    assert (config.training.steps, config.training.epochs) == (None, 3.0)
    config = config.override(["training.steps=20"])
    assert (config.training.steps, config.training.epochs) == (20, None)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_has_a_valid_configuration(name):
    needed = {"nu": 0.5, "alpha": 0.1}
    values = {f"optimizer.{key}": value for key, value in needed.items() if key in OPTIMIZERS[name]}
    assert Config().with_values({"optimizer.name": name, **values}).check().optimizer.name == name


def test_configurations_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Config().name = "other"  # pyright: ignore[reportAttributeAccessIssue]


@settings(max_examples=60, deadline=None)
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
    again = Config.from_json(config.to_json())
    assert again == config
    assert not again.diff(config)
    assert Config.from_dict(config.to_dict()) == config


def test_the_difference_names_both_values():
    one, two = Config(), Config().override(["training.steps=7", "optimizer.name=adam"])
    assert two.diff(one) == {"training.steps": (7, 300), "optimizer.name": ("adam", "discover")}


@pytest.mark.parametrize("text", ["{", "[]", '{"optimizer": {"bta": 1}}', '{"training": {"steps": "many"}}'])
def test_bad_json_is_refused_with_one_line(text):
    with pytest.raises(ConfigError) as error:
        Config.from_json(text)
    assert "\n" not in str(error.value)


def test_every_key_is_documented():
    for key in key_types():
        section, _, field = key.rpartition(".")
        if section:
            text = type(getattr(Config(), section)).__doc__
            documented = [line.strip().partition(":")[0] for line in text.splitlines() if ":" in line]
            assert field in documented, f"{key} is not in the docstring"
