"""Meshes against shapes whose normals are known, and files that are good, damaged or something else."""

import sys
import types

import numpy as np
import pytest
import trimesh

from benchmarks.normals_data import load_thingi10k
from swing_gp.io.meshes import Mesh, MeshError, load_mesh, save_ply, vertex_normals
from swing_gp.utils.files import whole_file

FORMATS = ("stl", "ply", "obj", "off")


def sphere(subdivisions=2):
    ball = trimesh.creation.icosphere(subdivisions=subdivisions)
    return Mesh(np.asarray(ball.vertices), np.asarray(ball.faces), "sphere")


def cube():
    box = trimesh.creation.box()
    return Mesh(np.asarray(box.vertices), np.asarray(box.faces), "cube")


def two_triangles(**changes):
    vertices = np.array([[0.0, 0, 0], [1, 0, 0], [0, 1, 0], [1, 1, 0]])
    return Mesh(**{"vertices": vertices, "faces": np.array([[0, 1, 2], [1, 3, 2]]), **changes})


# Normals


@pytest.mark.parametrize("weighting", ["angle", "area"])
def test_normals_of_a_sphere_point_outwards(weighting):
    mesh = sphere()
    normals = vertex_normals(mesh, weighting)
    assert normals.valid.all()
    assert normals.degenerate_faces == 0
    np.testing.assert_allclose(normals.values, mesh.vertices, atol=0.03)
    np.testing.assert_allclose(np.linalg.norm(normals.values, axis=1), 1)
    turned = vertex_normals(Mesh(mesh.vertices, mesh.faces[:, ::-1]), weighting)
    np.testing.assert_allclose(turned.values, -normals.values, atol=1e-12)


def test_angles_do_not_see_how_a_flat_part_is_cut():
    # each corner of a cube lies on three sides with right angles, in one or two triangles each
    mesh = cube()
    np.testing.assert_allclose(vertex_normals(mesh, "angle").values, np.sign(mesh.vertices) / np.sqrt(3), atol=1e-12)
    assert np.abs(vertex_normals(mesh, "area").values - np.sign(mesh.vertices) / np.sqrt(3)).max() > 0.1


def test_area_weights_are_areas():
    # a right angle between a side of area 1/2 and one of area 1: normals in the proportion 1 : 2
    vertices = np.array([[0.0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 2]])
    mesh = Mesh(vertices, np.array([[0, 1, 2], [0, 2, 3]]))
    np.testing.assert_allclose(vertex_normals(mesh, "area").values[0], np.array([2, 0, 1]) / np.sqrt(5), atol=1e-12)


def test_faces_without_an_area_and_vertices_without_a_normal_are_reported():
    vertices = np.array([[0.0, 0, 0], [1, 0, 0], [0, 1, 0], [2, 0, 0], [5, 5, 5]])
    faces = np.array([[0, 1, 2], [0, 1, 3], [2, 2, 0]])
    normals = vertex_normals(Mesh(vertices, faces))
    assert normals.degenerate_faces == 2
    np.testing.assert_array_equal(normals.valid, [True, True, True, False, False])
    np.testing.assert_array_equal(normals.values[3:], 0)
    # two faces back to back cancel
    back = vertex_normals(Mesh(vertices[:3], np.array([[0, 1, 2], [0, 2, 1]])))
    assert not back.valid.any()
    with pytest.raises(ValueError, match="weighting must be one of 'angle', 'area'"):
        vertex_normals(sphere(), "mean")


@pytest.mark.parametrize("weighting", ["angle", "area"])
def test_normals_do_not_see_the_scale(weighting):
    mesh = sphere()
    for scale in (1e-12, 1e9):
        scaled = vertex_normals(Mesh(scale * mesh.vertices, mesh.faces).welded(), weighting)
        np.testing.assert_allclose(scaled.values, vertex_normals(mesh, weighting).values, atol=1e-12)


# Welding and scale


def test_welding_merges_equal_vertices_and_drops_unused_ones():
    mesh = two_triangles()
    soup = Mesh(np.concatenate([mesh.vertices[mesh.faces].reshape(-1, 3), [[9.0, 9, 9]]]), np.arange(6).reshape(2, 3))
    welded = soup.welded()
    assert welded.num_vertices == 4
    np.testing.assert_array_equal(welded.vertices[welded.faces], mesh.vertices[mesh.faces])
    np.testing.assert_array_equal(welded.vertices, mesh.vertices[[0, 1, 2, 3]])  # in the order of the file
    signed = Mesh(np.array([[0.0, 0, 0], [1, 0, 0], [0, 1, 0], [-0.0, 1, -0.0]]), np.array([[0, 1, 2], [0, 3, 1]]))
    assert signed.welded().num_vertices == 3  # a zero is a zero with either sign


def test_normalized_meshes_fill_the_box():
    mesh = two_triangles(vertices=np.array([[10.0, 0, 0], [14, 0, 0], [10, 1, 0], [14, 1, 0]])).normalized()
    np.testing.assert_allclose(mesh.vertices.min(0), [-1, -0.25, 0])
    np.testing.assert_allclose(mesh.vertices.max(0), [1, 0.25, 0])
    with pytest.raises(MeshError, match="all vertices are one point"):
        two_triangles(vertices=np.ones((4, 3))).normalized()


# Files


@pytest.mark.parametrize("suffix", FORMATS)
def test_every_format_gives_the_same_surface(tmp_path, suffix):
    path = tmp_path / f"ball.{suffix}"
    trimesh.creation.icosphere(subdivisions=2).export(path)
    mesh = load_mesh(path)
    assert (mesh.name, mesh.num_vertices, len(mesh.faces)) == ("ball", 162, 320)
    np.testing.assert_allclose(vertex_normals(mesh).values, mesh.vertices, atol=0.03)


def test_npz_is_welded_too(tmp_path):
    np.savez(tmp_path / "two.npz", vertices=np.repeat(np.eye(3), 2, 0), faces=np.array([[0, 2, 4], [1, 5, 3]]))
    assert load_mesh(tmp_path / "two.npz").num_vertices == 3


@pytest.mark.parametrize("suffix", [*FORMATS, "npz"])
@pytest.mark.parametrize("damage", ["truncated", "text", "empty"])
def test_damaged_files_are_refused_by_name(tmp_path, suffix, damage):
    path = tmp_path / f"bad.{suffix}"
    if suffix == "npz":
        np.savez(path, vertices=sphere().vertices, faces=sphere().faces)
    else:
        trimesh.creation.icosphere(subdivisions=2).export(path)
    whole = path.read_bytes()
    path.write_bytes({"truncated": whole[: len(whole) // 2 + 3], "text": b"no mesh at all\n" * 20, "empty": b""}[damage])
    with pytest.raises(MeshError, match="bad"):
        load_mesh(path)


def test_files_that_are_no_meshes(tmp_path):
    with pytest.raises(MeshError, match="unknown mesh format"):
        load_mesh(tmp_path / "picture.png")
    with pytest.raises(FileNotFoundError, match="no such file"):
        load_mesh(tmp_path / "absent.ply")
    np.savez(tmp_path / "table.npz", x=np.ones(3))
    with pytest.raises(MeshError, match="'vertices' and 'faces'"):
        load_mesh(tmp_path / "table.npz")
    (tmp_path / "cloud.obj").write_text("v 0 0 0\nv 1 0 0\nv 0 1 0\n")
    with pytest.raises(MeshError, match="no triangles found"):
        load_mesh(tmp_path / "cloud.obj")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vertices": np.zeros((0, 3))}, "the mesh is empty"),
        ({"vertices": np.zeros((4, 2))}, "shape"),
        ({"faces": np.zeros((0, 3), int)}, "Normals need triangles"),
        ({"faces": np.zeros((2, 4), int)}, "faces must have shape"),
        ({"faces": np.zeros((2, 3))}, "must hold integers"),
        ({"faces": np.array([[0, 1, 4]])}, "faces refer to vertices 0..4, there are 4"),
        ({"vertices": np.full((4, 3), np.nan)}, "4 vertices contain NaN"),
    ],
)
def test_meshes_that_cannot_be(changes, message):
    with pytest.raises(MeshError, match=message):
        two_triangles(**changes)


def test_ply_with_normals_and_colors(tmp_path):
    mesh = sphere(1)
    normals = np.tile([[0.0, 0.6, 0.8]], (mesh.num_vertices, 1))
    colors = np.tile(np.array([[10, 20, 30]], dtype=np.uint8), (mesh.num_vertices, 1))
    save_ply(tmp_path / "out.ply", mesh, normals, colors)
    again = trimesh.load(tmp_path / "out.ply", process=False)
    np.testing.assert_allclose(again.vertices, mesh.vertices, atol=1e-6)
    np.testing.assert_allclose(again.vertex_normals, normals, atol=1e-6)
    np.testing.assert_array_equal(again.visual.vertex_colors[:, :3], colors)
    with pytest.raises(ValueError, match="normals must have shape"):
        save_ply(tmp_path / "out.ply", mesh, normals[:3])
    assert [path.name for path in tmp_path.iterdir()] == ["out.ply"]


def test_files_are_whole_or_absent(tmp_path):
    (tmp_path / "kept.txt").write_text("before")

    def interrupted():
        with whole_file(tmp_path / "kept.txt") as temporary:
            temporary.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert [path.name for path in tmp_path.iterdir()] == ["kept.txt"]
    assert (tmp_path / "kept.txt").read_text() == "before"


# Thingi10K


def test_thingi10k_from_a_folder(tmp_path):
    trimesh.creation.icosphere(subdivisions=1).export(tmp_path / "123.stl")
    np.savez(tmp_path / "thingi10k_45.npz", vertices=sphere().vertices, faces=sphere().faces)
    assert load_thingi10k(123, cache=tmp_path).num_vertices == 42
    assert load_thingi10k(45, cache=tmp_path).num_vertices == 162


def test_thingi10k_through_its_package(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "thingi10k", None)
    with pytest.raises(ImportError, match=r"Thingi10K file 7 is not in .*pip install thingi10k"):
        load_thingi10k(7, cache=tmp_path)
    package = types.ModuleType("thingi10k")
    mesh = sphere(1)
    package.init = lambda variant: None
    package.dataset = lambda file_id: [{"file_path": "somewhere"}] if file_id == 7 else []
    package.load_file = lambda path: (mesh.vertices, mesh.faces.astype(np.uint32))
    monkeypatch.setitem(sys.modules, "thingi10k", package)
    assert load_thingi10k(7).num_vertices == 42
    with pytest.raises(MeshError, match="no file 8"):
        load_thingi10k(8)

    def offline(variant):
        raise ConnectionError("no route to host")

    package.init = offline
    with pytest.raises(OSError, match=r"could not be fetched \(no route to host\).*pass it as cache"):
        load_thingi10k(7)


def test_without_trimesh_the_message_names_the_extra(tmp_path, monkeypatch):
    path = tmp_path / "ball.stl"
    trimesh.creation.icosphere(subdivisions=1).export(path)
    monkeypatch.setitem(sys.modules, "trimesh", None)
    for action in (lambda: load_mesh(path), lambda: vertex_normals(two_triangles()), lambda: two_triangles().welded()):
        with pytest.raises(ImportError, match=r"swing_gp\[meshes\]"):
            action()
