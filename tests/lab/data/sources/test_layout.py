"""Names for the levels of folders: which is the label, and which are columns to cluster by."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from discover.lab.data import DataError, cluster, load
from discover.lab.data.sources.layout import place_files
from tests.lab.data import files

WORDS = st.text("abcdxyz", min_size=1, max_size=4)


def domains(folder, top="", kinds=("cat", "dog"), domains=("photo", "sketch"), count=5):
    names = [f"{top}{domain}/{kind}/{k}.png" for domain in domains for kind in kinds for k in range(count)]
    files.write_files(folder, dict.fromkeys(names, files.picture("red")))
    return folder


@given(st.lists(st.tuples(WORDS, WORDS, WORDS), min_size=1, max_size=20), st.sampled_from(["", "train/", "top/train/"]))
def test_every_level_but_the_label_is_a_column(rows, top):
    names = {f"{top}{a}/{b}/{c}.png": (a, b) for a, b, c in rows}
    placed = place_files(names, "domain/class")
    if not top and len({a for a, _ in names.values()}) == 1:
        return  # one folder that holds everything
    assert {name: (dict(one.columns)["domain"], one.label, one.part) for name, one in placed.items()} == {
        name: (a, b, "train") for name, (a, b) in names.items()
    }
    swapped = place_files(names, "kind/where", label="kind")
    assert {name: (one.label, dict(one.columns)["where"]) for name, one in swapped.items()} == names


@pytest.mark.parametrize("top", ["", "pacs/", "train/"])
@pytest.mark.parametrize("lazy", [False, True])
def test_nested_folders_with_a_layout_have_the_other_levels_as_columns(tmp_path, top, lazy):
    folder = domains(tmp_path / "pacs", top)
    data = load("folder", folder, layout="domain/class", cache=False, lazy=lazy)
    assert data.class_names == ("cat", "dog")
    assert set(data.train.columns["domain"]) == {"photo", "sketch"}
    assert cluster(data, "column", column="domain").names == ("photo", "sketch")
    assert len(data.train) + len(data.test) == 20
    other = load("folder", folder, layout="domain/class", label="domain", cache=False, lazy=lazy)
    assert other.class_names == ("photo", "sketch")
    assert set(other.train.columns["class"]) == {"cat", "dog"}


def test_nested_folders_without_a_layout_are_refused_with_the_line_to_type(tmp_path):
    folder = domains(tmp_path / "pacs")
    with pytest.raises(DataError, match=r"folders lie in folders \(photo/\w+/0.png\).*give layout='domain/class'") as e:
        load("folder", folder, cache=False)
    assert e.value.on_command_line.endswith("give --layout domain/class")
    (folder / "photo" / "cat" / "0.png").write_bytes(b"broken")  # the layout is said before anything is decoded
    with pytest.raises(DataError, match="folders lie in folders"):
        load("folder", folder, cache=False)
    deeper = place_files(["a/b/c/1.png", "d/b/c/1.png"], "x/y/class")
    assert deeper["d/b/c/1.png"].columns == (("x", "d"), ("y", "b"))


def test_one_folder_in_each_class_folder_is_no_level(tmp_path):
    domains(tmp_path, kinds=["images"], domains=("n1", "n2"))
    assert load("folder", tmp_path, cache=False).class_names == ("n1", "n2")


@pytest.mark.parametrize(
    ("layout", "label", "message"),
    [
        ("domain//class", None, "names each level of folders once"),
        ("class/class", None, "names each level of folders once"),
        ("domain/kind", None, "no level of 'domain/kind' is called class.*give label='kind'"),
        ("domain/class", "kind", "level 'kind' is not in the layout.*give label='class'"),
        ("domain/style/class", None, "names 3 levels of folders, but photo/.* lies in 2 levels"),
        ("class", None, "names 1 level of folders, but photo/.* lies in 2 levels"),
        (None, "domain", "level 'domain' is not in the layout 'class'"),
    ],
)
def test_a_layout_that_cannot_be_is_one_line(tmp_path, layout, label, message):
    folder = domains(tmp_path / "pacs")
    with pytest.raises(DataError, match=message):
        load("folder", folder, layout=layout, label=label, cache=False)


def test_any_array_of_an_npz_file_can_be_the_label(tmp_path):
    rng = np.random.default_rng(0)
    arrays = {
        "images": rng.normal(size=(40, 3)),
        "labels": np.arange(40) % 2,
        "wool": np.array(["a", "b", "c", "d"] * 10),
    }
    np.savez(tmp_path / "one.npz", **arrays)
    data = load("npz", tmp_path / "one.npz", label="wool")
    assert data.class_names == ("a", "b", "c", "d")
    assert set(data.train.columns) == {"labels"}
    parted = {f"{part}_{name}": array for part in ("train", "test") for name, array in arrays.items()}
    np.savez(tmp_path / "two.npz", **parted)
    assert load("npz", tmp_path / "two.npz", label="wool").class_names == data.class_names
    with pytest.raises(DataError, match=re.escape("must hold images and silk")):
        load("npz", tmp_path / "one.npz", label="silk")
