"""Fields with gaps: what is read, and what is refused by name."""

import numpy as np
import pytest

from swing_gp.io.fields import load_field, save_matrix
from swing_gp.io.pictures import field_picture
from swing_gp.io.tables import TableError


@pytest.mark.parametrize("separator", [",", ";", "\t"])
@pytest.mark.parametrize("missing", ["", "NA", "nan", "-"])
def test_matrices_of_any_separator(tmp_path, separator, missing):
    path = tmp_path / "sea.csv"
    cells = [["1.5", missing, "3"], ["4", "5", "-6e-1"]]
    text = "\n".join(separator.join(row) for row in cells) + "\n\n"
    path.write_text(text.replace(".", ",") if separator == ";" else text)
    field = load_field(path)
    np.testing.assert_array_equal(field.values, [[1.5, np.nan, 3], [4, 5, -0.6]])
    assert field.name == "sea"
    np.testing.assert_array_equal(field.points, [[0, 0], [1, 0], [2, 0], [0, 1], [1, 1], [2, 1]])


def test_arrays_with_and_without_coordinates(tmp_path):
    values = np.arange(6.0).reshape(2, 3)
    values[0, 1] = np.inf  # a gap as well
    np.savez(tmp_path / "a.npz", heat=values, lon=[10.0, 20, 40], lat=[5.0, 0])
    field = load_field(tmp_path / "a.npz")
    assert field.name == "heat"
    assert np.isnan(field.values[0, 1])
    np.testing.assert_array_equal(field.points[:4], [[10, 5], [20, 5], [40, 5], [10, 0]])
    np.savez(tmp_path / "b.npz", heat=values, other=values + 1)
    assert load_field(tmp_path / "b.npz", "other").values[1, 0] == 4


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n1,2\n", r"row 1, column 1: 'a' is no number"),
        ("1,2\n1,2,3\n", "rows of a field have one length, got 2, 3"),
        ("1,2\n", "at least two rows"),
        ("NA,\n,\n", "one number"),
        ("", "got none"),
    ],
)
def test_bad_matrices(tmp_path, text, message):
    path = tmp_path / "field.csv"
    path.write_text(text)
    with pytest.raises(TableError, match=message):
        load_field(path)


def test_bad_files(tmp_path):
    with pytest.raises(FileNotFoundError):
        load_field(tmp_path / "none.csv")
    with pytest.raises(TableError, match="a field is a CSV"):
        load_field(tmp_path / "field.txt")
    np.savez(tmp_path / "two.npz", a=np.ones((2, 2)), b=np.ones((2, 2)))
    with pytest.raises(TableError, match="--variable: a, b"):
        load_field(tmp_path / "two.npz")
    with pytest.raises(TableError, match="no matrix 'c'"):
        load_field(tmp_path / "two.npz", "c")
    np.savez(tmp_path / "axes.npz", a=np.ones((2, 2)), x=[1.0, 1.0])
    with pytest.raises(TableError, match="x must hold 2 distinct"):
        load_field(tmp_path / "axes.npz")
    (tmp_path / "broken.npz").write_bytes(b"no")
    with pytest.raises(TableError, match="damaged"):
        load_field(tmp_path / "broken.npz")
    (tmp_path / "one.csv").write_text("1,2\n3,4\n")
    with pytest.raises(TableError, match="has one field"):
        load_field(tmp_path / "one.csv", "a")


def test_matrices_and_pictures_are_written(tmp_path):
    values = np.random.default_rng(0).normal(size=(5, 7))
    save_matrix(tmp_path / "out.csv", values)
    field = load_field(tmp_path / "out.csv")
    np.testing.assert_allclose(field.values, values, rtol=1e-8)
    field_picture(tmp_path / "out.png", field, values, np.abs(values), title="a field")
    assert (tmp_path / "out.png").stat().st_size > 5000
