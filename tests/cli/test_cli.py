"""The command line, by running it."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import trimesh

from swing_gp import GraphGPRegressor
from swing_gp.cli import normals as command
from swing_gp.cli.main import main
from swing_gp.io.meshes import Mesh
from swing_gp.io.tables import TableError, load_table, save_table

PNG = b"\x89PNG"


@pytest.fixture
def ball(tmp_path):
    path = tmp_path / "ball.ply"
    trimesh.creation.icosphere(subdivisions=3).export(path)
    return path


def run(*arguments):
    """In a process of its own, as people do."""
    command = [sys.executable, "-m", "swing_gp", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)


# Normals


@pytest.mark.long
def test_normals_from_end_to_end(ball, tmp_path):
    result = run("normals", ball, "--out", tmp_path / "out")
    assert result.returncode == 0, result.stderr
    assert "642 vertices" in result.stdout
    assert "cosine" in result.stdout
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["known"] == 128
    assert report["scores"]["cosine"] > 0.999 > report["scores"]["nearest"]
    assert report["seconds"]["predict"] > 0
    assert report["memory_gigabytes"] > 0
    assert (tmp_path / "out" / "normals.png").read_bytes()[:4] == PNG
    mesh = trimesh.load(tmp_path / "out" / "normals.ply", process=False)
    assert float((mesh.vertex_normals * mesh.vertices).sum(-1).mean()) > 0.999
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["normals.ply", "normals.png", "report.json"]


@pytest.mark.parametrize("suffix", ["stl", "ply", "obj", "off", "npz"])
def test_every_format(tmp_path, suffix, capsys):
    path = tmp_path / f"ball.{suffix}"
    ball = trimesh.creation.icosphere(subdivisions=2)
    if suffix == "npz":
        np.savez(path, vertices=ball.vertices, faces=ball.faces)
    else:
        ball.export(path)
    assert main(["normals", str(path), "--out", str(tmp_path / "out"), "--mask", "0.5"]) == 0
    assert "162 vertices" in capsys.readouterr().out


@pytest.mark.parametrize("rule", ["gp", "paper", "normalized"])
def test_rules_and_given_settings(ball, tmp_path, rule):
    words = ["--noise", "0.01"] if rule == "gp" else []
    arguments = ["normals", str(ball), "--rule", rule, "--lengthscale", "0.2", "--time", "3", "--features", "neighbors", *words]
    assert main([*arguments, "--out", str(tmp_path / "out")]) == 0
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["rule"] == rule
    assert report["series"] == "Diffusion(time=3)"
    assert report["features"]["method"] == "neighbors"
    assert report["selection"] is None
    assert report["scores"]["cosine"] > 0.98


def test_a_mask_of_its_own_seed(ball):
    mesh = trimesh.load(ball, process=False)
    normals = command.vertex_normals(Mesh(np.asarray(mesh.vertices), np.asarray(mesh.faces)))
    known, masked = command.split(normals, 0.8, 0)
    again, _ = command.split(normals, 0.8, 0)
    other, _ = command.split(normals, 0.8, 1)
    assert known.tolist() == again.tolist() != other.tolist()
    assert sorted([*known.tolist(), *masked.tolist()]) == list(range(642))


@pytest.mark.parametrize("mask", ["0", "1", "-0.2", "1.5", "nan"])
def test_masks_that_make_no_sense(ball, tmp_path, mask, capsys):
    assert main(["normals", str(ball), "--mask", mask, "--out", str(tmp_path / "out")]) == 2
    assert "--mask must lie between 0 and 1" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--lengthscale", "-1"], "--lengthscale must be positive"),
        (["--noise", "0.1"], "--noise needs --rule gp and --lengthscale"),
        (["--num-features", "0"], "--num-features must be positive"),
        (["--noise", "inf", "--lengthscale", "0.2"], "--noise must be positive and finite"),
        (["--lengthscale", "inf"], "--lengthscale must be positive and finite"),
        (["--seed", "-1"], "--seed must lie between 0 and 4294967295"),
        (["--seed", "4294967296"], "--seed must lie between 0 and 4294967295"),
        (["--time", "3"], "--time: only with --lengthscale"),
        (["--series", "diffusion"], "--series: only with --lengthscale"),
        (["--lengthscale", "0.2", "--nu", "2", "--kappa", "1"], "--nu, --kappa: only with --series log_matern"),
        (["--lengthscale", "0.2", "--series", "log_matern", "--time", "2"], "--time: only with --series diffusion"),
        (["--lengthscale", "0.2", "--series", "log_matern", "--rule", "normalized"], "--series log_matern has weights of both"),
        (["--lengthscale", "0.2", "--series", "log_matern", "--features", "grid"], "--features grid cannot hold log_matern"),
        (["--graph", "knn", "--lengthscale", "0.2"], "--lengthscale and --features belong to --graph implicit"),
        (["--graph", "knn", "--tol", "0.1", "--num-features", "9"], "--num-features, --tol: only with --graph implicit"),
        (["--features", "neighbors", "--num-features", "9"], "--num-features: only with --features landmarks"),
        (["--num-features", "9"], "--num-features: only with --features landmarks"),
        (["--rule", "paper", "--noise", "0.1", "--lengthscale", "0.2"], "--noise needs --rule gp"),
    ],
)
def test_options_that_make_no_sense(ball, tmp_path, words, message, capsys):
    assert main(["normals", str(ball), "--out", str(tmp_path / "out"), *words]) == 2
    assert message in capsys.readouterr().err


def test_wrong_words_end_with_two(ball):
    for words in (["normals", str(ball)], ["normals", str(ball), "--rule", "best", "--out", "x"], ["paint"], []):
        with pytest.raises(SystemExit) as stop:
            main(words)
        assert stop.value.code == 2


@pytest.mark.parametrize("damage", ["truncated", "text", "absent"])
def test_files_that_are_no_meshes(ball, tmp_path, damage, capsys):
    if damage == "absent":
        ball.unlink()
    else:
        whole = ball.read_bytes()
        ball.write_bytes(whole[: len(whole) // 2] if damage == "truncated" else b"not a mesh\n" * 50)
    assert main(["normals", str(ball), "--out", str(tmp_path / "out")]) == 1
    assert "ball.ply" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_folder_that_cannot_be_written(ball, tmp_path, capsys):
    (tmp_path / "file").write_text("in the way")
    for out in (tmp_path / "file", tmp_path / "file" / "below"):
        assert main(["normals", str(ball), "--out", str(out)]) == 1
        assert "file" in capsys.readouterr().err
    if os.geteuid() != 0:  # nothing is closed to root
        closed = tmp_path / "closed"
        closed.mkdir(mode=0o500)
        assert main(["normals", str(ball), "--out", str(closed)]) == 1


def test_too_few_vertices(tmp_path, capsys):
    path = tmp_path / "tiny.obj"
    path.write_text("v 0 0 0\nv 1 0 0\nv 0 1 0\nf 1 2 3\n")
    assert main(["normals", str(path), "--out", str(tmp_path / "out")]) == 1
    assert "3 vertices with a normal are too few to hide 80% of them" in capsys.readouterr().err  # one would be known


def test_vertices_without_a_normal_are_left_out_of_the_score(tmp_path, capsys):
    ball = trimesh.creation.icosphere(subdivisions=2)
    vertices = np.concatenate([ball.vertices, [[2.0, 0, 0], [3, 0, 0], [4, 0, 0]]])
    np.savez(tmp_path / "ball.npz", vertices=vertices, faces=np.concatenate([ball.faces, [[162, 163, 164]]]))
    assert main(["normals", str(tmp_path / "ball.npz"), "--out", str(tmp_path / "out")]) == 0
    assert "1 faces without an area, 3 vertices without a normal" in capsys.readouterr().out
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert (report["degenerate_faces"], report["vertices_without_normal"], report["vertices"]) == (1, 3, 165)


def test_nothing_is_half_written(ball, tmp_path, monkeypatch):
    def stop(*arguments, **words):
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "normals_picture", stop)
    assert main(["normals", str(ball), "--out", str(tmp_path / "out")]) == 130
    for path in (tmp_path / "out").iterdir():
        assert path.name == "normals.ply"
        assert len(trimesh.load(path, process=False).vertices) == 642


@pytest.mark.parametrize(("package", "extra"), [("matplotlib", "plots"), ("trimesh", "meshes")])
def test_a_missing_package_is_named_before_any_work(tmp_path, package, extra, monkeypatch, capsys):
    np.savez(tmp_path / "ball.npz", vertices=np.eye(3), faces=np.array([[0, 1, 2]]))
    monkeypatch.setitem(sys.modules, package, None)
    assert main(["normals", str(tmp_path / "ball.npz"), "--out", str(tmp_path / "out")]) == 1
    assert f"swing_gp[{extra}]" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


# Regression


@pytest.fixture
def table(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.uniform(size=(220, 2))
    y = np.sin(6 * x[:, 0]) + 0.1 * rng.standard_normal(220)
    cells = [f"{value:.6f}" for value in y]
    cells[:20] = [""] * 20
    path = tmp_path / "sites.csv"
    columns = {"east": x[:, 0], "north": x[:, 1], "height": cells, "name": [f"site {i}" for i in range(220)]}
    save_table(path, columns | dict.fromkeys(("use", "height_mean", "height_std"), y))  # names of results, refused as inputs
    return path


def test_a_kernel_without_a_score_is_reported(table, tmp_path, monkeypatch):
    # of more observations than dense algebra takes; JSON has no NaN
    monkeypatch.setattr("swing_gp.models.graph_gp.DENSE", 10)
    words = ["--x", "east,north", "--y", "height", "--kernel", "log_matern", "--steps", "2", "--out", str(tmp_path / "out")]
    assert main(["regress", str(table), *words]) == 0
    tried = json.loads((tmp_path / "out" / "report.json").read_text())["tried"]
    assert [row["score"] for row in tried if row["chosen"]] == [None]


@pytest.mark.long
def test_regression_from_end_to_end(table, tmp_path):
    result = run("regress", table, "--x", "east,north", "--y", "height", "--steps", "30", "--out", tmp_path / "out")
    assert result.returncode == 0, result.stderr
    assert "220 rows; 160 to learn from, 40 held out, 20 without a target" in result.stdout
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    score = report["scores"]["height"]
    assert score["rmse"] < 0.3 * score["rmse_of_the_mean"]
    assert 0.8 < score["coverage_95"] <= 1
    predictions = load_table(tmp_path / "out" / "predictions.csv")
    assert len(predictions["height_mean"]) == 220
    truth = np.sin(6 * predictions["east"][:20])
    assert np.abs(predictions["height_mean"][:20] - truth).mean() < 0.15
    for picture in ("regression.png", "map.png"):
        assert (tmp_path / "out" / picture).read_bytes()[:4] == PNG
        assert picture in result.stdout
    model = GraphGPRegressor.load(tmp_path / "out" / "model.pt")
    x = np.stack([predictions["east"], predictions["north"]], 1)
    mean, std = model.predict(x, return_std=True)
    np.testing.assert_allclose(mean, predictions["height_mean"], rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(np.hypot(std, model.noise_), predictions["height_std"], rtol=1e-6)  # of an observation


@pytest.mark.parametrize("unit", [1e-300, 1.0, 1e300])
def test_units_of_targets_and_columns_that_vary_by_rounding(table, tmp_path, unit):
    columns = load_table(table)
    plain = np.stack([columns["east"], columns["north"]], 1)
    height = np.sin(6 * plain[:, 0])
    rounding = 0.1 * (1 + np.finfo(float).eps * np.random.default_rng(0).integers(-2, 3, 220))
    np.savez(tmp_path / "t.npz", X=plain, c=rounding, y=unit * height, z=height + 1j, feature_names=np.array(["a", "b"]))
    arguments = ["regress", str(tmp_path / "t.npz"), "--x", "a,b,c", "--steps", "5", "--out", str(tmp_path / "out")]
    with pytest.warns(UserWarning, match=r"X varies by rounding alone in columns \[2\]"):
        assert main([*arguments, "--y", "y"]) == 0
    score = json.loads((tmp_path / "out" / "report.json").read_text())["scores"]["y"]
    held = [line.split(",")[4] == "held out" for line in (tmp_path / "out" / "predictions.csv").read_text().splitlines()[1:]]
    predictions = load_table(tmp_path / "out" / "predictions.csv")
    errors = (predictions["y_mean"] / unit - height)[held]
    assert score["rmse"] / unit == pytest.approx(np.sqrt(np.square(errors).mean()), rel=1e-6)
    assert score["rmse"] < 0.3 * score["rmse_of_the_mean"]
    assert main([*arguments, "--y", "z"]) == 2  # complex: no column of numbers
    assert not (tmp_path / "out" / "map.png").exists()  # three inputs


def test_several_targets_from_npz(tmp_path, capsys):
    rng = np.random.default_rng(0)
    x = rng.uniform(size=(120, 2)).astype(np.float32)
    y = np.stack([np.sin(5 * x[:, 0]), x[:, 1]], 1)
    np.savez(tmp_path / "t.npz", X=x, y=y, feature_names=np.array(["a", "b"]), target_name=np.array(["s", "l"]))
    out = str(tmp_path / "out")
    arguments = ["regress", str(tmp_path / "t.npz"), "--x", "a,b", "--y", "s,l", "--steps", "20", "--out", out]
    assert main(arguments) == 0
    assert set(json.loads((tmp_path / "out" / "report.json").read_text())["scores"]) == {"s", "l"}
    capsys.readouterr()
    assert main([*arguments[:3], "a,c", *arguments[4:]]) == 2
    assert "--x: no column of numbers c; the table has a, b, s, l" in capsys.readouterr().err


KNN, FOUR = ("--graph", "knn", "--kernel", "matern"), "east,north,height_mean,height_std"


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["--x", "east,name", "--y", "height"], 1, "sites.csv: column 'name', row 1: 'site 0' is no number"),
        (["--x", "east,depth", "--y", "height"], 2, "--x: no column of numbers depth; the table has east, north, height"),
        (["--x", "east", "--y", "east"], 2, "input and target at once"),
        (["--x", "use", "--y", "height"], 2, "predictions.csv has columns of results named use; rename"),
        (["--x", "east,height_mean,height_std", "--y", "height"], 2, "named height_mean, height_std; rename"),
        (["--x", "east", "--y", "height,height_mean"], 2, "named height_mean; rename"),
        (["--x", "east", "--y", "height", "--holdout", "1"], 2, "--holdout must lie between 0 and 1"),
        (["--x", "east", "--y", "height", "--steps", "-1"], 2, "--steps must not be negative"),
        (["--x", "east", "--y", "height", "--seed", "-1"], 2, "--seed must lie between 0 and 4294967295"),
        (["--x", "east,east", "--y", "height"], 2, "--x: east is named more than once"),
        (["--x", "east", "--y", "height,height"], 2, "--y: height is named more than once"),
        (["--x", "east", "--y", "height", "--features", "grid"], 2, "--features: only with a graph kernel"),
        (["--x", "east", "--y", "height", "--graph", "knn"], 2, "--graph: only with a graph kernel"),
        (["--x", "east", "--y", "height", "--num-features", "9"], 2, "--num-features: only with a graph kernel"),
        (["--x", "east", "--y", "height", "--kernel", "extended", "--features", "auto"], 2, "--features: only with a graph"),
        (["--x", "east", "--y", "height", *KNN, "--ard"], 2, "--ard: only with --graph implicit"),
        (["--x", "east", "--y", "height", *KNN, "--features", "grid"], 2, "--features: only with --graph implicit"),
        (["--x", "east", "--y", "height", *KNN, "--num-features", "9"], 2, "--num-features: only with --graph implicit"),
        (["--x", "east", "--y", "height", *KNN[:2], "--kernel", "log_matern"], 2, "--graph knn has negative eigenvalues"),
        (["--x", "east", "--y", "height", "--kernel", "log_matern", "--features", "grid"], 2, "cannot hold log_matern"),
        (
            ["--x", "east", "--y", "height", "--kernel", "matern", "--features", "grid", "--num-features", "9"],
            2,
            "only with --f",
        ),
        (["--x", FOUR, "--y", "height", "--kernel", "matern", "--features", "grid"], 2, "--features grid takes up to 3 inputs"),
    ],
)
def test_regressions_that_make_no_sense(table, tmp_path, words, code, message, capsys):
    assert main(["regress", str(table), *words, "--out", str(tmp_path / "out")]) == code
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("kernel", ["auto", "matern", "log_matern"])
@pytest.mark.parametrize("graph", ["implicit", "knn"])
@pytest.mark.parametrize("features", ["landmarks", "auto", "neighbors", "grid", "fourier"])
@pytest.mark.parametrize("more", [[], ["--num-features", "9"], ["--ard"]], ids=["", "number", "ard"])
def test_options_work_together_or_are_refused_before_a_folder_is_made(tmp_path, kernel, graph, features, more, capsys):
    x = np.random.default_rng(0).uniform(size=(30, 1))
    np.savez(tmp_path / "t.npz", X=x, y=np.sin(6 * x[:, 0]))
    words = ["--x", "X0", "--y", "y", "--kernel", kernel, "--graph", graph, "--features", features, *more, "--steps", "0"]
    code = main(["regress", str(tmp_path / "t.npz"), *words, "--out", str(tmp_path / "out")])
    error = capsys.readouterr().err
    assert (code, (tmp_path / "out" / "report.json").exists()) in ((0, True), (2, False)), error
    if code:
        assert re.search(r"error: --(kernel|graph|features|num-features|ard)\b", error)
        assert not (tmp_path / "out").exists()


def test_columns_with_commas_in_their_names(tmp_path):
    x = np.random.default_rng(0).uniform(size=(40, 3))
    save_table(tmp_path / "t.csv", {"a,1": x[:, 0], "b": x[:, 1], "z, m": np.sin(5 * x[:, 0])})
    for words in (["--x", '"a,1",b', "--y", '"z, m"'], ["--x", "a,1,b", "--y", '"z, m"']):
        assert main(["regress", str(tmp_path / "t.csv"), *words, "--steps", "1", "--out", str(tmp_path / "out")]) == 0
        report = json.loads((tmp_path / "out" / "report.json").read_text())
        assert (report["inputs"], report["targets"]) == (["a,1", "b"], ["z, m"])
    assert {"a,1", "b", "z, m", "z, m_mean", "z, m_std"} <= set(load_table(tmp_path / "out" / "predictions.csv"))


def test_no_result_is_written_over_what_is_read(ball, table, tmp_path, capsys):
    mesh, table = ball.rename(tmp_path / "normals.ply"), table.rename(tmp_path / "predictions.csv")
    for words in (["normals", str(mesh)], ["regress", str(table), "--x", "east", "--y", "height"]):
        before = Path(words[1]).read_bytes()
        assert main([*words, "--out", str(tmp_path)]) == 2
        assert "would be written over" in capsys.readouterr().err
        assert Path(words[1]).read_bytes() == before


COMMANDS = [
    *(("normals", suffix, []) for suffix in ("stl", "ply", "obj", "off", "npz")),
    *(("fill", suffix, []) for suffix in ("csv", "tsv", "npz")),
    *(("regress", suffix, ["--x", "a", "--y", "b"]) for suffix in ("csv", "tsv", "npz")),
]
CONTENTS = {
    "random": np.random.default_rng(0).bytes(2000),
    "UTF-16": "a,b\n1,2\n3,4\n".encode("utf-16"),
    "UTF-16 without a mark": "a,b\n1,2\n3,4\n".encode("utf-16-le"),
    "Latin-1": "Höhe,b\n1,2\n3,4\n".encode("latin-1"),
    "zeros": bytes(500),
    "empty": b"",
}


@pytest.mark.parametrize(("command", "suffix", "words"), COMMANDS, ids=lambda each: str(each))
@pytest.mark.parametrize("content", CONTENTS)
def test_every_loader_names_the_file_that_is_none(tmp_path, monkeypatch, command, suffix, words, content, capsys):
    monkeypatch.setitem(sys.modules, "charset_normalizer", None)  # trimesh asks for it, and it need not be there
    path = tmp_path / f"given.{suffix}"
    path.write_bytes(CONTENTS[content])
    assert main([command, str(path), *words, "--out", str(tmp_path / "out")]) == 1
    error = capsys.readouterr().err
    assert str(path) in error
    assert "charset_normalizer" not in error
    assert "pickle" not in error
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "empty"),
        ("a,b\n", "empty"),
        ("a,a\n1,2\n", "one name"),
        ("a,b\n1,2\n3\n", "the number of columns changed from 2 to 1 at row 3"),
    ],
)
def test_tables_that_are_none(tmp_path, text, message, capsys):
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(TableError, match=message):
        load_table(tmp_path / "t.csv")
    assert main(["regress", str(tmp_path / "t.csv"), "--x", "a", "--y", "b", "--out", str(tmp_path / "out")]) == 1
    assert "t.csv" in capsys.readouterr().err


def test_help_teaches(capsys):
    for words, content in ((["--help"], "normals"), (["normals", "--help"], "exit codes"), (["regress", "-h"], "examples")):
        with pytest.raises(SystemExit) as stop:
            main(words)
        assert stop.value.code == 0
        assert content in capsys.readouterr().out
