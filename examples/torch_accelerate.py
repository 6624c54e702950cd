"""Discover in an Accelerate loop: Accelerate wraps the optimizer, so the cluster is set on the one inside.

python examples/torch_accelerate.py      # needs torch and accelerate; seconds on a CPU
"""

import torch
from accelerate import Accelerator

from discover.torch import DiscoverAdamW

DOMAINS = ["reviews", "news", "code"]
STEPS = 150


def batches(generator):
    """(domain, inputs, targets): every batch from one domain, whose inputs lie around a point of their own."""
    for _ in range(STEPS):
        number = int(torch.randint(len(DOMAINS), (), generator=generator))
        x = torch.randn(16, 8, generator=generator) + number
        yield DOMAINS[number], x, x.sum(1, keepdim=True)


def main():
    """Trains, and returns the losses."""
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True)
    model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
    discover = DiscoverAdamW(model.parameters(), lr=0.05, clusters=DOMAINS)
    model, optimizer = accelerator.prepare(model, discover)
    losses = []
    for domain, x, y in batches(torch.Generator().manual_seed(0)):
        loss = (model(x) - y).square().mean()
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 10.0)
        discover.cluster = domain  # or optimizer.optimizer.cluster
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


if __name__ == "__main__":
    losses = main()
    print(f"loss {losses[0]:.2f} → {losses[-1]:.2f}")
