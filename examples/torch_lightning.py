"""Discover in Lightning: the training step runs inside the optimizer's closure, and sets the cluster there.

python examples/torch_lightning.py       # needs torch and lightning; seconds on a CPU
"""

import lightning
import torch

from discover.torch import Discover

CLIENTS = {"north": 600, "south": 300, "west": 100}  # examples of each: how probable a batch of it is


class Batches(torch.utils.data.IterableDataset):
    """(client, inputs, targets): every batch from one client."""

    def __iter__(self):
        generator = torch.Generator().manual_seed(0)
        counts = torch.tensor(list(CLIENTS.values()), dtype=torch.float32)
        for _ in range(80):
            number = int(torch.multinomial(counts, 1, generator=generator))
            x = torch.randn(16, 4, generator=generator) + number
            yield list(CLIENTS)[number], x, x.sum(1, keepdim=True) + 1


class Model(lightning.LightningModule):
    """A linear model."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
        self.losses = []

    def training_step(self, batch, _):
        client, x, y = batch
        self.optimizers().cluster = client
        loss = (self.layer(x) - y).square().mean()
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self):
        optimizer = Discover(self.parameters(), lr=0.05, clusters=CLIENTS)
        return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 80)]


def main():
    """Trains, and returns the losses."""
    torch.manual_seed(0)
    model = Model()
    trainer = lightning.Trainer(
        max_epochs=1, accelerator="cpu", gradient_clip_val=10.0,
        logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(model, torch.utils.data.DataLoader(Batches(), batch_size=None))
    return model.losses


if __name__ == "__main__":
    losses = main()
    print(f"loss {losses[0]:.2f} → {losses[-1]:.2f}")
