"""A plain PyTorch loop: handwritten digits, every batch of one class, and the two lines that Discover needs.

python examples/torch_loop.py        # needs torch and scikit-learn; half a minute on a CPU
"""

import torch
from sklearn.datasets import load_digits
from torch.nn.functional import cross_entropy

from discover.torch import Discover, DiscoverAdamW, DiscoverMuon

STEPS, BATCH, CLASSES = 200, 32, 10
OPTIMIZERS = {
    "SGD with momentum": lambda params: torch.optim.SGD(params, lr=0.01, momentum=0.9),
    "AdamW": lambda params: torch.optim.AdamW(params, lr=1e-3),
    "Discover": lambda params: Discover(params, lr=0.1, clusters=CLASSES),
    "Discover before AdamW": lambda params: DiscoverAdamW(params, lr=1e-3, clusters=CLASSES),
    "Discover before Muon": lambda params: DiscoverMuon(params, lr=0.02, clusters=CLASSES),
}


def accuracy(make_optimizer, seed=0):
    """Test accuracy after training on batches of one class each."""
    data = load_digits()
    images = torch.tensor(data.data, dtype=torch.float32) / 16
    labels = torch.tensor(data.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    train, test = order[:1400], order[1400:]
    members = [train[labels[train] == c] for c in range(CLASSES)]

    torch.manual_seed(seed)
    hidden = [torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 128), torch.nn.ReLU()]
    model = torch.nn.Sequential(*hidden, torch.nn.Linear(128, CLASSES))
    opt = make_optimizer(model.parameters())
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(opt, STEPS)
    for _ in range(STEPS):
        label = int(torch.randint(CLASSES, ()))
        rows = members[label][torch.randint(len(members[label]), (BATCH,))]
        opt.zero_grad()
        cross_entropy(model(images[rows]), labels[rows]).backward()
        opt.cluster = label  # what this batch is of; torch's own optimizers do not mind
        opt.step()
        schedule.step()
    return (model(images[test]).argmax(1) == labels[test]).float().mean().item()


def main():
    """Prints who ends where, and returns it."""
    found = {name: accuracy(make) for name, make in OPTIMIZERS.items()}
    for name, share in found.items():
        print(f"{name:24s} {100 * share:5.1f} %")
    return found


if __name__ == "__main__":
    main()
