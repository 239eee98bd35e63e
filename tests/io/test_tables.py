"""Tables: good files, and files that are something else."""

import numpy as np
import pytest

from swing_gp.io.tables import TableError, load_table


def test_blank_lines_are_skipped(tmp_path):
    (tmp_path / "t.csv").write_text("a,b\n1,2\n\n3,\n\n")
    columns = load_table(tmp_path / "t.csv")
    np.testing.assert_array_equal(columns["a"], [1, 3])
    np.testing.assert_array_equal(columns["b"], [2, np.nan])
    (tmp_path / "t.csv").write_text("a,b\n\n1\n")  # the row of names is the first
    with pytest.raises(TableError, match="changed from 2 to 1 at row 2"):
        load_table(tmp_path / "t.csv")
    (tmp_path / "t.csv").write_text("\n\n")
    with pytest.raises(TableError, match="empty"):
        load_table(tmp_path / "t.csv")


def test_other_files_are_no_tables(tmp_path):
    with pytest.raises(TableError, match=r"CSV \(or TSV\) or an NPZ"):
        load_table(tmp_path / "t.xlsx")
    with pytest.raises(FileNotFoundError, match="no such file"):
        load_table(tmp_path / "t.csv")
    (tmp_path / "t.npz").write_bytes(b"PK nothing")
    with pytest.raises(TableError, match="damaged"):
        load_table(tmp_path / "t.npz")
    np.savez(tmp_path / "u.npz", a=np.ones(3), b=np.ones(4))
    with pytest.raises(TableError, match="different lengths: 3, 4"):
        load_table(tmp_path / "u.npz")


def test_gaps_and_words_in_tables(tmp_path):
    (tmp_path / "t.csv").write_text("a, b,word,gap\n1,nan,x,\n2,,y,\n")
    columns = load_table(tmp_path / "t.csv")
    assert set(columns) == {"a", "b", "gap"}
    np.testing.assert_array_equal(columns["a"], [1, 2])
    assert np.isnan(columns["b"]).all()


def test_arrays_that_are_no_columns_of_real_numbers_are_left_out(tmp_path):
    np.savez(tmp_path / "t.npz", a=np.ones(2), z=np.ones(2) + 1j, t=np.array([1, 2], "m8[s]"), w=np.array(["x", "y"]))
    assert set(load_table(tmp_path / "t.npz")) == {"a"}
    np.savez(tmp_path / "t.npz", a=np.ones(2), b=np.ones(0))
    with pytest.raises(TableError, match=r"t.npz: the columns have different lengths: 0, 2"):
        load_table(tmp_path / "t.npz")


def test_quoted_cells(tmp_path):
    (tmp_path / "t.csv").write_text('\ufeffa,"b, c"\n"1"," 2.5"\n', encoding="utf-8")
    columns = load_table(tmp_path / "t.csv")
    assert set(columns) == {"a", "b, c"}
    np.testing.assert_array_equal(columns["b, c"], [2.5])


def test_tables_without_numbers_and_names_that_stand_twice(tmp_path):
    (tmp_path / "t.csv").write_text("a,b\nx,y\n")
    with pytest.raises(TableError, match="no column of numbers"):
        load_table(tmp_path / "t.csv")
    np.savez(tmp_path / "t.npz", X=np.ones((3, 2)), feature_names=np.array(["a", "b"]), a=np.zeros(3))
    with pytest.raises(TableError, match="two columns have one name"):
        load_table(tmp_path / "t.npz")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("commas.csv", "a,b\n1.5,2\n3,NA\n-,-4e2\n"),
        ("semicolons.csv", "a;b\n1.5;2\n3;NA\n-;-4e2\n"),
        ("decimal commas.csv", "a;b\n1,5;2\n3;NA\n-;-4e2\n"),
        ("tabs.csv", "a\tb\n1.5\t2\n3\t N/A\n-\t-4e2\n"),
        ("tabs.tsv", "a\tb\n1.5\t2\n3\t\n\t-4e2\n"),
        ("first line blank.csv", "\n\na;b\n1.5;2\n3;NA\n-;-4e2\n"),
    ],
)
def test_separators_and_missing_cells(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    columns = load_table(tmp_path / name, numbers=["a", "b"])
    np.testing.assert_array_equal(columns["a"], [1.5, 3, np.nan])
    np.testing.assert_array_equal(columns["b"], [2, np.nan, -400])


def test_separators_within_quotes_are_words(tmp_path):
    (tmp_path / "t.csv").write_text('"a; b; c",d\n1,2\n')
    assert set(load_table(tmp_path / "t.csv")) == {"a; b; c", "d"}


def test_a_cell_that_is_no_number_is_named(tmp_path):
    (tmp_path / "t.csv").write_text("a,depth\n1,2\n\n3,4 m\n5,6 m\n")
    assert set(load_table(tmp_path / "t.csv")) == {"a"}  # nobody asked for it
    with pytest.raises(TableError, match=r"t.csv: column 'depth', row 2: '4 m' is no number; missing cells are empty, NA or -"):
        load_table(tmp_path / "t.csv", numbers=["depth"])
    (tmp_path / "t.csv").write_text("a,depth\n1," + "x" * 99 + "\n")
    with pytest.raises(TableError, match=r"row 1: 'x{40}' is no number"):
        load_table(tmp_path / "t.csv", numbers=["depth"])


@pytest.mark.parametrize("names", [["a,1", "b"], ["a", "b"], "a, b"], ids=str)
def test_names_of_the_columns_of_a_matrix(tmp_path, names):
    np.savez(tmp_path / "t.npz", X=np.arange(6.0).reshape(3, 2), feature_names=np.array(names))
    table = load_table(tmp_path / "t.npz")
    assert list(table) == (["a,1", "b"] if names[0] == "a,1" else ["a", "b"])
    np.testing.assert_array_equal(table["b"], [1.0, 3.0, 5.0])
