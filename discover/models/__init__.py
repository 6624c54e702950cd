"""Models in flax nnx, and the two pure functions that training needs of them."""

from discover.models.layers import Conv, conv_as_matmul, standardize
from discover.models.network import MODELS, Network, build_network
from discover.models.resnet import ResNet
from discover.models.small import CNN, MLP, Logistic
from discover.models.wide_resnet import WideResNet

__all__ = [
    "CNN",
    "MLP",
    "MODELS",
    "Conv",
    "Logistic",
    "Network",
    "ResNet",
    "WideResNet",
    "build_network",
    "conv_as_matmul",
    "standardize",
]
