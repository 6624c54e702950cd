"""Random numbers that are functions of where they are used, not of what was drawn before.

Both tools work in integers only, and so give the same on every machine and in every version of NumPy: `stream`, a
generator that starts at a given place, and `hash_uint64`, one number for each of many scattered places.
"""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import NDArray

UINT64 = np.uint64
_GOLDEN = 0x9E3779B97F4A7C15


@functools.lru_cache(maxsize=256)
def _key(seed: int, purpose: str) -> tuple[int, int]:
    """128 bits of key from a seed of any size and what the numbers are for."""
    if seed < 0:
        raise ValueError(f"seed must be a non-negative integer, got {seed}")
    words = np.random.SeedSequence([seed, int.from_bytes(purpose.encode(), "little")]).generate_state(2, UINT64)
    return int(words[0]), int(words[1])


def stream(seed: int, purpose: str, *position: int) -> np.random.Philox:
    """A bit generator for one place of a seed's stream; the place is part of its counter, so streams never overlap.

    Args:
        seed: a non-negative integer.
        purpose: a short word; different purposes give independent streams.
        position: up to three integers, each in 0…2⁶⁴−1.

    >>> int(stream(0, "demo", 7).random_raw()) == int(stream(0, "demo", 7).random_raw())
    True
    """
    counter = np.zeros(4, dtype=UINT64)
    counter[1 : 1 + len(position)] = position
    return np.random.Philox(key=np.array(_key(seed, purpose), dtype=UINT64), counter=counter)


def permutations(bits: np.random.Philox, count: int, size: int) -> NDArray[np.int64]:
    """`count` independent uniform permutations of 0…size−1, as an array [count, size].

    They are the sorting orders of raw 64-bit words: unlike `Generator.permutation`, whose algorithm NumPy may change,
    these never change. (Equal words, which would tie, have a probability below size²/2⁶⁵.)
    """
    return np.argsort(bits.random_raw(count * size).reshape(count, size), axis=1, kind="stable")


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finalizer of SplitMix64: every output bit depends on every input bit."""
    x = x ^ (x >> UINT64(30))
    x *= UINT64(0xBF58476D1CE4E5B9)  # in place from here on: half the time goes into new arrays
    x ^= x >> UINT64(27)
    x *= UINT64(0x94D049BB133111EB)
    x ^= x >> UINT64(31)
    return x


def hash_uint64(seed: int, purpose: str, a: NDArray, b: NDArray) -> NDArray[np.uint64]:
    """One 64-bit number for each pair of non-negative integers (a, b), a fixed function of seed, purpose, a and b."""
    first, second = _key(seed, purpose)
    # Unsigned arithmetic wraps by design; only NumPy's scalars would warn about it, so make both operands arrays.
    inner = _mix(np.atleast_1d(np.asarray(b)).astype(UINT64) * UINT64(_GOLDEN) + UINT64(first))
    outer = _mix(np.atleast_1d(np.asarray(a)).astype(UINT64) * UINT64(_GOLDEN) + (inner ^ UINT64(second)))
    return outer.reshape(np.broadcast_shapes(np.shape(a), np.shape(b)))


def scale_down(words: NDArray[np.uint64], bound: int) -> NDArray[np.int32]:
    """The lower 32 bits of 64-bit words as integers in 0…bound−1, uniform to within bound/2³²."""
    scaled = words & UINT64(0xFFFFFFFF)
    scaled *= UINT64(bound)
    scaled >>= UINT64(32)
    return scaled.astype(np.int32)
