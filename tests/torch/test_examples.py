"""The examples run as they are: a plain loop, Accelerate, Hugging Face's Trainer, Lightning, sentence-transformers."""

import runpy
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'discover-optim[torch]'")

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
pytestmark = pytest.mark.filterwarnings("ignore")  # of the frameworks, about each other


def main_of(name, *needed):
    for package in needed:
        pytest.importorskip(package, reason=f"{package} is not installed: pip install 'discover-optim[torch-test]'")
    return runpy.run_path(str(EXAMPLES / f"{name}.py"))["main"]()


def test_a_plain_loop():
    found = main_of("torch_loop", "sklearn")
    assert found["Discover"] > max(found["SGD with momentum"], found["AdamW"]) + 0.1
    assert found["Discover before Muon"] > 0.9


def test_accelerate():
    losses = main_of("torch_accelerate", "accelerate")
    assert losses[-1] < 0.1 * losses[0]


def test_the_trainer_of_hugging_face():
    before, after = main_of("torch_trainer", "transformers", "accelerate")
    assert after < 0.8 * before


def test_lightning():
    losses = main_of("torch_lightning", "lightning")
    assert losses[-1] < 0.01 * losses[0]


def test_sentence_transformers():
    losses = main_of("torch_sentence_transformers", "sentence_transformers", "datasets")
    assert losses[-1] < 0.2 * losses[0]


def test_a_cluster_that_was_set_on_accelerates_wrapper_is_missed_in_one_sentence():
    accelerate = pytest.importorskip("accelerate", reason="accelerate is not installed")
    from discover.torch import Discover

    layer = torch.nn.Linear(2, 1)
    layer, optimizer = accelerate.Accelerator(cpu=True).prepare(layer, Discover(layer.parameters(), 0.1, 2))
    layer(torch.ones(1, 2)).sum().backward()
    optimizer.cluster = 1
    with pytest.raises(RuntimeError, match=r"with Accelerate's `opt\.optimizer\.cluster = name`"):
        optimizer.step()
