"""What an optimizer was told of the batch since its last step: one cluster for all of it, or groups."""

import warnings
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from discover.torch.clusters import Name


class Seen(NamedTuple):
    """The part of a batch that is of one cluster."""

    size: float  # how many examples, or in any other unit that all of the batch's groups share
    grads: dict[Tensor, Tensor]  # ĝ_n of each parameter that has a gradient


@dataclass
class Batch:
    """Is filled between two steps; wrappers of an optimizer hand on this one object."""

    cluster: Name | None = None  # of the whole batch
    groups: dict[Name, Seen] = field(default_factory=dict)  # or of its parts, with sums in place of means
    left_out: bool = False  # whether there was more, which does not count
    mixed: Name | None = None  # another cluster, whose gradients are among these
    named_last: bool = False  # whether its gradients were there when the cluster was named
    gone: bool = False  # whether those are
    spent: bool = False  # whether a step was taken with the gradients that are there

    @property
    def of_one_cluster(self) -> bool:
        """Whether the gradients that the parameters hold are the batch's."""
        return self.cluster is not None and not self.groups

    def name(self, cluster: Name | None, there: bool) -> None:
        """Says the cluster of the whole batch.

        Args:
          cluster: the cluster; None: it is not known.
          there: whether there are gradients already.
        """
        if not there:
            self.mixed = None
        elif not self.gone and None not in (cluster, self.cluster) and cluster != self.cluster:
            self.mixed = self.cluster
        self.cluster, self.named_last, self.gone = cluster, there and not self.spent, False

    def gradients_are_gone(self) -> None:
        """Of a step that was skipped, as a GradScaler does, the cluster may be left."""
        self.gone, self.spent, self.mixed = self.named_last, False, None

    def add(self, name: Name, size: float, grads: dict[Tensor, Tensor]) -> None:
        """One more group: its gradients are copied, as whoever made them may use their memory again."""
        scaled = torch._foreach_mul([wide(g) for g in grads.values()], size)
        before, sums = self.groups.get(name, Seen(0, {}))
        both = [(sums[p], one) for p, one in zip(grads, scaled) if p in sums]
        if both:
            torch._foreach_add_(*map(list, zip(*both)))
        self.groups[name] = Seen(before + size, {**dict(zip(grads, scaled)), **sums})

    def taken(self, grads: dict[Tensor, Tensor]) -> dict[Name, Seen]:
        """The clusters of the batch, each with its mean gradients; and forgets them.

        Args:
          grads: the gradients that the parameters hold now.

        Raises:
          RuntimeError: if a gradient's cluster is not known, or two are named for it.
        """
        cluster, groups = self.cluster, self.groups
        if cluster is None and not groups and not self.left_out:
            raise RuntimeError(
                "no cluster was set since the last step: say `opt.cluster = name` for a batch of one cluster, or call "
                "`opt.collect(name)` after each backward(). Behind a wrapper set it on the optimizer itself, with "
                "Accelerate's `opt.optimizer.cluster = name`"
            )
        if cluster is not None and groups:
            raise RuntimeError(
                f"either `opt.cluster` or `opt.collect` for a batch, not both: got {cluster!r} and groups"
            )
        if cluster is None and grads:
            raise RuntimeError("there are gradients of no group: call `opt.collect(name)` after each backward()")
        if cluster is not None and self.mixed is not None:
            warnings.warn(
                f"gradients of {self.mixed!r} count as {cluster!r}: no step was taken in between. With gradient "
                "accumulation over several clusters call `opt.collect(name)` after each backward()",
                stacklevel=2,
            )
        self.cluster, self.groups, self.left_out, self.mixed, self.spent = None, {}, False, None, True
        if cluster is not None:
            return {cluster: Seen(1, dict(zip(grads, map(wide, grads.values()))))}
        means = {}
        for name, (size, sums) in groups.items():
            torch._foreach_div_(list(sums.values()), size)
            means[name] = Seen(size, sums)
        return means


def wide(grad: Tensor) -> Tensor:
    """A gradient in float32, or its own dtype where that is wider."""
    return grad.to(wide_dtype(grad))


def wide_dtype(tensor: Tensor) -> torch.dtype:
    """float32, or the tensor's dtype where that is wider."""
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32
