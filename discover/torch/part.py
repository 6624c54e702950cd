"""One step of some parameters, told in tensors and numbers only: what `torch.compile` sees."""

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor

from discover.torch.damping import damp
from discover.torch.ranks import Together
from discover.torch.rule import Number, Visit, advance, move

Memory = dict[str, Tensor]
"""What is remembered of a parameter besides ḡ and the buffers."""


class Part(NamedTuple):
    """Parameters of one group, dtype and device, and all that their step needs; lists have one entry for each."""

    params: list[Tensor]
    means: list[Tensor]  # ḡ
    visits: list[Visit]  # the clusters of the batch
    damping: float | None  # κ
    probs: Tensor  # p_n of all clusters, for damping; else empty, as are the buffers
    buffers: list[list[Tensor]]  # g_n of all clusters
    places: list[Tensor | None]  # what damping's sums are taken from
    transform: Callable[..., list[Tensor]]
    memory: list[Memory]
    options: dict[str, Any]
    lr: Number
    decay: float
    together: Together


def take(part: Part) -> None:
    """The step: direction, damping, what Adam or Muon makes of it, and the move."""
    direction = advance(part.means, part.visits)
    if part.damping is not None and len(part.probs):
        damp(direction, part.means, part.buffers, part.probs, part.places, part.damping, part.together.total)
    direction = part.together.whole(direction, part.params)
    move(part.params, part.transform(direction, part.memory, part.options), part.lr, part.decay)
