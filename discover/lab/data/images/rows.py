"""Examples that are read when they are asked for, so that a host need not read, or hold, those of other hosts."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from discover.lab.data.errors import DataError


class Reader(Protocol):
    """Reads examples by their number.

    Attributes:
        shape: of one example.
        dtype: of the examples.
    """

    shape: tuple[int, ...]
    dtype: np.dtype

    def read(self, numbers: NDArray[np.integer], *, keep: bool = False) -> NDArray:
        """The examples [n, …] of some numbers [n]; with `keep` it may remember them on disk for the next time."""
        ...


class Rows:
    """Like an array of examples that is read where it is indexed: `rows[indices]`, with integers of any shape.

    Args:
        reader: reads examples by their number.
        numbers: int [n], the number of each row.

    >>> rows = Rows(ArrayReader(np.arange(12.0).reshape(6, 2)), np.array([5, 0, 3]))
    >>> rows.shape, rows[[[2, 0]]].tolist()
    ((3, 2), [[[6.0, 7.0], [10.0, 11.0]]])
    """

    def __init__(self, reader: Reader, numbers: ArrayLike):
        self._reader, self._numbers = reader, np.asarray(numbers)
        self.dtype, self.shape = reader.dtype, (len(self._numbers), *reader.shape)
        self.ndim = len(self.shape)

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, indices: Any) -> NDArray:
        numbers = self._numbers[indices]
        different, places = np.unique(numbers, return_inverse=True)
        return self._reader.read(different)[places.reshape(numbers.shape)]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray:
        del copy
        return np.asarray(self[np.arange(len(self))], dtype=dtype)

    def take(self, indices: ArrayLike) -> Rows:
        """Some of the rows; nothing is read."""
        return Rows(self._reader, self._numbers[np.asarray(indices)])

    def hold(self, indices: NDArray[np.integer]) -> Rows:
        """The same rows, of which those at `indices` (sorted) are read now, and held; the others cannot be read."""
        return Rows(_Held(self._reader.read(self._numbers[indices], keep=True), indices), np.arange(len(self)))


class ArrayReader:
    """Rows of an array, which may be a memory map.

    Args:
        array: [n, …].
    """

    def __init__(self, array: NDArray):
        self.array, self.shape, self.dtype = array, array.shape[1:], array.dtype

    def read(self, numbers: NDArray[np.integer], *, keep: bool = False) -> NDArray:
        """See `Reader`."""
        del keep
        return np.ascontiguousarray(self.array[numbers])


class _Held:
    """Some rows of a data set, in memory."""

    def __init__(self, values: NDArray, numbers: NDArray[np.integer]):
        self.values, self.numbers, self.shape, self.dtype = values, numbers, values.shape[1:], values.dtype

    def read(self, numbers: NDArray[np.integer], *, keep: bool = False) -> NDArray:
        """See `Reader`."""
        del keep
        places = np.minimum(np.searchsorted(self.numbers, numbers), max(0, len(self.numbers) - 1))
        if not np.array_equal(self.numbers[places], numbers):
            raise DataError(f"example {np.setdiff1d(numbers, self.numbers)[0]} is not among those that this host holds")
        return self.values[places]
