"""Text: files cut into pieces, whole files with a class, and a column of a table."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from discover.lab.data import DataError, Dataset, Split, cluster, load
from tests.lab.data import files

LANGUAGES = {"ewe.txt": b"ab" * 400, "zulu.txt": b"xyz" * 400}


@pytest.mark.parametrize("where", ["folder", "tar", "tar with a folder in it"])
def test_files_are_cut_into_pieces_with_their_names_as_a_column(tmp_path, where):
    top = "top/" if "in it" in where else ""
    inside = {f"{top}{name}": text for name, text in {**LANGUAGES, "notes.md": b"no text"}.items()}
    if where == "folder":
        files.write_files(tmp_path / "verses", inside)
    path = tmp_path / "verses" if where == "folder" else files.write_tar(tmp_path / "verses.tar.xz", inside)
    data = load("text", path, clusters="language", length=40)
    assert (data.name, data.next_byte, data.num_classes) == ("verses", True, 256)
    assert len(data.train) + len(data.test) == 800 // 40 + 1200 // 40
    assert cluster(data, "column", column="language").names == ("ewe", "zulu")
    for piece, language in zip(data.train.images, data.train.columns["language"]):
        assert bytes(piece) in LANGUAGES[f"{language}.txt"]
    assert set(load("text", path).train.columns) == {"file"}


@pytest.mark.filterwarnings("ignore:left out files of less")
@settings(max_examples=30)
@given(st.lists(st.binary(max_size=60), min_size=1, max_size=8), st.integers(2, 20))
def test_no_byte_is_lost_but_the_rest_of_a_file(tmp_path_factory, texts, length):
    folder = tmp_path_factory.mktemp("texts")
    files.write_files(folder, {f"{k}.txt": text for k, text in enumerate(texts)})
    pieces = [text[k : k + length] for text in texts for k in range(0, len(text) - length + 1, length)]
    if len(pieces) < 3:
        return
    data = load("text", folder, length=length, test_fraction=0.5)
    assert sorted(map(bytes, [*data.train.images, *data.test.images])) == sorted(pieces)


def test_a_level_that_is_the_label_makes_each_file_an_example(tmp_path):
    names = [f"{domain}/{kind}/{k}.txt" for domain in ("books", "music") for kind in ("bad", "good") for k in range(5)]
    files.write_files(tmp_path / "reviews", {name: f"{name} is what it says".encode() for name in names})
    data = load("text", tmp_path / "reviews", layout="domain/class", length=16)
    assert (data.class_names, data.next_byte) == (("bad", "good"), False)
    assert cluster(data, "column", column="domain").names == ("books", "music")
    assert len(data.train) + len(data.test) == 20
    named = load("text", tmp_path / "reviews", layout="domain/kind/number", length=16)
    assert named.next_byte
    assert set(named.train.columns) == {"domain", "kind", "number"}
    with pytest.raises(DataError, match=r"layout 'domain' names 1 levels, but .* has 3"):
        load("text", tmp_path / "reviews", layout="domain")
    with pytest.raises(DataError, match=r"folders lie in folders \(books/bad/0.txt\), .*: give layout=") as error:
        load("text", tmp_path / "reviews", clusters="kind", length=16)
    assert str(error.value).endswith("layout='level1/kind'")
    assert cluster(load("text", tmp_path / "reviews", layout="level1/kind", length=16), "column", column="kind")
    with pytest.raises(DataError, match="has no text of 4000 bytes"):
        load("text", tmp_path / "reviews", layout="domain/kind", length=4000)


def test_a_column_of_text_is_read_in_place_of_numbers(tmp_path):
    lines = [f'{k},"a long review, number {k}: it is fine",{["books", "music"][k % 2]},{k % 3}' for k in range(30)]
    (tmp_path / "reviews.csv").write_text("\n".join(["number,review,domain,label", *lines]))
    data = load("table", tmp_path / "reviews.csv", clusters="domain")
    assert data.train.text
    assert data.class_names == ("0", "1", "2")
    assert data.example_shape == (40,)
    first = bytes(data.train.images[0]).rstrip(b"\0").decode()
    assert first == f"a long review, number {data.train.columns['number'][0]}: it is fine"


@pytest.mark.parametrize("kind", ["csv", "tsv", "parquet"])
def test_a_column_of_text_without_a_label_is_cut_into_pieces_of_its_clusters(tmp_path, kind):
    texts = [f"{'ab' if k % 2 else 'xyz'} line {k:3} of some text to learn from" for k in range(40)]
    table = {"number": list(range(40)), "verse": texts, "language": ["ewe", "zulu"] * 20}
    path = tmp_path / f"verses.{kind}"
    if kind == "parquet":
        parquet = pytest.importorskip("pyarrow.parquet")
        parquet.write_table(__import__("pyarrow").table(table), path)
    else:
        rows = [table, *zip(*table.values())]
        path.write_text("\n".join(("\t" if kind == "tsv" else ",").join(map(str, row)) for row in rows))
    data = load("table", path, clusters="language", length=32)
    assert (data.name, data.next_byte, data.num_classes, data.example_shape) == ("verses", True, 256, (32,))
    assert cluster(data, "column", column="language").names == ("ewe", "zulu")
    whole = {name: "\n".join(texts[k::2]).encode() for k, name in enumerate(("ewe", "zulu"))}
    assert len(data.train) + len(data.test) == sum(len(text) // 32 for text in whole.values())
    for piece, language in zip(data.train.images, data.train.columns["language"]):
        assert bytes(piece) in whole[language]
    together = load("table", path, length=32)
    assert together.next_byte
    assert not together.train.columns  # a piece may be of several rows
    assert load("table", path, label="language").class_names == ("ewe", "zulu")
    with pytest.raises(DataError, match="make no two pieces of 4000 bytes"):
        load("table", path, length=4000)
    with pytest.raises(DataError, match="length must be an integer of at least 2, got 0"):
        load("table", path, length=0)


def test_what_is_no_text_is_refused():
    with pytest.raises(DataError, match=r"uint8 \[n, L\], got float64"):
        Split(np.zeros((3, 4)), np.zeros(3, int), text=True)
    split = Split(np.zeros((3, 4), np.uint8), np.zeros(3, int))
    assert split.images.dtype == np.float32  # numbers, unless it is said that they are text
    with pytest.raises(DataError, match="one of 256, of text"):
        Dataset("x", split, split, 256, next_byte=True)
