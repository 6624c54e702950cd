"""Discover in Hugging Face's Trainer: batches of one domain, and three lines that say which.

python examples/torch_trainer.py         # needs torch, transformers and accelerate; a minute on a CPU
"""

import tempfile

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

from discover.torch import DiscoverMuon

DOMAINS = ["reviews", "news", "code"]
WORDS, LENGTH, BATCH = 30, 8, 16


class Texts(torch.utils.data.Dataset):
    """Made-up texts: each domain has words of its own, and the label is whether the first word is a late one."""

    def __init__(self, number=480):
        generator = torch.Generator().manual_seed(0)
        self.domains = [DOMAINS[i * len(DOMAINS) // number] for i in range(number)]
        within = torch.randint(WORDS // len(DOMAINS), (number, LENGTH), generator=generator)
        first = torch.tensor([DOMAINS.index(domain) for domain in self.domains]) * (WORDS // len(DOMAINS))
        self.words, self.labels = within + first[:, None], (within[:, 0] >= WORDS // len(DOMAINS) // 2).long()

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        return {"input_ids": self.words[i], "labels": self.labels[i], "domain": self.domains[i]}


def one_domain_a_batch(data):
    """Rows of a domain each, in random order."""
    of = [torch.tensor([i for i, one in enumerate(data.domains) if one == domain]) for domain in DOMAINS]
    parts = [part.tolist() for rows in of for part in rows[torch.randperm(len(rows))].split(BATCH)]
    return [parts[i] for i in torch.randperm(len(parts))]


def collate(rows):
    """A batch, and the domain that all of its rows are of."""
    batch = {name: torch.stack([row[name] for row in rows]) for name in ("input_ids", "labels")}
    return {**batch, "domain": rows[0]["domain"]}


class ClusteredTrainer(Trainer):
    """A Trainer that says which domain a batch is of."""

    def get_train_dataloader(self):
        batches = one_domain_a_batch(self.train_dataset)
        loader = torch.utils.data.DataLoader(self.train_dataset, batch_sampler=batches, collate_fn=collate)
        return self.accelerator.prepare(loader)

    def training_step(self, model, inputs, *args):
        self.optimizer.optimizer.cluster = inputs.pop("domain")
        return super().training_step(model, inputs, *args)


def main():
    """Trains a tiny BERT, and returns the loss before and after."""
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=WORDS, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64,
        max_position_embeddings=LENGTH, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    model = BertForSequenceClassification(config)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder, num_train_epochs=4, use_cpu=True, report_to=[], save_strategy="no", logging_steps=10,
            lr_scheduler_type="cosine", disable_tqdm=True,
        )  # fmt: skip
        optimizer = DiscoverMuon(model.named_parameters(), lr=5e-3, clusters=DOMAINS)
        trainer = ClusteredTrainer(model, arguments, train_dataset=Texts(), optimizers=(optimizer, None))
        trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return float(losses[0]), float(losses[-1])


if __name__ == "__main__":
    print("loss {:.2f} → {:.2f}".format(*main()))
