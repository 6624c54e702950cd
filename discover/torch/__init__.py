"""The same optimizers for PyTorch: one momentum per cluster, as ordinary `torch.optim.Optimizer`s.

    opt = DiscoverMuon(model.named_parameters(), lr=1e-3, clusters=["nli", "qa", "news"])
    opt.cluster = "qa"                                  # one cluster a batch
    loss.backward(); opt.step(); opt.zero_grad()

    for name, part in batch:                            # or several: each backward is a group
        loss(part).backward(); opt.collect(name)
    opt.step()

They take the steps of `discover.discover`, `discover.discover_adam` and `discover.discover_muon`, without jax.
"""

try:
    import torch as _torch  # noqa: F401
except ModuleNotFoundError as error:
    message = f"discover.torch needs PyTorch, and {error.name} is not installed: pip install 'discover-optim[torch]'"
    raise ModuleNotFoundError(message, name=error.name) from None

from discover.torch.adamw import DiscoverAdamW
from discover.torch.discover import Discover
from discover.torch.muon import DiscoverMuon
from discover.torch.ranks import local_gradients

__all__ = ["Discover", "DiscoverAdamW", "DiscoverMuon", "local_gradients"]
