"""Tables: what is the label, what are features and columns, and the cell that is wrong, with its row and column."""

import importlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from discover.lab.data import ArchiveError, DataError, cluster, load

ROWS = [f"{k % 7},{k / 3},{'north' if k % 2 else 'south'},{['no', 'yes'][k % 3 == 0]}" for k in range(60)]
HEAD = "age,dose,hospital,label"


def write(folder, *rows, head=HEAD, name="scans.csv"):
    (folder / name).write_text("\n".join([head, *rows]) + "\n", "utf-8")
    return folder / name


def test_numbers_are_features_and_any_column_makes_clusters(tmp_path):
    data = load("table", write(tmp_path, *ROWS))
    assert data.name == "scans"
    assert data.class_names == ("no", "yes")
    assert data.example_shape == (2,)  # age and dose
    assert cluster(data, "column", column="hospital").names == ("north", "south")
    np.testing.assert_allclose(data.train.images.mean(axis=0), 0, atol=1e-6)
    np.testing.assert_allclose(data.train.images.std(axis=0), 1, atol=1e-5)
    apart = load("table", write(tmp_path, *ROWS), clusters="age", label="hospital")
    assert apart.example_shape == (1,)
    assert apart.class_names == ("north", "south")
    assert cluster(apart, "column", column="age").num_clusters == 7


@settings(max_examples=20)
@given(st.sampled_from(",;\t|"), st.lists(st.integers(-99, 99), min_size=8, max_size=30))
def test_any_usual_delimiter_is_understood(tmp_path_factory, delimiter, numbers):
    folder = tmp_path_factory.mktemp("csv")
    rows = [delimiter.join((str(number), str(k % 2))) for k, number in enumerate(numbers)]
    data = load("table", write(folder, *rows, head=delimiter.join(("x", "y"))))
    assert len(data.train) + len(data.test) == len(numbers)
    assert data.class_names == ("0", "1")


@pytest.mark.parametrize(
    ("rows", "head", "message"),
    [
        (
            [*ROWS[:16], "nan,1,north,no", *ROWS],
            HEAD,
            "row 17 below the names, column 'age' of .* is 'nan', no",
        ),
        ([*ROWS, "3,inf,north,no"], HEAD, "row 61 below the names, column 'dose' of .* is 'inf'"),
        ([*ROWS, "3,,north,no"], HEAD, "row 61 below the names, column 'dose' of .* is empty"),
        ([*ROWS, "3,many,north,no"], HEAD, "row 61 below the names, column 'dose' of .* is 'many'"),
        ([*ROWS, "3,1,north,"], HEAD, "row 61 below the names of .* has no label in column 'label'"),
        ([*ROWS, "3,1,north"], HEAD, r"row 61 of .* \(line 62\) has 3 cells, but there are 4 columns"),
        (
            ROWS,
            "age,dose,hospital,ill",
            r"no column of .*\(age, dose, hospital, ill\) is called label: give label='ill'",
        ),
        (ROWS, "age,age,hospital,label", "must name each column once"),
        ([], HEAD, "has no rows"),
        (["a,b,c,d"] * 9, HEAD, "has no column of numbers or of text besides 'label'"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(tmp_path, rows, head, message):
    with pytest.raises(DataError, match=message) as error:
        load("table", write(tmp_path, *rows, head=head))
    assert "\n" not in str(error.value)


def test_columns_and_files_that_are_not_there_are_told(tmp_path):
    path = write(tmp_path, *ROWS)
    for wrong in ({"label": "ill"}, {"clusters": "ill"}):
        with pytest.raises(DataError, match="has no column 'ill': the columns are age, dose, hospital, label"):
            load("table", path, **wrong)
    with pytest.raises(DataError, match=r"has no column 'hospitl': did you mean 'hospital'\? the columns are"):
        load("table", path, clusters="hospitl")
    unlabelled = write(tmp_path, *ROWS, head="age,dose,ill,hospital")
    with pytest.raises(DataError, match="is called label: give label='ill'"):  # what makes the clusters is no label
        load("table", unlabelled, clusters="hospital")
    with pytest.raises(DataError, match="there is no file"):
        load("table", tmp_path / "other.csv")
    with pytest.raises(DataError, match="a label has a few classes"):
        load("table", write(tmp_path, *(f"{k},{k}" for k in range(2000)), head="x,y"))
    (tmp_path / "bytes.csv").write_bytes(b"x,y\n\xff\xfe,1\n")
    with pytest.raises(ArchiveError, match=r"is no readable table: .*utf-8"):
        load("table", tmp_path / "bytes.csv")


def test_a_row_that_says_no_cluster_is_told_where_the_clusters_are_asked_for(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    path = write(tmp_path, *ROWS, "3,1,,no", "3,1,NA,no")
    with pytest.raises(DataError, match=r"row 61 below the names of .* has no cluster in column 'hospital': fill in"):
        load("table", path, clusters="hospital")
    columns = {"age": range(60), "hospital": ["NA", None] * 30, "label": [0, 1] * 30}
    importlib.import_module("pyarrow.parquet").write_table(pyarrow.table(columns), tmp_path / "x.parquet")
    with pytest.raises(DataError, match="row 2 below the names"):  # and not row 1, which may be Namibia
        load("table", tmp_path / "x.parquet", clusters="hospital")
    assert load("table", path).num_classes == 2


def test_a_parquet_file_is_the_same_table(tmp_path):
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    columns = {"age": [k % 7 for k in range(60)], "hospital": ["a", "b"] * 30, "label": [k % 3 for k in range(60)]}
    parquet.write_table(arrow.table(columns), tmp_path / "scans.parquet")
    data = load("table", tmp_path / "scans.parquet", clusters="hospital")
    assert (data.class_names, data.example_shape) == (("0", "1", "2"), (1,))
    (tmp_path / "scans.parquet").write_bytes(b"PAR1")
    with pytest.raises(ArchiveError, match="is no readable parquet file"):
        load("table", tmp_path / "scans.parquet")


def test_without_pyarrow_a_parquet_file_is_refused_in_one_line(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    (tmp_path / "scans.parquet").write_bytes(b"PAR1")
    with pytest.raises(DataError, match=r"needs pyarrow: pip install 'discover-optim\[parquet\]'"):
        load("table", tmp_path / "scans.parquet")


def test_labels_that_differ_by_a_nul_are_two_classes_and_not_one(tmp_path):
    data = load("table", write(tmp_path, *(f"{n},1,north,k{'' if n % 2 else chr(0)}" for n in range(20))))
    assert data.class_names == ("k", "k\\x00")
    assert len(set(data.train.labels)) == 2


def test_a_column_of_lists_is_named(tmp_path):
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    importlib.import_module("pyarrow.parquet").write_table(
        pyarrow.table({"size": [1.5, 2.5], "tags": [["a"], ["b"]], "label": [0, 1]}), tmp_path / "x.parquet"
    )
    with pytest.raises(DataError, match=r"column 'tags' of .* holds a list<.*>: remove it"):
        load("table", tmp_path / "x.parquet")
