"""Which numbers of a large parameter stand for all of them in the products of damping.

A few unknowns are found as well from a hundred thousand equations as from millions. Of every `stride` blocks of `BLOCK`
numbers one is taken, not always the same one, so that no column of a matrix is left out. Plain arithmetic: whole
numbers, arrays and what a kernel computes with will do.
"""

from typing import Any, NamedTuple

LEAST = 2**17
"""Numbers that are enough."""
BLOCK = 128
"""Numbers side by side that are taken together: what a GPU reads at once, and what shares a scale in 8 bits."""


class Sample(NamedTuple):
    """Blocks of a parameter."""

    stride: int  # one block of so many; 1: all numbers, whatever their blocks
    blocks: int  # how many of them are taken
    numbers: int  # numbers that are taken

    def block(self, number: Any) -> Any:
        """The `number`-th block that is taken, of those of the parameter."""
        return number * self.stride + number * 7919 % 65521 % self.stride

    def takes(self, place: Any) -> Any:
        """Whether the number at this place of the parameter is taken."""
        block = place // BLOCK
        return (block == self.block(block // self.stride)) & (block // self.stride < self.blocks)


def sample_of(size: int) -> Sample:
    """The blocks for a parameter of so many numbers: all, unless it has twice as many as are enough."""
    stride = max(1, size // LEAST)
    blocks = size // BLOCK // stride
    return Sample(stride, blocks, size if stride == 1 else blocks * BLOCK)
