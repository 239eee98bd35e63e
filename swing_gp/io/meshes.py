r"""Triangle meshes: files in, vertices with unit normals out.

>>> import numpy as np
>>> from swing_gp.io.meshes import Mesh, vertex_normals
>>> corners = np.array([[0.0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]])
>>> tetrahedron = Mesh(corners, np.array([[0, 2, 1], [0, 1, 3], [0, 3, 2], [1, 2, 3]]))
>>> vertex_normals(tetrahedron).values[0].round(3) + 0.0
array([-0.577, -0.577, -0.577])
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from swing_gp.utils.files import whole_file
from swing_gp.utils.validation import check_choice

__all__ = ["Mesh", "MeshError", "VertexNormals", "load_mesh", "load_thingi10k", "require_trimesh", "save_ply", "vertex_normals"]

FORMATS = (".npz", ".stl", ".ply", ".obj", ".off")
# A normal shorter than this, relative to the face normals it was summed from, has no direction: its faces cancel.
CANCELLED = 1e-6


class MeshError(ValueError):
    """A file or arrays that are not a usable mesh; the message says why."""


@dataclass(frozen=True)
class Mesh:
    """A triangle mesh.

    :ivar vertices: (n, 3), float64 and finite.
    :ivar faces: (m, 3), ids of vertices.
    :ivar name: where it came from, for messages and reports.
    """

    vertices: np.ndarray
    faces: np.ndarray
    name: str = "mesh"

    def __post_init__(self) -> None:
        vertices, faces = np.asarray(self.vertices), np.asarray(self.faces)
        if vertices.ndim != 2 or vertices.shape[1] != 3 or len(vertices) == 0:
            raise MeshError(f"{self.name}: the mesh is empty: vertices must have shape (n, 3), n > 0, got {vertices.shape}.")
        if faces.ndim != 2 or faces.shape[1] != 3 or len(faces) == 0:
            raise MeshError(
                f"{self.name}: faces must have shape (m, 3) with m > 0, got {faces.shape}. Normals need triangles: triangulate "
                "the surface first, or give your own values to swing_gp.interpolate, which needs points alone."
            )
        if not np.issubdtype(faces.dtype, np.integer):
            raise MeshError(f"{self.name}: faces must hold integers, got {faces.dtype}.")
        vertices = vertices.astype(np.float64)
        if not np.isfinite(vertices).all():
            bad = int((~np.isfinite(vertices)).any(1).sum())
            raise MeshError(f"{self.name}: {bad} vertices contain NaN or infinity; repair or drop them.")
        if faces.min() < 0 or faces.max() >= len(vertices):
            raise MeshError(f"{self.name}: faces refer to vertices {faces.min()}..{faces.max()}, there are {len(vertices)}.")
        object.__setattr__(self, "vertices", vertices)
        object.__setattr__(self, "faces", faces.astype(np.int64))

    @property
    def num_vertices(self) -> int:
        return len(self.vertices)

    def welded(self) -> Mesh:
        """Without repeated vertices (STL files repeat every vertex for every face) and without vertices of no face."""
        used, faces = np.unique(self.faces, return_inverse=True)
        # Comparing in float32 is what the formats allow: two faces of an STL file write one vertex in the same bits.
        _, first, same = np.unique(self.vertices[used].astype(np.float32), axis=0, return_index=True, return_inverse=True)
        order = np.argsort(first)  # the order of the file, which is often spatial
        rank = np.empty_like(order)
        rank[order] = np.arange(len(order))
        faces = rank[same.reshape(-1)][faces.reshape(self.faces.shape)]
        return replace(self, vertices=self.vertices[used][first[order]], faces=faces)

    def normalized(self) -> Mesh:
        """Centred on its box, and scaled so that the longest side of the box is 2."""
        low, high = self.vertices.min(0), self.vertices.max(0)
        half = 0.5 * float((high - low).max())
        if half == 0:
            raise MeshError(f"{self.name}: all vertices are one point.")
        return replace(self, vertices=(self.vertices - 0.5 * (low + high)) / half)


@dataclass(frozen=True)
class VertexNormals:
    """Unit normals at the vertices of a mesh.

    :ivar values: (n, 3); zero where there is none.
    :ivar valid: which vertices have one, (n,).
    :ivar degenerate_faces: the number of faces without an area, which contribute nothing.
    """

    values: np.ndarray
    valid: np.ndarray
    degenerate_faces: int


def vertex_normals(mesh: Mesh, weighting: str = "angle") -> VertexNormals:
    r"""The normals :math:`\sum_f w_f n_f / |\sum_f w_f n_f|` over the faces f at a vertex.

    :param weighting: the weight of a face: ``"angle"``, its angle at the vertex, which does not depend on how flat parts are
        triangulated, or ``"area"``.

    A vertex whose faces have no area, or cancel, has no normal.
    """
    check_choice("weighting", weighting, ("angle", "area"))
    corners = mesh.vertices[mesh.faces]  # (m, 3 corners, 3)
    edges = np.roll(corners, -1, axis=1) - corners  # from each corner to the next
    cross = np.cross(edges[:, 0], -edges[:, 2])
    doubled = np.linalg.norm(cross, axis=-1)
    longest = np.linalg.norm(edges, axis=-1).max(-1)
    flat = doubled <= 1e-10 * longest**2  # rounding alone gives an area of this order
    units = np.where(flat[:, None], 0.0, cross / np.where(flat, 1.0, doubled)[:, None])
    if weighting == "area":
        weights = np.broadcast_to(doubled[:, None] / 2, mesh.faces.shape)
    else:
        onwards, back = edges, -np.roll(edges, 1, axis=1)
        sines = np.linalg.norm(np.cross(onwards, back), axis=-1)
        weights = np.arctan2(sines, (onwards * back).sum(-1))
    weights = np.where(flat[:, None], 0.0, weights)
    parts = (weights[..., None] * units[:, None]).reshape(-1, 3)
    ids = mesh.faces.reshape(-1)
    totals = np.stack([np.bincount(ids, parts[:, axis], mesh.num_vertices) for axis in range(3)], axis=-1)
    lengths = np.linalg.norm(totals, axis=-1)
    valid = lengths > CANCELLED * np.bincount(ids, weights.reshape(-1), mesh.num_vertices)
    values = np.where(valid[:, None], totals / np.where(valid, lengths, 1.0)[:, None], 0.0)
    return VertexNormals(values, valid, int(flat.sum()))


def load_mesh(path: str | os.PathLike, *, weld: bool = True) -> Mesh:
    """Read a mesh: STL, PLY, OBJ or OFF through trimesh (``pip install 'swing_gp[meshes]'``), or an NPZ file with ``vertices``
    and ``faces``.

    :param weld: merge repeated vertices; see :meth:`Mesh.welded`.
    """
    path = Path(path)
    if path.suffix.lower() not in FORMATS:
        raise MeshError(f"{path}: not a mesh format that is known here; use one of {', '.join(FORMATS)}.")
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file.")
    vertices, faces = _read_npz(path) if path.suffix.lower() == ".npz" else _read_with_trimesh(path)
    mesh = Mesh(vertices, faces, path.stem)
    return mesh.welded() if weld else mesh


def _read_npz(path: Path) -> tuple[np.ndarray, np.ndarray]:
    try:
        with np.load(path, allow_pickle=False) as content:
            return content["vertices"], content["faces"]
    except KeyError as error:
        raise MeshError(f"{path}: an NPZ mesh holds the arrays 'vertices' and 'faces'; {error}.") from error
    except Exception as error:  # numpy and zipfile raise a dozen kinds for a damaged file
        raise MeshError(f"{path}: cannot be read as NPZ; it is damaged or of another format ({error}).") from error


def _read_with_trimesh(path: Path) -> tuple[np.ndarray, np.ndarray]:
    trimesh = require_trimesh()
    try:
        loaded = trimesh.load(path, force="mesh", process=False)
        vertices, faces = np.asarray(loaded.vertices), np.asarray(loaded.faces)
    except Exception as error:  # every reader of trimesh has its own
        raise MeshError(
            f"{path}: cannot be read as {path.suffix[1:].upper()}; it is damaged or of another format ({error})."
        ) from error
    if len(vertices) == 0:
        raise MeshError(f"{path}: no triangles found; the file is empty, damaged, holds points alone or is of another format.")
    return vertices, faces.reshape(-1, 3) if faces.size == 0 else faces


def require_trimesh() -> Any:
    """The package, or an error that names the extra."""
    try:
        import trimesh
    except ImportError as error:
        raise ImportError(
            "STL, PLY, OBJ and OFF files are read and written with trimesh: pip install 'swing_gp[meshes]'."
        ) from error
    return trimesh


def save_ply(path: str | os.PathLike, mesh: Mesh, normals: np.ndarray, colors: np.ndarray | None = None) -> None:
    """Write a mesh with normals, and colours (n, 3) in 0..255 if given, as binary PLY; the file is whole or absent."""
    if normals.shape != mesh.vertices.shape:
        raise ValueError(f"normals must have shape {mesh.vertices.shape} like the vertices, got {normals.shape}.")
    trimesh = require_trimesh()
    content = trimesh.Trimesh(
        mesh.vertices, mesh.faces, vertex_normals=normals, vertex_colors=colors, process=False, validate=False
    )
    with whole_file(path) as temporary:
        temporary.write_bytes(trimesh.exchange.ply.export_ply(content, vertex_normal=True))


def load_thingi10k(file_id: int, *, cache: str | os.PathLike | None = None) -> Mesh:
    """A mesh of the Thingi10K collection by the id of its file.

    :param cache: a folder that is looked through first, for ``<id>.npz``, ``<id>.stl`` and the like, also with
        ``thingi10k_`` in front. What is not there is fetched through the ``thingi10k`` package (``pip install thingi10k``),
        which keeps a cache of its own.
    """
    if cache is not None:
        for name in (f"{file_id}", f"thingi10k_{file_id}"):
            for suffix in FORMATS:
                path = Path(cache) / f"{name}{suffix}"
                if path.is_file():
                    return load_mesh(path)
    try:
        import thingi10k
    except ImportError as error:
        searched = "" if cache is None else f" is not in {cache}, and"
        raise ImportError(f"Thingi10K file {file_id}{searched} is fetched with: pip install thingi10k.") from error
    try:
        thingi10k.init(variant="npz")
        entries = list(thingi10k.dataset(file_id=file_id))
    except Exception as error:  # whatever the network and the hub raise
        raise OSError(
            f"Thingi10K file {file_id} could not be fetched ({error}). Check the network, or put {file_id}.stl into a folder "
            "and pass it as cache."
        ) from error
    if not entries:
        raise MeshError(f"Thingi10K has no file {file_id}.")
    vertices, faces = thingi10k.load_file(entries[0]["file_path"])
    return Mesh(np.asarray(vertices), np.asarray(faces).astype(np.int64), f"thingi10k_{file_id}").welded()
