"""``swing-gp fill`` on a field that is known where it has gaps."""

import json
import zipfile

import numpy as np
import pytest

from swing_gp.cli.main import main


@pytest.fixture
def field(tmp_path):
    y, x = np.mgrid[:24, :30]
    truth = np.sin(x / 5.0) + np.cos(y / 4.0)
    values = truth.copy()
    values[8:14, 10:17] = np.nan
    path = tmp_path / "waves.csv"
    path.write_text("\n".join(",".join("" if np.isnan(cell) else f"{cell:.6f}" for cell in row) for row in values))
    return path, truth, np.isnan(values)


@pytest.mark.long
def test_gaps_are_filled_and_the_rest_stays(field, tmp_path, capsys):
    path, truth, gap = field
    assert main(["fill", str(path), "--out", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr().out
    assert "24 x 30 cells, 42 in gaps" in printed
    assert "coordinates" in printed
    assert "nearest" in printed
    with np.load(tmp_path / "out" / "filled.npz") as content:
        filled, std, known = (content[name] for name in ("waves", "std", "known"))
    np.testing.assert_array_equal(known, ~gap)
    np.testing.assert_allclose(filled[~gap], truth[~gap], atol=1e-6)
    error = np.sqrt(np.mean((filled - truth)[gap] ** 2))
    assert error < 0.05 * truth.std()
    assert std[gap].mean() > 2 * std[~gap].mean()
    np.testing.assert_allclose(np.loadtxt(tmp_path / "out" / "filled.csv", delimiter=","), filled, rtol=1e-6)
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    families = {row["family"] for row in report["table"]}
    assert {"coordinates", "extended", "neighbors", "implicit", "mean", "nearest"} == families
    assert (tmp_path / "out" / "filled.png").stat().st_size > 10_000


def test_what_cannot_be_filled_is_refused(tmp_path, capsys):
    (tmp_path / "whole.csv").write_text("1,2\n3,4\n")
    assert main(["fill", str(tmp_path / "whole.csv"), "--out", str(tmp_path / "out")]) == 2
    assert "no gap to fill" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    assert main(["fill", str(tmp_path / "none.csv"), "--out", str(tmp_path / "out")]) == 1
    assert "no such file" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["std", "known", "x", "y", "file", "allow_pickle", "filled", "waves"])
@pytest.mark.parametrize("suffix", ["csv", "npz"])
def test_a_field_of_any_name_is_written(field, tmp_path, name, suffix):
    _, truth, gap = field
    path, values = tmp_path / f"{name}.{suffix}", np.where(gap, np.nan, truth)[:14, :16]
    if suffix == "csv":
        np.savetxt(path, values, delimiter=",")
    elif name in ("x", "y"):  # read as coordinates, where they are vectors
        np.savez(path, **{name: values})
    else:
        with zipfile.ZipFile(path, "w") as archive, archive.open(f"{name}.npy", "w") as member:
            np.save(member, values)
    assert main(["fill", str(path), "--out", str(tmp_path / "out")]) == 0
    with np.load(tmp_path / "out" / "filled.npz") as content:
        arrays = dict(content)
    key = json.loads((tmp_path / "out" / "report.json").read_text())["written_as"]
    assert set(arrays) == {key, "std", "known", "x", "y"}
    assert len(arrays) == 5
    known = np.isfinite(values)
    np.testing.assert_array_equal(arrays["known"], known)
    np.testing.assert_allclose(arrays[key][known], values[known], atol=1e-6)
    assert np.abs(arrays[key] - truth[:14, :16]).max() < 0.2
    assert arrays["x"].shape == (16,)
    assert (arrays["std"] > 0).any()


def test_no_result_is_written_over_what_is_read(field, tmp_path, capsys):
    path = field[0]
    for name in ("filled.csv", "std.csv"):
        copy = path.rename(tmp_path / name)
        before = copy.read_bytes()
        assert main(["fill", str(copy), "--out", str(tmp_path)]) == 2
        assert f"{name} would be written over" in capsys.readouterr().err
        assert copy.read_bytes() == before
        path = copy


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--seed", "-1"], "--seed must lie between 0 and 4294967295"),
        (["--variable", "waves"], "--variable: only with an NPZ file"),
        (["--time-limit", "0"], "--time-limit must be positive"),
    ],
)
def test_options_that_make_no_sense(field, tmp_path, words, message, capsys):
    assert main(["fill", str(field[0]), *words, "--out", str(tmp_path / "out")]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
