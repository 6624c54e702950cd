"""How many unreadable files a stream skipped, said once at its end. (Imports grain, an extra.)"""

from __future__ import annotations

import warnings
from typing import Any

import grain

from discover.data.folders import ImageFiles


class CountSkipped(grain.IterDataset):
    """The same batches; each iterator over them ends with a warning that counts what was skipped, if anything was.

    Args:
        parent: a dataset of `StreamedBatch`es. They say themselves what was skipped, so that it does not matter which
            thread or process read them.
        files: the files that they are of.
    """

    def __init__(self, parent: grain.IterDataset, files: ImageFiles):
        super().__init__(parent)
        self._files = files

    def __iter__(self) -> grain.DatasetIterator:
        return _Counting(self._parent.__iter__(), self._files)

    @property
    def _element_spec(self) -> Any:
        return self._parent._element_spec


class _Counting(grain.DatasetIterator):
    def __init__(self, parent: grain.DatasetIterator, files: ImageFiles):
        super().__init__(parent)
        self._files = files
        self._skipped: set[int] = set()

    def __next__(self) -> Any:
        try:
            batch = next(self._parent)
        except StopIteration:
            self._report()
            raise
        self._skipped.update(batch.skipped[batch.skipped >= 0].tolist())
        return batch

    def get_state(self) -> dict[str, Any]:
        return self._parent.get_state()

    def set_state(self, state: dict[str, Any]) -> None:
        self._parent.set_state(state)

    def close(self) -> None:
        super().close()
        self._report()

    def _report(self) -> None:
        if not self._skipped:
            return
        paths = [self._files.paths[index] for index in sorted(self._skipped)]
        some = ", ".join(paths[:5]) + (", …" if len(paths) > 5 else "")
        self._skipped.clear()  # said once
        warnings.warn(f"skipped {len(paths)} of {len(self._files)} images that cannot be read: {some}", stacklevel=3)
