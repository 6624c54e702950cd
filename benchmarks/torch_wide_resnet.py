"""The WideResNet of `discover/lab/models/wide_resnet.py` in PyTorch, without dropout, for the programs beside it."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import relu


class WideBlock(nn.Module):
    """Norm, relu, conv, norm, relu, conv, and a shortcut (1x1 where the shape changes)."""

    def __init__(self, channels: int, features: int, stride: int):
        super().__init__()
        self.norm1 = norm(channels, 16)
        self.conv1 = conv(channels, features, 3, stride)
        self.norm2 = norm(features, 32)
        self.conv2 = conv(features, features, 3)
        self.shortcut = conv(channels, features, 1, stride) if stride != 1 or channels != features else None

    def forward(self, x: Tensor) -> Tensor:
        y = relu(self.norm1(x))
        residual = x if self.shortcut is None else self.shortcut(y)
        return residual + self.conv2(relu(self.norm2(self.conv1(y))))


class WideResNet(nn.Module):
    """WideResNet-`depth`-`width` for images [b, 3, H, W]; a depth of 10 has one block in each of its three stages."""

    def __init__(self, depth: int, width: int, num_classes: int = 10):
        super().__init__()
        blocks: list[nn.Module] = []
        channels = 16
        for stage in range(3):
            for block in range((depth - 2) // 6):
                features = 16 * 2**stage * width
                blocks.append(WideBlock(channels, features, 2 if stage > 0 and block == 0 else 1))
                channels = features
        self.stem = conv(3, 16, 3)
        self.blocks = nn.Sequential(*blocks)
        self.norm = norm(channels, 32)
        self.head = nn.Linear(channels, num_classes)
        nn.init.normal_(self.head.weight, std=1 / math.sqrt(channels))
        nn.init.zeros_(self.head.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(relu(self.norm(self.blocks(self.stem(x)))).mean((2, 3)))


def conv(channels: int, features: int, size: int, stride: int = 1) -> nn.Conv2d:
    """A convolution without bias."""
    layer = nn.Conv2d(channels, features, size, stride, size // 2, bias=False)
    nn.init.normal_(layer.weight, std=math.sqrt(2 / (size * size * features)))
    return layer


def norm(channels: int, groups: int) -> nn.GroupNorm:
    """Group norm with that many groups, or the largest number below that divides both."""
    return nn.GroupNorm(math.gcd(groups, channels), channels)


def make(depth: int, width: int, device: torch.device) -> WideResNet:
    """The network on a device, channels last."""
    return WideResNet(depth, width).to(device, memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
