"""Discover in sentence-transformers: every batch is from one data set, and three lines say from which.

    python examples/torch_sentence_transformers.py     # needs torch, sentence-transformers and datasets; a minute

The trainer adds `dataset_name` to its batches when the losses are a dictionary by data set.
"""

import random
import tempfile

import torch
from datasets import Dataset, DatasetDict
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.losses import MultipleNegativesRankingLoss
from tokenizers import Tokenizer, models, pre_tokenizers

from discover.torch import DiscoverAdamW

SIZES = {"nli": 192, "qa": 128, "news": 64}
WORDS = 40

try:
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding
except ImportError:  # before version 6
    from sentence_transformers.models import StaticEmbedding


class ClusteredTrainer(SentenceTransformerTrainer):
    """A trainer that says which data set a batch is from."""

    def training_step(self, model, inputs, *args):
        self.optimizer.optimizer.cluster = inputs["dataset_name"]
        return super().training_step(model, inputs, *args)


def pairs(name, number):
    """Made-up pairs of sentences: both have the same two rare words among words of the data set."""
    rng = random.Random(name)

    def sentence(topic):
        return " ".join([f"{name}{rng.randrange(5)}", *topic])

    topics = [[f"w{rng.randrange(WORDS)}", f"w{rng.randrange(WORDS)}"] for _ in range(number)]
    return Dataset.from_dict({"anchor": [sentence(t) for t in topics], "positive": [sentence(t) for t in topics]})


def main():
    """Trains a tiny model, and returns the losses that the trainer noted."""
    torch.manual_seed(0)
    words = ["?", *(f"w{n}" for n in range(WORDS)), *(f"{name}{n}" for name in SIZES for n in range(5))]
    tokenizer = Tokenizer(models.WordLevel({word: n for n, word in enumerate(words)}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    model = SentenceTransformer(modules=[StaticEmbedding(tokenizer, embedding_dim=16)], device="cpu")
    loss = MultipleNegativesRankingLoss(model)
    optimizer = DiscoverAdamW(model.parameters(), lr=0.03, clusters=SIZES)
    with tempfile.TemporaryDirectory() as folder:
        arguments = SentenceTransformerTrainingArguments(
            folder, num_train_epochs=4, per_device_train_batch_size=16, use_cpu=True, report_to=[],
            save_strategy="no", logging_steps=8, disable_tqdm=True,
        )  # fmt: skip
        data = DatasetDict({name: pairs(name, number) for name, number in SIZES.items()})
        losses = dict.fromkeys(SIZES, loss)
        optimizers = (optimizer, None)
        trainer = ClusteredTrainer(model=model, args=arguments, train_dataset=data, loss=losses, optimizers=optimizers)
        trainer.train()
    return [float(entry["loss"]) for entry in trainer.state.log_history if "loss" in entry]


if __name__ == "__main__":
    print(*main())
