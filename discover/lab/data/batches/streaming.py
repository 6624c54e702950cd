"""Data too large for memory: the batches of a plan, read from class folders as they are needed, through grain (an
extra).

The plan says which examples each step needs; grain's threads or processes read and decode them ahead of time. So a
streamed run sees the groups that a run in memory would see, and resumes in the same way: from the step number.
"""

from __future__ import annotations

import threading
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from discover.lab.data.batches.plan import BatchPlan
from discover.lab.data.batches.skipping import count_skipped
from discover.lab.data.errors import BadImageError, DataError, check_at_least, check_choice
from discover.lab.data.images.decode_worker import Unreadable, decode
from discover.lab.data.sources.folders import ImageFiles

if TYPE_CHECKING:
    import grain

_ENDLESS = 1 << 40


class StreamedBatch(NamedTuple):
    """One step's batch with its images."""

    images: NDArray[np.uint8]  # [G, b, H, W, C]
    labels: NDArray[np.int32]  # [G, b] after label noise
    cluster_ids: NDArray[np.int32]  # [G]
    group_sizes: NDArray[np.int32]  # [G]
    indices: NDArray[np.int32]  # [G, b] which of the files
    skipped: NDArray[np.int32]  # [G, b] the unreadable file in whose place this one is, −1 for none


class StepSource:
    """A random-access source whose element t is the batch of step t, images decoded.

    Args:
        files: the training images, listed but not read (`list_images`).
        plan: the batches; made with the files' labels.
        image_size: the side that images are cut and resized to.
        channels: 3 for color, 1 for gray.
        on_bad_image: "error", or "skip" to put the next readable image of its group in an unreadable one's place, with
            a warning for each file. (`stream_batches` adds one at the end that says how many.)

    Raises:
        DataError: if plan and files do not fit together.
    """

    def __init__(
        self, files: ImageFiles, plan: BatchPlan, *, image_size: int, channels: int = 3, on_bad_image: str = "error"
    ):
        self.image_size = check_at_least("image_size", image_size, 1)
        if channels not in (1, 3):
            raise DataError(f"channels must be 1 or 3, got {channels}")
        self.channels = channels
        self.on_bad_image = check_choice("on_bad_image", on_bad_image, ("error", "skip"))
        if not np.array_equal(files.labels, plan.labels):
            raise DataError(f"the plan must be made with the labels of the {len(files)} files, got different ones")
        self.files, self.plan = files, plan
        self._bad: set[int] = set()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return _ENDLESS

    def __repr__(self) -> str:
        return f"StepSource({len(self.files)} files, {self.plan!r})"

    def __getitem__(self, index: int) -> StreamedBatch:
        step = int(index)
        batch = self.plan.batch(step)
        groups, size = batch.indices.shape
        images = np.empty((groups, size, self.image_size, self.image_size, self.channels), dtype=np.uint8)
        labels, indices = batch.labels.copy(), batch.indices.copy()
        skipped = np.full_like(indices, -1)
        for k in range(groups):
            missing = [place for place in range(size) if not self._read(int(indices[k, place]), images[k, place])]
            readable = [place for place in range(size) if place not in missing]
            if not readable:
                first = self.files.paths[indices[k, 0]]
                raise BadImageError(f"no image of group {k} of step {step} can be read; the first is {first}")
            for place in missing:
                skipped[k, place] = indices[k, place]
                other = next((p for p in readable if p > place), readable[0])
                for values in (images, labels, indices):
                    values[k, place] = values[k, other]
        return StreamedBatch(images, labels, batch.cluster_ids, batch.group_sizes, indices, skipped)

    def _read(self, index: int, into: NDArray[np.uint8]) -> bool:
        """Decode one file; False if it cannot be read and that is to be put up with."""
        path = self.files.paths[index]
        try:
            into[...] = decode(Path(path).read_bytes(), self.image_size, self.channels)
            return True
        except (Unreadable, OSError) as error:
            if self.on_bad_image == "error":
                reason = f"{error} (on_bad_image='skip' leaves such out)"
                raise BadImageError(f"{path} cannot be read: {reason}") from error
            with self._lock:
                new = index not in self._bad
                self._bad.add(index)
            if new:
                warnings.warn(f"skipped {path}, which cannot be read: {error}", stacklevel=2)
            return False

    def __getstate__(self) -> dict:
        return {name: value for name, value in vars(self).items() if name != "_lock"}

    def __setstate__(self, state: dict) -> None:
        vars(self).update(state)
        self._lock = threading.Lock()


def _copied(batch: StreamedBatch) -> StreamedBatch:
    return batch._make(np.array(values) for values in batch)


def stream_batches(
    files: ImageFiles,
    plan: BatchPlan,
    *,
    image_size: int,
    channels: int = 3,
    on_bad_image: str = "error",
    start: int = 0,
    stop: int | None = None,
    threads: int = 8,
    workers: int = 0,
) -> grain.IterDataset:
    """The batches of a plan, with images read from files, from step `start` on.

    To resume, give the step as `start`; or keep the state of the iterator (`get_state`, `set_state`), which orbax can
    put into a checkpoint. On several hosts give each its part of the plan (`plan.for_host`).

    Args:
        files: the training images (`list_images(path)["train"]`).
        plan: the batches; made with `files.labels`.
        image_size: the side that images are cut and resized to; leave room for crops on the device.
        channels: 3 for color, 1 for gray.
        on_bad_image: "error" or "skip"; see `StepSource`. With "skip" a warning says how many files were skipped in
            all, after the last step or when the iterator is closed.
        start: the first step.
        stop: the step to stop before; never if absent.
        threads: how many threads read and decode, each a step of its own (in each process). As many batches are held
            ready in memory.
        workers: how many processes to read with; 0 for threads in this one. A script that uses processes must guard its
            entry point with `if __name__ == "__main__"`, and call `close()` on an iterator that it leaves before its
            end.

    Returns:
        A grain dataset to iterate over; its elements are `StreamedBatch`es.

    Raises:
        DataError: if grain is not installed, or an argument is out of range.
    """
    try:
        import grain
    except ImportError as error:
        raise DataError("streaming needs grain: pip install 'discover-optim[streaming]'") from error
    start = check_at_least("start", start, 0)
    stop = _ENDLESS if stop is None else check_at_least("stop", stop, start + 1)
    check_at_least("threads", threads, 1)
    check_at_least("workers", workers, 0)
    source = StepSource(files, plan, image_size=image_size, channels=channels, on_bad_image=on_bad_image)
    steps = grain.MapDataset.source(source)[start:stop]
    dataset = steps.to_iter_dataset(grain.ReadOptions(num_threads=threads, prefetch_buffer_size=threads))
    if workers:
        # Grain's processes are configured with absl's flags, which nobody parses outside of an absl program.
        from absl import flags

        if not flags.FLAGS.is_parsed():
            flags.FLAGS.mark_as_parsed()
        # Out of the memory that is shared with the processes, so that a batch may outlive them.
        dataset = dataset.mp_prefetch(grain.MultiprocessingOptions(num_workers=workers)).map(_copied)
    if on_bad_image == "skip":
        dataset = count_skipped(dataset, files)
    return dataset
