"""Models in flax nnx, and the two pure functions that training needs of them."""

from discover.lab.models.layers import Conv, conv_as_matmul, standardize
from discover.lab.models.network import Network, as_network
from discover.lab.models.resnet import ResNet
from discover.lab.models.small import CNN, MLP, Logistic
from discover.lab.models.table import MODELS, Model, build_network
from discover.lab.models.wide_resnet import WideResNet

__all__ = [
    "CNN",
    "MLP",
    "MODELS",
    "Conv",
    "Logistic",
    "Model",
    "Network",
    "ResNet",
    "WideResNet",
    "as_network",
    "build_network",
    "conv_as_matmul",
    "standardize",
]
