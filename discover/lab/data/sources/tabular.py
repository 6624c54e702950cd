"""Tables: a `.csv` or `.tsv` file with a line of names, or a `.parquet` file, a row for each example."""

from __future__ import annotations

import csv
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from discover.lab.data.dataset import Dataset, Split, stratified_split
from discover.lab.data.errors import (
    ArchiveError,
    DataError,
    DatasetNotFoundError,
    check_at_least,
    listed,
    no_column,
    one_line,
)
from discover.lab.data.limits import check_bytes, check_ordinary, honest_size, most_bytes, text_array
from discover.lab.data.sources.text import cut, encode, next_byte

SUFFIXES = (".csv", ".tsv", ".parquet")
CELLS = 30
"""So many times its size a table takes in memory while it is read, every cell an object."""
A_CELL = 60
"""Bytes that a cell takes; packed, a million that are alike take none."""
A_FOOTER = 200
"""So many times its size the end of a parquet file takes, which describes the columns."""
MOST_LETTERS = 1000
"""Of a label, or of a column that can be clustered by: longer ones are no names."""
MOST_CLASSES = 1000
A_TEXT = 20
"""Letters from which on, on average, the words of a column are a text to learn from."""
LARGEST = 1e150
"""Of a number, whose square can be a number yet."""
_LABELS = ("label", "labels", "class", "target", "y")
_MISSING = ("", "na", "n/a", "nan", "null", "none")


def load_table(
    path: str | os.PathLike[str],
    *,
    label: str | None = None,
    clusters: str | None = None,
    length: int | None = None,
    test_fraction: float | None = None,
    seed: int = 0,
) -> Dataset:
    """A data set from a table: one column is the label, numbers are features, all columns can be clustered by.

    Features are standardized, by the training examples' mean and standard deviation. If there is a column of text, of
    20 letters or more on average, it is read instead, byte by byte; of several the longest. A stratified share of
    the rows is held out as the test split.

    A column of text without a label: the next byte is learned, as from text files. The texts of each cluster, a line
    each, are one text then, which is cut into pieces.

    Args:
        path: a `.csv` or `.tsv` file whose first line has the names, or a `.parquet` file.
        label: the column that is the label; else the one called label, labels, class, target or y.
        clusters: the column that clusters are made of, which is no feature then.
        length: the most bytes of a text that are read, 256 if absent; without a label the bytes of a piece, 128.
        test_fraction: the share to hold out; if absent a fifth, and of pieces at most 2000.
        seed: of what is held out.

    Raises:
        DataError: a cell is missing or no finite number, with its row (the first below the names is 1) and its column.
    """
    path = Path(path)
    if length is not None:
        check_at_least("length", length, 2)
    if not path.is_file():
        raise DatasetNotFoundError(f"there is no file {path}")
    most = most_bytes(honest_size(path))
    check_bytes(path, CELLS * check_ordinary(path), most)
    table = _read_parquet(path, most) if path.suffix.lower() == ".parquet" else _read_csv(path)
    if not table or not next(iter(table.values())):
        raise DataError(f"{path} has no rows")
    for column in (label, clusters):
        if column is not None and column not in table:
            raise no_column(column, table, f"{path} has")
    if clusters is not None:
        _check_filled(path, clusters, table[clusters], "cluster", ("", "nan"))  # "NA" may be Namibia
    name = label or next((name for name in table if name.lower() in _LABELS), None)
    numbers = {key: _numbers(path, key, values) for key, values in table.items() if key not in (name, clusters)}
    features = {key: values for key, values in numbers.items() if values is not None}
    words = [key for key, values in numbers.items() if values is None and _mean_length(table[key]) >= A_TEXT]
    longest = max(words, key=lambda key: _mean_length(table[key]), default=None)
    texts = ["" if value is None else str(value) for value in table[longest]] if longest else []
    if name is None and texts:
        check_bytes(f"the text in {path}", sum(map(len, texts)), most)
        pieces, columns = _pieces(path, texts, table, clusters, length or 128, most)
        return next_byte(path.stem, pieces, columns, test_fraction, seed)
    if name is None:
        last = [key for key in table if key != clusters][-1:]
        raise DataError(f"no column of {path} ({listed(table)}) is called label", label=(last or ["COLUMN"])[0])
    if not features and not texts:
        raise DataError(f"{path} has no column of numbers or of text besides {name!r}: there is nothing to learn from")
    classes, labels = _classes(path, name, table[name])
    columns: dict[str, NDArray] = {}
    left, words = most, set(words)
    for key, values in table.items():
        if key != name and key not in words and (key == clusters or _longest(values) <= MOST_LETTERS):
            columns[key] = _column(path, key, values, left)
            left -= columns[key].nbytes
    train, test = stratified_split(labels, 0.2 if test_fraction is None else test_fraction, seed)
    if texts:
        length = length or 256
        encoded = [text[:length].encode(errors="surrogatepass") for text in texts]
        length = min(length, -(-max(map(len, encoded)) // 8) * 8)
        check_bytes(f"the text in {path}", 2 * length * len(encoded), most)
        everything = Split(encode(encoded, length), labels, columns, text=True)
    else:
        matrix = np.stack(list(features.values()), axis=1)
        mean, spread = matrix[train].mean(axis=0), matrix[train].std(axis=0)
        matrix = ((matrix - mean) / np.where(spread > 0, spread, 1)).astype(np.float32)
        everything = Split(matrix, labels, columns)
    return Dataset(path.stem, everything.subset(train), everything.subset(test), len(classes), classes)


def _pieces(
    path: Path, texts: list[str], table: Mapping[str, list[Any]], clusters: str | None, length: int, most: int
) -> tuple[NDArray[np.uint8], dict[str, NDArray]]:
    """The texts of each cluster, a line each, cut into pieces; and the clusters of the pieces, as a column."""
    lines: dict[Any, list[str]] = {}
    for text, value in zip(texts, table[clusters] if clusters else [None] * len(texts)):
        lines.setdefault(value, []).append(text)
    pieces = {value: cut("\n".join(some).encode(), length) for value, some in lines.items()}
    if sum(map(len, pieces.values())) < 2:
        raise DataError(f"the texts in {path} make no two pieces of {length} bytes, and nothing else could be learned")
    column = [value for value, some in pieces.items() for _ in some]
    return np.concatenate(list(pieces.values())), {clusters: _column(path, clusters, column, most)} if clusters else {}


def _read_csv(path: Path) -> dict[str, list[Any]]:
    """The columns by name, cells as they are written."""
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            first = file.readline()
            file.seek(0)
            delimiter = max("\t" if path.suffix.lower() == ".tsv" else ",", ";", "\t", "|", key=first.count)
            rows = csv.reader(file, delimiter=delimiter, strict=True)
            names = [name.strip() for name in next(rows, [])]
            if len(set(names)) != len(names) or not all(names):
                raise DataError(f"the first line of {path} must name each column once, got {', '.join(names)!r:.200}")
            cells: list[list[str]] = []
            for row in rows:
                if not row:
                    continue
                if len(row) != len(names):
                    where = f"row {len(cells) + 1} of {path} (line {rows.line_num})"
                    raise DataError(f"{where} has {len(row)} cells, but there are {len(names)} columns")
                cells.append(row)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ArchiveError(f"{path} is no readable table: {one_line(error)}") from error
    return {name: [cell.strip() for cell in column] for name, column in zip(names, zip(*cells))}


def _read_parquet(path: Path, most: int) -> dict[str, list[Any]]:
    try:
        import pyarrow
        from pyarrow import parquet, types
    except ImportError:
        raise DataError("a .parquet file needs pyarrow: pip install 'discover-optim[parquet]'") from None
    try:
        check_bytes(path, A_FOOTER * _footer(path), most)
        with parquet.ParquetFile(path) as file:
            meta, schema = file.metadata, file.schema_arrow
            unpacked = sum(meta.row_group(number).total_byte_size for number in range(meta.num_row_groups))
            cells = meta.num_rows * len(schema)
            check_bytes(path, max(CELLS * unpacked, A_CELL * cells), most)
        texts = []
        for field in schema:
            kind = field.type.value_type if types.is_dictionary(field.type) else field.type
            if types.is_string(kind) or types.is_large_string(kind):
                texts.append(field.name)  # of which one that a million rows refer to stays one
            elif not (types.is_primitive(kind) or types.is_decimal(kind) or types.is_null(kind)):
                raise DataError(f"column {field.name!r} of {path} holds a {kind}: remove it, or make it text")
        table: dict[str, list[Any]] = {name: [] for name in schema.names}
        if len(table) < len(schema):
            raise DataError(f"{path} must name each column once, got {', '.join(schema.names)!r:.200}")
        with parquet.ParquetFile(path, metadata=meta, read_dictionary=texts) as file:
            for batch in file.iter_batches(1 << 14, use_threads=False):
                check_bytes(path, pyarrow.total_allocated_bytes(), most)
                for name, column in zip(table, batch.columns):
                    table[name] += _values(column)
        return table
    except (OSError, pyarrow.ArrowException) as error:
        raise ArchiveError(f"{path} is no readable parquet file: {one_line(error)}") from error


def _footer(path: Path) -> int:
    """The length that a parquet file says its end has, at most its own."""
    with open(path, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 8))
        return min(size, int.from_bytes(file.read(4), "little"))


def _values(column: Any) -> list[Any]:
    """As Python values, of which those that are alike are one object where the file says so."""
    if not hasattr(column, "dictionary"):
        return column.to_pylist()
    words = column.dictionary.to_pylist()
    return [None if one is None else words[one] for one in column.indices.to_pylist()]


def _classes(path: Path, name: str, values: list[Any]) -> tuple[tuple[str, ...], NDArray[np.int32]]:
    _check_filled(path, name, values, "label", _MISSING)
    named = _whole(values) or list(map(str, values))
    found = sorted(set(named))
    if len(found) > MOST_CLASSES:
        raise DataError(f"column {name!r} of {path} has {len(found)} different values: a label has a few classes")
    if (longest := _longest(found)) > MOST_LETTERS:
        raise DataError(f"column {name!r} of {path} has a label of {longest} letters, and a class has a name")
    ids = {value: number for number, value in enumerate(found)}
    return tuple(map(str, found)), np.array([ids[value] for value in named], np.int32)


def _check_filled(path: Path, name: str, values: list[Any], what: str, missing: tuple[str, ...]) -> None:
    """Raises at a cell that says nothing, where each row must have a label or a cluster."""
    for row, value in enumerate(values, 1):
        if value is None or str(value).lower() in missing:
            where = f"row {row} below the names of {path}"
            raise DataError(f"{where} has no {what} in column {name!r}: fill in the cell, or remove the row")


def _column(path: Path, name: str, values: list[Any], most: int) -> NDArray:
    """As whole numbers where all are, so that 10 comes after 9; else as text."""
    numbers = _whole(values)
    if numbers and all(abs(number) < 1 << 63 for number in numbers):
        return np.array(numbers)
    return text_array(f"column {name!r} of {path}", list(map(str, values)), most)


def _whole(values: list[Any]) -> list[int] | None:
    try:
        return [int(value) for value in values] if all(map(_is_whole, values)) else None
    except ValueError:  # of thousands of digits
        return None


def _longest(values: list[Any]) -> int:
    return max((len(value) if isinstance(value, str) else len(str(value)) for value in values), default=0)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) or (isinstance(value, str) and value.removeprefix("-").isdecimal())


def are_words(values: Sequence[Any]) -> bool:
    """Whether less than half of a column's cells are numbers."""
    return sum(_as_number(value) is not None for value in values[:1000]) * 2 < len(values[:1000])


def _numbers(path: Path, name: str, values: list[Any]) -> NDArray[np.float64] | None:
    """A column as finite numbers; None if it holds words."""
    if are_words(values):
        return None
    numbers = np.empty(len(values))
    for row, value in enumerate(values):
        number = _as_number(value)
        if number is None or not np.isfinite(number):
            what = "is empty" if value is None or value == "" else f"is {value!r:.40}, no finite number"
            where = f"row {row + 1} below the names, column {name!r} of {path}"
            raise DataError(f"{where} {what}: mend the cell, or remove row or column")
        if abs(number) > LARGEST:
            where = f"row {row + 1} below the names, column {name!r} of {path}"
            raise DataError(f"{where} is {number:g}, and numbers are read up to {LARGEST:g}")
        numbers[row] = number
    return numbers


def _mean_length(values: list[Any]) -> float:
    return sum(len(str(value)) for value in values) / len(values)


def _as_number(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError):
        return None
