"""Where data comes from: the table of sources, and `load`, which reads it.

A source is one function that returns a `Dataset`, and one entry below; what it can be told is its signature. Instead of
a name of the table, `module:function` stands for a user's own.
"""

from __future__ import annotations

import inspect
import os
from dataclasses import dataclass
from typing import Any

from discover.lab.data.dataset import Dataset
from discover.lab.data.errors import ArchiveError, DataError, one_line
from discover.registry import Made, Table, UnknownName, choose


@dataclass(frozen=True)
class Source(Made):
    """One source of the table.

    Attributes:
        name: as it is typed.
        factory: `module:function`, a `function(…) -> Dataset`.
        files: what the files are called that it reads in a folder or a tar, where it reads many.
        picks: `module:function` that says of a file's name whether it is one of them.
        words: whether columns of words are left out of the features.
        as_given: whether features are taken as they are, however different their spreads.
    """

    files: str = ""
    picks: str = ""
    words: bool = False
    as_given: bool = False


SOURCES: Table[Source] = Table(
    "data source",
    (
        Source("digits", "discover.lab.data.sources.digits:load_digits"),
        Source("cifar10", "discover.lab.data.sources.cifar:cifar10"),
        Source("cifar100", "discover.lab.data.sources.cifar:cifar100"),
        Source(
            "folder",
            "discover.lab.data.sources.folders:load_folder",
            files="pictures that can be read",
            picks="discover.lab.data.images.decoding:is_image",
        ),
        Source("npz", "discover.lab.data.sources.npz:load_npz", as_given=True),
        Source(
            "text",
            "discover.lab.data.sources.text:load_text",
            files="text (.txt)",
            picks="discover.lab.data.sources.text:is_text",
        ),
        Source("table", "discover.lab.data.sources.tabular:load_table", words=True),
    ),
    from_path=lambda path: Source(path, path),
)
"""Every source of data."""


def load(
    source: str = "digits", path: str | os.PathLike[str] | None = None, *, lazy: bool = False, **options: Any
) -> Dataset:
    """The data set of a source, by name.

    | source | what it is | `path` | options |
    |---|---|---|---|
    | "digits" | 1,797 handwritten digits, embedded | none | `test_fraction`, `seed` |
    | "cifar10", "cifar100" | official files (binary, Python), or class folders of pictures | archive or folder | |
    | "folder" | class folders of images, or a tar of them | folder or tar | those of `load_folder` |
    | "npz" | plain arrays | file | `label`, `test_fraction`, `seed` |
    | "text" | text files (`.txt`), byte by byte | folder, tar or file | those of `load_text` |
    | "table" | a `.csv`, `.tsv` or `.parquet` file | file | those of `load_table` |
    | "module:function" | your own `function(…) -> Dataset` | if it takes one | its own |

    Without a path, CIFAR is looked for in `$DISCOVER_DATA`, else in `.data`.

    Args:
        source: one of the names above.
        path: where the data is.
        lazy: read images when they are asked for, from the sources that can: folders, and uncompressed `.npz` files.
        options: passed on to the source.

    Raises:
        DatasetNotFoundError: if the files are not there; it says what was looked for, and where it can be had.
        ValueError: if the source, an option or the data is not as it must be; one line.

    >>> load("digits").train
    Split(1438 examples, images uint8[8, 8, 1])
    """
    entry = SOURCES.find(source)
    if path is not None:
        options["path"] = path
    if lazy and "lazy" in entry.arguments:
        options["lazy"] = True
    anything = any(one.kind is one.VAR_KEYWORD for one in inspect.signature(entry.make).parameters.values())
    for option in () if anything else options:
        if not entry.arguments:
            raise DataError(f"source {source!r} takes no options, got {option!r}")
        choose(f"option of source {source!r}", option, entry.arguments)
    for option in entry.required:
        if option not in options:
            raise DataError(f"source {source!r} needs {option}=…")
    try:
        dataset = entry.make(**options)
    except DataError as error:
        if path is not None:
            error.about(path)
        raise
    except (UnknownName, OSError, AssertionError):
        raise
    except Exception as error:  # a file that is damaged in a way that nobody has thought of
        if path is None or ":" in source:  # there is no file, or it is the user's own function
            raise
        raise ArchiveError(f"{path} cannot be read as {source}: {one_line(error)}") from error
    if not isinstance(dataset, Dataset):
        raise DataError(f"source {source!r} must return a discover.lab.data.Dataset, got {type(dataset).__name__}")
    return dataset
