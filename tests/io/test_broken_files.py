"""Every function that loads a file, on files that are cut off, overwritten or something else."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch
import trimesh

from swing_gp import GraphGPClassifier, GraphGPRegressor
from swing_gp.io.meshes import load_mesh
from swing_gp.io.tables import load_table
from swing_gp.parallel import load_shard

X = np.random.default_rng(0).uniform(size=(30, 2))


def npz(**arrays):
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def model(path):
    GraphGPRegressor("log_matern", max_steps=0, num_features=20).fit(X, X[:, 0]).save(path)
    return path.read_bytes()


def classifier(path):
    GraphGPClassifier(nu=1.5, alpha=0.1, max_steps=0).fit(X, X[:, 0] > 0.5, X_unlabeled=X + 0.01).save(path)
    return path.read_bytes()


def mesh(path):
    trimesh.creation.icosphere(subdivisions=1).export(path)
    return path.read_bytes()


def shard(path):
    np.save(path, X)
    return path.read_bytes()


def table(path):
    path.write_text("a,b\n" + "".join(f"{a},{b}\n" for a, b in X))
    return path.read_bytes()


LOADERS = {
    "model.pt": (GraphGPRegressor.load, model),
    "classifier.pt": (GraphGPClassifier.load, classifier),
    "table.npz": (load_table, lambda path: npz(X=X, feature_names=np.array(["a", "b"]))),
    "table.csv": (load_table, table),
    "mesh.npz": (load_mesh, lambda path: npz(vertices=np.eye(3), faces=np.array([[0, 1, 2]]))),
    **{f"mesh.{suffix}": (load_mesh, mesh) for suffix in ("ply", "stl", "off", "obj")},
    "shard.npy": (lambda path: load_shard(path, 0, 1), shard),
}


@pytest.fixture(params=LOADERS)
def case(request, tmp_path):
    path = tmp_path / request.param
    load, make = LOADERS[request.param]
    return path, load, make(path)


def test_files_of_something_else_are_refused_by_name(case):
    path, load, whole = case
    noise = np.random.default_rng(0).integers(0, 256, 500, dtype=np.uint8).tobytes()
    for content in (b"", b"\x00" * 500, b"\x80\x02]q\x00", noise, whole[:20] + noise):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=path.stem):
            load(path)


def test_damaged_files_are_refused_by_name_or_hold_other_numbers(case):
    """Formats without check sums cannot tell a changed digit; nothing else may happen."""
    path, load, whole = case
    rng, refused = np.random.default_rng(0), 0
    cuts = [whole[:cut] for cut in rng.integers(0, len(whole), 20)]
    changes = [whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :] for place in rng.integers(0, len(whole), 60)]
    for content in cuts + changes:
        path.write_bytes(content)
        try:
            load(path)
        except ValueError as error:
            refused += 1
            assert path.stem in str(error)  # noqa: PT017
    assert refused > 5


def test_a_model_with_one_changed_byte_is_refused_or_the_same(tmp_path):
    whole = model(tmp_path / "model.pt")
    truth, rng, refused = GraphGPRegressor.load(tmp_path / "model.pt").predict(X), np.random.default_rng(0), 0
    for place in rng.integers(0, len(whole), 100):
        (tmp_path / "model.pt").write_bytes(whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :])
        try:
            np.testing.assert_array_equal(GraphGPRegressor.load(tmp_path / "model.pt").predict(X), truth)
        except ValueError as error:
            refused += 1
            assert "model.pt: no model of GraphGPRegressor.save" in str(error)  # noqa: PT017
    assert refused > 50


def test_other_contents_of_a_model_are_refused_by_what_is_wrong(tmp_path):
    path = tmp_path / "model.pt"
    model(path)
    good = torch.load(path, weights_only=True)
    needed = ["parameters", "seed", "kind", "models", "selection", "scales"]
    missing = [({key: value for key, value in good.items() if key != name}, f"KeyError: '{name}'") for name in needed]
    wrong = [
        ({}, "KeyError"),
        ([1, 2], "TypeError"),
        (torch.ones(3), "IndexError"),
        (good | {"parameters": {"colour": 1}}, "colour"),
        (good | {"models": [good["models"][0] | {"nodes": good["models"][0]["nodes"][:10]}]}, "size"),
        (good | {"models": [good["models"][0] | {"nodes": good["models"][0]["nodes"] * np.nan}]}, "must be finite"),
    ]
    for content, reason in missing + wrong:
        torch.save(content, path)
        with pytest.raises(ValueError, match=rf"model.pt: no model of GraphGPRegressor.save.*{reason}"):
            GraphGPRegressor.load(path)
    with pytest.raises(FileNotFoundError, match=r"absent.pt: no such file"):
        GraphGPRegressor.load(tmp_path / "absent.pt")


def test_complex_vertices_keep_no_half_of_themselves(tmp_path):
    (tmp_path / "mesh.npz").write_bytes(npz(vertices=np.eye(3) + 1j, faces=np.array([[0, 1, 2]])))
    with pytest.raises(ValueError, match="mesh: vertices must hold real numbers, got complex128"):
        load_mesh(tmp_path / "mesh.npz")
