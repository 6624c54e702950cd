"""How many unreadable files a stream skipped, said once at its end."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from discover.lab.data.sources.folders import ImageFiles

if TYPE_CHECKING:
    import grain


def count_skipped(dataset: grain.IterDataset, files: ImageFiles) -> grain.IterDataset:
    """The same batches; each iterator over them ends with a warning that counts what was skipped, if anything was.

    Args:
        dataset: of `StreamedBatch`es. They say themselves what was skipped, so that it does not matter which thread or
            process read them.
        files: the files that they are of.
    """
    import grain

    class CountSkipped(grain.IterDataset):
        def __iter__(self) -> grain.DatasetIterator:
            return Counting(self._parent.__iter__())

        @property
        def _element_spec(self) -> Any:
            return self._parent._element_spec

    class Counting(grain.DatasetIterator):
        def __init__(self, parent: grain.DatasetIterator):
            super().__init__(parent)
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
            _warn([files.paths[index] for index in sorted(self._skipped)], len(files))
            self._skipped.clear()  # said once

    return CountSkipped(dataset)


def _warn(paths: list[str], total: int) -> None:
    if paths:
        some = ", ".join(paths[:5]) + (", …" if len(paths) > 5 else "")
        warnings.warn(f"skipped {len(paths)} of {total} images that cannot be read: {some}", stacklevel=4)
